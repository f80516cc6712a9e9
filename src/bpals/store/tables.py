"""Careful reading of tables: CSV, CSV.gz or Parquet, recognised by content and not by name.

Every file that is no table is refused in one line that names the place and the way out.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import stat
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import BpalsError
from bpals.findings import fold
from bpals.store.files import sha256
from bpals.text import several
from bpals.types import Notice

# Ten times PadChest's CSV. A small gzip can hold far more than a machine has.
MOST_BYTES = 1 << 30
# A longer cell is damage, such as a quote that never closes: no label, name or number has so many bytes.
LONGEST_FIELD = 65_536
# Joins the words of a Parquet list in a text; no label holds this control character.
LIST_SEPARATOR = "\x1f"
MAGIC = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"SQLite format 3": "an SQLite database",
    b"<": "an HTML or XML page",
    b"{": "a JSON text",
}
UTF16 = (b"\xff\xfe", b"\xfe\xff")
GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"
QUOTE, NEWLINE, RETURN = b'"'[0], b"\n"[0], b"\r"[0]

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWords:
    """The messages about a bad table; readers of expert labels or scores replace a few with their own."""

    error: type[BpalsError]
    where: str = ""  # follows `Check the path`: the option where the path was typed
    folder: str = "{name} is a folder, not a file. Name the file in it"
    too_large: str = "{name} holds more than {most:,} bytes. Keep only the columns that are needed"
    gzip_cut: str = "{name} is cut off: its gzip stream ends in the middle. Get it again"
    gzip_damaged: str = "{name} is damaged: its gzip stream does not check. Get it again"
    not_utf8: str = (
        "{name} line {line} is not UTF-8 (byte {byte}). "
        "If it is Latin-1, type: iconv -f LATIN1 -t UTF-8 {name} > utf8.csv"
    )
    empty: str = "{name} is empty. Give a table with a header line and one row per image"
    no_rows: str = "{name} has {head} but no rows. Give a table with one row per image"
    cut_row: str = (
        "{name} line {line} has {fields} where the header has {width}: "
        "the file is cut off in its last line. Get it again"
    )
    uneven_row: str = (
        "{name} line {line} has {fields} where the header has {width}. "
        "Mend that line: a field that holds {separator!r} belongs in double quotes"
    )
    stray_quote: str = (
        "{name} line {line} has a stray double quote. Put the whole field in double quotes and double those inside"
    )
    open_quote: str = "{name} line {line} opens a double quote that never closes. Close it, or get the file again"
    doubled: str = "{name} line 1: the column {column!r} appears twice. Rename or remove one of them"
    parquet_cut: str = "{name} is cut off: this Parquet file has no end. Get it again"
    parquet_damaged: str = "{name} is a damaged Parquet file ({reason}). Get it again"

    def refusal(self, template: str, **what: object) -> BpalsError:
        """Fill in one of the messages; give the error to raise."""
        return self.error(template.format(**what))


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """The wanted columns as stripped text; the empty text where there is nothing."""

    name: str
    frame: pl.DataFrame
    lines: Places | None  # the line of each row in the file; none for Parquet, which has rows but no lines
    lists: frozenset[str] = frozenset()  # columns that were lists in Parquet, joined by LIST_SEPARATOR

    def place(self, row: int) -> str:
        """Name a row as a person finds it: `my.csv line 17`; in Parquet the first row is row 1."""
        return f"{self.name} {self._row(row)}"

    def first(self, bad: pl.Series) -> int | None:
        """Give the first row that is marked, if there is one."""
        return bad.arg_max() if bad.any() else None

    def notice(self, code: str, bad: pl.Series, message: str) -> list[Notice]:
        """Count the marked rows into a notice that names the first of them; none if nothing is marked."""
        row = self.first(bad)
        if row is None:
            return []
        found = int(bad.sum())
        # A notice goes into the report, which must not show the folders of a machine: only the file's name.
        first = f"{Path(self.name).name} {self._row(row)}"
        return [Notice(code=code, count=found, message=f"{message}: {found:,}, first in {first}")]

    def _row(self, row: int) -> str:
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"

    def filter(self, keep: pl.Series) -> RawTable:
        """Keep the marked rows, which still know their lines."""
        lines = None if self.lines is None else self.lines[keep.to_numpy()]
        return replace(self, frame=self.frame.filter(keep), lines=lines)


def open_table(
    path: str | Path, *, words: TableWords, separator: str | None = None, most_bytes: int = MOST_BYTES
) -> TableFile:
    """Read a file and its header; without a separator, the header shows it. What is no table is refused."""
    name = str(path)
    stored = read_bytes(path, words=words, most_bytes=most_bytes)
    digest = sha256(stored)
    content = _gunzip(stored, name=name, words=words, most_bytes=most_bytes)
    if content[:4] == PARQUET:
        return ParquetTable(content, name=name, sha256=digest, words=words)
    plain = _check_text(content, name=name, words=words)
    return CsvTable(plain, name=name, separator=separator or _separator(name, plain), words=words, sha256=digest)


def read_columns(path: str | Path, *, words: TableWords) -> list[str]:
    """Read the names of the columns alone, to recognise a file whose rows may be broken."""
    name = str(path)
    content = _gunzip(read_bytes(path, words=words), name=name, words=words, most_bytes=MOST_BYTES)
    if content[:4] == PARQUET:
        return ParquetTable(content, name=name, sha256="", words=words).header
    first = _check_text(_first_line(content), name=name, words=words)
    return _split_header(first, _separator(name, first), name=name, words=words)


def read_bytes(path: str | Path, *, words: TableWords, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a regular file; anything else is a one-line error."""
    place, check = Path(path), f"Check the path{words.where}"
    try:
        found = place.stat()
        if stat.S_ISDIR(found.st_mode):
            raise words.refusal(words.folder, name=path)
        if not stat.S_ISREG(found.st_mode):
            raise words.error(f"{path} is not a regular file. Write its content to a file and name that")
        if found.st_size > most_bytes:
            raise words.refusal(words.too_large, name=path, most=most_bytes)
        return place.read_bytes()
    except FileNotFoundError:
        raise words.error(f"{path} does not exist.{_name_neighbour(place)} {check}") from None
    except OSError as error:
        raise words.error(f"{path} cannot be read: {error.strerror}. {check}, and its permissions") from None
    except ValueError:
        raise words.error(f"{str(path)!r} is no path. {check}") from None


