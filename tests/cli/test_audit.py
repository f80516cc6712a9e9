"""`bpals audit` at the command line: what it prints, and how it ends when it cannot go on."""

import fcntl
import json
import resource
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest

from bpals.cli.audit import _print
from bpals.cli.main import obey
from bpals.store.workspace import Workspace
from bpals.tasks.audit import Run
from world import made_judges, workspaces
from world.waiting import wait_until
from world.words import mentions


@pytest.fixture(scope="module")
def words(write_films, tmp_path_factory):
    """The words that make `bpals audit` read 600 made-up films."""
    return write_films(tmp_path_factory.mktemp("films") / "films.csv", seeds=[3])


@pytest.fixture
def old(films_audit, tmp_path):
    """A finished audit of other films, to be written over: what must stay as it is when the next one fails."""
    folder = shutil.copytree(films_audit, tmp_path / "audit")
    (folder / "ledger.sqlite").write_bytes(workspaces.ledger_bytes())
    return folder


def contents(folder):
    """Every file with its bytes; the lock says nothing, nor what SQLite lays beside a ledger that is looked into."""
    passing = {".lock", "ledger.sqlite-shm", "ledger.sqlite-wal"}
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in passing)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refusal(capsys, *arguments):
    """The one line on stderr of a command that ends with 2."""
    assert obey(["audit", *map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("bpals: ")
    assert shown.err.count("\n") == 1
    return shown.err


def test_it_ends_with_a_table_and_where_to_look(capsys, words, tmp_path):
    """Each finding has a line; the report and the signal are named; what it rests on is said in words."""
    assert obey(["audit", *words, "--workspace", str(tmp_path / "audit")]) == 0
    shown = capsys.readouterr()
    assert mentions(shown.out, "600", "1,800")
    assert all(finding in shown.out for finding in ("Cardiomegaly", "Effusion", "Pneumothorax"))
    assert "No expert label was used" in shown.out
    for name in ("report.html", "signal.parquet"):
        assert str(tmp_path / "audit" / name) in shown.out.replace("\n", "")
    assert mentions(shown.err.splitlines()[0], "note: 600")


def test_what_was_odd_is_noted_beside_the_output(capsys, words, tmp_path):
    """An age of 412 is read on from, counted, and said on stderr; --json keeps stdout for the program."""
    films = pl.read_csv(words[1].removeprefix("table:"))
    old_man = pl.when(pl.int_range(pl.len()) == 7).then(412).otherwise("age")
    films.with_columns(age=old_man).write_csv(tmp_path / "odd.csv")
    line = ["audit", "--source", f"table:{tmp_path / 'odd.csv'}", *words[2:], "--workspace", str(tmp_path / "audit")]
    assert obey([*line, "--json"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert record == Workspace(tmp_path / "audit").run
    assert [(notice["code"], notice["count"]) for notice in record["notices"]][1:] == [("few_films", films.height)]
    assert record["notices"][0]["count"] == 1
    assert shown.err == "".join(f"note: {notice['message']}\n" for notice in record["notices"])


def test_an_unknown_source_is_answered_with_the_nearest(capsys, tmp_path):
    """A slip of the finger is named, and nothing is made."""
    shown = refusal(capsys, "--source", "nhi", "--workspace", tmp_path / "audit")
    assert mentions(shown, "'nhi'", "'nih'?")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--source", "table:films.csv"], "needs a file and a mapping. Type: bpals audit --source table:FILE"),
        (["--source", "table:", "--mapping", "vindr"], "needs a file and a mapping"),
        (["--mapping", "vindr"], "--mapping vindr is for tables; the source nih needs none"),
        (["--source", __file__], f"is a file. Type: bpals audit --source table:{__file__} --mapping FILE.toml"),
        (["--source", "nih:nowhere.csv"], "nowhere.csv"),
        (["--source", "table:nowhere.csv", "--mapping", "vindr"], "nowhere.csv"),
        (["--source", "table:nowhere.csv", "--mapping", "vinder"], "Did you mean 'vindr'?"),
        (["--calibrate", "four-findings=nowhere"], "nowhere"),
        (["--calibrate", "all-finding=x"], "Did you mean 'all-findings'?"),
        (["--calibrate", "boxes"], "presences only"),
        (["--calibrate", "table=x.csv", "--calibrate-split", "vall"], "Did you mean 'val'?"),
    ],
)
def test_what_cannot_be_is_one_line(capsys, tmp_path, arguments, says):
    """The line names the word and what to type; the exit code is 2."""
    assert says in refusal(capsys, *arguments, "--workspace", tmp_path / "audit")


@pytest.mark.parametrize("place", ["audit", "audit/inside"])
def test_a_workspace_that_cannot_be_a_folder_is_one_line(capsys, words, tmp_path, place):
    """A file stands where the folder, or the folder above it, should be."""
    (tmp_path / "audit").write_text("a file")
    shown = refusal(capsys, *words, "--workspace", tmp_path / place)
    assert "cannot be written" in shown
    assert "--workspace DIR" in shown
    assert (tmp_path / "audit").read_text() == "a file"


def test_a_busy_workspace_is_left_to_its_writer(start_bpals, words, old):
    """While another process writes, the second is told so; the old output stays."""
    before = contents(old)
    with (old / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process = start_bpals("audit", *words, "--workspace", old)
        _, errors = process.communicate()
    assert process.returncode == 2
    assert mentions(errors, "another audit")
    assert errors.count("\n") == 1
    assert contents(old) == before


def test_a_full_disk_leaves_the_old_output(start_bpals, words, old):
    """No file may grow beyond 20 KB here: one line, exit code 2, nothing half-written."""
    (old / "ledger.sqlite").unlink()  # to look into one SQLite needs 32 KB beside it
    before = contents(old)
    limit = (20_000, 20_000)
    process = start_bpals(
        "audit", *words, "--workspace", old, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    )
    out, errors = process.communicate()
    assert process.returncode == 2, errors
    assert (out, errors.count("\n")) == ("", 1)
    assert mentions(errors, "ulimit -f")
    assert "bpals audit --source" in errors
    assert contents(old) == before


def test_an_interruption_leaves_the_old_output(start_bpals, words, old):
    """Ctrl-C in the middle: one line, exit code 130, the old output whole, no staging folder."""
    before = contents(old)
    process = start_bpals("audit", *words, "--workspace", old)
    wait_until(lambda: process.poll() is not None or list(old.glob(".staging-*")), every=0.001)
    time.sleep(0.2)  # in the middle of the work, whichever step that is
    process.send_signal(signal.SIGINT)
    try:
        out, errors = process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        # Python drops an interrupt that comes inside its import lock, and says so; people press the keys again.
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
    assert process.returncode == 130, errors
    said = [line for line in errors.splitlines() if line.startswith("bpals: ")]
    assert (out, len(said)) == ("", 1)
    assert "again: bpals audit" in errors
    assert contents(old) == before
    assert not list(old.glob(".staging-*"))


def test_the_next_audit_replaces_the_last(words, old):
    """The folder then holds the new films, nothing else of bpals, and the ledger as it was."""
    ledger = (old / "ledger.sqlite").read_bytes()
    assert obey(["audit", *words, "--workspace", str(old)]) == 0
    audit = Workspace(old).open()
    assert audit.table("images.parquet")["image_id"].str.starts_with("3-").all()
    assert set(contents(old)) == {*audit.run["files"], "run.json", "ledger.sqlite", "remembered.json"}
    assert (old / "ledger.sqlite").read_bytes() == ledger


def test_what_cannot_be_heard_is_said_and_can_be_left_out(capsys, words, old):
    """A ledger that is no ledger stops an audit with one line; --no-reviews goes on without it."""
    (old / "ledger.sqlite").write_bytes(b"reviews")
    said = refusal(capsys, *words, "--workspace", old)
    assert f"bpals audit --no-reviews --workspace {old}" in said
    assert obey(["audit", *words, "--workspace", str(old), "--no-reviews"]) == 0


def test_a_workspace_keeps_to_its_dataset(old):
    """An audit that names no dataset is of the one that was audited here, not of NIH."""
    before = Workspace(old).open()
    films, source = before.table("images.parquet"), before.run["values"]["source"]
    assert source["given"] == "passed"
    assert obey(["audit", "--workspace", str(old)]) == 0
    again = Workspace(old).open()
    assert again.table("images.parquet").equals(films)
    assert again.run["values"]["source"]["value"] == source["value"]
    assert again.run["values"]["source"]["reason"] == "the dataset of this workspace"


def test_without_the_record_judge_nothing_is_said_of_it(capsys, words, tmp_path):
    """Few films are a trouble of the judge that learns from them, and of no other."""
    home = made_judges.make_workspace(tmp_path / "audit")
    capsys.readouterr()
    assert obey(["audit", *words, "--workspace", str(home), "--judges", "sharp", "--json"]) == 0
    codes = {notice["code"] for notice in json.loads(capsys.readouterr().out)["notices"]}
    assert "few_films" not in codes


def test_with_image_judges_a_trust_is_not_said_to_fit_the_record_alone(capsys, tmp_path):
    """They have seen the film, and are named with it."""
    home = made_judges.make_workspace(tmp_path / "audit")
    capsys.readouterr()
    assert obey(["audit", "--workspace", str(home)]) == 0
    assert mentions(capsys.readouterr().out, "record", "image judges")


def test_members_of_a_group_are_dashes_and_the_group_has_a_line(capsys):
    """0 would say that none is wrong; only the group was read."""
    schema = {"finding": pl.String, "says": pl.String, "trust": pl.Float64, "flag": pl.String}
    signal = pl.DataFrame(
        [("Mass", "present", 0.4, "suspect"), ("Edema", "present", 0.9, "trusted")], schema, orient="row"
    )
    groups = pl.DataFrame([("Nodule or mass", "present", 0.1, "likely_mislabelled")], schema, orient="row")
    record = {
        "source": {"title": "Made up"}, "images": 2, "refit": None, "reviews": None, "certificates": [], "films": None,
        "calibration": {"members": {"Mass": "Nodule or mass"}, "findings": {"Nodule or mass": {}}},
    }  # fmt: skip
    _print(Run(workspace=Path("here"), signal=signal, groups=groups, record=record))
    told = capsys.readouterr().out
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in told.splitlines()
        if "│" in line
    }
    assert rows["Mass"] == ["1", "0.40", "-", "1", "0", "-"]
    assert rows["Edema"] == ["1", "0.90", "0", "0", "0", "0"]
    assert rows["Nodule or mass"] == ["1", "0.10", "1", "0", "0", "0"]
    assert mentions(told, "-: Mass", "Nodule or mass")
    assert mentions(told, "No expert label", "Edema")


def test_with_experts_it_says_what_is_certified(capsys, tmp_path):
    """Or that nothing is; never a count of flags without the promise behind it."""
    words = ["--source", made_judges.SOURCE, "--mapping", made_judges.MAPPING, "--calibrate", made_judges.EXPERTS]
    assert obey(["audit", *words, "--workspace", str(tmp_path / "audit")]) == 0
    told = capsys.readouterr().out
    assert "certified" in told or mentions(told, "likely mislabelled", "at least")
    assert "No expert label" not in told


def test_it_says_what_to_type_next(capsys, tmp_path, monkeypatch):
    """What to read first, and how to learn the error rate; both do as they stand, in a folder with a blank."""
    words = ["--source", made_judges.SOURCE, "--mapping", made_judges.MAPPING]
    assert obey(["audit", *words, "--workspace", str(tmp_path / "my audit")]) == 0
    typed = [line.split(": bpals ")[1] for line in capsys.readouterr().out.splitlines() if ": bpals " in line]
    monkeypatch.chdir(tmp_path)
    assert [obey(shlex.split(line)) for line in typed] == [0, 0]
    assert (tmp_path / "list.csv").exists()
    assert (tmp_path / "reads.csv").exists()
