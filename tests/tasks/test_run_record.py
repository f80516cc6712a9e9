"""The record of a run: which versions of the signal a workspace had."""

import polars as pl

from bpals.store.workspace import RUN, Workspace
from bpals.tasks.run_record import SIGNAL, changed, history
from bpals.types import FLAG


def seal(home, value, **record):
    """Seal a signal, and give its version."""
    with home.writing() as staging:
        staging.write_table(SIGNAL, pl.DataFrame({"trust": [value]}))
        told = {"command": "bpals audit", "bpals": "1", "history": history(home), "reviews": None, **record}
        run = staging.finish(told)
    return run["files"][SIGNAL]["sha256"]


def test_each_version_is_named_with_the_reads_and_the_lesson_that_made_it(tmp_path):
    """In the order in which they came, whichever command replaced them."""
    home = Workspace(tmp_path / "audit")
    assert history(home) == []
    first = seal(home, 0.1)
    heard = {"reads": 7, "inputs": {"ledger": "sha256:0"}}
    second = seal(home, 0.2, command="bpals review", reviews=heard, lesson={"readings": 3})
    seal(home, 0.3)
    assert home.run["history"] == [
        {"version": first, "command": "bpals audit", "bpals": "1", "reads": 0, "inputs": {}},
        {"version": second, "command": "bpals review", "bpals": "1", **heard, "lesson": {"readings": 3}},
    ]


def test_where_nothing_can_be_read_there_is_no_history(tmp_path):
    """A damaged record, and a workspace that was sealed without a signal."""
    home = Workspace(tmp_path / "audit")
    seal(home, 0.1)
    (home.path / RUN).write_text("{")
    assert history(home) == []
    with home.writing() as staging:
        staging.write_table("claims.parquet", pl.DataFrame({"x": [1]}))
        staging.finish({"source": {}})
    assert history(home) == []


def flagged(*rows):
    """A signal with the flags of some labels."""
    return pl.DataFrame(rows, schema={"image_id": pl.String, "finding": pl.String, "flag": FLAG}, orient="row")


BEFORE = flagged(("a", "Mass", "trusted"), ("a", "Nodule", "suspect"), ("b", "Mass", "hard"))
STATED = {
    "stated": {says: {"flags": {}, "confirmed": None} for says in ("present", "absent")},
    "flags": {"Mass": {"present": {"confirmed": {"share": 0.4, "low": 0.3, "high": 0.5}}}},
}


def audited(home, table, **record):
    """Finish an audit with a signal."""
    with home.writing() as staging:
        staging.write_table(SIGNAL, table)
        staging.finish({"command": "bpals audit", "bpals": "1", **record})


def test_labels_with_another_flag_are_counted(tmp_path):
    """By finding and by flag, whatever the order of the rows; a label that only one of the two has is left out."""
    home = Workspace(tmp_path / "audit")
    audited(home, BEFORE, **STATED)
    now = flagged(("a", "Mass", "suspect"), ("a", "Nodule", "suspect"), ("b", "Mass", "hard"))
    told = {
        "labels": 3,
        "flag": 1,
        "flags": {"hard": [1, 1], "suspect": [1, 2], "trusted": [1, 0]},
        "findings": {"Mass": {"flag": 1, "confirmed": 0.4}},
    }
    assert changed(home, now) == told
    assert changed(home, now.reverse()) == told
    assert changed(home, BEFORE)["flag"] == 0
    more = pl.concat([now.filter(pl.col("image_id") == "a"), flagged(("c", "Mass", "hard"))])
    assert (changed(home, more)["labels"], changed(home, more)["flag"]) == (2, 1)


def test_there_may_be_nothing_to_compare_with(tmp_path):
    """No audit, one from before 0.6, and one that is damaged."""
    home = Workspace(tmp_path / "audit")
    assert changed(home, BEFORE) is None
    audited(home, BEFORE)
    assert changed(home, BEFORE) is None
    audited(home, BEFORE, **STATED)
    (home.path / SIGNAL).write_bytes(b"")
    assert changed(home, BEFORE) is None
