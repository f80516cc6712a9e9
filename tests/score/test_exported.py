"""An export of the reading room, given as a file of reads."""

import polars as pl
import pytest

from bpals.findings import NIH
from bpals.reviews import verdicts
from bpals.reviews.verdicts import settled_in_export, spellings, voting

KNOWN = spellings(NIH, ())
ROW = {
    "image_id": "a.png", "finding": "Pleural_Thickening", "reader": "ann", "verdict": "present", "phase": "blind",
    "saw_signal": 0, "repeat": 0, "stands": 1, "external_id": "x", "truth": None, "truth_by": None, "truth_round": None,
}  # fmt: skip


@pytest.fixture
def sheet(tmp_path):
    """Write rows as an export, and read it as a sheet."""

    def make(*rows, kind="csv", drop=()):
        table = pl.DataFrame([ROW | row for row in rows], infer_schema_length=None).drop(drop)
        path = tmp_path / f"reads.{kind}"
        table.write_csv(path) if kind == "csv" else table.write_parquet(path)
        return verdicts.read_sheet(path)

    return make


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_only_what_was_said_blind_votes(sheet, kind):
    """Not a second read, a round, a repeat, or what no longer stands."""
    others = ({"phase": "second", "saw_signal": 1}, {"phase": "round"}, {"repeat": 1}, {"stands": 0})
    rows = ({}, {"phase": "amended", "reader": "ben"}, {"phase": "imported", "reader": "cay"}, *others)
    assert voting(sheet(*rows, kind=kind)).cells["reader"].to_list() == ["ann", "ben", "cay"]


def test_a_sheet_that_is_no_export_is_left_as_it_is(sheet):
    """A column `phase` of somebody's own means nothing here."""
    own = sheet({"phase": "arterial"}, drop=["external_id"])
    assert voting(own) is own
    assert settled_in_export(own, KNOWN).is_empty()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_people_settled_is_known(sheet, kind):
    """By an adjudicator or in a round; a majority of blind reads, a hedge, and a finding nobody audits are not."""
    rows = (
        {"truth": "absent", "truth_by": "dee", "truth_round": 0},
        {"truth": "present", "finding": "Mass", "truth_round": 2},
        {"truth": "present", "finding": "Nodule", "truth_round": 0},
        {"truth": "uncertain", "finding": "Edema", "truth_by": "dee", "truth_round": 0},
        {"truth": "present", "finding": "Fracture", "truth_by": "dee", "truth_round": 0},
    )
    told = settled_in_export(sheet(*rows, kind=kind), KNOWN)
    assert told.rows() == [("a.png", "Pleural_Thickening", 0.0), ("a.png", "Mass", 1.0)]
