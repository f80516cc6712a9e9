"""Made-up answers of a judge whose AUROC is known, and made-up reads: a test hands the truth in."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import polars as pl

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.types import REVIEWS, answers_schema

FINDINGS = {"Effusion": (0.3, 1.6), "Mass": (0.08, 2.4)}
"""Finding -> how often it is there, and how far apart the judge sees images with and without it."""
MISSED, INVENTED = 0.2, 0.08
"""How often a label misses what is there, and says what is not."""
READERS = ("a", "b", "c")


def made_up_reads(films: int = 800, *, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Make adjudicated pairs with their trust, two images per patient, and three reads of each pair."""
    rng = np.random.default_rng(seed)
    names = [f"{film:05}.png" for film in range(films)]
    pairs, reads = [], []
    for finding, (usual, apart) in FINDINGS.items():
        there = rng.random(films) < usual
        claimed = np.where(there, rng.random(films) >= MISSED, rng.random(films) < INVENTED)
        seen = rng.normal(np.where(there, apart / 2, -apart / 2), 1.0)
        judged = np.log(usual / (1 - usual)) + apart * seen
        label = np.where(claimed, np.log((1 - MISSED) / INVENTED), np.log(MISSED / (1 - INVENTED)))
        p_judge, p_present = (1 / (1 + np.exp(-z)) for z in (judged, judged + label))
        pairs.append(
            pl.DataFrame(
                {
                    "image_id": names,
                    "finding": finding,
                    "present": there,
                    "claimed": claimed,
                    "trust": np.where(claimed, p_present, 1 - p_present),
                    "p_judge": p_judge,
                    "patient": np.arange(films, dtype=np.int64) // 2,
                }
            )
        )
        slips = 0.03 + 0.8 * p_present * (1 - p_present)
        for reader in READERS:
            says = there ^ (rng.random(films) < slips)
            reads.append(
                pl.DataFrame({"image_id": names, "finding": finding, "reader": reader}).with_columns(
                    verdict=pl.Series(np.where(says, "present", "absent")), inclusion=pl.lit(1.0)
                )
            )
    return pl.concat(pairs), pl.concat(reads).select(REVIEWS.names()).cast(REVIEWS)


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
