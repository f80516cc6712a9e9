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


def test_a_dataset_without_patients_is_noted_on_the_terminal(capsys, words, tmp_path):
    """Not only in the report; with the line that mends the mapping, and nothing where patients are named."""
    mapping = Path(words[3]).read_text(encoding="utf-8")
    named = next(line for line in mapping.splitlines() if line.startswith("patient = "))
    (tmp_path / "alone.toml").write_text(mapping.replace(named, ""), encoding="utf-8")
    line = ["audit", *words[:2], "--mapping", str(tmp_path / "alone.toml"), "--workspace", str(tmp_path / "audit")]
    assert obey(line) == 0
    notes = [note for note in capsys.readouterr().err.splitlines() if "names no patient" in note]
    assert len(notes) == 1
    assert mentions(notes[0], "note: ", '[columns] patient = "COLUMN"')
    codes = {notice["code"]: notice["count"] for notice in Workspace(tmp_path / "audit").run["notices"]}
    assert codes["no_patient_column"] == 600
    assert "names no patient" in (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
    assert obey(["audit", *words, "--workspace", str(tmp_path / "with")]) == 0
    assert "names no patient" not in capsys.readouterr().err


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


SCHEMA = {"finding": pl.String, "says": pl.String, "trust": pl.Float64, "flag": pl.String}


def made_run(basis, **changes):
    """A finished audit of two findings and a group, as far as the terminal needs it."""
    share = {"labels": 2, "share": 0.43, "low": 0.352, "high": 0.52} if basis != "none" else None
    findings = ("Edema", "Mass", "Nodule or mass")
    rules = {name: {"present": {"basis": basis, "confirmed": share}} for name in findings}
    shares = {says: {"flags": {}, "confirmed": share} for says in ("present", "absent")}
    signal = pl.DataFrame(
        [("Mass", "present", 0.4, "suspect"), ("Edema", "present", 0.9, "trusted"), ("Edema", "absent", 0.1, "hard")],
        SCHEMA,
        orient="row",
    )
    groups = pl.DataFrame([("Nodule or mass", "present", 0.1, "likely_mislabelled")], SCHEMA, orient="row")
    record = {
        "source": {"title": "Made up"}, "images": 2, "refit": None, "reviews": None, "certificates": [], "films": None,
        "judges": [], "values": {"calibrate": {"value": None}}, "calibration": None, "prior": None, "flags": rules,
        "stated": shares,
    }  # fmt: skip
    return Run(workspace=Path("here"), signal=signal, groups=groups, record=record | changes)


PRIOR = {
    "name": "made-up-1", "labels": 13514, "images": 2862, "truth": "what most would say, not what the patient has",
    "extrapolates": {"views": {"AP": ["Edema", "Mass"]}, "few_presences": ["Edema"]},
}  # fmt: skip


def printed(capsys, run):
    """The lines, and the cells of each row of the table."""
    _print(run)
    told = capsys.readouterr().out
    cells = ([cell.strip() for cell in line.split("│")[1:-1]] for line in told.splitlines() if "│" in line)
    return told, {name: rest for name, *rest in cells}


def test_calibrated_it_says_by_what_and_how_far(capsys):
    """The share that readers would confirm with its interval, the calibration by name, and where it extrapolates."""
    told, rows = printed(capsys, made_run("calibrated", prior=PRIOR))
    assert rows["Mass"] == ["1", "43% (35-52)", "0", "0", "0"]
    assert rows["Edema"] == ["1", "43% (35-52)", "0", "1", "0"]
    assert rows["Nodule or mass"] == ["1", "43% (35-52)", "1", "0", "0"]
    assert mentions(told, "Calibrated by made-up-1", "13,514 expert labels of 2,862 images", "what most would say")
    assert mentions(told, "extrapolates to AP images of 2 findings", "(Edema)")
    assert mentions(told, "which are enriched", "no error rate")
    assert mentions(told, "No presence of Mass is `trusted`")
    assert "ranked only" not in told


def test_what_changed_since_the_last_audit_is_one_line(capsys):
    """The findings that moved most, by name; nothing of a first audit."""
    counts = {"Edema": 1, "Mass": 2000, "Hernia": 3, "Nodule": 4}
    moved = {"labels": 5000, "flag": 2008, "flags": {}, "findings": {name: {"flag": n} for name, n in counts.items()}}
    told, _ = printed(capsys, made_run("calibrated", prior=PRIOR, changed=moved))
    assert mentions(told, "2,008 of 5,000 labels have another flag", "Mass 2,000, Nodule 4, Hernia 3.")
    told, _ = printed(capsys, made_run("calibrated", prior=PRIOR, changed=moved | {"flag": 0, "findings": {}}))
    assert mentions(told, "no label has another flag")
    assert "last audit" not in printed(capsys, made_run("calibrated", prior=PRIOR, changed=None))[0]


def test_a_finding_that_nobody_knows_is_dashes(capsys):
    """0 would say that none is wrong."""
    run = made_run("calibrated", prior=PRIOR)
    run.record["flags"]["Mass"]["present"] = {"basis": "none", "confirmed": None}
    assert printed(capsys, run)[1]["Mass"] == ["1", "-", "-", "-", "-"]


def test_without_expert_knowledge_labels_are_ranked_only(capsys):
    """No count of flags that nobody can stand for; groups have no line."""
    told, rows = printed(capsys, made_run("none"))
    assert rows == {"Mass": ["1", ".40", "0", "0", "-", "0"], "Edema": ["1", ".90", "0", "1", ".10", "1"]}
    assert mentions(told, "No expert label was used", "ranked only", "Read some")
    assert not mentions(told, "enriched")


def test_members_of_a_group_that_nobody_read_apart_are_named(capsys):
    """Their trusts are their own, within that of the group."""
    fitted = {"pairs": 9, "members": {"Mass": "Nodule or mass"}, "findings": {"Nodule or mass": {}}}
    told, _ = printed(capsys, made_run("certified", calibration=fitted))
    assert mentions(told, "9 expert labels given here", "Mass: read only as part of Nodule or mass")
    assert mentions(told, "may be enriched")


def test_what_is_certified_is_said(capsys):
    """With the share; without a certificate nothing is."""
    held = {"promise": "precision", "cut": 0.2, "finding": "Mass", "says": "present", "level": 0.8}
    told, _ = printed(capsys, made_run("certified", prior=PRIOR, certificates=[held, held | {"cut": None}]))
    assert mentions(told, "Certified", "Mass present 80%")
    assert "Certified" not in printed(capsys, made_run("calibrated", prior=PRIOR))[0]


@pytest.mark.parametrize("basis", ["none", "calibrated"])
def test_the_table_fits_80_columns(capsys, basis):
    """Names and counts of NIH's size too."""
    run = made_run(basis, prior=PRIOR if basis != "none" else None)
    names = {"Mass": "Pleural_Thickening", "Edema": "Edema"}
    signal = run.signal.with_columns(pl.col("finding").replace(names))
    run.record["flags"]["Pleural_Thickening"] = run.record["flags"]["Mass"]
    wide = Run(workspace=run.workspace, signal=pl.concat([signal] * 120_000), groups=run.groups, record=run.record)
    told, _ = printed(capsys, wide)
    assert max(len(line) for line in told.splitlines() if set(line) & set("│┃┡└┏")) <= 80


def test_with_experts_it_says_what_they_are(capsys, tmp_path):
    """Never a count of flags without what stands behind it."""
    words = ["--source", made_judges.SOURCE, "--mapping", made_judges.MAPPING, "--calibrate", made_judges.EXPERTS]
    assert obey(["audit", *words, "--workspace", str(tmp_path / "audit")]) == 0
    told = capsys.readouterr().out
    assert mentions(told, "Calibrated by", "expert labels given here")
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
