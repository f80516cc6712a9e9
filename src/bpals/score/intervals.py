"""Intervals that treat the images of one patient as one cluster: in closed form, and by a bootstrap over patients.

`Placed` has each patient's part in a figure, after DeLong. `Resamples` draws whole patients: weights are
`(draws, pairs)` matrices of counts. One set of draws serves every finding and method, so their differences are paired.
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
from bpals.numeric import NORMAL_95, order

Floats = NDArray[np.float64]
Row = dict[str, Any]

CELLS = 2_000_000
"""Weights held at once: 16 MB, which stays near the processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A figure between 0 and 1, and each patient's part in it."""

    value: float
    patients: NDArray[Any]
    parts: Floats
    """One number per patient; they add up to 0."""

    @classmethod
    def auroc(cls, score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
        """Rank the images of each class among those of the other; there must be some of both."""
        places = order(score)
        ordered, hit = score[places], present[places]
        # Equal scores are one step: a tie counts half, whatever the order of the rows.
        step = np.cumsum(np.append(False, ordered[1:] != ordered[:-1]))
        hits = np.bincount(step, weights=hit)
        others = np.bincount(step) - hits
        above, below = hits.sum(), others.sum()
        beaten, outdone = (np.cumsum(side) - side / 2 for side in (others, hits))
        auroc = float((hits * beaten).sum() / (above * below))
        part = np.empty(len(score))
        part[places] = np.where(
            hit, ((beaten / below - auroc) / above)[step], ((1 - outdone / above - auroc) / below)[step]
        )
        return cls._of(auroc, part, patients)

    @classmethod
    def average_precision(cls, score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
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
        return cls._of(value, part, patients)

    @classmethod
    def brier(cls, score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
        """Give the mean squared distance between a probability and the truth."""
        squared = (score - present) ** 2
        value = float(squared.mean())
        return cls._of(value, (squared - value) / len(squared), patients)

    @classmethod
    def ece(cls, score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
        """Give the mean distance between promise and outcome over ten bins of equal mass."""
        bins, beyond = mass_bins(score), score - present
        gap = np.bincount(bins, weights=beyond)
        value = float(np.abs(gap).sum() / len(score))
        return cls._of(value, (np.sign(gap)[bins] * beyond - value) / len(score), patients)

    @classmethod
    def mean(cls, several: Sequence[Placed]) -> Placed:
        """Average the figures of several findings; a patient's parts in them stay together."""
        known = np.concatenate([each.patients for each in several])
        parts = np.concatenate([each.parts for each in several]) / len(several)
        return cls._of(float(np.mean([each.value for each in several])), parts, known)

    @classmethod
    def _of(cls, value: float, part: Floats, patients: NDArray[Any]) -> Placed:
        """Add up the parts of each patient's images."""
        if patients.dtype.kind == "i" and patients.min(initial=0) >= 0 and patients.max(initial=0) <= 2 * len(patients):
            known = np.flatnonzero(np.bincount(patients))  # numbered already, and counting is quicker than sorting
            parts = np.bincount(patients, weights=part)[known]
        else:
            known, place = np.unique(patients, return_inverse=True)
            parts = np.bincount(place, weights=part, minlength=len(known))
        return cls(value=value, patients=known, parts=parts.astype(np.float64))

    @property
    def error(self) -> float:
        """The standard error of the figure."""
        return _error(self.parts)

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, worked out on the logit so that it stays between 0 and 1."""
        # At 0 or 1 the logit is infinite.
        inside = min(max(self.value, 1e-6), 1 - 1e-6)
        middle = math.log(inside / (1 - inside))
        reach = NORMAL_95 * self.error / (inside * (1 - inside))
        return _logistic(middle - reach), _logistic(middle + reach)


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
        error = _error(first.parts - second.parts)
        p_value = math.erfc(abs(value) / error / math.sqrt(2)) if error > 0 else float(value == 0)
        return cls(value=value, low=value - NORMAL_95 * error, high=value + NORMAL_95 * error, p_value=p_value)


def _logistic(z: float) -> float:
    """A probability; far out it is 0 or 1, not an overflow."""
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def _error(parts: Floats) -> float:
    # n / (n - 1): with few patients the plain sum is too small.
    count = len(parts)
    return math.sqrt(float((parts**2).sum()) * count / max(count - 1, 1))


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
