"""The view of a film, AP or PA, as its pixels look; and how unlike the others it is, of whatever view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpals.films.linear import Features, Floats, Ints, Line, Scale, blocks, crossfitted, fit, gathered

AP, PA = "AP", "PA"
PENALTY = 1.0
LEARNT_FROM = 3000
"""Films from which the views, and what is usual, are learnt, at most."""
FEWEST = 30
"""Films of each view below which nothing is learnt of it."""
DIRECTIONS = 64
UNLIKE = 1.6
"""How many times further than is usual a film lies outside what films share, to be called unlike the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewed:
    """How AP each film looks: 0 is the median of those recorded as PA, 1 of those recorded as AP."""

    score: Floats
    auroc: float
    """Of the score against the recorded view, over films of other patients than those it was learnt from."""
    recorded: int
    """Films that have one of the two views on record."""

    @property
    def seen(self) -> npt.NDArray[np.str_]:
        """Name the view that each film looks like."""
        return np.where(self.score > 0.5, AP, PA)

    def against(self, recorded: npt.NDArray[np.str_]) -> npt.NDArray[np.bool_]:
        """Find films that look more like the other view than half of its own films do."""
        return np.asarray(((recorded == PA) & (self.score >= 1)) | ((recorded == AP) & (self.score <= 0)))


def view_films(features: Features, recorded: npt.NDArray[np.str_], fold: Ints) -> Viewed | None:
    """Say which view each film looks like, by films of other patients; None where a view has too few films."""
    sides = [np.flatnonzero(recorded == view) for view in (PA, AP)]
    if min(len(side) for side in sides) < FEWEST:
        return None
    places = np.sort(np.concatenate([_spread(side, LEARNT_FROM // 2) for side in sides]))
    films, target = gathered(features, places, len(fold)), (recorded[places] == AP).astype(np.float32)[:, None]

    def fitted(number: int) -> Line:
        others = fold[places] != number
        return fit(films[others], target[others], PENALTY)

    said = crossfitted(features, fold, fitted)[:, 0]
    low, high = (float(np.median(said[side])) for side in sides)
    if not low < high:
        return None
    return Viewed(
        score=(said - low) / (high - low),
        auroc=_auroc(said[sides[1]], said[sides[0]]),
        recorded=len(sides[0]) + len(sides[1]),
    )


def measure_unlike(features: Features, usable: npt.NDArray[np.bool_], fold: Ints) -> Floats | None:
    """Measure how far each film lies outside the 64 directions in which films of others differ most; 1 is usual."""
    outside = np.zeros(len(usable), dtype=np.float32)
    for half in (0, 1):
        # An odd film would be a direction of its own among those that it helped to learn.
        places = _spread(np.flatnonzero(usable & (fold % 2 != half)), LEARNT_FROM)
        if len(places) <= 2 * DIRECTIONS:
            return None
        films = gathered(features, places, len(usable))
        scale = Scale.of(films)
        scaled = scale.apply(films)
        _, directions = np.linalg.eigh(scaled.T @ scaled)  # the most telling last
        its = fold % 2 == half
        outside[its] = _outside(features, scale, directions[:, -DIRECTIONS:], len(usable))[its]
        outside[its] /= max(float(np.median(outside[its & usable])), 1e-12) if (its & usable).any() else 1
    return outside


def _outside(features: Features, scale: Scale, shared: Floats, count: int) -> Floats:
    """Give the length of what the shared directions leave of each film."""
    left = []
    for _, films in blocks(features, count):
        scaled = scale.apply(films)
        left.append(np.maximum((scaled**2).sum(axis=1) - ((scaled @ shared) ** 2).sum(axis=1), 0))
    return np.asarray(np.sqrt(np.concatenate(left)), dtype=np.float32)


def _spread(places: Ints, most: int) -> Ints:
    """Take at most so many of the places, evenly."""
    return places if len(places) <= most else places[np.linspace(0, len(places) - 1, most).astype(np.int64)]


def _auroc(higher: Floats, lower: Floats) -> float:
    """Give the chance that one of the first stands above one of the second."""
    below = np.searchsorted(np.sort(lower), higher, side="left")
    upto = np.searchsorted(np.sort(lower), higher, side="right")
    return float((below + upto).mean() / (2 * len(lower)))
