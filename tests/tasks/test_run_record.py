"""The record of a run: which versions of the signal a workspace had."""

import polars as pl

from bpals.store.workspace import RUN, Workspace
from bpals.tasks.run_record import SIGNAL, history


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
