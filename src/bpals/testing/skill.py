"""Answers of a judge whose AUROC is known, because a test hands the truth in; no judge of ours is made so."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import polars as pl

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.types import answers_schema


def skilled(
    truth: pl.DataFrame, vocabulary: Vocabulary, *, auroc: float, seed: int = 0, judge: str = "skilled"
) -> pl.DataFrame:
    """Answer for every row of `image_id, finding, present` with an AUROC that is this one but for chance."""
    if not 0 < auroc < 1:
        raise UsageError(f"auroc={auroc} is not between 0 and 1. Give .5 for a judge that knows nothing")
    draw = np.random.default_rng(seed)
    # Two normal distributions of width 1 whose means are d apart overlap to an AUROC of Phi(d / sqrt 2).
    apart = NormalDist().inv_cdf(auroc) * 2**0.5
    present = truth["present"].cast(pl.Float64).to_numpy()
    z = np.round(draw.normal(0, 1, truth.height) + apart * (present - 0.5), 6)
    return truth.select(
        "image_id",
        "finding",
        judge=pl.lit(judge),
        kind=pl.lit("image"),
        outcome=pl.lit("answered"),
        p_present=pl.Series(1 / (1 + np.exp(-z))),
        p_low=None,
        p_high=None,
        logit_present=pl.Series(z),
        logit_absent=None,
        mass=None,
        why=None,
    ).cast(answers_schema(vocabulary))
