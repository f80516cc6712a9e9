"""CSV and Parquet: one row per reader, film, finding and phase, as the tools of multi-reader studies want it.

A spreadsheet takes a cell that begins with = + - or @ for a formula, in full width too. Such a cell goes out behind an
apostrophe, and so does one that begins with an apostrophe; coming in, one apostrophe is taken off again.
"""

from __future__ import annotations

import gzip
import io
import zlib
from dataclasses import replace

import polars as pl

from bpals.errors import TruthError
from bpals.registry import ExportKind
from bpals.reviews.exchange import KEPT, NEEDED, TABLE, Films, Found, Written
from bpals.store.files import parquet

# How a rating leaves the middle, 50, with each per cent of confidence; an unreadable film has no rating.
SIDE = {"absent": -0.5, "uncertain": 0.0, "present": 0.5}
FIRST = ("reader", "image_id", "finding", "phase", "verdict", "rating", "truth", "truth_how")
WORDS = {pl.String(): "text", pl.Int64(): "whole number", pl.Float64(): "number"}
FORMULA = r"^['=+\-@\t\r\n\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]"
ESCAPED = r"^'(['=+\-@\t\r\n\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}])"


def write_csv(reviews: pl.DataFrame, _films: Films) -> Written:
    """Write a table for spreadsheets and statistics; no cell of it is a formula."""
    return Written(files={"": _csv(_wide(reviews))})


def write_signal_csv(signal: pl.DataFrame) -> Written:
    """Write a signal, one row per label; what a cell lists is separated by semicolons."""
    lists = [name for name, kind in signal.schema.items() if kind == pl.List(pl.String)]
    return Written(files={"": _csv(signal.with_columns(pl.col(lists).list.join("; ")))})


def write_signal_parquet(signal: pl.DataFrame) -> Written:
    """Write a signal with its types."""
    return Written(files={"": parquet(signal)})


def _csv(wide: pl.DataFrame) -> bytes:
    texts = [name for name, kind in wide.schema.items() if kind == pl.String]
    safe = wide.with_columns(
        pl.when(pl.col(name).str.contains(FORMULA)).then(pl.concat_str(pl.lit("'"), name)).otherwise(name).alias(name)
        for name in texts
    )
    return safe.write_csv().encode()


def write_parquet(reviews: pl.DataFrame, _films: Films) -> Written:
    """Write a table with its types."""
    return Written(files={"": parquet(_wide(reviews))})


def _wide(reviews: pl.DataFrame) -> pl.DataFrame:
    """Put the columns in order, among them a rating from 0 to 100, and what the readers came to.

    A verdict without a confidence counts as a sure one.
    """
    side = pl.col("verdict").replace_strict(SIDE, default=None, return_dtype=pl.Float64)
    rating = 50 + side * pl.col("confidence").fill_null(100)
    return reviews.select(TABLE.names()).with_columns(rating=rating).select(*FIRST, pl.all().exclude(FIRST))


def is_ours(columns: list[str]) -> bool:
    """Say whether a table is one that was written here, and not a sheet that a reader filled in."""
    return {*NEEDED, "phase", "external_id"} <= set(columns)


def read(content: bytes, name: str) -> Found:
    """Read such a table; its content tells which of the two it is."""
    return (read_parquet if content[:4] == b"PAR1" else read_csv)(content, name)


def read_csv(content: bytes, name: str) -> Found:
    """Read such a table; a spreadsheet may have saved it with semicolons."""
    try:
        text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error) as error:
        raise TruthError(f"{name} is compressed and damaged ({error}). Export it again") from None
    text = text.removeprefix(b"\xef\xbb\xbf")
    head = text.split(b"\n", 1)[0]
    separator = max(",;\t", key=lambda mark: head.count(mark.encode()))
    try:
        cells = pl.read_csv(io.BytesIO(text), separator=separator, infer_schema=False, truncate_ragged_lines=False)
    except pl.exceptions.PolarsError as error:
        raise TruthError(f"{name} cannot be read ({str(error).splitlines()[0]}). Export it again") from None
    return Found(table=_typed(cells.with_columns(pl.all().str.replace(ESCAPED, "${1}")), name))


def read_parquet(content: bytes, name: str) -> Found:
    """Read such a table with its types."""
    return Found(table=_typed(pl.read_parquet(io.BytesIO(content)), name))


def _typed(cells: pl.DataFrame, name: str) -> pl.DataFrame:
    """Give KEPT; a cell that is not what its column holds is refused with its row."""
    columns = []
    for column, kind in KEPT.items():
        given = cells[column] if column in cells.columns else pl.Series(column, [None] * cells.height)
        typed = given.cast(kind, strict=False)
        wrong = (typed.is_null() & given.is_not_null()).arg_true()
        if len(wrong):
            row = int(wrong[0])
            raise TruthError(
                f"{name}, row {row + 1}: {given[row]!r} under {column!r} is no {WORDS[kind]}. Mend that cell"
            )
        columns.append(typed)
    return pl.DataFrame(columns)


CSV = ExportKind(
    name="csv",
    summary="a table for spreadsheets and statistics",
    write=write_csv,
    write_signal=write_signal_csv,
    read=read,
    content="table",
    whole=True,
    endings=(".csv",),
)
PARQUET = replace(
    CSV,
    name="parquet",
    summary="the same table with its types",
    write=write_parquet,
    write_signal=write_signal_parquet,
    endings=(".parquet",),
)
