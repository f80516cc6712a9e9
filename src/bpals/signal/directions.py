"""The last step of calibration: claims of presence and claims of absence apart, by how much was reviewed.

Below 100 reviews the logit is only stretched and shifted, held near as it is. From 100 to 1,000 Venn-Abers says the
probability, beyond that isotonic regression; between their places the curve is straight, so that order is kept. These
two stand only where they are better, on patients they have not seen, by more than one standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpals.signal.pairs import Matrix, logit
from bpals.signal.ridge import newton
from bpals.signal.vennabers import VennAbers, isotonic

Curve = Callable[[Matrix], Matrix]

FEW, MANY = 100, 1000
STRETCH = np.array([1.0, 4.0])
"""How firmly shift and stretch are held where reviews are few."""
SMOOTH = 0.02
"""Isotonic chances are kept this far from 0 and 1: nobody has seen enough to be certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Reviewed claims of one direction: the logit that was made without the patient, and what was there."""

    z: Matrix
    present: Matrix
    weight: Matrix
    fold: npt.NDArray[np.int64]

    def take(self, kept: npt.NDArray[np.bool_]) -> Seen:
        """Keep some of the claims."""
        return Seen(z=self.z[kept], present=self.present[kept], weight=self.weight[kept], fold=self.fold[kept])

    @property
    def one_sided(self) -> bool:
        """Say that nothing can be learned from them."""
        return bool((self.present > 0.5).all() or not (self.present > 0.5).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """The curve of each direction, by what is claimed (1 or 0), and how sure the probabilities are."""

    curves: Mapping[int, Curve]
    unsure: Mapping[int, Curve]

    def apply(self, z: Matrix, said: Matrix) -> Matrix:
        """Bend the logits; a claim of neither kind keeps its own."""
        bent = z.copy()
        for claimed, curve in self.curves.items():
            its = said == claimed
            bent[its] = curve(z[its])
        return bent

    def spread(self, z: Matrix, said: Matrix) -> Matrix:
        """Say how unsure the probability is, as a standard deviation of its logit."""
        deviation = np.zeros(len(z))
        for claimed, unsure in self.unsure.items():
            its = said == claimed
            deviation[its] = unsure(z[its])
        return deviation


def directions(seen: Mapping[int, Seen]) -> Directions:
    """Fit each direction on its own reviewed claims."""
    curves, unsure = {}, {}
    for claimed, its in seen.items():
        if its.one_sided:
            continue
        if len(its.z) < FEW or _better(its):
            curves[claimed] = _curve(its)
        unsure[claimed] = _unsure(its)
    return Directions(curves=curves, unsure=unsure)


def _curve(seen: Seen) -> Curve:
    """Fit the curve that this many reviews allow."""
    if len(seen.z) < FEW:
        shift, stretch = _stretched(seen)[0]
        return lambda z: np.asarray(shift + max(1 + stretch, 0.1) * z)
    if len(seen.z) <= MANY:
        fitted = VennAbers.of(seen.z, seen.present)
        return _through(fitted.centre, np.maximum.accumulate(logit(fitted.p)))
    places, chance = isotonic(seen.z, seen.present)
    return _through(places, logit(np.clip(chance, SMOOTH, 1 - SMOOTH)))


def _unsure(seen: Seen) -> Curve:
    """Find how unsure the curve is along the logits: as its fit says, or as far as Venn-Abers' answers lie apart."""
    if len(seen.z) < FEW:
        (first, both), (_, second) = np.linalg.inv(_stretched(seen)[1])
        return lambda z: np.asarray(np.sqrt(np.maximum(first + 2 * both * z + second * z**2, 0)))
    return VennAbers.of(seen.z, seen.present).spread


def _stretched(seen: Seen) -> tuple[Matrix, Matrix]:
    """Fit shift and stretch, with their curvature."""
    inputs = np.stack([np.ones(len(seen.z)), seen.z], axis=1)
    return newton(inputs, seen.z, seen.present, STRETCH, seen.weight)


def _through(places: Matrix, logits: Matrix) -> Curve:
    """Draw straight lines between the places, and beyond the last ones go on as the logit does."""
    first, last = places[0], places[-1]

    def curve(z: Matrix) -> Matrix:
        beyond = np.minimum(z - first, 0) + np.maximum(z - last, 0)
        return np.asarray(np.interp(z, places, logits) + beyond)

    return curve


def _better(seen: Seen) -> bool:
    """Say whether the curve tells unseen patients better than the logit as it is, by more than one standard error."""
    gain = np.zeros(len(seen.z))
    for fold in np.unique(seen.fold):
        held = seen.fold == fold
        others = seen.take(~held)
        if len(others.z) == 0 or others.one_sided:
            return False
        z, there = seen.z[held], seen.present[held]
        bent = _curve(others)(z)
        gain[held] = seen.weight[held] * (_loss(z, there) - _loss(bent, there))
    return bool(len(gain) > 1 and gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


def _loss(z: Matrix, present: Matrix) -> Matrix:
    return np.asarray(np.logaddexp(0, z) - present * z)
