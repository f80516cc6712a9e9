"""Expert files as sheets of text: each cell as written, each row with its line, each column under its folded name."""

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
from bpals.errors import TruthError
from bpals.findings import fold

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""What a folder is searched for."""

LINE = "\0line"
"""The column that says where a row stood; no header can be called so."""

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Sheet:
    """One file, every cell as text."""

    path: Path
    cells: pl.DataFrame
    """Columns under their folded names, and LINE."""
    titles: dict[str, str]
    """Folded name -> the header as written."""
    sha256: str

    def where(self, line: object) -> str:
        """Name the file and the line."""
        return f"{self.path}, {'row' if self.path.suffix == '.parquet' else 'line'} {line}"


def columns(path: Path) -> list[str]:
    """Read the folded column names alone, to recognise a file; what cannot be read has none."""
    try:
        content = _unpacked(path, _bytes(path))
        names = list(pl.read_parquet_schema(io.BytesIO(content))) if _is_parquet(content) else _header(path, content)
    except (TruthError, pl.exceptions.PolarsError, OSError):
        return []
    return [fold(name) for name in names]


def candidates(path: Path) -> list[Path]:
    """Give the files that a path may mean: itself, or the tables in the folder."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file() and file.name.lower().endswith(SUFFIXES))
    return [path]


def read(path: Path) -> Sheet:
    """Read a CSV, TSV or Parquet file, packed with gzip or not; a bad one is refused in one line."""
    packed = _bytes(path)
    content = _unpacked(path, packed)
    if _is_parquet(content):
        table = _parquet(path, content)
        header = list(table.columns)
        texts = table.select(pl.all().cast(pl.String).fill_null(""))
        cells = texts.rename(dict(zip(header, _folded(path, header), strict=True))).with_row_index(LINE, offset=1)
    else:
        header, cells = _delimited(path, content)
    if cells.is_empty():
        raise TruthError(f"{path} has a header and no row. Type its whole path, or download it again")
    stripped = cells.with_columns(pl.exclude(LINE).str.strip_chars())
    return Sheet(path, stripped, {fold(name): name for name in header}, sha256(packed))


def _bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise TruthError(
            f"{path} does not exist. Check the path after KIND= in --reference, or after --readers"
        ) from None
    except OSError as error:
        raise TruthError(f"{path} cannot be read: {error.strerror}. Check the path, or its permissions") from None
    if not content.strip():
        raise TruthError(f"{path} is empty. Download it again, or name another file")
    return content


def _unpacked(path: Path, content: bytes) -> bytes:
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TruthError(f"{path} is cut off or damaged: gzip cannot unpack it. Download it again") from None


def _is_parquet(content: bytes) -> bool:
    return content.startswith(b"PAR1")


def _parquet(path: Path, content: bytes) -> pl.DataFrame:
    try:
        return pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError):
        raise TruthError(f"{path} is no whole Parquet file. Download it again") from None


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TruthError(
            f"{path}, line {line}: byte {content[error.start]:#04x} is not UTF-8. "
            f"Type: iconv -f latin1 -t utf-8 {path.name} > utf8.csv, and name that file"
        ) from None


def _header(path: Path, content: bytes) -> list[str]:
    first = content.lstrip().split(b"\n", 1)[0]
    text = _text(path, first)
    return next(csv.reader([text], delimiter=_delimiter(path, text)), [])


def _delimiter(path: Path, first: str) -> str:
    if ".tsv" in path.name.lower():
        return "\t"
    return ";" if first.count(";") > first.count(",") else ","


def _delimited(path: Path, content: bytes) -> tuple[list[str], pl.DataFrame]:
    text = _text(path, content)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(path, text.lstrip().split("\n", 1)[0]))
    lines: list[int] = []
    rows: list[list[str]] = []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                lines.append(reader.line_num)
                rows.append(row)
    except csv.Error as error:
        raise TruthError(
            f"{path}, line {reader.line_num}: {error}. Mend that line, or download the file again"
        ) from None
    header = rows[0]
    if len(rows) > 1 and len(rows[1]) > len(header):
        header = _spelled_out(header)
    for line, row in zip(lines[1:], rows[1:], strict=True):
        if len(row) != len(header):
            raise TruthError(
                f"{path}, line {line}: {len(row)} values under {len(header)} columns; the file may be cut off. "
                "Mend that line, or download the file again"
            )
    schema = dict.fromkeys(_folded(path, header), pl.String)
    cells = pl.DataFrame(rows[1:], schema=schema, orient="row")
    return header, cells.with_columns(pl.Series(LINE, lines[1:], dtype=pl.UInt32))


def _spelled_out(header: list[str]) -> list[str]:
    """Take `OriginalImage[Width,Height]` apart: NIH's rows have a value for each word in the brackets."""
    return [piece for name in header for piece in (name.split(",") if "[" in name else [name])]


def _folded(path: Path, header: list[str]) -> list[str]:
    """Give each column its folded name; a nameless one gets its number, a doubled one is refused."""
    names = [fold(name) or f"column {place}" for place, name in enumerate(header, 1)]
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise TruthError(f"{path}, line 1: the column {doubled[0]!r} stands twice. Rename or remove one of them")
    return names
