"""How quickly a reading room answers, and what it loses when its server is killed.

    python benchmarks/reading_load.py                     112,120 films, 8 readers, 20 kills; some ten minutes
    python benchmarks/reading_load.py --quick             600 films, 4 readers, 2 kills
    python benchmarks/reading_load.py --ledger postgresql://NAME@HOST/DATABASE

`bpals review serve` runs in a process of its own, and so does every reader, who asks for a case, keeps a draft, locks,
gives the second verdict, and never thinks. First they are left alone, and their waiting is measured. Then the server is
killed with SIGKILL at random moments and started again, until all have read their cases, and what it had acknowledged
is compared with its ledger. Films are not fetched: they come before they are wanted, and are another measure.

The exit code is 1 if the 95th percentile of a next case is 100 ms or more or that of saving 50 ms or more, or if a
verdict is lost or doubled.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import random
import shutil
import socket
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image
from sqlalchemy import select

import bpals
from bpals.room.desk.desk import Desk
from bpals.room.desk.study import load_study
from bpals.store.ledger.ledger import open_ledger
from bpals.store.ledger.schema import READING, REVIEW
from bpals.store.workspace import Workspace
from bpals.tasks.score import vocabulary_of
from bpals.tasks.serve import office, verify_log
from reading_clients import PASSWORD, Server, Watch, answers, compare, kill_at, reading

EXAMPLES = Path(__file__).parents[1] / "examples"
MOST_NEXT_MS, MOST_SAVE_MS = 100.0, 50.0
STEPS = 4
"""Requests a case: next, draft, lock, second."""
STUDY = """name = "load"
readers_per_case = 2
adjudication = "third"
repeats = 0.05
queue_size = {queue}
batch = 50
learn_every = {learn}
"""


def make_workspace(folder: Path, given: argparse.Namespace) -> Path:
    """Audit the embedded record, or for --quick the films of examples/, or copy an audit that is there."""
    home = folder / "audit"
    if given.workspace:
        shutil.copytree(given.workspace, home, ignore=shutil.ignore_patterns("ledger*", ".*"))
    elif given.quick:
        bpals.audit(f"table:{EXAMPLES / 'films.csv'}", mapping=EXAMPLES / "films.toml", workspace=home)
    else:
        bpals.audit(workspace=home)
    return home


def write_films(home: Path, target: Path) -> int:
    """Write a small picture for every film into one zip; they are found there, and never fetched."""
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)
    Image.fromarray(noise).save(buffer, "PNG")
    content = buffer.getvalue()
    names = pl.read_parquet(home / "images.parquet")["image_id"]
    with zipfile.ZipFile(target, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return len(names)


def fill(home: Path, study: Path, ledger: str | None) -> int:
    """Put every film into the study, in the order of doubt, before the room opens."""
    signal = pl.read_parquet(home / "signal.parquet", columns=["image_id", "finding", "review_rank"])
    first = signal.sort("review_rank").unique("image_id", keep="first", maintain_order=True)
    images = pl.read_parquet(home / "images.parquet", columns=["image_id", "patient_id"])
    cases = first.join(images, on="image_id", how="left", maintain_order="left").select(
        "image_id", "patient_id", pl.col("finding").cast(pl.String), how=pl.lit("value"), inclusion=pl.lit(1.0)
    )
    vocabulary = vocabulary_of(signal)
    with open_ledger(Workspace(home), ledger) as book, book.lock("the benchmark"):
        return Desk.open(book, load_study(study, vocabulary)).draw(cases, "sha256:of-the-benchmark")


def admit(home: Path, names: Sequence[str], ledger: str | None) -> None:
    """Give every reader an account."""
    with office(home, ledger) as accounts:
        for name in names:
            accounts.make(name, "reader", password=PASSWORD)


def kept(home: Path, ledger: str | None) -> tuple[list[tuple[str, str, str, str]], int]:
    """Read the reviews of the ledger, and count the readings that share a place of a case."""
    asked = select(REVIEW.c.reading_id, REVIEW.c.phase, REVIEW.c.finding, REVIEW.c.verdict)
    with open_ledger(Workspace(home), ledger, readonly=True) as book, book.reading() as connection:
        rows = [tuple(row) for row in connection.execute(asked)]
        places = [tuple(row) for row in connection.execute(select(READING.c.case_id, READING.c.slot))]
    return rows, len(places) - len(set(places))


def percentiles(told: Sequence[dict[str, Any]], steps: Sequence[str]) -> dict[str, float]:
    """Say how long a step took where it was answered at once, in milliseconds."""
    waited = [each["ms"] for each in told if each["step"] in steps and each["tries"] == 1]
    p50, p95, p99 = np.percentile(waited, [50, 95, 99])
    return {"n": len(waited), "p50": float(p50), "p95": float(p95), "p99": float(p99), "most": float(max(waited))}


def calm(server: Server, names: Sequence[str], cases: int, folder: Path) -> tuple[list[dict[str, Any]], float]:
    """Let everybody read, and nobody be killed."""
    began = time.monotonic()
    with reading(server, names, cases, folder, seed=1):
        pass
    return answers(folder, names), time.monotonic() - began


def killed(server: Server, names: Sequence[str], given: argparse.Namespace, folder: Path) -> int:
    """Kill the server at random moments while everybody reads; give how often."""
    dice = random.Random(given.seed)  # noqa: S311  what is drawn is no secret
    whole = STEPS * given.killed_cases * len(names)
    moments = dice.sample(range(len(names), whole - len(names)), given.kills)
    with reading(server, names, given.killed_cases, folder, seed=2) as readers:
        return kill_at(server, Watch(folder, names), moments, readers, dice)


def report(told: dict[str, Any], given: argparse.Namespace) -> int:
    """Print what was seen, and give the exit code."""
    for name, limit in (("next", MOST_NEXT_MS), ("save", MOST_SAVE_MS)):
        each = told[name]
        print(f"{name:<5} p50 {each['p50']:6.1f} ms   p95 {each['p95']:6.1f} ms (below {limit:.0f})   "
              f"p99 {each['p99']:6.1f} ms   most {each['most']:7.1f} ms   n {each['n']:,}")  # fmt: skip
    print(f"{told['verdicts']:,} verdicts acknowledged in {told['reads']:,} reads, {told['kills']} kills: "
          f"{told['lost']} lost, {told['doubled']} doubled; started again in {told['start_s']:.1f} s at the median; "
          f"log {'whole' if not told['log'] else told['log'][0]}")  # fmt: skip
    slow = told["next"]["p95"] >= MOST_NEXT_MS or told["save"]["p95"] >= MOST_SAVE_MS
    bad = told["lost"] or told["doubled"] or told["log"] or told["kills"] < given.kills
    return int(bool(slow or bad))


def parsed() -> argparse.Namespace:
    """Read the command line; --quick sets what was not given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workspace", type=Path, help="an audit that is there; it is copied from, not changed")
    parser.add_argument("--ledger", help="a PostgreSQL address; by default the workspace's SQLite file")
    parser.add_argument("--readers", type=int)
    parser.add_argument("--cases", type=int, help="cases a reader, undisturbed")
    parser.add_argument("--killed-cases", type=int, help="cases a reader, with kills")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--learn-every", type=int, default=1_000_000, help="locks after which the room learns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    usual = {"readers": 4, "cases": 20, "killed_cases": 30, "kills": 2}
    if not given.quick:
        usual = {"readers": 8, "cases": 150, "killed_cases": 650, "kills": 20}
    for name, value in usual.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


