"""What Ray costs and brings: the same judge over the same films without Ray, with one worker, and with two.

    python benchmarks/ray_overhead.py

The judge is made up: it looks at each film for a fixed time of computing (--work-ms), so that nothing depends on
weights. Films are drawn, 512 px, and are prepared where they are judged. The start of Ray and that of its workers are
timed apart: they are paid once. Two workers can be twice as fast as one only where each has a core of its own, and so
has the process that prepares its films; the number of cores is printed beside the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from bpals.judgeorder import Order
from bpals.judges.pace import Pace
from bpals.judges.rayengine import RayEngine, RaySession
from bpals.judging import run_judge
from bpals.workspace import Workspace

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

    def ask(self, home: Path, engine: RayEngine | None) -> tuple[float, bytes]:
        """Ask the judge about all of them in a new workspace; give the seconds and what was sealed."""
        order = Order(
            source=f"table:{self.folder / 'films.csv'}",
            mapping=str(self.folder / "films.toml"),
            pace=Pace(commit_every_s=0.02),
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


def measure(films: Films, folder: Path, few: int) -> dict[str, float]:
    """Time all films and a few of them each way: the difference is what a film costs, and the rest the start."""
    found: dict[str, float] = {}
    sealed = set()
    ways = {"plain": None, "ray_1": RayEngine(workers=1), "ray_2": RayEngine(workers=2)}
    began = time.monotonic()
    with RaySession(RayEngine(workers=2)):
        found["ray_start_s"] = time.monotonic() - began
        for name, engine in ways.items():
            small = Films(folder=folder / "few", count=few, spec=films.spec)
            start_s, _ = small.ask(folder / f"{name}-few", engine)
            all_s, table = films.ask(folder / name, engine)
            sealed.add(table)
            found[f"{name}_s"] = all_s
            found[f"{name}_ms_a_film"] = 1000 * (all_s - start_s) / (films.count - few)
            found[f"{name}_start_s"] = start_s - few * found[f"{name}_ms_a_film"] / 1000
    found["same_judgments"] = float(len(sealed) == 1)
    return found


def main() -> int:
    """Measure, and print what Ray costs a film and what two workers bring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--films", type=int, default=400)
    parser.add_argument("--work-ms", type=float, default=40.0, help="computing of the judge a film")
    parser.add_argument("--few", type=int, default=40, help="films of the short run that times the start")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        films = draw(folder, given.films, given.work_ms)
        (folder / "few").mkdir()
        draw(folder / "few", given.few, given.work_ms)
        found = measure(films, folder, given.few)
    found["cores"] = float(os.cpu_count() or 1)
    if given.json:
        print(json.dumps(found, indent=1))
        return 0
    plain, one, two = (found[f"{name}_ms_a_film"] for name in ("plain", "ray_1", "ray_2"))
    work = f"a judge that computes {given.work_ms:.0f} ms a film"
    print(f"{given.films:,} films of 512 px, {work}, {found['cores']:.0f} cores")
    print(f"plain, one process that prepares films  {plain:6.1f} ms a film")
    print(f"Ray, one worker                         {one:6.1f} ms a film, overhead {one - plain:+.1f} ms")
    print(f"Ray, two workers                        {two:6.1f} ms a film, {one / two:.2f} times one worker")
    print(f"once: Ray itself {found['ray_start_s']:.1f} s, its workers {found['ray_1_start_s']:.1f} s")
    print(f"the same judgments each way: {'yes' if found['same_judgments'] else 'NO'}")
    return 0 if found["same_judgments"] else 1


if __name__ == "__main__":
    sys.exit(main())
