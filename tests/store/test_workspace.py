"""The workspace: a set of files that is whole or does not count."""

import fcntl
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import shape
from bpals.errors import UsageError, WorkspaceError
from bpals.store.workspace import FORMAT, LEDGER, Workspace, sha256
from bpals.tasks.audit import load_signal
from bpals.tasks.review_files import load_reviews
from bpals.types import FLAG, SETTLED_COLUMNS, signal_schema

pytestmark = pytest.mark.quick

NAMES = ("claims.parquet", "judgments/record.parquet", "signal.parquet")


def seal(workspace, word):
    """Write a small set of files whose bytes say which set they belong to."""
    with workspace.writing() as staging:
        for name in NAMES:
            staging.write(name, f"{word} {name}".encode())
        return staging.finish({"bpals": "0.1.0", "word": word})


@pytest.fixture
def workspace(tmp_path):
    """A workspace with one sealed set."""
    workspace = Workspace(tmp_path / "audit")
    seal(workspace, "old")
    return workspace


def test_what_is_sealed_is_read_back(workspace):
    """Every file comes back as written, and the run record names each with its hash and size."""
    sealed = workspace.open()
    assert list(sealed.run["files"]) == list(NAMES)
    assert workspace.files() == set(NAMES)
    for name in NAMES:
        content = f"old {name}".encode()
        assert sealed.has(name)
        assert sealed.read(name) == content
        assert sealed.run["files"][name] == {"sha256": sha256(content), "bytes": len(content)}
    assert sealed.run == workspace.run
    assert sealed.run["format"] == FORMAT
    assert sealed.run["word"] == "old"


def test_a_table_is_read_back_and_its_bytes_are_the_same_each_time(tmp_path):
    """Enum columns, nulls and lists survive, and writing the table twice gives identical files."""
    table = pl.DataFrame(
        {"image_id": ["a", "b"], "trust": [0.5, None], "reasons": [["x: y"], []]},
        schema_overrides={"trust": pl.Float64, "reasons": pl.List(pl.String)},
    ).with_columns(flag=pl.Series(["hard", "trusted"], dtype=FLAG))
    hashes = []
    for folder in ("one", "two"):
        workspace = Workspace(tmp_path / folder)
        with workspace.writing() as staging:
            staging.write_table("signal.parquet", table)
            staging.finish({"bpals": "0.1.0"})
        assert_frame_equal(workspace.open().table("signal.parquet"), table)
        assert_frame_equal(workspace.open().table("signal.parquet", "trust"), table.select("trust"))
        hashes.append(workspace.run["files"]["signal.parquet"]["sha256"])
    assert hashes[0] == hashes[1]


def test_a_signal_of_an_older_bpals_is_read_with_nulls_for_what_is_newer(tmp_path):
    """The columns of verdicts, also where one asks for them by name; its flags can be compared with newer ones."""
    old = pl.Enum(["likely_mislabelled", "suspect", "hard", "trusted", "unjudged"])
    now = pl.DataFrame([{"image_id": "a", "finding": "Mass", "flag": "hard"}], schema=signal_schema(("Mass",)))
    written = now.drop(SETTLED_COLUMNS.names()).with_columns(pl.col("flag").cast(old))
    workspace = Workspace(tmp_path / "old")
    with workspace.writing() as staging:
        for name in ("signal.parquet", "groups.parquet"):
            staging.write_table(name, written)
        staging.finish({"bpals": "0.5.2"})
    audit = workspace.open()
    assert_frame_equal(load_signal(tmp_path / "old"), now)
    assert_frame_equal(audit.table("groups.parquet"), now)
    some = audit.table("signal.parquet", "verdict", "flag", "readers_absent")
    assert_frame_equal(some, now.select("verdict", "flag", "readers_absent"))
    assert some.filter(pl.col("flag") == "rejected").is_empty()
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        audit.table("signal.parquet", "verdikt")


def test_an_empty_folder_holds_no_audit(tmp_path):
    """The message gives the command that makes one."""
    with pytest.raises(WorkspaceError, match=r"no audit.*bpals audit --workspace "):
        Workspace(tmp_path / "nowhere").open()
    assert Workspace(tmp_path / "nowhere").files() == set()
    with pytest.raises(WorkspaceError, match="holds no audit"):
        _ = Workspace(tmp_path).run