def main() -> int:
    """Make a workspace, fill it, read, kill, compare."""
    given = parsed()
    with tempfile.TemporaryDirectory(prefix="bpals-load-") as place:
        folder = Path(place)
        home = make_workspace(folder, given)
        films = write_films(home, folder / "films.zip")
        study = folder / "load.toml"
        study.write_text(STUDY.format(queue=films, learn=given.learn_every))
        names = [f"reader{number}" for number in range(given.readers)]
        cases = fill(home, study, given.ledger)
        admit(home, names, given.ledger)
        print(f"{films:,} films, {cases:,} cases, {given.readers} readers; {platform.platform()}, "
              f"Python {platform.python_version()}, bpals {bpals.__version__}, "
              f"{'PostgreSQL' if given.ledger else 'SQLite'}", flush=True)  # fmt: skip
        told = measure(given, home, names, folder)
    if given.json:
        given.json.write_text(json.dumps(told, indent=1))
    return report(told, given)


def measure(given: argparse.Namespace, home: Path, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Open the room, let everybody read, and compare what came of it."""
    words = ["--workspace", str(home), "--images", str(folder / "films.zip"), "--study", str(folder / "load.toml")]
    words += ["--ledger", given.ledger] if given.ledger else []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Server(words=words, port=port, errors=folder / "server.log")
    server.start()
    try:
        (folder / "calm").mkdir()
        (folder / "killed").mkdir()
        quiet, took = calm(server, names, given.cases, folder / "calm")
        print(f"undisturbed: {len(quiet):,} requests in {took:.1f} s", flush=True)
        kills = killed(server, names, given, folder / "killed")
    finally:
        server.kill()
    told = [*quiet, *answers(folder / "killed", names)]
    rows, shared = kept(home, given.ledger)
    lost, doubled = compare(told, rows)
    reads = [each for each in told if each["step"] in {"lock", "second"}]
    return {
        "next": percentiles(quiet, ["next"]),
        "save": percentiles(quiet, ["draft", "lock", "second"]),
        "reads": len(reads),
        "verdicts": sum(len(each["verdicts"]) for each in reads),
        "kills": kills,
        "lost": lost,
        "doubled": doubled + shared,
        "start_s": float(np.median(server.starts)),
        "log": list(verify_log(home, ledger=given.ledger).found),
    }


if __name__ == "__main__":
    sys.exit(main())
