"""A score on a grid: films and presences counted place by place, so that a fit costs the same however many films."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bpals.signal.pairs import Matrix
from bpals.signal.ridge import newton
from bpals.signal.voices import Bools

PLACES = 1024
"""Places of the grid."""
REACH = 32.0
"""Scores beyond it are at the grid's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A logit that is a straight line of one score."""

    intercept: float
    slope: float
    covariance: Matrix

    def answer(self, score: Matrix) -> Matrix:
        """Give the logit."""
        z = self.slope * score
        z += self.intercept
        return np.asarray(z)

    def spread(self, score: Matrix) -> Matrix:
        """Give the standard deviation of the logit."""
        (first, both), (_, second) = self.covariance
        return np.asarray(np.sqrt(np.maximum(first + 2 * both * score + second * score**2, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The places on which there are films."""

    count: Matrix
    hits: Matrix
    """How many of them have the finding."""
    centre: Matrix
    """Their mean score."""

    @classmethod
    def of(cls, score: Matrix, present: Bools) -> Grid:
        """Put the films on the grid."""
        along = np.clip(score, -REACH, REACH)
        along += REACH
        along *= (PLACES - 1) / (2 * REACH)
        place = along.astype(np.int32)  # numpy takes ten times as long to make longer ones
        count = np.bincount(place, minlength=PLACES)
        used = count > 0
        hits = np.bincount(place[present], minlength=PLACES)[used]
        total = np.bincount(place, score, minlength=PLACES)[used]
        return cls(count=count[used].astype(float), hits=hits.astype(float), centre=total / count[used])

    def line(self) -> Line:
        """Fit a line to definite claims; weak pulls hold the intercept near their rate and the slope near 1."""
        rate = (self.hits.sum() + 0.5) / (self.count.sum() + 1)
        usual = float(np.log(rate / (1 - rate)))
        inputs = np.stack([np.ones(len(self.centre)), self.centre], axis=1)
        fitted, curvature = newton(
            inputs, usual + self.centre, self.hits / self.count, np.array([0.1, 1.0]), self.count
        )
        return Line(
            intercept=usual + float(fitted[0]),
            slope=max(1 + float(fitted[1]), 0.0),
            covariance=np.asarray(np.linalg.inv(curvature)),
        )

    def shift(self, pull: float) -> float:
        """Find the shift of the scores, taken as logits, that makes them right on average; `pull` holds it near 0."""
        alone = np.ones((len(self.centre), 1))
        fitted, _ = newton(alone, self.centre, self.hits / self.count, np.array([pull]), self.count)
        return float(fitted[0])
