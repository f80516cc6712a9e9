"""Where errors are more or less common on the audited films than on those that taught: a small random sample refits.

    logit P(present) + a + d,    a ~ N(0, 1) for the finding, d ~ N(0, .3^2) for claims of presence and of absence

Only shifts are fitted, and they are held: 200 films say little more.
"""

from __future__ import annotations

import numpy as np

from bpals.signal.learn import Reviewed
from bpals.signal.pairs import Matrix
from bpals.signal.ridge import newton

BOTH, EACH = 1.0, 0.3
"""The deviations that are expected of a finding's shift, and of what its two directions have of their own."""


def shifts(z: Matrix, said: Matrix, sample: Reviewed) -> tuple[float, float]:
    """Find what to add to the logits of claimed presences, and of claimed absences, from a random sample of films."""
    claimed = said[sample.rows]
    inputs = np.stack([np.ones(len(claimed)), claimed == 1, claimed == 0], axis=1).astype(float)
    ridge = np.array([1 / BOTH**2, 1 / EACH**2, 1 / EACH**2])
    (both, present, absent), _ = newton(inputs, z[sample.rows], sample.present, ridge, sample.weight)
    return float(both + present), float(both + absent)


def refit(z: Matrix, said: Matrix, sample: Reviewed) -> Matrix:
    """Shift every logit; the films of the sample by what the other patients of the sample say."""
    moved = _shifted(z, said, shifts(z, said, sample))
    for fold in np.unique(sample.fold):
        rows = sample.rows[sample.fold == fold]
        others = sample.without(frozenset({int(fold)}))
        moved[rows] = _shifted(z, said, shifts(z, said, others))[rows]
    return moved


def _shifted(z: Matrix, said: Matrix, by: tuple[float, float]) -> Matrix:
    present, absent = by
    neither = (present + absent) / 2
    return np.asarray(z + np.where(said == 1, present, np.where(said == 0, absent, neither)))
