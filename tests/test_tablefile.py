"""A table whole, in anybody's words: the base under sources, expert labels and scores."""

import gzip

import polars as pl
import pytest

from bpals.errors import TruthError
from bpals.store.tables import TableWords, open_table, read_columns

pytestmark = pytest.mark.quick

WORDS = TableWords(error=TruthError, where=" after --x", doubled="{name}: {column!r} twice", no_rows="{name}: {head}")


def write(folder, content, name="t.csv"):
    """Put a file there."""
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"a,b\n1,2\n"),
        ("t.csv", b"a;b\n1;2\n"),
        ("t.txt", b"a\tb\n1\t2\n"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)),
    ],
)
def test_the_header_shows_the_separator(tmp_path, name, content):
    """Where nobody says it."""
    assert open_table(write(tmp_path, content, name), words=WORDS).whole().frame.to_dicts() == [{"a": "1", "b": "2"}]


def test_a_tsv_of_one_column_keeps_its_commas(tmp_path):
    """Its name says what separates."""
    file = open_table(write(tmp_path, b"a, b\nx,y\n", "t.tsv"), words=WORDS)
    assert file.whole().frame.rows() == [("x,y",)]


def test_whole_gives_every_column_and_no_blank_row(tmp_path):
    """A nameless column is called by its number, and every row knows its line."""
    raw = open_table(write(tmp_path, b"a,,b\n1,2,3\n,,\n4,,\n"), words=WORDS).whole()
    assert raw.frame.columns == ["a", "column 2", "b"]
    assert raw.frame.rows() == [("1", "2", "3"), ("4", "", "")]
    assert raw.place(1).endswith("t.csv line 4")


def test_whole_parquet_is_text_or_as_it_is(tmp_path):
    """Typed, where numbers are wanted."""
    path = tmp_path / "t.parquet"
    pl.DataFrame({"a": [0.5]}).write_parquet(path)
    assert open_table(path, words=WORDS).whole().frame["a"].to_list() == ["0.5"]
    assert open_table(path, words=WORDS).whole(typed=True).frame["a"].to_list() == [0.5]


def test_a_packed_parquet_is_a_parquet(tmp_path):
    """Content counts, not the name."""
    plain = tmp_path / "t.parquet"
    pl.DataFrame({"a": ["x"]}).write_parquet(plain)
    packed = write(tmp_path, gzip.compress(plain.read_bytes()), "t.gz")
    assert open_table(packed, words=WORDS).whole().frame["a"].to_list() == ["x"]


def test_the_columns_of_a_file_with_broken_rows_are_read(tmp_path):
    """So that the file is recognised, and then refused with its line."""
    path = write(tmp_path, b"\xef\xbb\xbfa,b\n1\n2,3\n")
    assert read_columns(path, words=WORDS) == ["a", "b"]
    with pytest.raises(TruthError, match=r"line 2 has 1 .*2"):
        open_table(path, words=WORDS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,A\n1,2\n", r"t.csv: 'a' twice"),
        (b"Mass,Mass\n1,2\n", r"t.csv: 'Mass' twice"),
        (b"a,b\n,\n,\n", "t.csv: a header line"),
    ],
)
def test_a_file_is_refused_in_the_words_that_were_handed_in(tmp_path, content, words):
    """With the error of whoever reads."""
    file = open_table(write(tmp_path, content), words=WORDS)
    with pytest.raises(TruthError, match=words):
        file.whole()


def test_a_missing_file_says_where_its_path_was_typed(tmp_path):
    """After which option."""
    with pytest.raises(TruthError, match=r"does not exist.*--x$"):
        open_table(tmp_path / "gone.csv", words=WORDS)
