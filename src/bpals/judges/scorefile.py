"""A file of scores on disk: CSV, CSV.gz, TSV or Parquet, every row with its place."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from bpals.durable import sha256
from bpals.errors import JudgeError
from bpals.findings import fold

_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFile:
    """One file: its columns as they come, text from CSV and numbers from Parquet."""

    path: Path
    frame: pl.DataFrame
    lines: pl.Series | None
    """The line on which each row ends; none for Parquet, which has rows but no lines."""
    sha256: str

    def place(self, row: int) -> str:
        """Name a row as a person finds it."""
        return f"{self.path} {f'row {row + 1}' if self.lines is None else f'line {self.lines[row]}'}"

    def column(self, *spellings: str) -> str | None:
        """Find the first column that is spelled one of these ways; blanks, case, `_` and `-` do not matter."""
        folded = {fold(name): name for name in self.frame.columns}
        return next((folded[fold(spelling)] for spelling in spellings if fold(spelling) in folded), None)


def read(path: Path) -> ScoreFile:
    """Read a file whole; a bad one is refused in one line."""
    stored = _bytes(path)
    content = _unpacked(path, stored)
    frame, lines = (_parquet(path, content), None) if content.startswith(_PARQUET) else _delimited(path, content)
    if frame.is_empty():
        raise JudgeError(f"{path} has columns but no row. Give a table with a row a film")
    doubled = [name for name, count in Counter(map(fold, frame.columns)).items() if count > 1]
    if doubled:
        raise JudgeError(f"{path}: the column {doubled[0]!r} stands there twice. Rename or remove one of them")
    return ScoreFile(path=path, frame=frame, lines=lines, sha256=sha256(stored))


def _bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise JudgeError(f"{path} does not exist. Check the path after table:") from None
    except OSError as error:
        raise JudgeError(f"{path} cannot be read: {error.strerror}. Check the path after table:") from None
    if not content.strip():
        raise JudgeError(f"{path} is empty. Write the scores again, or name another file")
    return content


def _unpacked(path: Path, content: bytes) -> bytes:
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise JudgeError(f"{path} is cut off or damaged: gzip cannot unpack it. Get it again") from None


def _parquet(path: Path, content: bytes) -> pl.DataFrame:
    try:
        return pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        raise JudgeError(f"{path} is no whole Parquet file. Get it again") from None


def _delimited(path: Path, content: bytes) -> tuple[pl.DataFrame, pl.Series]:
    """Read text row by row: a row of another width is a file that is cut off, or a quote gone astray."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise JudgeError(f"{path} line {line} is no UTF-8 text. Give a CSV or Parquet table") from None
    first = text.lstrip().partition("\n")[0]
    separator = "\t" if "\t" in first else ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(row for row in reader if any(row))]
        for row in reader:
            if not any(row):
                continue
            if len(row) != len(header):
                raise JudgeError(
                    f"{path} line {reader.line_num} has {len(row)} values under {len(header)} columns. "
                    "Mend that line, or get the file again: it may be cut off"
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise JudgeError(f"{path} line {reader.line_num}: {error}. Mend that line, or get the file again") from None
    names = [name or f"column {place}" for place, name in enumerate(header, 1)]
    if len(set(names)) < len(names):
        raise JudgeError(f"{path}: the column {Counter(names).most_common(1)[0][0]!r} stands there twice. Rename one")
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    frame = pl.DataFrame(
        {name: pl.Series(values, dtype=pl.String) for name, values in zip(names, columns, strict=True)}
    )
    return frame.with_columns(pl.all().str.strip_chars()), pl.Series(lines, dtype=pl.Int64)
