"""How often readers are right, from pairs that several of them read, and what that does to an error rate.

Nobody knows the truth of a pair. But if readers err independently of one another, with one sensitivity and one
specificity a finding, then how often they split on what is said to be present and on what is said to be absent tells
both. Rogan and Gladen's correction is what follows for a pair with one read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.text import several

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
    least: tuple[float, ...] = ()
    """The rate of each resample, from which the lower end is taken."""
    most: tuple[float, ...] = ()
    """The same with half an error more in each cell, for the upper end."""


def correct(told: pl.DataFrame, seed: int = 0) -> Corrected:
    """Correct the rate of one finding, from its claims as `cells` gives them.

    The ends hold the middle 95 % over resampled pairs, drawn again within each cell; the skills are fitted anew. For
    the upper end half a pair that both readers reject is added to each cell: else one without errors is not in doubt.
    """
    read = told.filter(pl.col("looked") & (pl.col("yes") + pl.col("no") > 0))
    twice = read.filter(pl.col("yes") + pl.col("no") > 1).height
    if twice < FEWEST_TWICE:
        read_twice = several(twice, "pair was", "pairs were")
        return Corrected(twice=twice, why_not=f"{read_twice} read twice; {FEWEST_TWICE} are needed")
    patterns = read.group_by("cell", "says", "yes", "no").len().sort("cell", "says", "yes", "no")
    sizes = told.group_by("cell", "says").agg(size=pl.len()).join(patterns, on=["cell", "says"], how="semi")
    return corrected(patterns, sizes.sort("cell", "says"), seed)


def corrected(patterns: pl.DataFrame, sizes: pl.DataFrame, seed: int = 0) -> Corrected:
    """Do so from counts, in order: `cell, says, yes, no, len` of each pattern of reads, and `cell, says, size`."""
    twice = int(patterns.filter(pl.col("yes") + pl.col("no") > 1)["len"].sum())
    known = _with_rejections(patterns, sizes)
    fit = _Fit.of(known, sizes)
    counts, dice = known["len"].to_numpy().astype(np.float64), np.random.default_rng(seed)
    drawn = fit.resample(counts, counts, dice)
    more = fit.resample(counts, counts + known["rejects"].to_numpy() / 2, dice)
    rates, sensitivity, specificity, ill = fit.solve(np.vstack([counts, drawn, more]))
    sensitivity = sensitivity[: RESAMPLES + 1]
    if min(ill, twice - ill) < FEWEST_SIDE:
        few = f"of {twice:,} pairs read twice about {ill:.0f} show the finding"
        return Corrected(
            twice=twice, why_not=f"{few}; {FEWEST_SIDE:.0f} with it and {FEWEST_SIDE:.0f} without are needed"
        )
    skills = float(sensitivity[0]), float(specificity[0])
    worst, best = np.quantile(sensitivity[1:], [0.025, 0.975])
    if best - worst > WIDEST_SKILL:
        vague = f"the double reads put the sensitivity anywhere from {worst:.2f} to {best:.2f}"
        return Corrected(twice=twice, why_not=f"{vague}; more of them are needed")
    least, most = rates[1 : RESAMPLES + 1], rates[RESAMPLES + 1 :]
    return _between(float(rates[0]), least, most, Corrected(None, None, None, *skills, twice))


def together(findings: Mapping[str, tuple[int, Corrected]], seed: int = 0) -> Corrected:
    """Pool the corrected rates of findings, each given with its claims; none where one of them has none.

    The pairs of each finding are drawn by themselves, so resamples of one go with any resamples of another.
    """
    twice = sum(found.twice for _, found in findings.values())
    if missing := [name for name, (_, found) in findings.items() if found.rate is None]:
        return Corrected(twice=twice, why_not=f"not corrected: {', '.join(missing)}")
    claims = np.array([claims for claims, _ in findings.values()], dtype=np.float64)
    weight = claims / claims.sum()
    dice = np.random.default_rng(seed)
    # The resamples of all findings come from one seed; shuffled, they do not go up and down together.
    least, most = (
        weight @ np.stack([dice.permutation(np.array(ends)) for ends in its])
        for its in zip(*((found.least, found.most) for _, found in findings.values()), strict=True)
    )
    rate = weight @ np.array([found.rate for _, found in findings.values()], dtype=np.float64)
    return _between(float(rate), least, most, Corrected(twice=twice))


def _between(rate: float, least: Floats, most: Floats, found: Corrected) -> Corrected:
    """Put the rate and its interval in, from the resamples for either end."""
    low, high = float(np.quantile(least, 0.025)), float(max(np.quantile(least, 0.975), np.quantile(most, 0.975)))
    return replace(found, rate=rate, low=low, high=high, least=tuple(least.tolist()), most=tuple(most.tolist()))


def _with_rejections(patterns: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Give each cell a row for pairs whose claim two readers reject, seen or not, marked in `rejects`."""
    present = pl.col("says") == "present"
    twice = pl.when(present).then(0).otherwise(2)
    rejected = sizes.select("cell", "says", yes=twice.cast(patterns["yes"].dtype), rejects=pl.lit(1.0))
    rejected = rejected.with_columns(no=(2 - pl.col("yes")).cast(patterns["no"].dtype))
    key = ["cell", "says", "yes", "no"]
    known = patterns.join(rejected, on=key, how="full", coalesce=True).sort(key)
    return known.with_columns(pl.col("len").fill_null(0), pl.col("rejects").fill_null(0.0))


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

    def resample(self, counts: Floats, likely: Floats, dice: np.random.Generator) -> Floats:
        """Draw as many pairs of each cell again, RESAMPLES times, each pattern as likely as given: one row a draw."""
        drawn = np.zeros((RESAMPLES, len(counts)))
        for cell in self.member.T.astype(np.bool_):
            chances = likely[cell] / likely[cell].sum()
            drawn[:, cell] = dice.multinomial(int(counts[cell].sum()), chances, size=RESAMPLES)
        return drawn

    def solve(self, counts: Floats) -> tuple[Floats, Floats, Floats, float]:
        """Fit the share that shows the finding in each cell, and the readers' skill, by expectation-maximisation.

        Gives the error rate, sensitivity and specificity of each row, and how many pairs read twice show the finding.
        """
        total = counts @ self.member
        share = np.clip(counts * (self.yes > self.no) @ self.member / np.maximum(total, 1), 0.01, 0.99)
        sensitivity, specificity = np.full(len(counts), 0.85), np.full(len(counts), 0.95)
        shows = np.zeros_like(counts)
        # Many cells have the same patterns of yes and no, whose chance is worked out once.
        (yes, no), place = np.unique(np.stack([self.yes, self.no]), axis=1, return_inverse=True)
        for _ in range(ROUNDS):
            ill, well = sensitivity[:, None], specificity[:, None]
            shown = share @ self.member.T
            if_ill = shown * (ill**yes * (1 - ill) ** no)[:, place]
            if_well = (1 - shown) * ((1 - well) ** yes * well**no)[:, place]
            shows = counts * if_ill / (if_ill + if_well)
            without = counts - shows
            share = np.clip(shows @ self.member / np.maximum(total, 1), 1e-9, 1 - 1e-9)
            sensitivity = (shows @ self.yes + PRIOR) / (shows @ (self.yes + self.no) + 2 * PRIOR)
            specificity = (without @ self.no + PRIOR) / (without @ (self.yes + self.no) + 2 * PRIOR)
        wrong = np.where(self.says_present, 1 - share, share)
        return wrong @ self.weight, sensitivity, specificity, float(shows[0] @ (self.yes + self.no > 1))
