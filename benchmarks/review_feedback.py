"""Replay real reads through the desk of a reading room, and print what they change: trust, queue and error rate.

    python benchmarks/review_feedback.py --expert PATH                    audits NIH first, a minute
    python benchmarks/review_feedback.py --expert PATH --workspace DIR    an audit without expert labels, copied

PATH is the folder of the four-findings labels and their reads. A study about pneumothorax is opened on the films that
radiologists read. Its queue is drawn from the audit; each case that the desk hands out is answered with what one of
these radiologists said of that film. After every 50 readings the reads become a new signal, and a new queue, as in
the room. The error rate is that of the films that were read, which were chosen to hold many errors.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

import bpals
from bpals.findings import NIH
from bpals.metrics import Curve
from bpals.reviews.ledger_reads import blind_reads
from bpals.reviews.verdicts import load, load_reads
from bpals.room.desk.desk import Desk
from bpals.room.desk.readings import Answer, Spent, Verdict
from bpals.room.desk.study import Account, Study
from bpals.store.ledger import Ledger
from bpals.store.ledger.schema import ACCOUNT
from bpals.tasks.reading_list import draw_cases
from bpals.tasks.relearn import Relearned, relearn, version
from bpals.tasks.study_progress import gather, progress
from bpals.types import Reviews

READS = "four_findings_readers.csv"
FINDING = "Pneumothorax"
EVERY = 50
SPENT = Spent(active_s=20.0, wall_s=25.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A desk, and what the radiologists said of its films."""

    desk: Desk
    reader: Account
    said: Mapping[str, Verdict]

    def read(self, number: int) -> None:
        """Answer so many cases."""
        for _ in range(number):
            view = self.desk.next(self.reader, ahead=0).current
            if view is None:
                raise SystemExit("the queue is empty: fewer films were read than --n asks for")
            answer = Answer(verdicts={FINDING: self.said[view.image_id]})
            key = f"replay-{view.reading_id}"
            self.desk.lock(self.reader, view.reading_id, version=view.version, key=key, answer=answer, spent=SPENT)

    def reads(self) -> Reviews:
        """Give what the ledger holds, as reads."""
        return blind_reads(self.desk.reviews(), NIH)


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expert", type=Path, required=True, metavar="PATH", help="the folder of labels and reads")
    parser.add_argument("--workspace", type=Path, metavar="DIR", help="an audit of NIH without expert labels")
    parser.add_argument("--n", type=int, default=200, help="readings")
    parser.add_argument("--seed", type=int, default=0, help="of the queue, and of which read of a film is replayed")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "audit"
        if said.workspace is None:
            bpals.audit("nih", workspace=home)
        else:
            shutil.copytree(said.workspace, home)
        replay(home, said.expert, said.n, said.seed)


