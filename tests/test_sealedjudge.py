"""A sealed judge: whole or not there, kept by every audit, and never left out in silence."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import shape
from bpals.errors import UnknownName, UsageError, WorkspaceError
from bpals.judges.stub import StubJudge
from bpals.store.files import sha256
from bpals.store.workspace import FORMAT, Workspace, check_judge_name
from bpals.testing import tiny_dataset
from bpals.types import FILM_ANSWERS

DATASET = tiny_dataset()
CARD = {"judge": "eye", "kind": "image", "version": "1"}


def answers(seed=0, name="eye"):
    """A judge's table."""
    stub = StubJudge(seed=seed, name=name, shares={"refused": 0.2})
    return stub.scores(DATASET.images["image_id"], DATASET.vocabulary)


def films():
    """What it says of the films themselves."""
    rows = [(film, "devices", "answered", 0.7, 1.0, -0.7, None) for film in DATASET.images["image_id"]]
    return pl.DataFrame(rows, schema=FILM_ANSWERS, orient="row")


def audit(workspace, word):
    """Seal a small audit."""
    with workspace.writing() as staging:
        staging.write("judgments/record.parquet", word.encode())
        staging.write("signal.parquet", word.encode())
        staging.seal({"bpals": "0.1.0", "word": word})


@pytest.fixture
def workspace(tmp_path):
    """A workspace with one sealed judge and no audit."""
    workspace = Workspace(tmp_path / "audit")
    workspace.seal_judge("eye", CARD, answers(), films(), {"offsets": {"devices": [0.5, None]}})
    return workspace


def test_what_is_sealed_is_read_back(workspace):
    """Answers, what it says of films, the card, the offsets, and the outcomes counted."""
    judge = workspace.judge("eye")
    assert_frame_equal(judge.answers(), answers())
    assert judge.answers("image_id", "p_present").columns == ["image_id", "p_present"]
    assert_frame_equal(judge.film_answers(), films())
    assert judge.card == CARD
    assert judge.offsets == {"devices": [0.5, None]}
    assert sum(judge.record["counts"].values()) == answers().height
    assert judge.record["counts"]["refused"] == (answers()["outcome"] == "refused").sum() > 0
    assert [judge.name for judge in workspace.judges()] == ["eye"]
    assert judge.sha256 == sha256((workspace.path / "judgments" / "eye.json").read_bytes())
    for name, told in judge.record["files"].items():
        content = (workspace.path / "judgments" / name).read_bytes()
        assert told == {"sha256": sha256(content), "bytes": len(content)}


def test_the_same_judge_gives_the_same_bytes_and_leaves_no_litter(workspace):
    """Sealing twice changes nothing; only the judge's three files and the lock are there."""
    before = workspace.judge("eye").sha256
    workspace.seal_judge("eye", CARD, answers(), films(), {"offsets": {"devices": [0.5, None]}})
    assert workspace.judge("eye").sha256 == before
    lying = {path.name for path in (workspace.path / "judgments").iterdir()}
    assert lying == {"eye.parquet", "eye.films.parquet", "eye.json", ".lock"}


def test_an_audit_keeps_the_sealed_judges_and_a_judge_sealed_anew_breaks_no_audit(workspace):
    """Each is replaced by itself only."""
    audit(workspace, "one")
    audit(workspace, "two")
    assert_frame_equal(workspace.judge("eye").answers(), answers())
    workspace.seal_judge("eye", CARD, answers(seed=1))
    assert workspace.open().run["word"] == "two"
    assert workspace.judge("eye").film_answers() is None
    assert not (workspace.path / "judgments" / "eye.films.parquet").exists()


def test_a_folder_with_judges_and_no_audit_holds_no_audit(workspace):
    """It is not called half-written: nobody has begun one. An audit may begin there."""
    with pytest.raises(WorkspaceError, match="holds no audit"):
        workspace.open()
    audit(workspace, "one")
    assert workspace.open().run["word"] == "one"


def test_a_judge_is_sealed_while_an_audit_is_writing(workspace):
    """A run of days does not end in "another audit is writing"; and the audit does not sweep it away."""
    with workspace.writing() as staging:
        workspace.seal_judge("other", CARD, answers())
        staging.write("signal.parquet", b"x")
        staging.seal({"bpals": "0.1.0"})
    assert [judge.name for judge in workspace.judges()] == ["eye", "other"]


@pytest.mark.parametrize("name", ["eye.parquet", "eye.films.parquet"])
def test_a_damaged_judge_is_an_error_that_says_what_to_type(workspace, name):
    """One byte of a table is enough, and a missing one too: it is never left out in silence."""
    path = workspace.path / "judgments" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    advice = r"Run that judge again \(bpals judge run\), .* bpals audit --workspace .* --judges record$"
    with pytest.raises(WorkspaceError, match=rf"{name} .*eye\.json .*{advice}"):
        workspace.judges()
    path.unlink()
    with pytest.raises(WorkspaceError, match=rf"{name} .*No such file.*{advice}"):
        workspace.judge("eye")


