"""The majority of single reads: every definite read has one vote, a hedge has none, and a tie is not present."""

from __future__ import annotations

import polars as pl

PAIR = ["image_id", "finding"]


def majority(reviews: pl.DataFrame) -> pl.DataFrame:
    """Give one row a pair: `present`, the votes `yes` and `no`, `hedged`, `unreadable`, and whether it is `tied`.

    `reviews` has image_id, finding and verdict. Who spoke of a pair twice has two votes; choose before what may vote.
    """
    verdict = pl.col("verdict").cast(pl.String)
    words = {"yes": "present", "no": "absent", "hedged": "uncertain", "unreadable": "unreadable"}
    votes = reviews.group_by(PAIR, maintain_order=True).agg(
        (verdict == word).sum().cast(pl.Int64).alias(name) for name, word in words.items()
    )
    return votes.select(
        *PAIR,
        (pl.col("yes") > pl.col("no")).alias("present"),
        *words,
        (pl.col("yes") == pl.col("no")).alias("tied"),
    )