def test_who_has_only_the_demo_is_sent_to_the_demo(tmp_path, monkeypatch):
    """A command that names no folder looks into `audit`; where only `demo` was read, the message names that."""
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    Path("demo", "run.json").touch()
    with pytest.raises(WorkspaceError, match=r"run.json.* --workspace audit$"):
        _ = Workspace("audit").run
    Path("demo", LEDGER).touch()
    with pytest.raises(WorkspaceError, match=r"--workspace demo .*bpals audit"):
        _ = Workspace("audit").run
    with pytest.raises(WorkspaceError, match=r"run.json.* --workspace other$"):
        _ = Workspace("other").run
    with pytest.raises(UsageError, match=r"no review.*--workspace demo"):
        load_reviews()
    Path("audit").mkdir()
    Path("audit", "run.json").touch()
    with pytest.raises(UsageError, match=r"no review.*bpals review serve"):
        load_reviews()


def test_a_set_without_its_run_record_is_half_written(workspace):
    """Without run.json, which is written last, nothing counts."""
    (workspace.path / "run.json").unlink()
    with pytest.raises(WorkspaceError, match=r"half-written.*run\.json"):
        workspace.open()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'"run"', b"\x00", b"\xff\xfe"],
)
def test_a_run_record_that_is_none_is_refused(workspace, content):
    """An empty, cut or foreign run.json is one line of error, not a traceback."""
    (workspace.path / "run.json").write_bytes(content)
    with pytest.raises(WorkspaceError, match="is not a run record of bpals"):
        workspace.open()
    assert workspace.files() == set()


@pytest.mark.parametrize("files", [None, [1], {"signal.parquet": {}}, {"signal.parquet": "sha256:0"}])
def test_a_run_record_that_does_not_name_its_files_is_refused(workspace, files):
    """Without a hash for every file nothing can be checked, so nothing is read."""
    (workspace.path / "run.json").write_text(json.dumps({"format": FORMAT, "files": files}))
    with pytest.raises(WorkspaceError, match="does not name its files"):
        workspace.open()


def test_a_workspace_of_another_version_is_refused(workspace):
    """The message says which version wrote it and what this one reads."""
    run = json.loads((workspace.path / "run.json").read_text())
    (workspace.path / "run.json").write_text(json.dumps(run | {"format": FORMAT + 1, "bpals": "9.9"}))
    with pytest.raises(WorkspaceError, match=rf" 9\.9 .*{FORMAT + 1}; .*{FORMAT}"):
        workspace.open()


@pytest.mark.parametrize("name", NAMES)
def test_one_damaged_byte_breaks_the_set(workspace, name):
    """A file that is not the one run.json names is refused, and with it the whole set, however little has changed."""
    path = workspace.path / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WorkspaceError, match=r"not the file .*run\.json"):
        workspace.open()


def test_a_missing_file_breaks_the_set(workspace):
    """A file that run.json names and that is gone is an error with its name."""
    (workspace.path / "signal.parquet").unlink()
    with pytest.raises(WorkspaceError, match=r"signal\.parquet .*No such file"):
        workspace.open()


def test_a_file_this_audit_did_not_make_is_not_there(workspace):
    """A file that lies in the folder but is not named by run.json does not count."""
    (workspace.path / "groups.parquet").write_bytes(b"left by somebody")
    sealed = workspace.open()
    assert not sealed.has("groups.parquet")
    with pytest.raises(WorkspaceError, match=r"no groups\.parquet"):
        sealed.read("groups.parquet")


