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


def test_the_wrong_labels_are_found(demo):
    """The pairs that are to be read first are more often wrong than others; the truth is what was drawn."""
    signal = Workspace(demo.workspace).open().table("signal.parquet")
    flags = dict(signal["flag"].value_counts().iter_rows())
    assert flags["likely_mislabelled"] > 0
    assert signal.filter(pl.col("trust") < 0.5).height < signal.height / 5


def test_no_claim_is_called_trusted_that_the_judges_are_against(demo):
    """Without reads a flag is a share of a finding's claims; the demo's errors are few enough for that share."""
    signal = Workspace(demo.workspace).open().table("signal.parquet")
    assert signal.filter(pl.col("flag") == "trusted")["trust"].min() >= 0.5
    assert "unjudged" not in signal["flag"].cast(pl.String).unique()


def test_a_demo_that_is_there_is_kept(demo):
    """What somebody read in it must not be lost to a second start."""
    before = (demo.workspace / "run.json").stat().st_mtime_ns
    assert make_demo(demo.workspace) == demo
    assert (demo.workspace / "run.json").stat().st_mtime_ns == before
