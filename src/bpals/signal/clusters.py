"""Pairs that come in clusters: a film that is read whole brings all its pairs, and its errors may go together."""

from __future__ import annotations

import math

import polars as pl


def design_effect(cluster: pl.Series, wrong: pl.Series) -> float:
    """Say by what factor clusters widen the variance of a share, never below 1.

    Where all or none are wrong nothing can be seen of it, and it is taken to be as large as it can be: a cluster says
    no more than one pair would.
    """
    share = wrong.cast(pl.Float64).mean()
    if wrong.is_empty() or not isinstance(share, float):
        return 1.0
    table = pl.DataFrame({"cluster": cluster, "off": wrong.cast(pl.Float64) - share})
    sums = table.group_by("cluster", maintain_order=True).agg(pl.col("off").sum(), pairs=pl.len())
    clusters, pairs = sums.height, wrong.len()
    if share in {0.0, 1.0} or clusters == 1:
        return pairs / clusters
    between = float((sums["off"] ** 2).sum()) * clusters / (clusters - 1)
    return max(1.0, between / (pairs * share * (1 - share)))


def widened(rate: float, low: float, high: float, effect: float) -> tuple[float, float]:
    """Widen an interval of pairs that was made as if each stood alone."""
    factor = math.sqrt(effect)
    return max(0.0, rate - (rate - low) * factor), min(1.0, rate + (high - rate) * factor)
