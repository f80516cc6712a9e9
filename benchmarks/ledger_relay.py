"""What readers wait while a judge run beside them writes through the process that serves them.

    python benchmarks/ledger_relay.py            20 s alone, 20 s with the run; about a minute
    python benchmarks/ledger_relay.py --quick    a tenth of that

8 threads of the serving process submit verdicts without a pause, 14 reviews in a transaction each. Then another process
relays whole films of 28 questions, 16 in a commit, as fast as they are taken: no judge answers that quickly. Last the
same process writes them itself, without readers. The exit code is 1 if the 99th of a hundred submits waits a second or
longer, if one is refused, or if a review or a film is missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import polars as pl
from sqlalchemy import func, insert, select

from bpals.findings import NIH
from bpals.judges.runner.messages import to_judgments
from bpals.store.ledger import AskedFilm, Ledger
from bpals.store.ledger.relay import for_a_run, serving
from bpals.store.ledger.schema import FILM, REVIEW
from bpals.types import JudgeCard, Question, Reply, Usage

READERS = 8
IN_A_COMMIT = 16
MOST_WAIT_S = 1.0
QUESTIONS = tuple(
    Question(subject=finding, polarity=side) for finding in NIH.findings for side in ("present", "absent")
)


def run_judge(path: Path, seconds: float) -> None:
    """Write films for a while, through the serving process if there is one, and print how many."""
    said = Reply(
        outcome="answered",
        logit=-1.6,
        mass=0.98,
        method="top_k",
        text="No",
        top=tuple((f"w{number}", -1.0 - number) for number in range(20)),
        usage=Usage(prompt=300, cached=280, output=1),
    )
    replies = [said] * len(QUESTIONS)
    judgments = to_judgments(QUESTIONS, replies)
    with for_a_run(path) as ledger:
        judge = ledger.enrol(JudgeCard(judge="stub", kind="image", version="1"), QUESTIONS, "nih")
        run = ledger.begin(judge, {}, {})
        written, first, ends = 0, len(ledger.done(judge)), time.monotonic() + seconds
        while time.monotonic() < ends:
            names = [f"{first + written + number:08}.png" for number in range(IN_A_COMMIT)]
            ledger.write(
                judge, run, [AskedFilm(image_id=n, sha256=n, replies=replies, judgments=judgments) for n in names]
            )
            written += IN_A_COMMIT
    print(written)


def submit(ledger: Ledger, reader: int, stop: threading.Event, waits: list[float]) -> None:
    """Submit verdicts without a pause, and note how long each took to be durable."""
    number = 0
    while not stop.is_set():
        rows = [
            {"image_id": f"{number:08}.png", "finding": finding, "reader": f"reader {reader}", "phase": "blind",
             "verdict": "absent", "source": "room", "at": "now"}
            for finding in NIH.findings
        ]  # fmt: skip
        began = time.perf_counter()
        ledger.change(lambda connection, rows=rows: connection.execute(insert(REVIEW), rows))  # type: ignore[misc]
        waits.append(time.perf_counter() - began)
        number += 1


def read_for(ledger: Ledger, seconds: float, beside: list[str] | None) -> tuple[list[float], float, int]:
    """Let all readers submit for a while, perhaps with a run beside them; give their waits, the time, and the films."""
    stop, films, began = threading.Event(), 0, time.perf_counter()
    waits: list[float] = []
    run = subprocess.Popen(beside, stdout=subprocess.PIPE, text=True) if beside else None
    threads = [threading.Thread(target=submit, args=(ledger, reader, stop, waits)) for reader in range(READERS)]
    for thread in threads:
        thread.start()
    if run:
        films = int(run.communicate()[0])
    else:
        time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return waits, time.perf_counter() - began, films


def show(what: str, waits: list[float], seconds: float) -> float:
    """Print how long submits waited, and give the 99th of a hundred."""
    shares = {share: pl.Series(waits).quantile(share, "nearest") or 0.0 for share in (0.5, 0.95, 0.99, 1.0)}
    p50, p95, p99, longest = (value * 1000 for value in shares.values())
    print(
        f"{what:28} {len(waits):7,} submits, {len(waits) / seconds:5.0f} a second; "
        f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms, longest {longest:.0f} ms"
    )
    return shares[0.99]


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--run", nargs=2, metavar=("FILE", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run_judge(Path(given.run[0]), float(given.run[1]))
        return 0
    seconds = 2.0 if given.quick else 20.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        beside = [sys.executable, __file__, "--run", str(path), str(seconds)]
        with Ledger.open(path) as ledger, serving(ledger):
            alone, took, _ = read_for(ledger, seconds, None)
            show("readers alone", alone, took)
            waits, took, films = read_for(ledger, seconds, beside)
            p99 = show("with a run beside them", waits, took)
            reviews = ledger.look(lambda c: c.execute(select(func.count()).select_from(REVIEW)).scalar_one())
            kept = ledger.look(lambda c: c.execute(select(func.count()).select_from(FILM)).scalar_one())
        print(f"{'the run, relayed':28} {films:7,} films, {films / seconds:5.0f} a second")
        direct = int(subprocess.run(beside, stdout=subprocess.PIPE, text=True, check=True).stdout)
        print(f"{'the run, by itself':28} {direct:7,} films, {direct / seconds:5.0f} a second")
    whole = reviews == 14 * (len(alone) + len(waits)) and kept == films
    print(f"lost or doubled: {'none' if whole else 'SOME'}; refused as locked: none")
    return 0 if whole and p99 < MOST_WAIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
