"""Files that are no table are refused in one line that says what they are."""

import datetime as dt
import gzip
import os
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bpals.errors import SourceError
from bpals.sources.mapping import open_table
from bpals.store.tables import LIST_SEPARATOR
from world.words import mentions

pytestmark = pytest.mark.quick


def refusal(path):
    """The one line that a path is refused with."""
    with pytest.raises(SourceError) as caught:
        open_table(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write(tmp_path):
    """Write a file, give its path."""

    def write(content, name="t.csv"):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def test_a_missing_file_is_answered_with_its_nearest_neighbour(write):
    """A typing error in a path is the most common mistake of all."""
    there = write(b"a\n1\n", "Data_Entry_2017.csv")
    assert f"Did you mean {str(there)!r}?" in refusal(there.with_name("Data_Entry_2071.csv"))


def test_a_missing_folder_is_refused(tmp_path):
    """There is no neighbour to name."""
    assert "does not exist" in refusal(tmp_path / "no" / "t.csv")


def test_a_folder_is_refused(tmp_path):
    """The message says to name a file in it."""
    assert "is a folder, not a file" in refusal(tmp_path)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path):
    """A link that leads to itself cannot be read by anyone."""
    (tmp_path / "t.csv").symlink_to(tmp_path / "t.csv")
    assert "cannot be read: " in refusal(tmp_path / "t.csv")


NOBODY = 65534


def test_a_file_without_permission_is_refused(write):
    """The message speaks of permissions; root may read everything, so it steps down for a moment."""
    path = write(b"a\n1\n")
    path.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        assert "Permission denied" in refusal(path)
    finally:
        os.seteuid(was)


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    """Reading it would never end."""
    os.mkfifo(tmp_path / "t.csv")
    assert "is not a regular file" in refusal(tmp_path / "t.csv")


def test_a_path_that_is_none_is_refused():
    """A zero byte cannot stand in a path."""
    with pytest.raises(SourceError, match="is no path"):
        open_table("a\x00b.csv")


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0), b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(write, content):
    """Plain, gzipped, or nothing but a byte order mark."""
    assert "is empty" in refusal(write(content))


@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_a_gzip_that_is_cut_off_is_refused(write, share):
    """Nothing that was read before the cut is used."""
    content = gzip.compress(os.urandom(3000).hex().encode())
    assert "is cut off: its gzip" in refusal(write(content[: int(len(content) * share)], "t.csv.gz"))


def test_a_gzip_with_a_wrong_byte_is_refused(write):
    """The checksum of the stream does not hold."""
    content = bytearray(gzip.compress(b"a,b\n" + b"1,2\n" * 100))
    content[-6] ^= 1
    assert "is damaged" in refusal(write(bytes(content), "t.csv.gz"))


@pytest.mark.parametrize("content", [gzip.compress(b"a" * 10_001, mtime=0), b"a" * 10_001])
def test_a_file_that_would_fill_the_memory_is_refused(write, content):
    """The limit is on what comes out of a gzip, not on what goes in."""
    with pytest.raises(SourceError, match="holds more than 10,000 bytes"):
        open_table(write(content), most_bytes=10_000)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x89PNG\r\n\x1a\n\x00", "a PNG image"),
        (b"\xff\xd8\xff\xe0", "a JPEG image"),
        (b"%PDF-1.7", "a PDF"),
        (b"PK\x03\x04", "a zip archive or an Excel workbook"),
        (b"  <!DOCTYPE html><html>404</html>", "an HTML or XML page"),
        (b'{"a": 1}', "a JSON text"),
        (gzip.compress(b"<html>", mtime=0), "an HTML or XML page"),
    ],
)
def test_a_wrong_file_is_called_by_its_name(write, content, what):
    """A download page saved as .csv is no table."""
    assert mentions(refusal(write(content)), what, "CSV or Parquet")


def test_binary_rubbish_is_refused(write):
    """A zero byte never stands in a text."""
    assert "line 2 has a zero byte" in refusal(write(b"a,b\n\x00\x01\n"))


