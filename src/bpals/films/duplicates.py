"""Near-duplicates: films that are one exposure, found among all films by what they look like at 32 x 32.

Two thumbnails of unit length whose correlation is above .997 lie at most .0775 apart, and so do their shadows on any
few directions. Films are therefore compared by their shadows on 48, in the order of the first, and only within that
reach: no pair is missed, and 112,120 films take minutes. What is near enough is compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SAME = 0.997
"""Correlation from which two films are one exposure. Re-encoded copies have .9998, two films of a patient .993."""
DIRECTIONS = 48
LEARNT_FROM = 4000
"""Films from which the directions are learnt."""
AT_ONCE = 1 << 24
"""Pairs that are compared at a time."""
IN_FULL = 1 << 14
"""Pairs that are compared in full at a time."""
SLACK = 1e-4
"""What rounding may do to a squared distance."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """For each film the one that is most like it, where they are one exposure."""

    other: Ints
    """Its place; -1 where there is none."""
    correlation: Floats


def find_twins(thumbnails: npt.NDArray[np.uint8], usable: npt.NDArray[np.bool_]) -> Twins:
    """Find near-duplicates among the usable films; a film without contrast has none."""
    other, correlation = np.full(len(thumbnails), -1, dtype=np.int64), np.zeros(len(thumbnails), dtype=np.float32)
    places = np.flatnonzero(usable & (np.ptp(thumbnails, axis=(1, 2)) > 0))
    if len(places) < 2:
        return Twins(other=other, correlation=correlation)
    unit = thumbnails[places].reshape(len(places), -1).astype(np.float32)
    unit -= unit.mean(axis=1, keepdims=True)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for one, two in _near(unit):
        alike = np.einsum("ij,ij->i", unit[one], unit[two])
        for first, second in ((one, two), (two, one)):
            for place in np.flatnonzero(alike >= SAME):
                its = places[first[place]]
                if alike[place] > correlation[its]:
                    other[its], correlation[its] = places[second[place]], alike[place]
    return Twins(other=other, correlation=correlation)


def _near(unit: Floats) -> Iterator[tuple[Ints, Ints]]:
    """Give the pairs whose shadows are near enough, a few at a time, each pair once."""
    learnt = unit[:: max(1, len(unit) // LEARNT_FROM)]
    learnt = learnt - learnt.mean(axis=0)
    _, directions = np.linalg.eigh(learnt.T @ learnt)  # the most telling last
    shadow = unit @ directions[:, : -DIRECTIONS - 1 : -1]
    order = np.argsort(shadow[:, 0], kind="stable")
    shadow, first = shadow[order], np.sort(shadow[:, 0], kind="stable")
    squares = (shadow**2).sum(axis=1)
    reach = 2 * (1 - SAME) + SLACK
    start = 0
    while start < len(order):
        end = int(np.searchsorted(first, first[start] + np.sqrt(reach), side="right"))
        stop = min(end, start + max(1, AT_ONCE // max(end - start, 1)))
        end = int(np.searchsorted(first, first[stop - 1] + np.sqrt(reach), side="right"))
        apart = squares[start:stop, None] + squares[None, start:end] - 2 * shadow[start:stop] @ shadow[start:end].T
        one, two = np.nonzero(np.triu(apart <= reach, k=1))
        for piece in range(0, len(one), IN_FULL):
            here = slice(piece, piece + IN_FULL)
            yield order[start + one[here]], order[start + two[here]]
        start = stop