@pytest.mark.parametrize(
    "change",
    [
        {"format": FORMAT + 1}, {"card": None}, {"files": {}}, {"files": None}, {"counts": None},
        {"files": {"eye.parquet": {}}}, {"files": {"eye.parquet": {"sha256": "x"}, "../run.json": {"sha256": "x"}}},
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_refused(workspace, change):
    """Of another format, without card, counts or hashes, or naming files that are not the judge's."""
    path = workspace.path / "judgments" / "eye.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(WorkspaceError, match=r"eye\.json .*format \d: .*damaged"):
        workspace.judges()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_a_record_that_is_cut_is_refused(workspace, content):
    """One line of error, not a traceback."""
    (workspace.path / "judgments" / "eye.json").write_bytes(content)
    with pytest.raises(WorkspaceError, match="is not the record of a judge"):
        workspace.judge("eye")


def test_answers_without_a_record_do_not_count_and_are_named(workspace):
    """A first sealing that was killed leaves a table; it is no judge, and `unsealed` says so."""
    (workspace.path / "judgments" / "eye.json").unlink()
    assert workspace.judges() == []
    assert workspace.unsealed() == ["eye"]
    with pytest.raises(UnknownName, match="'eye'"):
        workspace.judge("eye")
    audit(workspace, "one")
    assert workspace.unsealed() == ["eye"]


def test_an_unknown_judge_is_answered_with_the_nearest(workspace):
    """In the words of every unknown name."""
    with pytest.raises(UnknownName, match=r"'eyes'.*'eye'"):
        workspace.judge("eyes")


UNFIT = ["record", "all", "Eye", "a b", "", "../x", "a/b", ".x", "x.films", "é", "x" * 81, "x\n"]


@pytest.mark.parametrize("name", UNFIT)
def test_a_name_that_cannot_be_is_refused_with_one_that_can(workspace, name):
    """No judge takes the record's name, leaves the folder or hides; what is proposed instead can be used."""
    with pytest.raises(UsageError, match="a judge cannot be called") as caught:
        workspace.seal_judge(name, CARD, answers())
    proposed = str(caught.value).rpartition("Call it ")[2].strip("'")
    assert check_judge_name(proposed) == proposed


@pytest.mark.parametrize("name", ["eye", "qwen2.5-vl-7b", "jrzech_densenet121", "0", "x" * 80])
def test_a_plain_name_can_be_used(workspace, name):
    """Letters, digits, dots, dashes and underscores; the longest too."""
    workspace.seal_judge(name, CARD, answers())
    assert_frame_equal(workspace.judge(name).answers(), answers())


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    """A file where the folder should be."""
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "judgments").write_text("a file")
    with pytest.raises(WorkspaceError, match=r"cannot be written.*--workspace"):
        Workspace(tmp_path / "audit").seal_judge("eye", CARD, answers())


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    import polars as pl
    from bpals.store.workspace import Workspace

    steps = {"open", "os.mkdir", "os.rename", "os.remove"}
    count = 0

    def step(event, arguments):
        global count
        if event in steps and sys.argv[1] in str(arguments[0]):
            count += 1
            if count == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)

    table = pl.DataFrame({"outcome": ["answered"], "word": ["new"]})
    sys.addaudithook(step)
    Workspace(sys.argv[1]).seal_judge("eye", {"word": "new"}, table)
    """
)


def state(workspace):
    """The word of the judge that is there, if all its tables have the same."""
    try:
        judge = workspace.judge("eye")
    except WorkspaceError:
        return "WorkspaceError"
    tables = [table for table in (judge.answers(), judge.film_answers()) if table is not None]
    words = {table["word"][0] for table in tables} | {judge.card["word"]}
    return words.pop() if len(words) == 1 else "mixed"


def test_a_sealing_killed_at_any_step_leaves_the_old_judge_the_new_one_or_an_error(tmp_path):
    """The process is killed before each file operation in turn; sealing again heals it, and nothing is ever mixed."""
    seen = []
    tables = {word: pl.DataFrame({"outcome": ["answered"], "word": [word]}) for word in ("old", "new")}
    for last in range(1, 100):
        workspace = Workspace(tmp_path / str(last))
        workspace.seal_judge("eye", {"word": "old"}, tables["old"], tables["old"])
        line = [sys.executable, "-c", KILLED, str(workspace.path), str(last)]
        done = subprocess.run(line, env=os.environ | {"PYTHONPATH": str(shape.SRC)}, capture_output=True, check=False)
        seen.append(state(workspace))
        workspace.seal_judge("eye", {"word": "new"}, tables["new"])
        assert state(workspace) == "new"
        assert {path.name for path in (workspace.path / "judgments").iterdir()} == {".lock", "eye.json", "eye.parquet"}
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(seen) > 5
    assert list(dict.fromkeys(seen)) == ["old", "WorkspaceError", "new"]
