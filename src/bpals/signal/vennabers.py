"""Venn-Abers: how sure a probability is, from what came true near it.

The pairs that were reviewed are fitted by isotonic regression twice: once with the pair in question called absent, once
called present. The two answers, p0 and p1, enclose what can be said; one probability of them is p1 / (1 - p0 + p1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bpals.signal.pairs import NORMAL_95, Matrix

MOST_BINS = 128
"""Neighbouring scores are taken together until there are no more than this: the cost grows with the third power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VennAbers:
    """The two answers at each place of the scores, from the lowest to the highest."""

    centre: Matrix
    """The mean score of each place."""
    low: Matrix
    high: Matrix

    @classmethod
    def of(cls, score: Matrix, present: Matrix) -> VennAbers:
        """Fit scores and what was there, 1 or 0 or a chance between."""
        # Equal scores share a place, so that the order in which pairs are named does not matter.
        rank = np.searchsorted(np.sort(score), score)
        _, place = np.unique(rank * min(MOST_BINS, len(score)) // max(len(score), 1), return_inverse=True)
        count, hits, total = (
            np.bincount(place, weights).astype(np.float64) for weights in (np.ones(len(score)), present, score)
        )
        return cls(
            centre=total / count,
            low=_isotonic_with(count, hits, 0.0),
            high=_isotonic_with(count, hits, 1.0),
        )

    @property
    def p(self) -> Matrix:
        """The one probability that the two come to."""
        return np.asarray(self.high / (1 - self.low + self.high))

    def spread(self, score: Matrix) -> Matrix:
        """Say how unsure the probability is at other scores, as the standard deviation of its logit.

        The 95 % interval about p is as wide as the two answers lie apart. Their own logits would not do: where nothing
        came true one of the answers is 0, and its logit without end.
        """
        deviation = (self.high - self.low) / (2 * NORMAL_95 * self.p * (1 - self.p))
        return np.asarray(np.interp(score, self.centre, deviation))


def isotonic(score: Matrix, present: Matrix) -> tuple[Matrix, Matrix]:
    """Fit the best rising curve through what was there: scores in order, and the chance at each of them."""
    # Of equal scores the greatest outcome comes first: then they are all pooled.
    order = np.lexsort((-present, score))
    level = np.empty(0)
    size = np.empty(0)
    for value in present[order]:
        level, size = np.append(level, value), np.append(size, 1.0)
        while len(level) > 1 and level[-2] >= level[-1]:
            both = size[-2] + size[-1]
            joined = (level[-2] * size[-2] + level[-1] * size[-1]) / both
            level, size = np.append(level[:-2], joined), np.append(size[:-2], both)
    return score[order], np.repeat(level, size.astype(np.int64))


def _isotonic_with(count: Matrix, hits: Matrix, added: float) -> Matrix:
    """Give, at each place, the isotonic answer once a pair with this outcome is added there.

    The isotonic answer at a place is the greatest, over all starts up to it, of the least mean over all ends from it.
    """
    many, much = (np.concatenate([[0.0], np.cumsum(values)]) for values in (count, hits))
    answer = np.empty(len(count))
    for place in range(len(count)):
        starts, ends = slice(0, place + 1), slice(place + 1, len(count) + 1)
        mean = (much[ends] - much[starts, None] + added) / (many[ends] - many[starts, None] + 1)
        answer[place] = mean.min(axis=1).max()
    return answer
