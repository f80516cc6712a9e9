"""Which reads of a reading room are a random sample, although most of its cases were chosen because they looked wrong.

In every batch some cases were drawn at random from all that nobody had read. Were nothing else read, they would be a
sample in which everything has the same chance. But what was read for its value can no longer be drawn later, and such
cases hold more errors. So a lottery lets each of them in with the chance with which it would have been drawn in the
later batches. Then everything has one chance, whatever was chosen, and for whatever reason.
"""

from __future__ import annotations

import zlib

import numpy as np
import polars as pl

RANDOM = "random"
DRAWN = pl.Schema(
    {
        "item": pl.String(),  # what was drawn: a film, or a pair
        "batch": pl.Int64(),
        "how": pl.String(),  # value or random
        "read": pl.Boolean(),
    }
)
"""One row an item that was drawn in a study."""


def fair_sample(drawn: pl.DataFrame, *, items: int, seed: int = 0) -> tuple[pl.Series, float]:
    """Name the items that were read and are a random sample of all `items`, and the chance that each of them had."""
    cases = drawn.sort("batch").unique("item", keep="first", maintain_order=True)
    if cases.is_empty():
        return pl.Series("item", [], dtype=pl.String), 0.0
    random = pl.col("how") == RANDOM
    batches = (
        cases.group_by("batch")
        .agg(read=(random & pl.col("read")).sum(), gone=pl.col("read").sum())
        .sort("batch")
        .with_columns(left=items - pl.col("gone").cum_sum().shift(1, fill_value=0).cast(pl.Int64))
    )
    chance = np.minimum(1.0, batches["read"].to_numpy() / np.maximum(batches["left"].to_numpy(), 1))
    missed = np.cumprod((1 - chance)[::-1])[::-1]
    later = batches.select("batch", later=pl.Series(1 - np.append(missed[1:], 1.0)))
    lots = pl.Series([_lot(seed, item) for item in cases["item"]], dtype=pl.Float64)
    kept = cases.with_columns(lot=lots).join(later, on="batch", how="left", maintain_order="left")
    sampled = kept.filter(pl.col("read") & (random | (pl.col("lot") < pl.col("later"))))
    return sampled["item"], float(1 - missed[0])


def _lot(seed: int, item: str) -> float:
    """Give a number from 0 to 1 that depends on the item's name and the seed alone."""
    return float(np.random.default_rng([seed, zlib.crc32(item.encode())]).random())
