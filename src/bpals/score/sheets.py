"""Expert files as sheets of text: each cell as written, each row with its line, each column under its folded name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from bpals.errors import TruthError
from bpals.findings import fold
from bpals.tablefile import open_table, read_columns
from bpals.tablewords import TableWords

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""What a folder is searched for."""

LINE = "\0line"
"""The column that says where a row stood; no header can be called so."""

UNPACKED = "{name} is cut off or damaged: gzip cannot unpack it. Download it again"
UNEVEN = (
    "{name}, line {line}: {fields} where the header has {width}; the file may be cut off. "
    "Mend that line, or download the file again"
)
HALF = "{name} is no whole Parquet file. Download it again"

WORDS = TableWords(
    error=TruthError,
    folder="{name} cannot be read: Is a directory. Check the path",
    gzip_cut=UNPACKED,
    gzip_damaged=UNPACKED,
    not_utf8=(
        "{name}, line {line}: byte {byte} is not UTF-8. "
        "Type: iconv -f latin1 -t utf-8 {name} > utf8.csv, and name that file"
    ),
    empty="{name} is empty. Download it again, or name another file",
    no_rows="{name} has a header and no row. Fill it in, or name another file",
    cut_row=UNEVEN,
    uneven_row=UNEVEN,
    doubled="{name}, line 1: the column {column!r} stands twice. Rename or remove one of them",
    parquet_cut=HALF,
    parquet_damaged=HALF,
)


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
        return [fold(name) for name in read_columns(path, words=WORDS)]
    except TruthError:
        return []


def candidates(path: Path) -> list[Path]:
    """Give the files that a path may mean: itself, or the tables in the folder."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file() and file.name.lower().endswith(SUFFIXES))
    return [path]


def read(path: Path, typed: str = "") -> Sheet:
    """Read a CSV, TSV or Parquet file, packed with gzip or not; a bad one is refused in one line.

    `typed` says where its path was typed: `--reviews`, or `--reference KIND=`.
    """
    where = f" after {typed}" if typed else ""
    file = open_table(path, words=replace(WORDS, where=where, folder=WORDS.folder + where))
    raw = file.whole()
    lines = np.arange(1, raw.frame.height + 1) if raw.lines is None else raw.lines
    titles = {fold(name): name for name in raw.frame.columns}
    cells = raw.frame.rename({name: folded for folded, name in titles.items()})
    return Sheet(path, cells.with_columns(pl.Series(LINE, lines, dtype=pl.UInt32)), titles, file.sha256)
