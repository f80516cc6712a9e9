"""A table on disk, as text: CSV, CSV.gz or Parquet, told apart by content and not by name."""

from __future__ import annotations

import difflib
import gzip
import io
import stat
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.durable import sha256
from bpals.errors import SourceError
from bpals.sources.csvtext import CsvText
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


class TableFile(Protocol):
    """A table whose header is known and whose rows are not read yet."""

    name: str
    sha256: str

    @property
    def header(self) -> list[str]:
        """The names of the columns, as the file has them."""

    def read(self, columns: list[str]) -> RawTable:
        """Read these columns as text."""


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


def open_table(path: str | Path, *, separator: str = ",", most_bytes: int = MOST_BYTES) -> TableFile:
    """Read a file and its header; whatever is no table is refused with what it is instead."""
    name = str(path)
    stored = read_bytes(path, most_bytes=most_bytes)
    digest = sha256(stored)
    if stored[:4] == b"PAR1":
        return _ParquetTable(stored, name=name, sha256=digest)
    content = _gunzip(stored, name=name, most_bytes=most_bytes) if stored[:2] == b"\x1f\x8b" else stored
    text = CsvText(_check_text(content, name=name), name=name, separator=separator)
    return _CsvTable(text, name=name, sha256=digest)


def read_bytes(path: str | Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a regular file; anything else is a one-line error."""
    place = Path(path)
    try:
        found = place.stat()
        if stat.S_ISDIR(found.st_mode):
            raise SourceError(f"{path} is a folder, not a file. Name the file in it")
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path} is not a regular file. Write its content to a file and name that")
        if found.st_size > most_bytes:
            raise _too_large(str(path), most_bytes)
        return place.read_bytes()
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist.{_name_neighbour(place)} Check the path") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}. Check the path and its permissions") from None
    except ValueError:
        raise SourceError(f"{str(path)!r} is no path. Check the path") from None


def _name_neighbour(place: Path) -> str:
    try:
        siblings = [sibling.name for sibling in place.parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(place.name, siblings, n=1, cutoff=0.7)
    return f" Did you mean {str(place.parent / near[0])!r}?" if near else ""


def _gunzip(stored: bytes, *, name: str, most_bytes: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(stored)) as file:
            content = file.read(most_bytes + 1)
    except EOFError:
        raise SourceError(f"{name} is cut off: its gzip stream ends in the middle. Get it again") from None
    except (OSError, zlib.error):
        raise SourceError(f"{name} is damaged: its gzip stream does not check. Get it again") from None
    if len(content) > most_bytes:
        raise _too_large(name, most_bytes)
    return content


def _too_large(name: str, most_bytes: int) -> SourceError:
    return SourceError(f"{name} holds more than {most_bytes:,} bytes. Keep only the columns that the mapping names")


def _check_text(content: bytes, *, name: str) -> bytes:
    """Give the text without its byte order mark; what is no UTF-8 table is refused with what it is."""
    if content.startswith(UTF16):
        raise SourceError(f"{name} is UTF-16, not UTF-8. Type: iconv -f UTF-16 -t UTF-8 {name} > utf8.csv")
    content = content.removeprefix(b"\xef\xbb\xbf")
    head = content[:256].lstrip()
    for magic, what in MAGIC.items():
        if head.startswith(magic):
            raise SourceError(f"{name} is {what}, not a CSV or Parquet table. Give the table itself")
    if b"\x00" in content:
        line = content.count(b"\n", 0, content.index(b"\x00")) + 1
        raise SourceError(f"{name} line {line} has a zero byte: this is no text. Give a CSV or Parquet table")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SourceError(
            f"{name} line {line} is not UTF-8 (byte 0x{content[error.start]:02x}). "
            f"If it is Latin-1, type: iconv -f LATIN1 -t UTF-8 {name} > utf8.csv"
        ) from None
    # Old spreadsheets end a line with a carriage return alone.
    return content if b"\n" in content else content.replace(b"\r", b"\n")


class _CsvTable:
    def __init__(self, text: CsvText, *, name: str, sha256: str) -> None:
        self.name = name
        self.sha256 = sha256
        self.header = text.header
        self._text = text

    def read(self, columns: list[str]) -> RawTable:
        places = [self.header.index(column) for column in columns]
        frame = self._text.read(places).rename(dict(zip(map(str, places), columns, strict=True)))
        return _strip(RawTable(name=self.name, frame=frame, lines=self._text.lines))


class _ParquetTable:
    def __init__(self, stored: bytes, *, name: str, sha256: str) -> None:
        self.name = name
        self.sha256 = sha256
        self._stored = stored
        if len(stored) < 12 or stored[-4:] != b"PAR1":
            raise SourceError(f"{name} is cut off: this Parquet file has no end. Get it again")
        try:
            self._schema = pl.read_parquet_schema(io.BytesIO(stored))
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self._damaged(error) from None

    @property
    def header(self) -> list[str]:
        return list(self._schema)

    def read(self, columns: list[str]) -> RawTable:
        try:
            frame = pl.read_parquet(io.BytesIO(self._stored), columns=columns)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self._damaged(error) from None
        if frame.height == 0:
            raise SourceError(f"{self.name} has columns but no rows. Give a table with a row a film")
        lists = frozenset(name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List))
        for name, dtype in frame.schema.items():
            inner = dtype.inner if isinstance(dtype, pl.List) else dtype
            if inner.is_nested() or inner == pl.Binary:
                raise SourceError(f"{self.name}, column {name!r}, is {dtype}. Give texts, numbers or lists of texts")
        text = frame.select(
            pl.col(name).cast(pl.List(pl.String)).list.join(LIST_SEPARATOR, ignore_nulls=True)
            if name in lists
            else pl.col(name).cast(pl.String)
            for name in columns
        )
        return _strip(RawTable(name=self.name, frame=text.fill_null(""), lines=None, lists=lists))

    def _damaged(self, error: BaseException) -> SourceError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return SourceError(f"{self.name} is a damaged Parquet file ({reason}). Get it again")


def _strip(raw: RawTable) -> RawTable:
    """Take stray blanks off every cell, and refuse a cell that is too long to mean anything."""
    frame = raw.frame.with_columns(pl.all().str.strip_chars())
    for column in frame.columns:
        sizes = frame[column].str.len_bytes()
        row = raw.first(sizes > LONGEST_FIELD)
        if row is not None:
            raise SourceError(
                f"{raw.place(row)}, column {column!r}, holds {sizes[row]:,} bytes, which is no label, name or number. "
                "Look for a quote that closes too late"
            )
    return RawTable(name=raw.name, frame=frame, lines=raw.lines, lists=raw.lists)
