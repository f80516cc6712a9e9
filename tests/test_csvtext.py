"""The skeleton of a CSV: what Polars reads must be what Python's csv reads, and broken texts name their line."""

import csv
import io

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpals.errors import SourceError
from bpals.store.tables import CsvText, TableWords

pytestmark = pytest.mark.quick


def csv_text(content, separator=","):
    """Open a text as a table called t.csv."""
    return CsvText(content, name="t.csv", separator=separator, words=TableWords(error=SourceError))


def read(content, separator=","):
    """Every row of a text."""
    text = csv_text(content, separator)
    return text.read(list(range(len(text.header)))).rows()


cells = st.text(alphabet='ab ,"\n;é', max_size=4)


@given(
    rows=st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=6),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    cut=st.booleans(),
)
def test_it_reads_what_the_csv_module_reads(rows, end, quoting, cut):
    """Any table that Python's csv writes comes back cell by cell, with or without a last line break."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=end, quoting=quoting)
    writer.writerows([["x", "y", "z"], *rows])
    text = file.getvalue().removesuffix(end) if cut else file.getvalue()
    assert read(text.encode()) == [tuple(row) for row in rows]


@given(rows=st.lists(st.tuples(cells, st.booleans()), min_size=1, max_size=6))
def test_every_row_knows_its_line(rows):
    """Line breaks inside quotes and blank lines between rows are counted as lines."""
    lines, text = [], "x,y\n"
    for cell, blank_before in rows:
        text += "\n" if blank_before else ""
        lines.append(text.count("\n") + 1)
        text += '"' + cell.replace('"', '""') + '",1\n'
    table = csv_text(text.encode())
    assert table.lines.tolist() == lines
    assert table.read([0])["0"].to_list() == [cell for cell, _ in rows]


@given(content=st.binary(max_size=60) | st.text(alphabet='a,"\r\n', max_size=30).map(str.encode))
def test_any_text_is_read_or_refused_in_one_line(content):
    """Nothing but a SourceError comes out of a text that is no table."""
    try:
        content.decode()
        read(content)
    except UnicodeDecodeError:
        pass
    except SourceError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_columns_without_a_name_may_be_missing_at_the_end():
    """NIH's box list has more commas in its header than in its rows."""
    assert read(b"a,b,,\n1,2\n3,4\n") == [("1", "2", "", ""), ("3", "4", "", "")]


def test_only_the_columns_that_are_asked_for_are_read():
    """A place gives its column, in the order that was asked for."""
    assert csv_text(b"a,b,c\n1,2,3\n").read([2, 0]).equals(pl.DataFrame({"2": ["3"], "0": ["1"]}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "t.csv is empty"),
        (b"\n\r\n\n", "t.csv is empty"),
        (b"a,b\n", "has a header line but no rows"),
        (b"a,b\n1,2\n1,2,3\n4,5\n", "t.csv line 3 has 3 fields where the header has 2"),
        (b"a,b\n1,2\n\n1\n4,5\n", "t.csv line 4 has 1 field where the header has 2. Mend that line"),
        (b"a,b\n1,2\n3", "t.csv line 3 has 1 field where the header has 2: the file is cut off in its last line"),
        (b'a,b\n1,2\n3,"4\n5,6\n', "t.csv line 3 opens a double quote that never closes"),
        (b'a,b\n1,2"x\n', "t.csv line 2 has a stray double quote"),
        (b'a,b\n1,"2"x\n', "t.csv line 2 has a stray double quote"),
        (b'a,b\n1,"2"\rx\n', "t.csv line 2 has a stray double quote"),
    ],
)
def test_a_broken_text_is_refused_with_its_line(content, message):
    """What is wrong, and on which line."""
    with pytest.raises(SourceError, match=message.replace("(", r"\(")):
        csv_text(content)


def test_a_line_of_blanks_is_a_blank_line():
    """Editors leave them behind; the rows after it keep their lines."""
    table = csv_text(b"  \na,b\n1,2\n \t \n3,4\n")
    assert table.header == ["a", "b"]
    assert table.read([0])["0"].to_list() == ["1", "3"]
    assert table.lines.tolist() == [3, 5]


@pytest.mark.parametrize("header", [b"a[x,y],b", b'"a[x,y]",b'])
def test_a_bracketed_header_names_a_column_a_word(header):
    """NIH writes `OriginalImage[Width,Height]` over two values, with quotes or without."""
    table = csv_text(header + b"\n1,2,3\n")
    assert table.header == ["a[x", "y]", "b"]


def test_another_separator_is_taken_at_its_word():
    """A semicolon separates, and then a comma does not."""
    assert read(b"a;b\n1,5;2\n", separator=";") == [("1,5", "2")]
