"""What it takes to go on where a run stopped: a ledger with 3.14 million answered calls.

    python benchmarks/runner_resume.py           112,120 films of 28 questions; a minute or two, to write them
    python benchmarks/runner_resume.py --quick   a twentieth of the films

Resuming is: open the ledger, take its lock, enrol the judge, ask which films are done, and find the ones that are not.
It is measured in a process of its own. The exit code is 1 if it takes more than 5 s or 300 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from peak import peak_mb

FILMS = 112_120
LEFT = 100
MOST_S, MOST_MB = 5.0, 300.0


def names(count: int) -> Iterator[str]:
    """Name films as NIH does."""
    return (f"{number // 10:08}_{number % 10:03}.png" for number in range(count))


def fill(path: Path, count: int) -> None:
    """Write what a judge said about every film but the last hundred, with the ledger's own code."""
    from bpals.judges.openai import OpenAIJudge  # noqa: PLC0415
    from bpals.judges.runner.messages import to_judgments  # noqa: PLC0415
    from bpals.store.ledger import AskedFilm, Ledger  # noqa: PLC0415
    from bpals.types import Reply, Usage  # noqa: PLC0415
    from runner_clients import VOCABULARY  # noqa: PLC0415

    judge = OpenAIJudge(model="stub", topics=False, method="top_k")
    questions = judge.questions(VOCABULARY)
    top = tuple((f"w{number}", -1.0 - number) for number in range(20))
    usage = Usage(prompt=300, cached=280, output=1)
    said = Reply(
        outcome="answered", logit=-1.6, mass=0.98, method="top_k", text="No", top=top, usage=usage, latency_s=0.1
    )
    replies = [said] * len(questions)
    judgments = to_judgments(questions, replies)
    with Ledger.open(path) as ledger, ledger.lock("the benchmark"):
        judge_id = ledger.enrol(judge.card, questions, "noise")
        run_id = ledger.begin(judge_id, {}, {})
        todo = names(count - LEFT)
        while some := list(islice(todo, 1000)):
            films = [AskedFilm(image_id=name, sha256="0" * 64, replies=replies, judgments=judgments) for name in some]
            ledger.write(judge_id, run_id, films)
        ledger.end(run_id, "interrupted", {})


def resume(path: Path, count: int) -> None:
    """Do what a resumed run does before its first request, and print what it took."""
    from bpals.judges.openai import OpenAIJudge  # noqa: PLC0415
    from bpals.store.ledger import Ledger  # noqa: PLC0415
    from runner_clients import VOCABULARY  # noqa: PLC0415

    judge = OpenAIJudge(model="stub", topics=False, method="top_k")
    began = time.perf_counter()
    with Ledger.open(path) as ledger, ledger.lock("the benchmark"):
        judge_id = ledger.enrol(judge.card, judge.questions(VOCABULARY), "noise")
        done = ledger.done(judge_id)
        todo = [name for name in names(count) if name not in done]
    seconds = time.perf_counter() - began
    if len(todo) != LEFT:
        sys.exit(f"{len(todo)} films are left and {LEFT} should be")
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb()}))


def main() -> int:
    """Fill a ledger, resume, and say by the exit code whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the films")
    parser.add_argument("--fill", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--resume", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--films", type=int, default=FILMS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fill or given.resume:
        fill(given.fill, given.films) if given.fill else resume(given.resume, given.films)
        return 0
    count = FILMS // 20 if given.quick else FILMS
    with tempfile.TemporaryDirectory(prefix="bpals-bench-") as folder:
        path = Path(folder) / "ledger.sqlite"
        began = time.perf_counter()
        # Each in a process of its own, and nothing heavy in this one: a child's peak is never below its parent's.
        line = [sys.executable, __file__, "--films", str(count)]
        subprocess.run([*line, "--fill", str(path)], check=True)
        print(f"written in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        told = subprocess.run([*line, "--resume", str(path)], check=True, stdout=subprocess.PIPE, text=True)
        took = json.loads(told.stdout)
        size_mb = path.stat().st_size / 1e6
    calls = (count - LEFT) * 28
    print(f"Resume over {calls:,} done calls ({size_mb:,.0f} MB): {took['seconds']:.2f} s,")
    print(f"at most {MOST_S:g} was promised; peak memory {took['peak_mb']:.0f} MB, at most {MOST_MB:g} was promised.")
    return 0 if took["seconds"] <= MOST_S and took["peak_mb"] <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())
