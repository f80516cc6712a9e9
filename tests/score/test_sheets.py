"""Expert files as text: good ones are read as written, bad ones refused in one line that says where."""

import gzip

import polars as pl
import pytest

from bpals.errors import TruthError
from bpals.reviews import verdicts
from world.words import mentions

pytestmark = pytest.mark.quick

GOOD = "Image ID,Mass\na.png, YES \nb.png,NO\n"


def refusal(path):
    """The one line with which a file is refused."""
    with pytest.raises(TruthError) as caught:
        verdicts.read_sheet(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [GOOD, "\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD.replace(",", ";"), "\n" + GOOD + "\n\n", GOOD.rstrip()],
    ids=["plain", "bom", "crlf", "semicolons", "blank lines", "no last newline"],
)
def test_a_sheet_is_read_as_written(sheet, content):
    """A byte order mark, CRLF, semicolons and blank lines do not matter; blanks around a cell go."""
    read = verdicts.read_sheet(sheet(content))
    assert read.cells.select("image id", "mass").rows() == [("a.png", "YES"), ("b.png", "NO")]
    assert read.titles == {"image id": "Image ID", "mass": "Mass"}


def test_a_row_knows_its_line(sheet):
    """So that an error can name it, blank lines counted."""
    read = verdicts.read_sheet(sheet("Image ID,Mass\na.png,YES\n\nb.png,NO\n"))
    assert read.cells[verdicts.LINE].to_list() == [2, 4]
    assert read.where(4).endswith("truth.csv, line 4")


def test_gzip_and_parquet_are_read_too(sheet, tmp_path):
    """The same rows from three kinds of file."""
    pl.DataFrame({"Image ID": ["a.png", "b.png"], "Mass": ["YES", "NO"]}).write_parquet(tmp_path / "t.parquet")
    rows = [("a.png", "YES"), ("b.png", "NO")]
    assert (
        verdicts.read_sheet(sheet(gzip.compress(GOOD.encode()), "t.csv.gz")).cells.select("image id", "mass").rows()
        == rows
    )
    assert verdicts.read_sheet(tmp_path / "t.parquet").cells.select("image id", "mass").rows() == rows


@pytest.mark.parametrize("header", ["a[x,y],b", '"a[x,y]",b'], ids=["unquoted", "quoted"])
def test_a_bracketed_header_names_a_column_a_word(sheet, header):
    """NIH writes `OriginalImage[Width,Height]` over two values, without quotes."""
    read = verdicts.read_sheet(sheet(f"{header}\n1,2,3\n"))
    assert read.cells["b"].to_list() == ["3"]


def test_a_missing_file_is_named(tmp_path):
    """With where to look."""
    assert mentions(refusal(tmp_path / "nowhere.csv"), "nowhere.csv", "does not exist")


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_an_empty_file_is_refused(sheet, content):
    """Nothing at all, or nothing but blanks."""
    assert "is empty" in refusal(sheet(content))


def test_a_header_without_rows_is_refused(sheet):
    """It says nothing about any film."""
    assert "no row" in refusal(sheet("Image ID,Mass\n"))


@pytest.mark.parametrize("keep", [12, 25, 40])
def test_a_truncated_gzip_is_refused(sheet, keep):
    """Cut in its header or in the middle."""
    packed = gzip.compress((GOOD + "c.png,NO\n" * 50).encode())
    assert "cut off or damaged" in refusal(sheet(packed[:keep], "truth.csv.gz"))


def test_a_truncated_parquet_is_refused(sheet, tmp_path):
    """Cut in the middle, it has no footer."""
    whole = tmp_path / "whole.parquet"
    pl.DataFrame({"Image ID": ["a.png"] * 50}).write_parquet(whole)
    assert "no whole Parquet" in refusal(sheet(whole.read_bytes()[:60], "cut.parquet"))


def test_a_file_in_latin_1_is_refused_with_its_line(sheet):
    """And with the command that mends it."""
    message = refusal(sheet("Image ID,Reader\na.png,Ann\nb.png,J\xfcrgen\n".encode("latin-1")))
    assert mentions(message, "line 3", "0xfc", "iconv")


@pytest.mark.parametrize(
    ("row", "fields"), [("b.png", "1 field"), ("b.png,NO,NO", "3 fields")], ids=["cut off", "too long"]
)
def test_a_row_of_another_length_is_refused_with_its_line(sheet, row, fields):
    """A value in the wrong column would be a wrong truth."""
    message = refusal(sheet(f"Image ID,Mass\na.png,YES\n{row}\n"))
    assert mentions(message, f"line 3: {fields}", "2")


def test_a_doubled_column_is_refused(sheet):
    """Which of the two would count? Case and underscores make no other column."""
    message = refusal(sheet("Image ID,Pleural_Thickening,Pleural thickening\na,1,0\n"))
    assert mentions(message, "line 1", "'pleural thickening'", "twice")


def test_a_field_of_ten_megabytes_is_refused(sheet):
    """It is damage, such as a quote that never closes."""
    assert "line 2" in refusal(sheet(f'Image ID,Mass\n"{"x" * 10_000_000}",YES\n'))


def test_a_folder_instead_of_a_file_is_refused(tmp_path):
    """Reading a folder is the reference's business."""
    assert "cannot be read" in refusal(tmp_path)


def test_columns_are_found_without_reading_on(sheet):
    """A folder is sorted by columns; what cannot be read has none."""
    assert verdicts.sheet_columns(sheet(GOOD)) == ["image id", "mass"]
    assert verdicts.sheet_columns(sheet(b"\x1f\x8bnonsense", "x.csv.gz")) == []
