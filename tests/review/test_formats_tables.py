"""CSV and Parquet give back what went out, and no cell of a CSV is a formula."""

import csv
import gzip
import io

import polars as pl
import pytest
from hypothesis import given, settings

from bpals.errors import TruthError
from bpals.reviews import flat
from bpals.reviews.exchange import KEPT, Films
from world import review_tables

SENT = review_tables.reviews()


def csv_of(reviews):
    """The bytes of a CSV."""
    return flat.write_csv(reviews, Films()).files[""]


def test_a_csv_gives_back_every_column():
    """Also nulls beside empty texts, blanks at the ends, line breaks and quotes."""
    assert review_tables.same(flat.read_csv(csv_of(SENT), "x.csv").table, SENT)


def test_a_parquet_gives_back_every_column():
    """With its types."""
    content = flat.write_parquet(SENT, Films()).files[""]
    assert review_tables.same(flat.read_parquet(content, "x.parquet").table, SENT)


@settings(max_examples=60, deadline=None)
@given(rows=review_tables.ROWS)
def test_any_text_comes_back_from_a_csv(rows):
    """Whatever a note, a reader or a film is called."""
    sent = review_tables.of_rows(rows)
    assert review_tables.same(flat.read_csv(csv_of(sent), "x.csv").table, sent)


@settings(max_examples=60, deadline=None)
@given(rows=review_tables.ROWS)
def test_s13_no_cell_of_a_csv_begins_as_a_formula(rows):
    """S13: a spreadsheet finds nothing to run in a note, an id or a reader's name."""
    written = csv.DictReader(io.StringIO(csv_of(review_tables.of_rows(rows)).decode(), newline=""))
    for row in written:
        for column, cell in row.items():
            number = isinstance(KEPT.get(column, pl.String()), pl.Int64 | pl.Float64) or column == "rating"
            assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d"))


def test_s13_the_known_attack_goes_out_behind_an_apostrophe():
    """S13: =cmd is text, and comes back as it was."""
    sent = SENT.with_columns(note=pl.lit("=cmd|' /C calc'!A0"))
    written = list(csv.DictReader(io.StringIO(csv_of(sent).decode(), newline="")))
    assert {row["note"] for row in written} == {"'=cmd|' /C calc'!A0"}
    assert set(flat.read_csv(csv_of(sent), "x").table["note"]) == {"=cmd|' /C calc'!A0"}


def test_a_row_is_ready_for_the_tools_of_reader_studies():
    """One row a reader, film, finding and phase, a rating from 0 to 100, and a free column for the truth."""
    sent = pl.concat([SENT.head(1)] * 4).with_columns(
        verdict=pl.Series(["present", "absent", "uncertain", "unreadable"]), confidence=pl.Series([80, None, 10, 5])
    )
    rows = list(csv.DictReader(io.StringIO(csv_of(sent).decode(), newline="")))
    assert list(rows[0])[:7] == ["reader", "image_id", "finding", "phase", "verdict", "rating", "truth"]
    assert [row["rating"] for row in rows] == ["90.0", "0.0", "50.0", ""]
    assert {row["truth"] for row in rows} == {""}


def test_a_spreadsheet_may_have_saved_it():
    """With semicolons, a byte order mark and gzip; the truth that somebody filled in is not ours."""
    plain = SENT.with_columns(note=pl.lit("plain"), box=pl.lit(None, pl.String))
    cells = pl.read_csv(csv_of(plain), infer_schema=False).with_columns(truth=pl.lit("1"))
    saved = gzip.compress(b"\xef\xbb\xbf" + cells.write_csv(separator=";").encode())
    assert review_tables.same(flat.read_csv(saved, "x.csv").table, plain)


def test_a_cell_that_is_no_number_is_named():
    """With its row and column."""
    broken = csv_of(SENT.with_columns(confidence=pl.lit(55))).replace(b",55,", b",much,", 1)
    with pytest.raises(TruthError, match=r"x\.csv, row 1: 'much' .*'confidence'"):
        flat.read_csv(broken, "x.csv")


def test_a_sheet_of_a_reader_is_told_from_an_export():
    """By the columns that only an export has."""
    assert flat.is_ours(pl.read_csv(csv_of(SENT)).columns)
    assert not flat.is_ours(["image_id", "finding", "reader", "verdict"])