def replay(home: Path, expert: Path, n: int, seed: int) -> None:
    """Read, learn and draw by turns, and print a line after each."""
    verdicts = one_read_each(expert, seed)
    study = Study(
        name="replay", findings=(FINDING,), queue_size=500, batch=EVERY, repeats=0.0, readers_per_case=1,
        adjudication="none", reveal=False, learn_every=EVERY, seed=seed,
    )  # fmt: skip
    truth = adjudicated(expert)
    print(f"{len(verdicts):,} films with reads of {FINDING}; {int(truth['present'].sum())} show it by adjudication")
    print("\n| readings | errors found | at random | trusts changed | flags changed | new in the first 500 |", end="")
    print(" error rate (95 %) | width | s, processor | s, clock |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    with Ledger.open(home / "ledger.sqlite") as ledger:
        desk = Desk.open(ledger, study)
        run = Replay(desk=desk, reader=enter(ledger), said=verdicts)
        desk.draw(draw_cases(home, study, films=set(verdicts)), version(home))
        first = about_it(home)
        print("| 0 | 0 | | | | | not known | 1.000 | | |")
        done = 0
        while done < n:
            run.read(min(EVERY, n - done))
            done += min(EVERY, n - done)
            began = (time.process_time(), time.monotonic())
            learned = relearn(home, run.reads())
            desk.draw(draw_cases(home, study, run.reads(), films=set(verdicts)), learned.version, replace=True)
            took = (time.process_time() - began[0], time.monotonic() - began[1])
            told = progress(home, gather(desk), study, films=set(verdicts))
            print_line(done, told, learned, took)
        summary((first, about_it(home)), truth, run.reads(), learned)


def print_line(done: int, told: Mapping[str, object], learned: Relearned, took: tuple[float, float]) -> None:
    """Print what is so after so many readings."""
    rate, last = told["errors"][-1], told["series"][-1]  # type: ignore[index]
    known = rate["rate"] is not None
    words = f"{rate['rate']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})" if known else "not known"
    width = rate["high"] - rate["low"] if known else 1.0
    random = "" if last["random"] is None else f"{last['random']:.1f}"
    changed = learned.changed
    cells = [
        f"{done}",
        f"{last['found']}",
        random,
        f"{changed['trust']:,}",
        f"{changed['flag']:,}",
        f"{changed['first']}",
    ]
    print(f"| {' | '.join(cells)} | {words} | {width:.3f} | {took[0]:.1f} | {took[1]:.1f} |", flush=True)


def one_read_each(expert: Path, seed: int) -> dict[str, Verdict]:
    """Choose one real read of each film."""
    reads = load_reads(expert / READS, vocabulary=NIH).table.filter(pl.col("finding") == FINDING)
    order = np.random.default_rng(seed).permutation(reads.height)
    chosen = reads.sort("image_id", "reader")[order].unique("image_id", keep="first", maintain_order=True)
    return dict(zip(chosen["image_id"], chosen["verdict"].cast(pl.String), strict=True))


def adjudicated(expert: Path) -> pl.DataFrame:
    """Read what was settled on, film by film."""
    labels = load(f"four-findings={expert}", vocabulary=NIH)
    return labels.truth.filter(pl.col("finding") == FINDING).select("image_id", "present")


def enter(ledger: Ledger) -> Account:
    """Make the account of the reader."""
    row = {"name": "replay", "role": "reader", "disabled": 0, "at": "2026-01-01T00:00:00.000+00:00"}
    ledger.change(lambda connection: connection.execute(ACCOUNT.insert(), [row]))
    return Account(account_id=1, name="replay", role="reader")


def about_it(home: Path) -> pl.DataFrame:
    """Read what the signal says of the finding."""
    signal = pl.read_parquet(home / "signal.parquet", columns=["image_id", "finding", "says", "trust"])
    return signal.filter(pl.col("finding") == FINDING)


def precision(signal: pl.DataFrame, truth: pl.DataFrame, read: Reviews) -> float:
    """Say how well the trust finds the errors of adjudicated films that were not read here: average precision."""
    own = signal.join(truth, on="image_id").join(read.table, on="image_id", how="anti")
    wrong = ((own["says"] == "present") != own["present"]).to_numpy()
    return float(Curve.of(1 - own["trust"].to_numpy(), wrong).average_precision()[0])


def summary(signals: tuple[pl.DataFrame, pl.DataFrame], truth: pl.DataFrame, read: Reviews, learned: Relearned) -> None:
    """Say what the reads did to the finding they were about."""
    print()
    for side in ("present", "absent"):
        before, after = (float(np.nanmean(signal.filter(pl.col("says") == side)["trust"])) for signal in signals)
        print(f"mean trust of claimed {side}, all of NIH: {before:.3f} before, {after:.3f} after")
    before, after = (precision(signal, truth, read) for signal in signals)
    print(f"average precision at finding the errors of the adjudicated films left over: {before:.3f}, {after:.3f}")
    print(f"fitted: {learned.fitted or 'nothing'}")


if __name__ == "__main__":
    main()
