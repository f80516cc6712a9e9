"""The reading list of a workspace, in one call."""

import claimedfilms
import polars as pl
import pytest

import bpals
from bpals.errors import TruthError, UnknownName, WorkspaceError
from bpals.readinglist import reading_list
from bpals.signal.queue import READING_LIST


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with a signal of 200 made-up films."""
    return claimedfilms.write(tmp_path_factory.mktemp("list") / "audit")


def test_it_is_the_queue_over_the_whole_signal(workspace):
    """Fifty pairs, ten of them at random, one film a patient."""
    listed = bpals.next_reviews(workspace)
    assert listed.schema == READING_LIST
    assert listed["drawn"].to_list().count("random") == 10
    assert listed.height == 50


def test_findings_are_named_as_people_do(workspace):
    """Case does not matter; an unknown one is answered with what was meant."""
    listed = bpals.next_reviews(workspace, findings=["effusion"], n=20)
    assert listed["finding"].unique().to_list() == ["Effusion"]
    with pytest.raises(UnknownName, match="Did you mean 'Effusion'"):
        bpals.next_reviews(workspace, findings=["Efusion"])


def test_what_was_read_is_not_offered_again_and_strange_films_are_counted(workspace, tmp_path):
    """A file of reads, in which one film is of another dataset."""
    first = bpals.next_reviews(workspace, n=30)
    sheet = first.select("image_id", "finding", reader=pl.lit("ann"), verdict=pl.lit("NO"))
    stranger = pl.DataFrame({"image_id": ["else.png"], "finding": ["Effusion"], "reader": ["ann"], "verdict": ["NO"]})
    pl.concat([sheet, stranger]).write_csv(tmp_path / "reads.csv")
    again = reading_list(workspace, n=30, reviews=tmp_path / "reads.csv")
    assert again.table.join(first, on=["image_id", "finding"], how="semi").is_empty()
    assert [(notice.code, notice.count) for notice in again.notices] == [("unknown_images", 1)]


def test_reads_of_other_films_alone_are_refused(workspace, tmp_path):
    """They are the wrong file."""
    (tmp_path / "reads.csv").write_text("image_id,finding,reader,verdict\nelse.png,Effusion,ann,NO\n")
    with pytest.raises(TruthError):
        bpals.next_reviews(workspace, reviews=tmp_path / "reads.csv")


def test_fewer_than_asked_for_are_counted(workspace):
    """It says how many are left and how to get more."""
    few = reading_list(workspace, n=10_000)
    assert [(notice.code, notice.count) for notice in few.notices] == [("few_left", few.table.height)]


def test_without_an_audit_there_is_no_list(tmp_path):
    """A WorkspaceError, as everywhere."""
    with pytest.raises(WorkspaceError):
        bpals.next_reviews(tmp_path)
