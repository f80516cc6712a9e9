"""The demo: made once, kept, and an audit like any other."""

import polars as pl

from bpals.images.collection import open_index
from bpals.store.workspace import Workspace
from bpals.tasks.demo import FILMS, JUDGES, make_demo


def test_it_is_an_audit_of_drawn_films_by_two_judges(demo):
    """Every film of the audit is there to be read, and both judges spoke."""
    audit = Workspace(demo.workspace).open()
    images = audit.table("images.parquet")
    assert images.height == FILMS
    assert open_index(demo.images, images["image_id"].to_list()).missing == ()
    assert audit.table("signal.parquet")["answered"].max() == 2
    assert Workspace(demo.workspace).judge_names() == sorted(JUDGES)


def test_labels_are_ranked_and_none_is_called_right_or_wrong_before_somebody_reads(demo):
    """The evidence is against few labels, which come first; nobody has read one, so no flag says more."""
    signal = Workspace(demo.workspace).open().table("signal.parquet")
    assert set(signal["flag"].cast(pl.String).unique()) == {"unverified", "hard"}
    assert 0 < signal.filter(pl.col("trust") < 0.5).height < signal.height / 5
    assert signal.sort("review_rank").head(20)["trust"].mean() < 0.5


def test_a_demo_that_is_there_is_kept(demo):
    """What somebody read in it must not be lost to a second start."""
    before = (demo.workspace / "run.json").stat().st_mtime_ns
    assert make_demo(demo.workspace) == demo
    assert (demo.workspace / "run.json").stat().st_mtime_ns == before