def test_latin_1_is_refused_with_its_line_and_the_command_that_mends_it(write):
    """A guess at the encoding would change names silently."""
    line = refusal(write("image,patient\na.png,1\nb.png,Müller\n".encode("latin-1")))
    assert mentions(line, "line 3", "0xfc")
    assert "iconv -f LATIN1 -t UTF-8" in line


def test_utf_16_is_refused_with_the_command_that_mends_it(write):
    """Excel calls it Unicode text."""
    assert "iconv -f UTF-16 -t UTF-8" in refusal(write("a,b\n1,2\n".encode("utf-16")))


@pytest.mark.parametrize("content", [b"\xef\xbb\xbfa,b\n1,2\n", b"a,b\r\n1,2\r\n", b"a,b\r1,2\r", b" a , b\n 1 ,\t2\n"])
def test_harmless_differences_are_read(write, content):
    """A byte order mark, either line ending and stray blanks do not matter."""
    file = open_table(write(content))
    assert file.header == ["a", "b"]
    assert file.read(["a", "b"]).frame.rows() == [("1", "2")]


def test_the_name_of_a_file_does_not_matter(write):
    """A gzip is known by its bytes: browsers unpack files and leave the ending."""
    assert open_table(write(gzip.compress(b"a\n1\n"), "t.csv")).read(["a"]).frame.rows() == [("1",)]
    assert open_table(write(b"a\n1\n", "t.csv.gz")).read(["a"]).frame.rows() == [("1",)]


@pytest.mark.parametrize("quoted", [True, False])
def test_a_field_of_10_megabytes_is_refused_with_its_line(write, quoted):
    """No label is that long; a column that is not read may hold what it likes."""
    field = b'"' + b"x" * 10_485_760 + b'"' if quoted else b"x" * 10_485_760
    file = open_table(write(b"a,b\n1,2\n3," + field + b"\n"))
    with pytest.raises(SourceError, match=r"t\.csv line 3, .*'b', .*10,485,760"):
        file.read(["b"])
    assert file.read(["a"]).frame.height == 2


def test_parquet_is_read_as_the_same_text(tmp_path):
    """Numbers, truth values, dates and lists become text; null becomes nothing."""
    frame = pl.DataFrame(
        {
            "number": [1.0, None],
            "truth": [True, False],
            "day": [dt.date(2009, 12, 31), None],
            "words": [["Mass", " Edema"], []],
        }
    )
    frame.write_parquet(tmp_path / "t.parquet")
    raw = open_table(tmp_path / "t.parquet").read(frame.columns)
    assert raw.frame.rows() == [("1.0", "true", "2009-12-31", f"Mass{LIST_SEPARATOR} Edema"), ("", "false", "", "")]
    assert raw.lists == {"words"}
    assert raw.place(0).endswith("t.parquet row 1")


def test_parquet_that_is_cut_off_or_empty_is_refused(tmp_path, write):
    """Its end holds the table of contents."""
    path = tmp_path / "t.parquet"
    pl.DataFrame({"a": ["x"] * 100}).write_parquet(path)
    content = path.read_bytes()
    assert "is cut off" in refusal(write(content[:200], "cut.parquet"))
    assert "damaged" in refusal(write(content[:60] + content[-4:], "hole.parquet"))
    pl.DataFrame({"a": []}, schema={"a": pl.String}).write_parquet(path)
    with pytest.raises(SourceError, match="has columns but no rows"):
        open_table(path).read(["a"])


@pytest.mark.parametrize("cell", [{"b": 1}, [["b"]], b"b"])
def test_parquet_with_a_column_that_is_no_text_is_refused(tmp_path, cell):
    """A label is no record, no list of lists and no bytes."""
    pl.DataFrame({"a": [cell]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=r"t\.parquet, .*'a', .*texts"):
        open_table(tmp_path / "t.parquet").read(["a"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=80) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path: Path, content):
    """Nothing but a SourceError comes out of a file that is no table (F24)."""
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    try:
        file = open_table(path)
        file.read(file.header[:1])
    except SourceError as error:
        assert "\n" not in str(error)  # noqa: PT017
