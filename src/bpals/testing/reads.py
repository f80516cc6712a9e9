"""A made-up adjudicated set with its readers: claims that are sometimes wrong, a signal that knows how often.

So that a replay of reads can be tried without expert data. Each film has a finding or not; a judge sees it through
noise; the dataset's claim is wrong at known rates; the trust is the exact probability that the claim is right, given
both. Readers err most where the judge is in doubt.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from bpals.types import REVIEWS

FINDINGS = {"Effusion": (0.3, 1.6), "Mass": (0.08, 2.4)}
"""Finding -> how often it is there, and how far apart the judge sees films with and without it."""
MISSED, INVENTED = 0.2, 0.08
"""How often a claim misses what is there, and says what is not."""
READERS = ("a", "b", "c")


def made_up_reads(films: int = 800, *, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Make adjudicated pairs with their trust, two films a patient, and three reads of each pair."""
    rng = np.random.default_rng(seed)
    names = [f"{film:05}.png" for film in range(films)]
    pairs, reads = [], []
    for finding, (usual, apart) in FINDINGS.items():
        there = rng.random(films) < usual
        claimed = np.where(there, rng.random(films) >= MISSED, rng.random(films) < INVENTED)
        seen = rng.normal(np.where(there, apart / 2, -apart / 2), 1.0)
        judged = np.log(usual / (1 - usual)) + apart * seen
        told = np.where(claimed, np.log((1 - MISSED) / INVENTED), np.log(MISSED / (1 - INVENTED)))
        p_judge, p_present = (1 / (1 + np.exp(-z)) for z in (judged, judged + told))
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
