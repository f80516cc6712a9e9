"""Intervals that treat the images of one patient as one cluster: in closed form, and by a bootstrap over patients.

In closed form a figure has each patient's part in it (`Placed`, beside the AUROC in skill.py). `Resamples` draws whole
patients: weights are `(draws, pairs)` matrices of counts. One set of draws serves every finding and method, so their
differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpals.errors import UsageError
from bpals.metrics import Curve, mass_bins
from bpals.numeric import NORMAL_95
from bpals.score.skill import Floats, Placed, standard_error

Row = dict[str, Any]

CELLS = 2_000_000
"""Weights held at once: 16 MB, which stays near the processor."""


def average_precision(score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
    """Say how pure the images are that a score puts first; there must be a presence."""
    curve = Curve.of(score, present)
    value = float(curve.average_precision()[0])
    _, step = np.unique(-score, return_inverse=True)
    hits, seen = curve.wrong[0], curve.seen[0]
    gained = np.diff(hits, prepend=0.0)
    # An image that weighs more moves the precision of its own step and of those below: up if a hit, else down.
    raised = np.cumsum((gained / seen)[::-1])[::-1][step]
    lowered = np.cumsum((gained * hits / seen**2)[::-1])[::-1][step]
    part = (present * ((hits / seen)[step] - value + raised) - lowered) / hits[-1]
    return Placed.of(value, part, patients)


def brier(score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
    """Give the mean squared distance between a probability and the truth."""
    squared = (score - present) ** 2
    value = float(squared.mean())
    return Placed.of(value, (squared - value) / len(squared), patients)


def ece(score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
    """Give the mean distance between promise and outcome over ten bins of equal mass."""
    bins, beyond = mass_bins(score), score - present
    gap = np.bincount(bins, weights=beyond)
    value = float(np.abs(gap).sum() / len(score))
    return Placed.of(value, (np.sign(gap)[bins] * beyond - value) / len(score), patients)


def mean(several: Sequence[Placed]) -> Placed:
    """Average the figures of several findings; a patient's parts in them stay together."""
    known = np.concatenate([each.patients for each in several])
    parts = np.concatenate([each.parts for each in several]) / len(several)
    return Placed.of(float(np.mean([each.value for each in several])), parts, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A figure of one judge less that of another on the same images."""

    value: float
    low: float
    high: float
    p_value: float

    @classmethod
    def of(cls, first: Placed, second: Placed) -> Difference:
        """Pair the two patient by patient."""
        value = first.value - second.value
        error = standard_error(first.parts - second.parts)
        p_value = math.erfc(abs(value) / error / math.sqrt(2)) if error > 0 else float(value == 0)
        return cls(value=value, low=value - NORMAL_95 * error, high=value + NORMAL_95 * error, p_value=p_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """How often patients are drawn, and from which seed."""

    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an interval that rests on nothing."""
        if self.draws < 1:
            raise UsageError(f"{self.draws} resamples give no interval. Type: --bootstrap 1000")
        if self.seed < 0:
            raise UsageError(f"{self.seed} is no seed: it must be 0 or more. Type: --seed 0")


@dataclass(frozen=True, slots=True)
class Resamples:
    """The drawn patients, and which of them each pair belongs to."""

    counts: NDArray[np.uint16]
    """One row per draw, one column per patient: how often it was drawn."""
    patient: NDArray[np.int64]
    """The column of `counts` for each pair."""

    @classmethod
    def of(cls, patients: NDArray[np.int64], resampling: Resampling) -> Resamples:
        """Draw as many patients as there are, with replacement, again and again."""
        known, patient = np.unique(patients, return_inverse=True)
        # 16 bits: a thousand draws of 30,805 patients take 60 MB, not 240.
        counts = np.empty((resampling.draws, len(known)), dtype=np.uint16)
        rng = np.random.default_rng(resampling.seed)
        for draw in counts:
            draw[:] = np.bincount(rng.integers(0, len(known), size=len(known)), minlength=len(known))
        return cls(counts, patient.astype(np.int64))

    def take(self, chosen: NDArray[np.bool_]) -> Resamples:
        """Keep some of the pairs; the draws stay the same."""
        return Resamples(self.counts, self.patient[chosen])

    def weights(self) -> Iterator[Floats]:
        """Give the weights of the pairs, some draws at a time."""
        step = max(1, CELLS // max(1, len(self.patient)))
        for start in range(0, len(self.counts), step):
            yield self.counts[start : start + step, self.patient].astype(np.float64)

    def add_up(self, patient: NDArray[np.int64], columns: Sequence[NDArray[Any]]) -> Floats:
        """Add columns up patient by patient: one row per column of `counts`, so that a bootstrap is one product."""
        sums = [np.bincount(patient, weights=column, minlength=self.counts.shape[1]) for column in columns]
        return np.stack(sums, axis=1)

    def totals(self, sums: Floats) -> Floats:
        """Add up the patients' sums, once over all patients and then over each draw: one row more than draws."""
        # Most patients have nothing to add to a rare finding: without them the product is small.
        used = np.flatnonzero(sums.any(axis=1))
        kept = sums[used]
        step = max(1, CELLS // max(1, len(used)))
        starts = range(0, len(self.counts), step)
        drawn = [self.counts[start : start + step, used].astype(np.float64) @ kept for start in starts]
        return np.vstack([kept.sum(axis=0, keepdims=True), *drawn])


def interval(replicates: Floats) -> tuple[float | None, float | None]:
    """Give the middle 95 % of the replicates that are defined; none of them makes no interval."""
    defined = replicates[~np.isnan(replicates)]
    if len(defined) == 0:
        return None, None
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)


def spread(name: str, value: float | None = None, low: float | None = None, high: float | None = None) -> Row:
    """Write a figure and the ends of its interval as three columns; null where there is none."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}
