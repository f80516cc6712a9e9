"""What merging costs: shards of 28 questions a film, brought into one ledger; its speed, and whether memory grows.

    python benchmarks/merge_cost.py                  8 shards of 500 films
    python benchmarks/merge_cost.py --films 112120   all of NIH: 3,139,360 replies

The replies are made up and have the evidence of a real one: a text and two tokens. Sealing is part of it. The exit code
is 1 if the process has 100 MB more at the end of the last shard than at the end of the first.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path

from bpals.findings import NIH
from bpals.judges.runner.messages import to_judgments
from bpals.store.ledger import AskedFilm, Ledger
from bpals.store.ledger.transfer import FILMS_AT_ONCE
from bpals.store.shards import Shard
from bpals.store.workspace import Workspace
from bpals.tasks.merge import merge
from bpals.types import JudgeCard, Question, Reply, Usage

SHARDS = 8
MOST_MB = 100.0
QUESTIONS = tuple(
    Question(subject=finding, polarity=polarity, text=f"{polarity}: {finding}?")
    for finding in NIH.findings
    for polarity in ("present", "absent")
)
CARD = JudgeCard(judge="made-up", kind="image", version="1")


def resident_mb() -> float:
    """Say how much memory this process has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def film(image_id: str) -> AskedFilm:
    """Make up what a judge said of one film."""
    top = (("Yes", math.log(0.9)), ("No", math.log(0.1)))
    usage = Usage(prompt=300, cached=270, output=1)
    logit = (int(image_id[:6]) % 97) / 10 - 5
    replies = [
        Reply(outcome="answered", logit=logit, mass=0.98, method="top_k", text="Yes", top=top, usage=usage)
        for _ in QUESTIONS
    ]
    return AskedFilm(image_id=image_id, sha256=image_id, replies=replies, judgments=to_judgments(QUESTIONS, replies))


def write_shards(folder: Path, count: int) -> list[Path]:
    """Write the shards as as many runs would have left them."""
    names = [f"{number:06}.png" for number in range(count)]
    homes = []
    for part in range(1, SHARDS + 1):
        home = folder / f"w{part}"
        Workspace(home).remember(source="nih")
        mine = [name for name in names if Shard(part, SHARDS).holds(name)]
        with Ledger.open(home / "ledger.sqlite") as ledger:
            judge_id = ledger.enrol(CARD, QUESTIONS, "nih")
            run_id = ledger.begin(judge_id, {"shard": f"{part}/{SHARDS}"}, {})
            for start in range(0, len(mine), FILMS_AT_ONCE):
                ledger.write(judge_id, run_id, [film(name) for name in mine[start : start + FILMS_AT_ONCE]])
            ledger.end(run_id, "done", {})
        homes.append(home)
    return homes


def main() -> int:
    """Merge, look at the memory on the way, merge again, and say what both took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", type=int, default=4000)
    given = parser.parse_args()
    memory: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        homes = write_shards(folder, given.films)
        began = time.monotonic()
        done = merge(homes, workspace=folder / "all", watch=lambda _judge, _films: memory.append(resident_mb()))
        first_s = time.monotonic() - began
        began = time.monotonic()
        again = merge(homes[::-1], workspace=folder / "all")
        second_s = time.monotonic() - began
    assert (done.judges[0].run.films, done.clashing) == (given.films, 0)  # noqa: S101  a bench that must not lie
    assert again.judges[0].new == 0  # noqa: S101
    grown = memory[-1] - memory[len(memory) // SHARDS]
    print(f"{given.films:,} films, {given.films * len(QUESTIONS):,} replies, {SHARDS} shards")
    print(f"merged and sealed in {first_s:.1f} s: {given.films / first_s:,.0f} films/s")
    print(f"again, where all is known: {second_s:.1f} s: {given.films / second_s:,.0f} films/s")
    print(f"memory while merging: {memory[-1]:.0f} MB, {grown:+.1f} MB from the first shard to the last")
    print(f"all of NIH at this rate: {112_120 / given.films * first_s / 60:.1f} minutes")
    return int(grown >= MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
