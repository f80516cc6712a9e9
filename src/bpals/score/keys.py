"""The key of a reading list: with what chance each pair was drawn, kept in a file that the reader does not see.

`list.csv` goes to the reader, who fills in reader and verdict; `list.key.csv` stays. A pair drawn at random has a
chance of 1 in thousands and one drawn for its value nearly 1, so a reader who saw them would know which is which.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from bpals.errors import TruthError, UsageError

SHEET = ("image_id", "finding", "reader", "verdict")
ENDING = ".key.csv"
_PAIR = ["image_id", "finding"]
_KEY = {"image_id": pl.String, "finding": pl.String, "inclusion": pl.Float64}


def key_of(sheet: Path) -> Path:
    """Name the key that belongs to a sheet: `list.csv` has `list.key.csv`."""
    return sheet.with_name(sheet.stem + ENDING)


def write_sheet(listed: pl.DataFrame, sheet: Path) -> Path:
    """Write a reading list as a sheet to be filled in, and its key beside it; give the key's path."""
    key = key_of(sheet)
    for file in (sheet, key):
        if file.exists():
            raise UsageError(
                f"{file} is there already, and somebody may have filled it in. Name another with --out FILE"
            )
    blank = listed.select(*_PAIR).with_columns(reader=pl.lit(None, pl.String), verdict=pl.lit(None, pl.String))
    try:
        listed.write_csv(key)
        blank.select(SHEET).write_csv(sheet)
    except OSError as error:
        raise UsageError(f"{sheet} cannot be written: {error.strerror}. Name another with --out FILE") from None
    return key


def with_inclusion(reads: pl.DataFrame, sheet: Path) -> pl.DataFrame:
    """Fill in the chances of REVIEWS from the key beside their sheet, if any; what a row says itself stands."""
    file = key_of(sheet)
    if not file.is_file():
        return reads
    try:
        key = pl.read_csv(file, columns=list(_KEY), schema_overrides=_KEY).unique(_PAIR)
    except (pl.exceptions.PolarsError, OSError):
        raise TruthError(
            f"{file} is not the key of a reading list: it needs {', '.join(_KEY)}. Move it away, or bring back the key"
        ) from None
    filled = reads.join(key.rename({"inclusion": "drawn"}), on=_PAIR, how="left", maintain_order="left")
    return filled.with_columns(inclusion=pl.coalesce("inclusion", "drawn")).select(reads.columns)
