"""An audit that is killed: every reader sees the whole old output, the whole new one, or none."""

import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

import bpals
from bpals.cli.main import obey
from bpals.errors import WorkspaceError
from bpals.store.workspace import Workspace
from world import workspaces
from world.waiting import wait_until
from world.words import mentions

SEALING = ("signal.parquet", "report.html", "run.json")
"""Files whose appearance in the staging folder says that the end is near: there a kill does the most harm."""


@dataclass(frozen=True)
class Outputs:
    """An old audit, the words that make a new one of other data, and how to tell the two apart."""

    old: Path
    new_words: list
    hashes: dict
    """Hash of signal.parquet -> `old` or `new`."""
    reference: str
    seconds: float
    """How long the new audit takes."""


@pytest.fixture(scope="module")
def outputs(start_bpals, write_films, tmp_path_factory):
    """Two audits of made-up films: one to be written over, one to be killed."""
    folder = tmp_path_factory.mktemp("kills")
    words_of = {name: write_films(folder / f"{name}.csv", seeds=[seed]) for name, seed in (("old", 1), ("new", 2))}
    hashes = {}
    for name, words in words_of.items():
        started = time.monotonic()
        process = start_bpals("audit", *words, "--workspace", folder / name)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        seconds = time.monotonic() - started
        hashes[Workspace(folder / name).run["files"]["signal.parquet"]["sha256"]] = name
    assert len(hashes) == 2
    both = pl.concat([pl.read_csv(folder / f"{name}.csv") for name in ("old", "new")])
    experts = both.select(pl.col("film").alias("image_id"), pl.col("Effusion").abs())
    experts.write_csv(folder / "experts.csv")
    return Outputs(
        old=folder / "old",
        new_words=words_of["new"],
        hashes=hashes,
        reference=f"table={folder / 'experts.csv'}",
        seconds=seconds,
    )


def kill(process, folder, draw, seconds):
    """Kill the audit at a random moment: anywhere in its time, or just after a file of the end has appeared."""
    wanted = draw.choice([None, None, None, *SEALING])
    if wanted is None:
        time.sleep(draw.uniform(0, seconds))  # a random moment is what is tested
    else:
        wait_until(lambda: process.poll() is not None or list(folder.glob(f".staging-*/{wanted}")), 600, every=0.0002)
        time.sleep(draw.uniform(0, 0.02))  # or a little later
    process.kill()
    process.communicate()
    return process.returncode


def state(folder, outputs, capsys):
    """What the readers see: `old`, `new` or `none`; they must agree."""
    seen = [opened(folder, outputs), loaded(folder), scored(folder, outputs, capsys)]
    assert len(set(seen)) == 1, seen
    return seen[0]


def opened(folder, outputs):
    """The audit as Workspace gives it, its page included."""
    try:
        audit = Workspace(folder).open()
    except WorkspaceError:
        return "none"
    name = outputs.hashes[audit.run["files"]["signal.parquet"]["sha256"]]
    assert set(audit.run["source"]["inputs"]) == {f"{name}.csv", "films.toml"}
    assert f"{name}.csv" in audit.read("report.html").decode()
    return name


def loaded(folder):
    """The audit as load_signal gives it: the films of one table."""
    try:
        films = bpals.load_signal(folder)["image_id"]
    except WorkspaceError:
        return "none"
    (seed,) = films.str.head(1).unique()
    return {"1": "old", "2": "new"}[seed]


def scored(folder, outputs, capsys):
    """The audit as `bpals score` sees it: it leaves out the films of the other table, and names the first."""
    code = obey(["score", "--workspace", str(folder), "--reference", outputs.reference, "--bootstrap", "2"])
    shown = capsys.readouterr().err
    if code == 2:
        assert "Type: bpals audit --workspace" in shown
        return "none"
    assert code == 0, shown
    assert mentions(shown, "600 images")
    return {"1": "new", "2": "old"}[shown.split("(first: ")[1][0]]


@pytest.fixture(scope="module")
def ledger():
    """A ledger that must never be lost."""
    return workspaces.ledger_bytes()


@pytest.fixture
def killed(outputs, ledger, start_bpals, capsys, tmp_path):
    """Kill audits over a whole old output, two at a time, and list what is seen; every tenth is then run through."""

    def kill_one(number):
        folder = shutil.copytree(outputs.old, tmp_path / str(number))
        (folder / "ledger.sqlite").write_bytes(ledger)
        os.utime(folder / "ledger.sqlite", ns=(1, 1))
        inode = (folder / "ledger.sqlite").stat().st_ino
        process = start_bpals("audit", *outputs.new_words, "--workspace", folder)
        draw = random.Random(number)  # noqa: S311  a test wants the same moments again
        return folder, kill(process, folder, draw, outputs.seconds), inode

    def run_through(folder):
        process = start_bpals("audit", *outputs.new_words, "--workspace", folder)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert state(folder, outputs, capsys) == "new"
        assert not list(folder.glob(".staging-*"))

    def kill_times(times):
        seen = []
        with ThreadPoolExecutor(max_workers=2) as lanes:
            for number, (folder, code, inode) in enumerate(lanes.map(kill_one, range(times))):
                seen.append(state(folder, outputs, capsys))
                assert code == -9 or (code, seen[-1]) == (0, "new")
                if number % 10 == 9:
                    run_through(folder)
                found = (folder / "ledger.sqlite").stat()
                assert (found.st_ino, found.st_mtime_ns) == (inode, 1)
                assert (folder / "ledger.sqlite").read_bytes() == ledger
        return seen

    return kill_times


def test_ten_kills_at_random_moments_leave_the_old_output_the_new_one_or_none(killed):
    """Some of them aimed at the end, where files are moved into their places; the ledger is never touched."""
    seen = killed(10)
    assert set(seen) <= {"old", "new", "none"}
    assert "old" in seen


@pytest.mark.sweep
def test_two_hundred_kills_leave_the_old_output_the_new_one_or_none(killed):
    """The long form: by then each of the three has been seen."""
    assert set(killed(200)) == {"old", "new", "none"}


@pytest.mark.sweep
def test_ten_kills_of_the_whole_nih_audit(nih_workspace, start_bpals, outputs, ledger, tmp_path):
    """Over a small old output; what counts as new is byte for byte what an undisturbed audit writes."""
    tables = {name: told for name, told in Workspace(nih_workspace).run["files"].items() if name.endswith(".parquet")}
    seconds = Workspace(nih_workspace).run["seconds"]
    draw = random.Random(112_120)  # noqa: S311
    folder = shutil.copytree(outputs.old, tmp_path / "audit")
    (folder / "ledger.sqlite").write_bytes(ledger)
    for _ in range(10):
        kill(start_bpals("audit", "--workspace", folder), folder, draw, seconds)
        try:
            audit = Workspace(folder).open()
        except WorkspaceError:
            shutil.copytree(outputs.old, folder, dirs_exist_ok=True)
            continue
        if audit.run["source"]["name"] == "nih":
            assert {name: told for name, told in audit.run["files"].items() if name.endswith(".parquet")} == tables
        else:
            assert outputs.hashes[audit.run["files"]["signal.parquet"]["sha256"]] == "old"
    process = start_bpals("audit", "--workspace", folder)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert Workspace(folder).open().run["files"]["signal.parquet"] == tables["signal.parquet"]
    assert not list(folder.glob(".staging-*"))
    assert (folder / "ledger.sqlite").read_bytes() == ledger
