"""The bootstrap over patients: whole patients are drawn, so that the films of one stay together.

Weights are `(draws, pairs)` matrices of counts: how often a pair's patient was drawn. One set of draws serves every
finding and every method, which makes their differences paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpals.errors import UsageError

Floats = NDArray[np.float64]

CELLS = 2_000_000
"""Weights held at once: 16 MB, which stays near the processor."""


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
    """One row a draw, one column a patient: how often it was drawn."""
    patient: NDArray[np.int64]
    """The column of `counts` for each pair."""

    @classmethod
    def of(cls, patients: NDArray[np.int64], resampling: Resampling) -> Resamples:
        """Draw as many patients as there are, with replacement, again and again."""
        known, patient = np.unique(patients, return_inverse=True)
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
        """Add columns up patient by patient: one row a column of `counts`, so that a bootstrap is one product."""
        sums = [np.bincount(patient, weights=column, minlength=self.counts.shape[1]) for column in columns]
        return np.stack(sums, axis=1)

    def totals(self, sums: Floats) -> Floats:
        """Add up what patients have, once over all of them and then over each draw: one row more than draws."""
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