def _name_neighbour(place: Path) -> str:
    try:
        siblings = [sibling.name for sibling in place.parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(place.name, siblings, n=1, cutoff=0.7)
    return f" Did you mean {str(place.parent / near[0])!r}?" if near else ""


def _gunzip(stored: bytes, *, name: str, words: TableWords, most_bytes: int) -> bytes:
    if not stored.startswith(GZIP):
        return stored
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(stored)) as file:
            content = file.read(most_bytes + 1)
    except EOFError:
        raise words.refusal(words.gzip_cut, name=name) from None
    except (OSError, zlib.error):
        raise words.refusal(words.gzip_damaged, name=name) from None
    if len(content) > most_bytes:
        raise words.refusal(words.too_large, name=name, most=most_bytes)
    return content


def _check_text(content: bytes, *, name: str, words: TableWords) -> bytes:
    """Give the text without its byte order mark; what is no UTF-8 table is refused with what it is."""
    if content.startswith(UTF16):
        raise words.error(f"{name} is UTF-16, not UTF-8. Type: iconv -f UTF-16 -t UTF-8 {name} > utf8.csv")
    content = content.removeprefix(b"\xef\xbb\xbf")
    head = content[:256].lstrip()
    for magic, what in MAGIC.items():
        if head.startswith(magic):
            raise words.error(f"{name} is {what}, not a CSV or Parquet table. Give the table itself")
    if b"\x00" in content:
        line = content.count(b"\n", 0, content.index(b"\x00")) + 1
        raise words.error(f"{name} line {line} has a zero byte: this is no text. Give a CSV or Parquet table")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"0x{content[error.start]:02x}"
        raise words.refusal(words.not_utf8, name=name, line=line, byte=byte) from None
    # Old spreadsheets end a line with a carriage return alone.
    return content if b"\n" in content else content.replace(b"\r", b"\n")


