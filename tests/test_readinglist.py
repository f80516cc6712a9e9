"""The reading list of a workspace, in one call."""

import polars as pl
import pytest

import bpals
from bpals.errors import TruthError, UnknownName, WorkspaceError
from bpals.room.desk.study import Study
from bpals.signal.queue import READING_LIST
from bpals.tasks.reading_list import CASES, draw_cases, reading_list
from bpals.types import REVIEWS, Reviews
from world import workspaces

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with a signal of 200 made-up films."""
    return workspaces.write_signal(tmp_path_factory.mktemp("list") / "audit")


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


def study(workspace, **settings):
    """A study of all findings of the workspace."""
    named = pl.read_parquet(workspace / "signal.parquet")["finding"].cast(pl.String).unique(maintain_order=True)
    return Study(name="study", findings=tuple(named), **settings)


def test_cases_are_films_in_batches_with_their_chances(workspace):
    """Of every ten, two at random; one film a patient in each; the chance is there when they are drawn."""
    cases = draw_cases(workspace, study(workspace, queue_size=30, batch=10))
    assert cases.schema == CASES
    assert cases.height == cases["image_id"].n_unique() == 30
    for start in range(0, 30, 10):
        batch = cases.slice(start, 10)
        assert batch["how"].to_list().count("random") == 2
        assert batch["patient_id"].n_unique() == 10
    assert cases["inclusion"].is_between(0, 1, closed="right").all()


def test_cases_are_drawn_from_films_that_can_be_shown_and_that_nobody_holds(workspace):
    """All of them, where more are asked for."""
    films = pl.read_parquet(workspace / "images.parquet")["image_id"].to_list()
    cases = draw_cases(workspace, study(workspace, queue_size=1_000_000), films=films[:40], without=films[:5])
    assert sorted(cases["image_id"]) == sorted(films[5:40])


def test_what_was_read_is_no_case_again_and_the_draw_is_another(workspace):
    """Every finding of a film that was read is read."""
    asked = study(workspace, queue_size=20)
    first = draw_cases(workspace, asked)
    findings = pl.DataFrame({"finding": list(asked.findings)})
    read = first.head(10).select("image_id").join(findings, how="cross")
    reads = read.with_columns(reader=pl.lit("ann"), verdict=pl.lit("absent"), inclusion=None).cast(REVIEWS)
    second = draw_cases(workspace, asked, Reviews(table=reads.select(REVIEWS.names())))
    assert not set(second["image_id"]) & set(read["image_id"])
    assert first.equals(draw_cases(workspace, asked))
    random = pl.col("how") == "random"
    assert set(second.filter(random)["image_id"]) != set(first.filter(random)["image_id"])
