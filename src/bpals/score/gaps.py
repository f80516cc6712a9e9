"""Gaps: the films, findings and patients on which two judges differ, by the ranks that each gives a film.

A rank is the share of films that a judge puts below this one, so that a judge who says 0.9 to everything and one who
says 0.1 to everything do not differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from bpals.score.compare import LETTERS, Pairs


def gaps(several: Sequence[Pairs]) -> pl.DataFrame:
    """Rank the films of each finding as either judge does, and say who calls it.

    A judge calls a finding on as large a share of films as the yardstick does, those that it ranks highest. Columns:
    image_id, patient, truth, p_a, p_b, finding, rank_a, rank_b, called_a, called_b, gap (rank_a - rank_b).
    """
    return pl.concat([_ranked(pairs) for pairs in several])


def _ranked(pairs: Pairs) -> pl.DataFrame:
    both = pairs.answered.select("image_id", "patient", "truth", "p_a", "p_b")
    ranks = {f"rank_{letter}": (pl.col(f"p_{letter}").rank("average") - 0.5) / pl.len() for letter in LETTERS}
    share = both["truth"].mean()
    edge = 1 - (float(share) if isinstance(share, float) else 0.0)
    return both.with_columns(finding=pl.lit(pairs.finding), **ranks).with_columns(
        called_a=pl.col("rank_a") > edge,
        called_b=pl.col("rank_b") > edge,
        gap=pl.col("rank_a") - pl.col("rank_b"),
    )


def by_film(gaps: pl.DataFrame) -> pl.DataFrame:
    """Give every film with the finding on which the two differ most: one calls it, and the gap is the widest."""
    one_calls = pl.col("called_a") != pl.col("called_b")
    down = [True, True, False, False]
    widest = gaps.sort(one_calls, pl.col("gap").abs(), "image_id", "finding", descending=down)
    return widest.unique("image_id", keep="first", maintain_order=True)


def by_finding(gaps: pl.DataFrame) -> dict[str, float]:
    """Give the mean gap of each finding."""
    means = gaps.group_by("finding", maintain_order=True).agg(pl.col("gap").abs().mean())
    return dict(means.iter_rows())


def by_patient(gaps: pl.DataFrame, count: int) -> pl.DataFrame:
    """List the patients who add most to the disagreement: the sum of their gaps beyond the usual gap."""
    beyond = pl.col("gap").abs() - pl.col("gap").abs().mean()
    found = gaps.with_columns(beyond=beyond).group_by("patient").agg(
        films=pl.col("image_id").n_unique(),
        pairs=pl.len(),
        mean_gap=pl.col("gap").abs().mean(),
        beyond=pl.col("beyond").sum(),
    )  # fmt: skip
    return found.sort(["beyond", "patient"], descending=[True, False]).head(count)
