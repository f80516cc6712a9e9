"""Whether a long run needs more memory than a short one: 100,000 questions, measured at a tenth and at the end.

    python benchmarks/runner_memory.py           3,572 films of 28 questions, about two minutes
    python benchmarks/runner_memory.py --quick   10,000 questions

The server answers at once, films are 100 KB, every answer is committed. The exit code is 1 if the memory of the
process grows by 50 MB or more between a tenth and the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.messages import Plan
from bpals.judges.runner.progress import Snapshot
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.runner import run
from bpals.judges.runner.transport import Endpoint
from bpals.store.ledger import Ledger
from runner_clients import VOCABULARY, films
from runner_throughput import stub

QUESTIONS = 100_000
MOST_MB = 50.0


def resident_mb() -> float:
    """Say how much memory this process has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    """Run, look at the memory on the way, and say by the exit code whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10,000 questions")
    given = parser.parse_args()
    judge = OpenAIJudge(model="stub", topics=False, method="top_k")
    questions = judge.questions(VOCABULARY)
    count = -(-QUESTIONS // len(questions) // (10 if given.quick else 1))
    seen: list[tuple[int, float]] = []

    def look(snapshot: Snapshot) -> None:
        seen.append((snapshot.films_done, resident_mb()))

    with tempfile.TemporaryDirectory(prefix="bpals-bench-") as folder, stub(0.0) as address:
        ledger = Ledger.open(Path(folder) / "ledger.sqlite")
        with ledger, ledger.lock("the benchmark"):
            plan = Plan(
                judge_id=ledger.enrol(judge.card, questions, "noise"),
                questions=questions,
                todo=count,
                endpoints=(Endpoint(url=f"{address}/v1"),),
                pace=RunPolicy(),
            )
            run(judge, films(count), ledger, plan, watch=look)
    at_a_tenth = next(megabytes for done, megabytes in seen if done >= count / 10)
    at_the_end = max(megabytes for done, megabytes in seen if done >= 0.9 * count)
    print(f"{count * len(questions):,} questions: {at_a_tenth:.0f} MB at a tenth, {at_the_end:.0f} MB at the end;")
    print(f"it grew by {at_the_end - at_a_tenth:.1f} MB, less than {MOST_MB:g} was promised.")
    return 0 if at_the_end - at_a_tenth < MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())
