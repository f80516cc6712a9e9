"""An export format: one line per read, for people."""

from __future__ import annotations

import polars as pl

from bpals.registry import ExportKind
from bpals.reviews.exchange import Films, Written


def write(reviews: pl.DataFrame, _films: Films) -> Written:
    """Write who said what of which image."""
    rows = reviews.select("reader", "verdict", "finding", "image_id").iter_rows()
    return Written(files={"": "".join(f"{' '.join(row)}\n" for row in rows).encode()})


EXPORT = ExportKind(name="lines", summary="one line per read", write=write, endings=(".lines",))