def _first_line(content: bytes) -> bytes:
    return next((line for line in content.splitlines() if line.strip()), b"")


def _separator(name: str, content: bytes) -> str:
    """Tell the separator from the header."""
    first = _first_line(content)
    if b"\t" in first or ".tsv" in Path(name).name.lower():
        return "\t"
    return ";" if first.count(b";") > first.count(b",") else ","


class CsvTable:
    """A CSV text whose header is read and whose records are known to be whole."""

    def __init__(self, content: bytes, *, name: str, separator: str, words: TableWords, sha256: str = "") -> None:
        """Find the records; a text that is no CSV is refused with the line where it breaks."""
        self.name = name
        self.sha256 = sha256
        self._content = content
        self._separator = separator
        self._words = words
        self._records = _find_records(content, name=name, separator=separator, words=words)
        self._head = self._find_header()
        self.header = self._read_header()
        self._check_widths()

    @property
    def lines(self) -> Places:
        """The line of each row in the file; the header is line 1."""
        return self._rows(self._records.line)

    def read(self, columns: list[str]) -> RawTable:
        """Read these columns as text."""
        return self._read([self.header.index(column) for column in columns], columns)

    def whole(self, *, typed: bool = False) -> RawTable:  # noqa: ARG002  a text has no types
        """Read every column as text, without blank rows."""
        raw = self._read(list(range(len(self.header))), _numbered(self.header, name=self.name, words=self._words))
        blank = raw.frame.select(pl.all_horizontal(pl.all() == "")).to_series()
        if blank.all():
            raise self._words.refusal(self._words.no_rows, name=self.name, head="a header line")
        return raw.filter(~blank) if blank.any() else raw

    def _read(self, places: list[int], names: list[str]) -> RawTable:
        frame = self.cells(places).rename(dict(zip(map(str, places), names, strict=True)))
        return _strip(RawTable(name=self.name, frame=frame, lines=self.lines), self._words)

    def cells(self, places: list[int]) -> pl.DataFrame:
        """Give the fields at these places of every row as text; each column is named by its place."""
        records = self._records
        width = int(records.fields[self._head + 1 :].max())
        unreadable = self._words.error(f"{self.name} cannot be read: its rows cannot be told apart. Get the file again")
        try:
            frame = pl.read_csv(
                self._content[int(records.start[self._head + 1]) :],
                has_header=False,
                separator=self._separator,
                schema={str(place): pl.String for place in range(width)},
                empty_string_is_null=False,
                columns=[place for place in places if place < width],
                missing_columns="insert",
            )
        except pl.exceptions.PolarsError:
            raise unreadable from None
        # Polars and the search for records must agree, or every later line number is wrong.
        if frame.height != records.start.size - self._head - 1:
            raise unreadable
        filled = frame.filter(pl.Series(records.filled[self._head + 1 :])).fill_null("")
        return filled.select(pl.col(str(p)) if p < width else pl.lit("").alias(str(p)) for p in places)

    def _find_header(self) -> int:
        filled = np.flatnonzero(self._records.filled)
        if filled.size < 2:
            template = self._words.no_rows if filled.size else self._words.empty
            raise self._words.refusal(template, name=self.name, head="a header line")
        return int(filled[0])

    def _read_header(self) -> list[str]:
        line = self._content[int(self._records.start[self._head]) : int(self._records.end[self._head])]
        columns = _split_header(line, self._separator, name=self.name, words=self._words)
        return _spelled_out(columns) if self._rows(self._records.fields)[0] > len(columns) else columns

    def _check_widths(self) -> None:
        """Refuse records with more or fewer fields than the header; nameless columns at its end may be missing."""
        named = max((place + 1 for place, column in enumerate(self.header) if column), default=0)
        fields = self._rows(self._records.fields)
        wrong = np.flatnonzero((fields < named) | (fields > len(self.header)))
        if wrong.size == 0:
            return
        row, words = int(wrong[0]), self._words
        raise words.refusal(
            words.cut_row if row == fields.size - 1 and fields[row] < named else words.uneven_row,
            name=self.name,
            line=self.lines[row],
            fields=several(int(fields[row]), "field"),
            width=len(self.header),
            separator=self._separator,
        )

    def _rows(self, values: Places) -> Places:
        after = slice(self._head + 1, None)
        return values[after][self._records.filled[after]]


