"""Learning from reviews what all findings have in common: the hierarchical part of the fit on expert labels.

    logit P(present) = o + x (beta + delta_k),    penalty |beta|^2 SHARED + sum over findings |delta_k|^2 OWN

o is the judges' logit, x what is known of the pair, k its finding. With no review beta and delta are 0 and the judges'
answer stands; with few they stay near 0; a rare finding with a handful of reviews borrows beta from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bpals.signal.pairs import Matrix
from bpals.signal.ridge import newton

Rows = npt.NDArray[np.int64]

SHARED = 10.0
"""Pull of what all findings share towards 0."""
OWN = 30.0
"""Pull of what a finding has of its own towards what all share."""
SHIFT = 1.0
"""The same for intercepts, which few reviews may move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """The reviews of one finding: which films, what is there, how much each counts, whose they are."""

    rows: Rows
    present: Matrix
    """1 or 0, or the chance that the finding is there where readers left it open."""
    weight: Matrix
    """How much a review counts: those that were drawn with a small chance stand for more pairs."""
    fold: npt.NDArray[np.int64]
    settled: Callable[[frozenset[int]], Matrix] | None = None
    """What is there, as reads of some patients' left out make it; None where no review leans on another."""

    def without(self, folds: frozenset[int]) -> Reviewed:
        """Leave out the reviews of some patients, and what they taught about the readers of the others."""
        kept = ~np.isin(self.fold, list(folds))
        present = self.settled(folds) if self.settled and not kept.all() else self.present
        return Reviewed(rows=self.rows[kept], present=present[kept], weight=self.weight[kept], fold=self.fold[kept])

    def only(self, kept: npt.NDArray[np.bool_]) -> Reviewed:
        """Keep some of the reviews."""
        settled = self.settled
        return Reviewed(
            rows=self.rows[kept],
            present=self.present[kept],
            weight=self.weight[kept],
            fold=self.fold[kept],
            settled=None if settled is None else lambda folds: settled(folds)[kept],
        )

    @property
    def one_sided(self) -> bool:
        """Say that there are no two different verdicts to learn from."""
        return bool((self.present > 0.5).all() or not (self.present > 0.5).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A finding that was reviewed: what the judges say, what is claimed, and the reviews."""

    finding: str
    judged: Matrix
    """The judges' logit of every film; NaN where nobody answered."""
    summed: Matrix
    """The same from the members of a group: min(1, sum of their probabilities); for a finding, its own."""
    said: Matrix
    """The claim: 1 present, 0 absent, 0.5 neither."""
    seen: Matrix
    """1 where an image judge took part, else 0."""
    reviewed: Reviewed

    def errors(self, without: frozenset[int] = frozenset()) -> int:
        """Count the claims that the reviews contradict, but for those of some patients."""
        reviewed = self.reviewed.without(without)
        said, there = self.said[reviewed.rows], reviewed.present > 0.5
        return int(((said == 1) & ~there | (said == 0) & there).sum())

    @property
    def least_errors(self) -> int:
        """Count them without the fold of patients that has the most: as many as every fit of the finding sees."""
        return min((self.errors(frozenset({int(fold)})) for fold in np.unique(self.reviewed.fold)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What is known of a film whatever the finding: columns beside the judges' logit and the claim."""

    columns: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class _Correction:
    centre: Matrix
    scale: Matrix
    weights: Matrix
    covariance: Matrix


@dataclass(slots=True)
class School:
    """All reviewed findings together; it remembers what it learned without some patients."""

    topics: Sequence[Topic]
    common: Common
    learned: dict[frozenset[int], Mapping[str, _Correction]] = field(default_factory=dict)

    def correct(self, topic: Topic, rows: Rows, without: frozenset[int]) -> tuple[Matrix, Matrix]:
        """Give the corrected logit of some films and its standard deviation, learned without some patients."""
        if without not in self.learned:
            self.learned[without] = self._learn(without)
        fit = self.learned[without].get(topic.finding)
        if fit is None:
            return topic.judged[rows], np.zeros(len(rows))
        inputs = self._inputs(topic, rows, fit.centre, fit.scale)
        spread = np.sqrt(np.maximum(((inputs @ fit.covariance) * inputs).sum(axis=1), 0))
        return topic.judged[rows] + inputs @ fit.weights, spread

    def _columns(self, topic: Topic, rows: Rows) -> Matrix:
        judged, said, seen = topic.judged[rows], topic.said[rows], topic.seen[rows]
        own = np.stack([judged, said, judged * said, seen, seen * judged], axis=1)
        return np.concatenate([own, self.common.columns[rows]], axis=1)

    def _inputs(self, topic: Topic, rows: Rows, centre: Matrix, scale: Matrix) -> Matrix:
        return np.concatenate([np.ones((len(rows), 1)), (self._columns(topic, rows) - centre) / scale], axis=1)

    def _learn(self, without: frozenset[int]) -> Mapping[str, _Correction]:
        """Fit beta and every delta at once."""
        taught = [(topic, topic.reviewed.without(without)) for topic in self.topics]
        taught = [(topic, reviewed) for topic, reviewed in taught if len(reviewed.rows)]
        if not taught:
            return {}
        sample = np.concatenate([self._columns(topic, reviewed.rows) for topic, reviewed in taught])
        centre, spread = sample.mean(axis=0), sample.std(axis=0)
        scale = np.where(spread > 1e-9, spread, 1.0)
        width = sample.shape[1] + 1
        blocks = []
        for place, (topic, reviewed) in enumerate(taught, start=1):
            block = np.zeros((len(reviewed.rows), width * (len(taught) + 1)))
            block[:, :width] = block[:, width * place : width * (place + 1)] = self._inputs(
                topic, reviewed.rows, centre, scale
            )
            blocks.append(block)
        ridge = np.concatenate([np.full(width, SHARED), np.full(width * len(taught), OWN)])
        ridge[::width] = SHIFT
        weights, curvature = newton(
            np.concatenate(blocks),
            np.concatenate([topic.judged[reviewed.rows] for topic, reviewed in taught]),
            np.concatenate([reviewed.present for _, reviewed in taught]),
            ridge,
            np.concatenate([reviewed.weight for _, reviewed in taught]),
        )
        covariance = np.linalg.inv(curvature)
        learned = {}
        for place, (topic, _) in enumerate(taught, start=1):
            # beta + delta_k picks two blocks of the whole, and of its covariance.
            pick = np.zeros((width, len(weights)))
            pick[:, :width] = pick[:, width * place : width * (place + 1)] = np.eye(width)
            learned[topic.finding] = _Correction(
                centre=centre, scale=scale, weights=pick @ weights, covariance=pick @ covariance @ pick.T
            )
        return learned
