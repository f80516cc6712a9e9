"""A file of scores on disk: CSV, CSV.gz, TSV or Parquet, every row with its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from bpals.errors import JudgeError
from bpals.findings import fold
from bpals.tablefile import RawTable, open_table
from bpals.tablewords import TableWords

UNPACKED = "{name} is cut off or damaged: gzip cannot unpack it. Get it again"
UNEVEN = (
    "{name} line {line} has {fields} where the header has {width}. "
    "Mend that line, or get the file again: it may be cut off"
)
HALF = "{name} is no whole Parquet file. Get it again"

WORDS = TableWords(
    error=JudgeError,
    where=" after table:",
    folder="{name} cannot be read: Is a directory. Check the path after table:",
    gzip_cut=UNPACKED,
    gzip_damaged=UNPACKED,
    not_utf8="{name} line {line} is no UTF-8 text. Give a CSV or Parquet table",
    empty="{name} is empty. Write the scores again, or name another file",
    no_rows="{name} has columns but no row. Give a table with a row a film",
    cut_row=UNEVEN,
    uneven_row=UNEVEN,
    open_quote="{name} line {line}: unexpected end of data in a quote. Close it, or get the file again",
    doubled="{name}: the column {column!r} stands there twice. Rename or remove one of them",
    parquet_cut=HALF,
    parquet_damaged=HALF,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFile:
    """One file: its columns as they come, text from CSV and numbers from Parquet."""

    path: Path
    raw: RawTable
    sha256: str

    @property
    def frame(self) -> pl.DataFrame:
        """The rows and columns."""
        return self.raw.frame

    def place(self, row: int) -> str:
        """Name a row as a person finds it."""
        return self.raw.place(row)

    def column(self, *spellings: str) -> str | None:
        """Find the first column that is spelled one of these ways; blanks, case, `_` and `-` do not matter."""
        return next(iter(self.columns(*spellings)), None)

    def columns(self, *spellings: str) -> list[str]:
        """Find every column that is spelled one of these ways, in the order of the spellings."""
        folded = {fold(name): name for name in self.frame.columns}
        return [folded[fold(spelling)] for spelling in spellings if fold(spelling) in folded]


def read(path: Path) -> ScoreFile:
    """Read a file whole; a bad one is refused in one line."""
    file = open_table(path, words=WORDS)
    return ScoreFile(path=path, raw=file.whole(typed=True), sha256=file.sha256)