def _split_header(line: bytes, separator: str, *, name: str, words: TableWords) -> list[str]:
    """Give the names of the columns out of the header's line."""
    try:
        columns = next(csv.reader([line.decode("utf-8")], delimiter=separator), [])
    except csv.Error as error:
        raise words.error(f"{name} line 1 is no header: {error}. Give a table with a header line") from None
    return [column.strip() for column in columns]


def _spelled_out(header: list[str]) -> list[str]:
    """Take `OriginalImage[Width,Height]` apart: NIH's rows have a value for each word in the brackets."""
    return [piece.strip() for name in header for piece in (name.split(",") if "[" in name else [name])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """The records of a CSV text, blank lines included; every array has one entry per record."""

    start: Places
    end: Places
    fields: Places
    line: Places
    filled: npt.NDArray[np.bool_]  # False for a blank line


def _find_records(content: bytes, *, name: str, separator: str, words: TableWords) -> _Records:
    """Find every record of a CSV text; a separator or line break inside double quotes is none."""
    # A line break on either side, so that every byte has neighbours: padded[i] stands before text[i].
    padded = np.frombuffer(b"\n%b\n" % content, np.uint8)
    text = padded[1:-1]
    structural = np.zeros(256, bool)
    structural[[QUOTE, NEWLINE, ord(separator)]] = True
    marks = np.flatnonzero(structural[text])
    kinds = text[marks]
    # After an odd number of quotes we are inside a field; a doubled quote counts twice and changes nothing.
    inside = (np.cumsum(kinds == QUOTE) & 1).astype(bool)
    newlines = marks[kinds == NEWLINE]
    if trouble := _find_quote_trouble(padded, marks, inside, separator=ord(separator), words=words):
        place, template = trouble
        raise words.refusal(template, name=name, line=np.searchsorted(newlines, place) + 1)
    end = marks[(kinds == NEWLINE) & ~inside]
    if text.size and not content.endswith(b"\n"):
        end = np.append(end, text.size)
    start = np.concatenate([np.zeros(1, np.int64), end[:-1] + 1])[: end.size]
    between = marks[(kinds == ord(separator)) & ~inside]
    ends_in_return = (end > start) & (padded[end] == RETURN)
    fields = np.searchsorted(between, end) - np.searchsorted(between, start) + 1
    end = end - ends_in_return
    filled = end > start
    # A line of blanks alone is a blank line.
    for row in np.flatnonzero(filled & (fields == 1)):
        filled[row] = bool(content[start[row] : end[row]].strip())
    return _Records(start=start, end=end, fields=fields, line=np.searchsorted(newlines, start) + 1, filled=filled)


def _find_quote_trouble(
    padded: npt.NDArray[np.uint8], marks: Places, inside: npt.NDArray[np.bool_], *, separator: int, words: TableWords
) -> tuple[int, str] | None:
    """Find the first double quote that stands in the middle of a field, or the one that never closes; and its words."""
    is_quote = padded[marks + 1] == QUOTE
    quotes, opens = marks[is_quote], inside[is_quote]
    if quotes.size == 0:
        return None
    neighbour = np.where(opens, padded[quotes], padded[quotes + 2])
    line_end = (neighbour == RETURN) & (padded[np.minimum(quotes + 3, padded.size - 1)] == NEWLINE)
    apart = np.isin(neighbour, np.array([separator, NEWLINE, QUOTE], np.uint8)) | (~opens & line_end)
    stray = quotes[~apart]
    if stray.size:
        return int(stray[0]), words.stray_quote
    if opens[-1]:
        return int(quotes[-1]), words.open_quote
    return None


class ParquetTable:
    """A Parquet file whose columns are known and whose rows are not read yet."""

    def __init__(self, content: bytes, *, name: str, sha256: str, words: TableWords) -> None:
        """Read the schema; a file that is cut off or damaged is refused."""
        self.name = name
        self.sha256 = sha256
        self._content = content
        self._words = words
        if len(content) < 12 or content[-4:] != PARQUET:
            raise words.refusal(words.parquet_cut, name=name)
        try:
            self._schema = pl.read_parquet_schema(io.BytesIO(content))
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self._damaged(error) from None

    @property
    def header(self) -> list[str]:
        """The names of the columns, as the file has them."""
        return list(self._schema)

    def read(self, columns: list[str]) -> RawTable:
        """Read these columns as text."""
        frame = self._frame(columns)
        lists = frozenset(name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List))
        for name, dtype in frame.schema.items():
            inner = dtype.inner if isinstance(dtype, pl.List) else dtype
            if inner.is_nested() or inner == pl.Binary:
                raise self._words.error(
                    f"{self.name}, column {name!r}, is {dtype}. Give texts, numbers or lists of texts"
                )
        text = frame.select(
            pl.col(name).cast(pl.List(pl.String)).list.join(LIST_SEPARATOR, ignore_nulls=True)
            if name in lists
            else pl.col(name).cast(pl.String)
            for name in columns
        )
        return _strip(RawTable(name=self.name, frame=text.fill_null(""), lines=None, lists=lists), self._words)

    def whole(self, *, typed: bool = False) -> RawTable:
        """Read every column, a nameless one by its number; as text, or in the types of the file."""
        names = _numbered(self.header, name=self.name, words=self._words)
        raw = RawTable(name=self.name, frame=self._frame(self.header), lines=None) if typed else self.read(self.header)
        return replace(raw, frame=raw.frame.rename(dict(zip(self.header, names, strict=True))))

    def _frame(self, columns: list[str]) -> pl.DataFrame:
        try:
            frame = pl.read_parquet(io.BytesIO(self._content), columns=columns)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self._damaged(error) from None
        if frame.height == 0:
            raise self._words.refusal(self._words.no_rows, name=self.name, head="columns")
        return frame

    def _damaged(self, error: BaseException) -> BpalsError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return self._words.refusal(self._words.parquet_damaged, name=self.name, reason=reason)


TableFile = CsvTable | ParquetTable


def _numbered(header: list[str], *, name: str, words: TableWords) -> list[str]:
    """Give a nameless column its number, and refuse two columns of one name, as written or folded."""
    names = [column or f"column {place}" for place, column in enumerate(header, 1)]
    for spelled in (names, [fold(column) for column in names]):
        if doubled := [column for column, count in Counter(spelled).items() if count > 1]:
            raise words.refusal(words.doubled, name=name, column=doubled[0])
    return names


def _strip(raw: RawTable, words: TableWords) -> RawTable:
    """Take stray blanks off every cell, and refuse a cell that is too long to mean anything."""
    frame = raw.frame.with_columns(pl.all().str.strip_chars())
    for column in frame.columns:
        sizes = frame[column].str.len_bytes()
        row = raw.first(sizes > LONGEST_FIELD)
        if row is not None:
            raise words.error(
                f"{raw.place(row)}, column {column!r}, holds {sizes[row]:,} bytes, which is no label, name or number. "
                "Look for a quote that closes too late"
            )
    return replace(raw, frame=frame)
