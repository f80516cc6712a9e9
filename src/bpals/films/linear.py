"""A straight line through the features of films: ridge regression from few films, cross-fitted by patient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

FLOOR = 1e-3
"""A feature that varies less than this share of the most varying one is scaled no further up."""
BLOCK = 4096
"""Films whose features are in memory at a time."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Features(Protocol):
    """The features of films, a piece at a time."""

    @property
    def width(self) -> int:
        """How many numbers a film has."""
        ...

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Give the films of these places."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How features are centred and scaled."""

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, films: Floats) -> Self:
        """Measure it on films; so that a row of scaled features has about the length 1."""
        deviation = films.std(axis=0)
        deviation = np.maximum(deviation, max(FLOOR * float(deviation.max(initial=0.0)), 1e-12))
        return cls(mean=films.mean(axis=0), deviation=deviation * np.sqrt(np.float32(films.shape[1])))

    def apply(self, films: Floats) -> Floats:
        """Centre and scale films."""
        return np.asarray((films - self.mean) / self.deviation, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was fitted: a film in, a number for each target out."""

    scale: Scale
    slope: Floats
    level: Floats

    def score(self, films: Floats) -> Floats:
        """Give each film's numbers."""
        return np.asarray(self.scale.apply(films) @ self.slope + self.level, dtype=np.float32)


def fit(films: Floats, targets: Floats, penalty: float) -> Line:
    """Fit the targets, a column each; there are fewer films than features, so films are what is solved for."""
    scale = Scale.of(films)
    scaled, level = scale.apply(films), targets.mean(axis=0)
    alike = scaled @ scaled.T + np.float32(penalty) * np.eye(len(scaled), dtype=np.float32)
    return Line(scale=scale, slope=scaled.T @ np.linalg.solve(alike, targets - level), level=level)


def blocks(features: Features, count: int) -> Iterator[tuple[slice, Floats]]:
    """Read all features, a block of films at a time."""
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        yield slice(start, stop), np.asarray(features.rows(start, stop), dtype=np.float32)


def gathered(features: Features, places: Ints, count: int) -> Floats:
    """Read the features of a few films, in the order of their places."""
    found = np.empty((len(places), features.width), dtype=np.float32)
    for here, films in blocks(features, count):
        inside = np.flatnonzero((places >= here.start) & (places < here.stop))
        found[inside] = films[places[inside] - here.start]
    return found


def crossfitted(features: Features, fold: Ints, fitted: Callable[[int], Line]) -> Floats:
    """Score every film by the line of its fold, which was fitted without the films of the fold."""
    lines = {int(number): fitted(int(number)) for number in np.unique(fold)}
    targets = next(iter(lines.values())).level.shape[0] if lines else 0
    scores = np.zeros((len(fold), targets), dtype=np.float32)
    for here, films in blocks(features, len(fold)):
        for number, line in lines.items():
            inside = fold[here] == number
            scores[here][inside] = line.score(films[inside])
    return scores
