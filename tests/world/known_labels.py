"""Made-up claims whose truth is known, and readers of them: for tests of error rates."""

from __future__ import annotations

import numpy as np
import polars as pl

from bpals.types import REVIEWS


def claims(seed=0, films=2000, presences=(("Effusion", 0.1), ("Hernia", 0.02))):
    """Claims with `trust`, `wrong` and `sex`: three presences in ten and one absence in fifty are wrong."""
    dice = np.random.default_rng(seed)
    parts = []
    for finding, share in presences:
        says_present = dice.random(films) < share
        chance = np.where(says_present, 0.3, 0.02)
        wrong = dice.random(films) < chance
        suspicion = np.clip(chance * np.exp(1.5 * wrong + dice.normal(size=films) / 2), 0.001, 0.95)
        parts.append(
            pl.DataFrame(
                {
                    "image_id": [f"{film:05}.png" for film in range(films)],
                    "finding": finding,
                    "says": np.where(says_present, "present", "absent"),
                    "trust": 1 - suspicion,
                    "wrong": wrong,
                    "sex": np.where(np.arange(films) % 2, "M", "F"),
                }
            )
        )
    return pl.concat(parts)


def truth(table):
    """What each film shows, a column `shows` beside the pair."""
    return table.select("image_id", "finding", shows=(pl.col("says") == "present") != pl.col("wrong"))


def read(pairs, table, reader="Ann", *, skill=(1.0, 1.0), seed=0, inclusion=None):
    """Let a reader of some sensitivity and specificity read the pairs of a frame, as REVIEWS."""
    dice = np.random.default_rng([seed, len(reader), ord(reader[0])])
    known = pairs.select("image_id", "finding").join(truth(table), on=["image_id", "finding"], maintain_order="left")
    right = dice.random(known.height) < np.where(known["shows"].to_numpy(), *skill)
    said = known["shows"].to_numpy() == right
    return known.select(
        "image_id",
        "finding",
        reader=pl.lit(reader),
        verdict=pl.Series(np.where(said, "present", "absent")),
        inclusion=pl.lit(inclusion, pl.Float64),
    ).cast(dict(REVIEWS))
