"""How often readers are right, from pairs that several of them read, and what that does to an error rate.

Nobody knows the truth of a pair. But if readers err independently of one another, with one sensitivity and one
specificity a finding, then how often they split on what is said to be present and on what is said to be absent tells
both. Rogan and Gladen's correction is what follows for a pair with one read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST_TWICE = 30
"""Pairs with two settled reads or more, below which nothing is corrected."""
FEWEST_SIDE = 10.0
"""Of them, films with the finding and films without, at least: else one of the two skills is a guess."""
WIDEST_SKILL = 0.4
"""Width of the interval of the sensitivity, above which it is a guess."""
RESAMPLES = 400
ROUNDS = 300
PRIOR = 0.5
"""Reads that are added on either side, so that no skill is exactly 1."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """An error rate with the readers' own errors taken out, and those errors; or why there is none."""

    rate: float | None = None
    low: float | None = None
    high: float | None = None
    sensitivity: float | None = None
    specificity: float | None = None
    twice: int = 0
    """Pairs with two settled reads or more."""
    why_not: str = ""


def correct(told: pl.DataFrame, seed: int = 0) -> Corrected:
    """Correct the rate of one finding, from its claims as `cells` gives them.

    The interval is the middle 95 % over resampled pairs, drawn again within each cell; the skills are fitted anew.
    """
    read = told.filter(pl.col("looked") & (pl.col("yes") + pl.col("no") > 0))
    twice = read.filter(pl.col("yes") + pl.col("no") > 1).height
    if twice < FEWEST_TWICE:
        return Corrected(twice=twice, why_not=f"{twice:,} pairs were read twice; {FEWEST_TWICE} are needed")
    patterns = read.group_by("cell", "says", "yes", "no").len().sort("cell", "says", "yes", "no")
    sizes = told.group_by("cell", "says").agg(size=pl.len()).join(patterns, on=["cell", "says"], how="semi")
    fit = _Fit.of(patterns, sizes.sort("cell", "says"))
    counts = patterns["len"].to_numpy().astype(np.float64)
    drawn = fit.resample(counts, np.random.default_rng(seed))
    rates, sensitivity, specificity, ill = fit.solve(np.vstack([counts, drawn]))
    if min(ill, twice - ill) < FEWEST_SIDE:
        few = f"of {twice:,} pairs read twice about {ill:.0f} show the finding"
        return Corrected(
            twice=twice, why_not=f"{few}; {FEWEST_SIDE:.0f} with it and {FEWEST_SIDE:.0f} without are needed"
        )
    least, most = np.quantile(sensitivity[1:], [0.025, 0.975])
    if most - least > WIDEST_SKILL:
        vague = f"the double reads put the sensitivity anywhere from {least:.2f} to {most:.2f}"
        return Corrected(twice=twice, why_not=f"{vague}; more of them are needed")
    low, high = np.quantile(rates[1:], [0.025, 0.975])
    return Corrected(float(rates[0]), float(low), float(high), float(sensitivity[0]), float(specificity[0]), twice)


@dataclass(frozen=True, slots=True)
class _Fit:
    """The pattern of reads in each cell, and the cells' weights."""

    yes: Floats
    no: Floats
    member: Floats
    """One row a pattern, one column a cell: 1 where the pattern was seen in it."""
    weight: Floats
    says_present: NDArray[np.bool_]

    @classmethod
    def of(cls, patterns: pl.DataFrame, cells: pl.DataFrame) -> _Fit:
        keys = [tuple(row) for row in cells.select("cell", "says").iter_rows()]
        column = [keys.index(tuple(row)) for row in patterns.select("cell", "says").iter_rows()]
        size = cells["size"].to_numpy().astype(np.float64)
        return cls(
            patterns["yes"].to_numpy().astype(np.float64),
            patterns["no"].to_numpy().astype(np.float64),
            np.eye(len(keys))[column],
            size / size.sum(),
            (cells["says"] == "present").to_numpy(),
        )

    def resample(self, counts: Floats, dice: np.random.Generator) -> Floats:
        """Draw the pairs of each cell again, RESAMPLES times: one row a draw."""
        drawn = np.zeros((RESAMPLES, len(counts)))
        for cell in self.member.T.astype(np.bool_):
            n = counts[cell].sum()
            drawn[:, cell] = dice.multinomial(int(n), counts[cell] / n, size=RESAMPLES)
        return drawn

    def solve(self, counts: Floats) -> tuple[Floats, Floats, Floats, float]:
        """Fit the share that shows the finding in each cell, and the readers' skill, by expectation-maximisation.

        Gives the error rate, sensitivity and specificity of each row, and how many pairs read twice show the finding.
        """
        total = counts @ self.member
        share = np.clip(counts * (self.yes > self.no) @ self.member / np.maximum(total, 1), 0.01, 0.99)
        sensitivity, specificity = np.full(len(counts), 0.85), np.full(len(counts), 0.95)
        shows = np.zeros_like(counts)
        for _ in range(ROUNDS):
            ill, well = sensitivity[:, None], specificity[:, None]
            if_ill = (share @ self.member.T) * ill**self.yes * (1 - ill) ** self.no
            if_well = (1 - share @ self.member.T) * (1 - well) ** self.yes * well**self.no
            shows = counts * if_ill / (if_ill + if_well)
            without = counts - shows
            share = np.clip(shows @ self.member / np.maximum(total, 1), 1e-9, 1 - 1e-9)
            sensitivity = (shows @ self.yes + PRIOR) / (shows @ (self.yes + self.no) + 2 * PRIOR)
            specificity = (without @ self.no + PRIOR) / (without @ (self.yes + self.no) + 2 * PRIOR)
        wrong = np.where(self.says_present, 1 - share, share)
        return wrong @ self.weight, sensitivity, specificity, float(shows[0] @ (self.yes + self.no > 1))
