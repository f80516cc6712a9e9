"""The figures of a scorecard: how well a suspicion ranks errors, and how well a trust is calibrated.

Each takes weights of shape `(draws, pairs)` and gives one number a draw, so that a bootstrap is one call. Pairs with
the same suspicion are one step of the curve: their order among themselves is nobody's merit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

BINS = 10
"""Bins of a reliability curve, of equal mass."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Weight seen so far, from the most suspect step to the least, one row a draw."""

    wrong: Floats
    seen: Floats

    @classmethod
    def of(cls, suspicion: ArrayLike, error: ArrayLike, weights: ArrayLike | None = None) -> Curve:
        """Rank the pairs by suspicion and add up the errors among them, step by step."""
        suspect = np.asarray(suspicion, dtype=np.float64)
        wrong = np.asarray(error, dtype=np.bool_)
        weight = _matrix(weights, len(suspect))
        # Stable, and ties are one step below: their order among themselves is nobody's merit.
        order = np.argsort(-suspect, kind="stable")
        starts = np.flatnonzero(np.diff(suspect[order], prepend=np.inf))
        heavy = weight[:, order]
        seen = np.add.reduceat(heavy, starts, axis=1)
        heavy *= wrong[order]
        return cls(np.cumsum(np.add.reduceat(heavy, starts, axis=1), axis=1), np.cumsum(seen, axis=1))

    @property
    def errors(self) -> Floats:
        """The weight of all errors."""
        return self.wrong[:, -1]

    @property
    def total(self) -> Floats:
        """The weight of all pairs."""
        return self.seen[:, -1]

    def auroc(self) -> Floats:
        """P(an error is more suspect than a right claim), a tie counting half."""
        right = self.seen - self.wrong
        step_wrong = np.diff(self.wrong, axis=1, prepend=0.0)
        step_right = np.diff(right, axis=1, prepend=0.0)
        below = right[:, -1:] - right + step_right / 2
        return _ratio((step_wrong * below).sum(axis=1), self.errors * right[:, -1])

    def average_precision(self) -> Floats:
        """The precision at each step, weighted by the recall that the step adds."""
        gained = np.diff(self.wrong, axis=1, prepend=0.0)
        precision = np.divide(self.wrong, self.seen, out=np.zeros_like(self.wrong), where=self.seen > 0)
        return _ratio((gained * precision).sum(axis=1), self.errors)

    def caught(self, budget: ArrayLike) -> Floats:
        """Weight of errors among the `budget` most suspect; inside a tie, what chance would give."""
        spend = np.broadcast_to(np.asarray(budget, dtype=np.float64), self.total.shape)
        spend = np.minimum(spend, self.total)
        step = np.minimum((self.seen < spend[:, None]).sum(axis=1), self.seen.shape[1] - 1)
        row = np.arange(len(spend))
        seen, wrong = self.seen[row, step], self.wrong[row, step]
        seen_before = np.where(step > 0, self.seen[row, step - 1], 0.0)
        wrong_before = np.where(step > 0, self.wrong[row, step - 1], 0.0)
        width = seen - seen_before
        share = np.divide(spend - seen_before, width, out=np.zeros_like(width), where=width > 0)
        return np.asarray(wrong_before + share * (wrong - wrong_before))

    def found(self, share: float) -> Floats:
        """The share of all errors that is found when this share of the pairs is reviewed."""
        return _ratio(self.caught(share * self.total), self.errors)


def auroc(higher: NDArray[np.floating], lower: NDArray[np.floating]) -> float:
    """Give the chance that one of the first stands above one of the second, a tie counting half."""
    ordered = np.sort(lower)
    below, upto = (np.searchsorted(ordered, higher, side=side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(lower)))


def mass_bins(trust: ArrayLike, count: int = BINS) -> NDArray[np.int64]:
    """Put each pair into one of `count` bins of equal mass; equal trusts share a bin, so there may be fewer."""
    values = np.asarray(trust, dtype=np.float64)
    # Edges are values that occur, so that equal trusts never fall into two bins.
    edges = np.quantile(values, np.arange(1, count) / count, method="inverted_cdf")
    _, bins = np.unique(np.searchsorted(np.unique(edges), values, side="left"), return_inverse=True)
    return np.asarray(bins, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Weight, mean trust and share of right claims by bin, one row a draw."""

    mass: Floats
    trust: Floats
    right: Floats

    @classmethod
    def of(cls, trust: ArrayLike, right: ArrayLike, weights: ArrayLike | None = None) -> Reliability:
        """Compare what was promised with what was so; the bins are those of the unweighted pairs."""
        promised = np.asarray(trust, dtype=np.float64)
        was = np.asarray(right, dtype=np.float64)
        weight = _matrix(weights, len(promised))
        member = np.eye(int(mass_bins(promised).max()) + 1)[mass_bins(promised)]
        mass = weight @ member
        return cls(
            mass, _ratio(weight @ (member * promised[:, None]), mass), _ratio(weight @ (member * was[:, None]), mass)
        )

    def ece(self) -> Floats:
        """Mean distance between promise and outcome over the bins."""
        gap = np.where(self.mass > 0, np.abs(self.trust - self.right), 0.0)
        return _ratio((self.mass * gap).sum(axis=1), self.mass.sum(axis=1))


def brier(trust: ArrayLike, right: ArrayLike, weights: ArrayLike | None = None) -> Floats:
    """Mean squared distance between the trust and the outcome."""
    squared = (np.asarray(trust, dtype=np.float64) - np.asarray(right, dtype=np.float64)) ** 2
    weight = _matrix(weights, len(squared))
    return _ratio(weight @ squared, weight.sum(axis=1))


def _matrix(weights: ArrayLike | None, pairs: int) -> Floats:
    if weights is None:
        return np.ones((1, pairs))
    return np.atleast_2d(np.asarray(weights, dtype=np.float64))


def _ratio(above: Floats, below: Floats) -> Floats:
    """Divide; what cannot be divided is NaN here and null in every table."""
    return np.asarray(np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > 0))
