"""What expert labels of all findings have in common, and what a random sample shifts.

    logit P(present) = o + x (beta + delta_k),    penalty |beta|^2 SHARED + sum over findings |delta_k|^2 OWN

o is the judges' logit, x what is known of the pair, k its finding. With no expert label beta and delta are 0 and the
judges' answer stands; with few they stay near 0; a rare finding with a handful of labels borrows beta from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bpals.numeric import Matrix, newton
from bpals.signal.layout import Bools, Ints

SHARED = 10.0
"""Pull of what all findings share towards 0."""
OWN = 30.0
"""Pull of what a finding has of its own towards what all share."""
SHIFT = 1.0
"""The same for intercepts, which few labels may move."""
BOTH, EACH = 1.0, 0.3
"""The deviations that are expected of a finding's shift, and of what its two directions have of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """The expert labels of one finding: which images, what is there, how much each counts, the patient's fold."""

    rows: Ints
    present: Matrix
    """1 or 0, or the chance that the finding is there where readers left it open."""
    weight: Matrix
    """How much a review counts: those that were drawn with a small chance stand for more pairs."""
    fold: Ints
    settled: Callable[[frozenset[int]], Matrix] | None = None
    """What is there, as reads without some patients make it; None where no review leans on another."""

    def without(self, folds: frozenset[int]) -> Reviewed:
        """Leave out the reviews of some patients, and what they taught about the readers of the others."""
        kept = ~np.isin(self.fold, list(folds))
        present = self.settled(folds) if self.settled and not kept.all() else self.present
        return Reviewed(rows=self.rows[kept], present=present[kept], weight=self.weight[kept], fold=self.fold[kept])

    def only(self, kept: Bools) -> Reviewed:
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
    """A finding that was reviewed: the judges' answer, the label, and the reviews."""

    finding: str
    judged: Matrix
    """The judges' logit of every image; NaN where nobody answered."""
    summed: Matrix
    """The same from the members of a group: min(1, sum of their probabilities); for a finding, its own."""
    claim: Matrix
    """The label: 1 present, 0 absent, 0.5 neither."""
    by_image: Matrix
    """1 where an image judge took part, else 0."""
    reviewed: Reviewed

    def errors(self, without: frozenset[int] = frozenset()) -> int:
        """Count the labels that the reviews contradict, but for those of some patients."""
        reviewed = self.reviewed.without(without)
        claim, there = self.claim[reviewed.rows], reviewed.present > 0.5
        return int(((claim == 1) & ~there | (claim == 0) & there).sum())

    @property
    def least_errors(self) -> int:
        """Count them without the fold of patients that has the most: as many as every fit of the finding sees."""
        return min((self.errors(frozenset({int(fold)})) for fold in np.unique(self.reviewed.fold)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Correction:
    centre: Matrix
    scale: Matrix
    weights: Matrix
    covariance: Matrix


@dataclass(slots=True)
class SharedFit:
    """The fit of all reviewed findings together; fits without some patients are kept, because many designs ask."""

    topics: Sequence[Topic]
    common: Matrix
    """What is known of an image whatever the finding: columns beside the judges' logit and the label."""
    fits: dict[frozenset[int], Mapping[str, _Correction]] = field(default_factory=dict)

    def correct(self, topic: Topic, rows: Ints, without: frozenset[int]) -> tuple[Matrix, Matrix]:
        """Give the corrected logit of some images and its standard deviation, fitted without some patients."""
        if without not in self.fits:
            self.fits[without] = self._fit(without)
        fit = self.fits[without].get(topic.finding)
        if fit is None:
            return topic.judged[rows], np.zeros(len(rows))
        inputs = self._inputs(topic, rows, fit.centre, fit.scale)
        spread = np.sqrt(np.maximum(((inputs @ fit.covariance) * inputs).sum(axis=1), 0))
        return topic.judged[rows] + inputs @ fit.weights, spread

    def _columns(self, topic: Topic, rows: Ints) -> Matrix:
        judged, claim, by_image = topic.judged[rows], topic.claim[rows], topic.by_image[rows]
        own = np.stack([judged, claim, judged * claim, by_image, by_image * judged], axis=1)
        return np.concatenate([own, self.common[rows]], axis=1)

    def _inputs(self, topic: Topic, rows: Ints, centre: Matrix, scale: Matrix) -> Matrix:
        return np.concatenate([np.ones((len(rows), 1)), (self._columns(topic, rows) - centre) / scale], axis=1)

    def _fit(self, without: frozenset[int]) -> Mapping[str, _Correction]:
        """Fit beta and every delta at once."""
        reviewed = [(topic, topic.reviewed.without(without)) for topic in self.topics]
        reviewed = [(topic, reviews) for topic, reviews in reviewed if len(reviews.rows)]
        if not reviewed:
            return {}
        sample = np.concatenate([self._columns(topic, reviews.rows) for topic, reviews in reviewed])
        centre, spread = sample.mean(axis=0), sample.std(axis=0)
        scale = np.where(spread > 1e-9, spread, 1.0)
        width = sample.shape[1] + 1
        blocks = []
        for place, (topic, reviews) in enumerate(reviewed, start=1):
            block = np.zeros((len(reviews.rows), width * (len(reviewed) + 1)))
            block[:, :width] = block[:, width * place : width * (place + 1)] = self._inputs(
                topic, reviews.rows, centre, scale
            )
            blocks.append(block)
        ridge = np.concatenate([np.full(width, SHARED), np.full(width * len(reviewed), OWN)])
        ridge[::width] = SHIFT
        weights, curvature = newton(
            np.concatenate(blocks),
            np.concatenate([topic.judged[reviews.rows] for topic, reviews in reviewed]),
            np.concatenate([reviews.present for _, reviews in reviewed]),
            ridge,
            np.concatenate([reviews.weight for _, reviews in reviewed]),
        )
        covariance = np.linalg.inv(curvature)
        fits = {}
        for place, (topic, _) in enumerate(reviewed, start=1):
            # beta + delta_k picks two blocks of the whole, and of its covariance.
            pick = np.zeros((width, len(weights)))
            pick[:, :width] = pick[:, width * place : width * (place + 1)] = np.eye(width)
            fits[topic.finding] = _Correction(
                centre=centre, scale=scale, weights=pick @ weights, covariance=pick @ covariance @ pick.T
            )
        return fits


def shifts(z: Matrix, claim: Matrix, sample: Reviewed) -> tuple[float, float]:
    """Find what to add to the logits of labelled presences, and absences, from a random sample of images.

    logit P(present) + a + d,    a ~ N(0, 1) for the finding, d ~ N(0, .3^2) for presences and for absences
    """
    # Only shifts are fitted, and they are held: 200 images say little more.
    claimed = claim[sample.rows]
    inputs = np.stack([np.ones(len(claimed)), claimed == 1, claimed == 0], axis=1).astype(float)
    ridge = np.array([1 / BOTH**2, 1 / EACH**2, 1 / EACH**2])
    (both, present, absent), _ = newton(inputs, z[sample.rows], sample.present, ridge, sample.weight)
    return float(both + present), float(both + absent)


def refit(z: Matrix, claim: Matrix, sample: Reviewed) -> Matrix:
    """Shift every logit; the images of the sample by what the other patients of the sample say."""
    moved = _shifted(z, claim, shifts(z, claim, sample))
    for fold in np.unique(sample.fold):
        rows = sample.rows[sample.fold == fold]
        others = sample.without(frozenset({int(fold)}))
        moved[rows] = _shifted(z, claim, shifts(z, claim, others))[rows]
    return moved


def _shifted(z: Matrix, claim: Matrix, by: tuple[float, float]) -> Matrix:
    present, absent = by
    neither = (present + absent) / 2
    return np.asarray(z + np.where(claim == 1, present, np.where(claim == 0, absent, neither)))
