"""A table on disk, as text: CSV, CSV.gz or Parquet, told apart by content and not by name."""

from __future__ import annotations

import difflib
import gzip
import io
import stat
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.csvtext import CsvText, split_header
from bpals.durable import sha256
from bpals.errors import BpalsError
from bpals.findings import fold
from bpals.tablewords import TableWords
from bpals.types import Notice

MOST_BYTES = 1 << 30
"""Bytes that are read at most, ten times PadChest's CSV: a small gzip can hold far more than a machine has."""

LONGEST_FIELD = 65_536
"""A label, name or number longer than this many bytes is damage, such as a quote that never closes."""

LIST_SEPARATOR = "\x1f"
"""Stands between the words of a Parquet list when it is read as text; the character no label has."""

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


class TableFile(Protocol):
    """A table whose header is known and whose rows are not read yet."""

    name: str
    sha256: str

    @property
    def header(self) -> list[str]:
        """The names of the columns, as the file has them."""

    def read(self, columns: list[str]) -> RawTable:
        """Read these columns as text."""

    def whole(self, *, typed: bool = False) -> RawTable:
        """Read every column, a nameless one by its number, without blank rows; as text, or as Parquet has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """The columns that were asked for, as stripped text; the empty text where nothing stands."""

    name: str
    frame: pl.DataFrame
    lines: npt.NDArray[np.int64] | None
    """The line of each row in the file; none for Parquet, which has rows but no lines."""
    lists: frozenset[str] = field(default_factory=frozenset)
    """Columns that were lists in Parquet: their words stand apart by LIST_SEPARATOR."""

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
        return [Notice(code=code, count=found, message=f"{message}: {found:,}, first in {self._short_place(row)}")]

    def _short_place(self, row: int) -> str:
        # A notice goes into the report, which has no business with the folders of a machine.
        return f"{Path(self.name).name} {self._row(row)}"

    def _row(self, row: int) -> str:
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"

    def filter(self, keep: pl.Series) -> RawTable:
        """Keep the marked rows, which still know their lines."""
        lines = None if self.lines is None else self.lines[keep.to_numpy()]
        return RawTable(name=self.name, frame=self.frame.filter(keep), lines=lines, lists=self.lists)


def open_table(
    path: str | Path, *, words: TableWords, separator: str | None = None, most_bytes: int = MOST_BYTES
) -> TableFile:
    """Read a file and its header; without a separator, the header shows it. What is no table is refused."""
    name = str(path)
    stored = read_bytes(path, words=words, most_bytes=most_bytes)
    digest = sha256(stored)
    content = _gunzip(stored, name=name, words=words, most_bytes=most_bytes)
    if content[:4] == PARQUET:
        return _ParquetTable(content, name=name, sha256=digest, words=words)
    plain = _check_text(content, name=name, words=words)
    parted = separator or _separator(name, plain)
    text = CsvText(plain, name=name, separator=parted, words=words)
    return _CsvTable(text, name=name, sha256=digest, words=words)


def read_columns(path: str | Path, *, words: TableWords) -> list[str]:
    """Read the names of the columns alone, to recognise a file whose rows may be broken."""
    name = str(path)
    content = _gunzip(read_bytes(path, words=words), name=name, words=words, most_bytes=MOST_BYTES)
    if content[:4] == PARQUET:
        return _ParquetTable(content, name=name, sha256="", words=words).header
    first = _check_text(_first_line(content), name=name, words=words)
    return split_header(first, _separator(name, first), name=name, words=words)


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


class _CsvTable:
    def __init__(self, text: CsvText, *, name: str, sha256: str, words: TableWords) -> None:
        self.name = name
        self.sha256 = sha256
        self.header = text.header
        self._text = text
        self._words = words

    def read(self, columns: list[str]) -> RawTable:
        return self._read([self.header.index(column) for column in columns], columns)

    def whole(self, *, typed: bool = False) -> RawTable:  # noqa: ARG002  a text has no types
        raw = self._read(list(range(len(self.header))), _numbered(self.header, name=self.name, words=self._words))
        blank = raw.frame.select(pl.all_horizontal(pl.all() == "")).to_series()
        if blank.all():
            raise self._words.refusal(self._words.no_rows, name=self.name, head="a header line")
        return raw.filter(~blank) if blank.any() else raw

    def _read(self, places: list[int], names: list[str]) -> RawTable:
        frame = self._text.read(places).rename(dict(zip(map(str, places), names, strict=True)))
        return _strip(RawTable(name=self.name, frame=frame, lines=self._text.lines), self._words)


class _ParquetTable:
    def __init__(self, content: bytes, *, name: str, sha256: str, words: TableWords) -> None:
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
        return list(self._schema)

    def read(self, columns: list[str]) -> RawTable:
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
        names = _numbered(self.header, name=self.name, words=self._words)
        raw = RawTable(name=self.name, frame=self._frame(self.header), lines=None) if typed else self.read(self.header)
        named = raw.frame.rename(dict(zip(self.header, names, strict=True)))
        return RawTable(name=raw.name, frame=named, lines=None, lists=raw.lists)

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
    return RawTable(name=raw.name, frame=frame, lines=raw.lines, lists=raw.lists)
