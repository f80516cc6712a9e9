"""The interval of a figure when films of one patient belong together, without a bootstrap.

After DeLong, each film has a placement: the share of films of the other class that it beats. A patient's part in the
AUROC is the sum of its films' placements less what is usual; the spread of those parts is the AUROC's (Obuchowski).
Average precision, Brier score and calibration error have parts, too: how the figure moves as a film weighs a little
more. Two judges on the same films have paired parts, so their difference has a paired interval. 112,120 films take
30 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpals.ordering import order
from bpals.score.metrics import Curve, mass_bins

Floats = NDArray[np.float64]

NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A figure between 0 and 1, and each patient's part in it."""

    value: float
    patients: NDArray[Any]
    parts: Floats
    """One number a patient; they add up to 0."""

    @classmethod
    def auroc(cls, score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
        """Place the films of each class among those of the other; there must be some of both."""
        places = order(score)
        ordered, hit = score[places], present[places]
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
        """Say how pure the films are that a score puts first; there must be a presence."""
        curve = Curve.of(score, present)
        value = float(curve.average_precision()[0])
        _, step = np.unique(-score, return_inverse=True)
        hits, seen = curve.wrong[0], curve.seen[0]
        gained = np.diff(hits, prepend=0.0)
        # A film that weighs more moves the precision of its own step and of those below: up if it is a hit, else down.
        raised = np.cumsum((gained / seen)[::-1])[::-1][step]
        lowered = np.cumsum((gained * hits / seen**2)[::-1])[::-1][step]
        part = (present * ((hits / seen)[step] - value + raised) - lowered) / hits[-1]
        return cls._of(value, part, patients)

    @classmethod
    def brier(cls, score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
        """Give the mean squared distance between a probability and what was so."""
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
        """Add up the parts of the films of each patient."""
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
        inside = min(max(self.value, 1e-6), 1 - 1e-6)
        middle = math.log(inside / (1 - inside))
        reach = NORMAL_95 * self.error / (inside * (1 - inside))
        return _logistic(middle - reach), _logistic(middle + reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A figure of one judge less that of another on the same films."""

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
    count = len(parts)
    return math.sqrt(float((parts**2).sum()) * count / max(count - 1, 1))
