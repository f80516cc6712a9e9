"""What Ray costs and brings: the same judge over the same films without Ray, with one worker, and with two.

    python benchmarks/ray_overhead.py               three interleaved rounds, about four minutes
    python benchmarks/ray_overhead.py --write       and put the figures into docs/scale.md

The judge is made up: it looks at each film for a fixed time of computing (--work-ms), so that nothing depends on
weights. Films are drawn, 512 px, and are prepared where they are judged. The start of Ray and that of its workers are
timed apart: they are paid once. Two workers can be twice as fast as one only where each has a core of its own, and so
has the process that prepares its films; the number of cores is printed beside the ratio.
"""

from __future__ import annotations

import argparse
import itertools
import operator
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from bpals.judges.runner.ray_executor import RayExecutor, RaySession
from bpals.judges.runner.retry import RunPolicy
from bpals.store.workspace import Workspace
from bpals.tasks.judge import Order, run_judge
from section import Section

SECTION = Section(
    Path(__file__).parents[1] / "docs" / "scale.md",
    "<!-- python benchmarks/ray_overhead.py --write -->",
    "<!-- /ray_overhead -->",
)
WAYS = {"plain": 0, "ray_1": 1, "ray_2": 2}
"""Name -> workers of Ray."""

JUDGE = '''
"""A judge that computes for a fixed time."""

import time

import bpals


@bpals.judge("busy")
def busy(image):
    until = time.process_time() + {work_ms} / 1000
    while time.process_time() < until:
        pass
    return {{"Effusion": image.getpixel((9, 9)) / 300}}
'''
MAPPING = """
name = "drawn"

[columns]
image = "image_id"
patient = "image_id"

[labels]
layout = "columns"
audited = ["Effusion"]

[values]
present = ["1"]
absent = ["0"]
"""


@dataclass(frozen=True)
class Films:
    """Where the drawn films lie."""

    folder: Path
    count: int
    spec: str

    def ask(self, home: Path, engine: RayExecutor | None) -> tuple[float, bytes]:
        """Ask the judge about all of them in a new workspace; give the seconds and what was sealed."""
        order = Order(
            source=f"table:{self.folder / 'films.csv'}",
            mapping=str(self.folder / "films.toml"),
            pace=RunPolicy(commit_every_s=0.02),
            engine=engine,
            workers=1,
        )
        began = time.monotonic()
        done = run_judge(self.spec, images=self.folder / "films", workspace=home, order=order)
        seconds = time.monotonic() - began
        assert (done.state, done.films) == ("done", self.count), done  # noqa: S101  a bench that must not lie
        sealed = Workspace(home).judge("busy").read("busy.parquet")
        shutil.rmtree(home)
        return seconds, sealed


def draw(folder: Path, count: int, work_ms: float) -> Films:
    """Draw films, and write the table that names them and the judge that is asked."""
    dice = np.random.default_rng(0)
    (folder / "films").mkdir()
    names = [f"{number:06}.png" for number in range(count)]
    for name in names:
        Image.fromarray(dice.integers(0, 256, (512, 512), dtype=np.uint8)).save(folder / "films" / name)
    lines = ["image_id,Effusion", *(f"{name},{number % 2}" for number, name in enumerate(names))]
    (folder / "films.csv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "films.toml").write_text(MAPPING, encoding="utf-8")
    (folder / "judge.py").write_text(JUDGE.format(work_ms=work_ms), encoding="utf-8")
    return Films(folder=folder, count=count, spec=f"python:{folder / 'judge.py'}")


@dataclass
class Found:
    """What was measured, round by round."""

    ray_start_s: float = 0.0
    ms_a_film: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in WAYS})
    start_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in WAYS})
    same_judgments: bool = True

    def compared(self, first: str, second: str, how: Callable[[float, float], float]) -> list[float]:
        """Compare two ways within each round."""
        pairs = zip(self.ms_a_film[first], self.ms_a_film[second], strict=True)
        return [how(one, other) for one, other in pairs]


def measure(films: Films, folder: Path, few: int, rounds: int) -> Found:
    """Time all films and a few of them each way: the difference is what a film costs, and the rest the start."""
    found, sealed = Found(), set()
    small = Films(folder=folder / "few", count=few, spec=films.spec)
    began = time.monotonic()
    with RaySession(RayExecutor(workers=2)):
        found.ray_start_s = time.monotonic() - began
        for _, (name, workers) in itertools.product(range(rounds), WAYS.items()):
            engine = RayExecutor(workers=workers) if workers else None
            start_s, _ = small.ask(folder / f"{name}-few", engine)
            all_s, table = films.ask(folder / name, engine)
            sealed.add(table)
            a_film = (all_s - start_s) / (films.count - few)
            found.ms_a_film[name].append(1000 * a_film)
            found.start_s[name].append(start_s - few * a_film)
    found.same_judgments = len(sealed) == 1
    return found


def middle(values: Sequence[float], form: str) -> str:
    """Write the median of the rounds and how far they lie apart."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def told(found: Found, given: argparse.Namespace) -> list[str]:
    """Write what was measured."""
    overhead = middle(found.compared("ray_1", "plain", operator.sub), "+.1f")
    gain = middle(found.compared("ray_1", "ray_2", operator.truediv), ".2f")
    plain, one, two = (middle(found.ms_a_film[name], ".1f") for name in WAYS)
    work = f"a judge that computes {given.work_ms:.0f} ms a film"
    return [
        f"{given.films:,} films of 512 px, {work}, {os.cpu_count()} cores, {given.rounds} interleaved rounds",
        f"plain, one process that prepares films: {plain} ms a film",
        f"Ray, one worker: {one} ms a film, overhead {overhead} ms",
        f"Ray, two workers: {two} ms a film, {gain} times as fast as one",
        f"once: Ray itself {found.ray_start_s:.1f} s, its workers {middle(found.start_s['ray_1'], '.1f')} s",
        f"the same judgments each way: {'yes' if found.same_judgments else 'NO'}",
    ]


def main() -> int:
    """Measure, and print what Ray costs a film and what two workers bring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--films", type=int, default=400)
    parser.add_argument("--work-ms", type=float, default=40.0, help="computing of the judge a film")
    parser.add_argument("--few", type=int, default=40, help="films of the short run that times the start")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/scale.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        films = draw(folder, given.films, given.work_ms)
        (folder / "few").mkdir()
        draw(folder / "few", given.few, given.work_ms)
        found = measure(films, folder, given.few, given.rounds)
    lines = told(found, given)
    print("\n".join(lines))
    if given.write:
        SECTION.write("\n".join(f"- {line[0].upper()}{line[1:]}." for line in lines))
    return 0 if found.same_judgments else 1


if __name__ == "__main__":
    sys.exit(main())