def test_two_writers_are_one_too_many(workspace):
    """The second is told to wait; the first is not disturbed."""
    with (workspace.path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(WorkspaceError, match="another audit is writing to"), workspace.writing():
            pass
    seal(workspace, "new")
    assert workspace.run["word"] == "new"


def test_what_a_killed_run_left_is_swept(workspace):
    """The next run removes old staging folders, and its own when it is done."""
    litter = workspace.path / ".staging-4242"
    litter.mkdir()
    (litter / "signal.parquet").write_bytes(b"half")
    seal(workspace, "new")
    assert not list(workspace.path.glob(".staging-*"))


def test_a_run_that_fails_leaves_the_old_set(workspace):
    """An error inside the writing block changes nothing and leaves no staging folder."""
    with pytest.raises(RuntimeError, match="half way"), workspace.writing() as staging:
        staging.write("signal.parquet", b"new")
        raise RuntimeError("half way")
    assert workspace.open().run["word"] == "old"
    assert not list(workspace.path.glob(".staging-*"))


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    """A file where a folder should be gives an error that names another way."""
    (tmp_path / "audit").write_text("a file")
    with pytest.raises(WorkspaceError, match=r"cannot be written.*--workspace"), \
            Workspace(tmp_path / "audit").writing():  # fmt: skip
        pass


def test_the_ledger_is_never_touched(workspace):
    """Neither sealing nor sweeping changes ledger.sqlite: its bytes, its time and its place stay."""
    ledger = workspace.path / "ledger.sqlite"
    ledger.write_bytes(b"reviews that must never be lost")
    os.utime(ledger, ns=(1, 1))
    before = ledger.stat()
    seal(workspace, "new")
    after = ledger.stat()
    assert ledger.read_bytes() == b"reviews that must never be lost"
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "ledger.sqlite" not in workspace.run["files"]


def test_a_file_that_the_next_audit_does_not_make_is_removed(workspace):
    """groups.parquet of a calibrated audit does not outlive it; what bpals did not write stays."""
    (workspace.path / "notes.txt").write_text("mine")
    with workspace.writing() as staging:
        for name in (*NAMES, "groups.parquet"):
            staging.write(name, b"calibrated")
        staging.finish({"bpals": "0.1.0", "word": "calibrated"})
    assert workspace.open().has("groups.parquet")
    seal(workspace, "new")
    assert not workspace.open().has("groups.parquet")
    assert not (workspace.path / "groups.parquet").exists()
    assert (workspace.path / "notes.txt").read_text() == "mine"


def test_an_audit_that_is_replaced_while_it_is_read_is_never_mixed_with_the_next(workspace):
    """What was opened before gives its own files or a WorkspaceError, though the folder holds a whole new set."""
    old = workspace.open()
    assert old.read("claims.parquet") == b"old claims.parquet"
    seal(workspace, "new")
    for name in NAMES:
        with pytest.raises(WorkspaceError, match=r"not the file .*run\.json"):
            old.read(name)
    assert workspace.open().read("signal.parquet") == b"new signal.parquet"


def test_a_reader_during_replacements_sees_old_new_or_none(workspace):
    """While one thread seals again and again, opening and reading gives the files of one set or a WorkspaceError."""
    done = threading.Event()

    def write():
        for turn in range(60):
            seal(workspace, f"turn-{turn}")
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        try:
            sealed = workspace.open()
            words = {sealed.read(name).decode().split()[0] for name in NAMES}
        except WorkspaceError:
            continue
        assert words == {sealed.run["word"]}
        seen |= words
    writer.join()
    assert seen
    assert seen <= {"old"} | {f"turn-{turn}" for turn in range(60)}
    assert workspace.open().read("signal.parquet") == b"turn-59 signal.parquet"


KILLED = textwrap.dedent(
    """
    import json, os, signal, sys
    from bpals.store.workspace import Workspace

    STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
    NAMES = ["claims.parquet", "judgments/record.parquet", "signal.parquet"]

    def seal(path, word):
        names = [*NAMES, "groups.parquet"] if word == "old" else NAMES
        with Workspace(path).writing() as staging:
            for name in names:
                staging.write(name, f"{word} {name}".encode())
            staging.finish({"bpals": "0.1.0", "word": word})

    def state(path):
        try:
            sealed = Workspace(path).open()
            words = {sealed.read(name).decode().split()[0] for name in sealed.run["files"]}
            return sealed.run["word"] if words == {sealed.run["word"]} else "mixed"
        except Exception as error:
            return type(error).__name__

    def seal_until(path, last):
        count = 0
        def step(event, arguments):
            nonlocal count
            if event in STEPS:
                count += 1
                if count == last:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(step)
        seal(path, "new")

    outcomes = []
    for last in range(1, 1000):
        path = os.path.join(sys.argv[1], str(last))
        seal(path, "old")
        with open(os.path.join(path, "ledger.sqlite"), "w") as ledger:
            ledger.write("kept")
        child = os.fork()
        if child == 0:
            seal_until(path, last)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        after = state(path)
        seal(path, "again")
        ledger = open(os.path.join(path, "ledger.sqlite")).read()
        litter = [name for name in os.listdir(path) if name.startswith((".staging", "groups"))]
        outcomes.append([killed, after, state(path), ledger, litter])
        if not killed:
            break
    print(json.dumps(outcomes))
    """
)


def test_a_run_killed_at_any_step_leaves_the_old_set_the_new_one_or_none(tmp_path):
    """The process is killed before each file operation of a replacement in turn; then the same run starts again.

    The old set has a file that the new one does not make: whenever the kill came, the next run leaves none of it.
    """
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(shape.SRC)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *killed, whole = json.loads(done.stdout)
    assert len(killed) > 10
    assert all(was_killed for was_killed, *_ in killed)
    assert {after for _, after, *_ in killed} == {"old", "WorkspaceError", "new"}
    assert all(rest == ["again", "kept", []] for _, _, *rest in killed)
    assert whole[:2] == [False, "new"]


def test_files_that_no_audit_made_are_not_overwritten(tmp_path):
    """A folder with somebody's own report.html is refused, and the file stays as it was."""
    (tmp_path / "report.html").write_text("mine", encoding="utf-8")
    with pytest.raises(WorkspaceError, match=r"report\.html .*no audit"), Workspace(tmp_path).writing():
        pass
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "mine"
