"""A file of scores on disk: read whole, or refused in one line."""

import gzip

import polars as pl
import pytest

from bpals.errors import JudgeError
from bpals.judges.table import read_scores

pytestmark = pytest.mark.quick


def write(folder, content, name="scores.csv"):
    """Put a file there."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"image_id,Mass\na.png,0.5\nb.png,\n"),
        ("crlf.csv", b"image_id,Mass\r\na.png,0.5\r\nb.png,\r\n"),
        ("bom.csv", b"\xef\xbb\xbfimage_id,Mass\na.png,0.5\nb.png,\n"),
        ("semicolons.csv", b"image_id;Mass\na.png;0.5\nb.png;\n"),
        ("tabs.tsv", b"image_id\tMass\na.png\t0.5\nb.png\t\n"),
        ("quoted.csv", b'"image_id","Mass"\n"a.png","0.5"\n"b.png",""\n'),
        ("blanks.csv", b"\n image_id , Mass \n\n a.png , 0.5 \n\nb.png,\n\n"),
        ("cut-newline.csv", b"image_id,Mass\na.png,0.5\nb.png,"),
        ("packed.csv.gz", gzip.compress(b"image_id,Mass\na.png,0.5\nb.png,\n", mtime=0)),
    ],
)
def test_text_is_read_as_it_is_written(tmp_path, name, content):
    """Whatever wrote it: line ends, marks, separators, quotes, blanks, gzip."""
    file = read_scores(write(tmp_path, content, name))
    assert file.frame.to_dict(as_series=False) == {"image_id": ["a.png", "b.png"], "Mass": ["0.5", ""]}


def test_parquet_keeps_its_types(tmp_path):
    """And has rows, not lines."""
    path = tmp_path / "scores.parquet"
    pl.DataFrame({"image_id": ["a.png"], "Mass": [0.5]}).write_parquet(path)
    file = read_scores(path)
    assert file.frame["Mass"].dtype == pl.Float64
    assert file.place(0) == f"{path} row 1"


def test_a_row_knows_its_line(tmp_path):
    """Also after blank lines and line breaks inside quotes."""
    file = read_scores(write(tmp_path, 'image_id,note,Mass\n\na.png,"two\nlines",1\nb.png,x,1\n'))
    assert file.place(1).endswith("scores.csv line 5")


def test_a_column_is_found_however_it_is_spelled(tmp_path):
    """Blanks, case, _ and - do not matter; the first spelling that is there wins."""
    file = read_scores(write(tmp_path, "Image Index,P-Present\na,1\n"))
    assert file.column("image_index", "p_present") == "Image Index"
    assert file.column("P PRESENT") == "P-Present"
    assert file.column("judge") is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"image_id,Mass\n", "has columns but no row"),
        (b"image_id,Mass\na.png,0.5,0.6\n", "line 2 has 3 fields where the header has 2"),
        (b"image_id,Mass\na.png,0.5\nb.p", "line 3 has 1 field where the header has 2.*cut off"),
        (b'image_id,Mass\na.png,"0.5\n', "line 2: unexpected end of data"),
        (b"image_id,Mass,mass\na.png,1,1\n", "the column 'mass' stands there twice"),
        (b"image_id,Mass,Mass\na.png,1,1\n", "the column 'Mass' stands there twice"),
        (b"image_id,Mass\n\xff\xfe,1\n", "line 2 is no UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is a PNG image, not a CSV or Parquet table"),
        (b"PAR1 and then nothing", "is no whole Parquet file"),
        (gzip.compress(b"image_id,Mass\na.png,0.5\n", mtime=0)[:-9], "is cut off or damaged"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, content, words):
    """What it is, where, and what to do; never a half of it."""
    with pytest.raises(JudgeError, match=words) as caught:
        read_scores(write(tmp_path, content))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    """Nor a folder, which is none."""
    with pytest.raises(JudgeError, match="does not exist"):
        read_scores(tmp_path / "gone.csv")
    with pytest.raises(JudgeError, match="Is a directory"):
        read_scores(tmp_path)
