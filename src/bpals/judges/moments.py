"""Moments: what a linear fit needs to know of films, added up fold by fold while their features stream by.

A fit on some folds takes the sum of theirs. It is never the sum of all minus the others': in floating point what was
subtracted would leave a trace, and a claim could reach the answer about itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

CHUNK = 4096
"""Films that are in memory at once."""


class Features(Protocol):
    """The features of films: a row a film, read a piece at a time."""

    @property
    def image_ids(self) -> Sequence[str]:
        """Name the films, in the order of the rows."""
        ...

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        ...

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read some rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the fit is told of films: a row a film, a column a finding."""

    states: Floats
    """1 present, 0 absent; all else, an uncertain claim or silence, teaches nothing."""
    fold: Ints
    """The fold of each film's patient."""
    folds: int

    @property
    def known(self) -> Bools:
        """Say which claims teach something."""
        return np.asarray((self.states == 0) | (self.states == 1))


@dataclass(slots=True)
class Moments:
    """Sums over films: of ones, of features, of their products, and of both with the labels."""

    films: float
    sums: Doubles
    products: Doubles
    labels: Doubles
    """A number a finding."""
    features_and_labels: Doubles
    """A row a feature, a column a finding."""

    @classmethod
    def nothing(cls, width: int, findings: int) -> Moments:
        """Begin with no film."""
        return cls(0.0, np.zeros(width), np.zeros((width, width)), np.zeros(findings), np.zeros((width, findings)))

    @classmethod
    def of(cls, parts: Sequence[Moments]) -> Moments:
        """Add up, from the first to the last."""
        first = parts[0]
        whole = cls(
            first.films,
            first.sums.copy(),
            first.products.copy(),
            first.labels.copy(),
            first.features_and_labels.copy(),
        )
        for part in parts[1:]:
            whole += part
        return whole

    def __iadd__(self, other: Self) -> Self:
        self.films += other.films
        self.sums += other.sums
        self.products += other.products
        self.labels += other.labels
        self.features_and_labels += other.features_and_labels
        return self

    def add(self, features: Floats, labels: Floats, known: Floats) -> None:
        """Add films; those whose label is not known weigh nothing, and change no shape: so they leave no trace."""
        weighed = features * known[:, None]
        self.films += float(known.sum())
        self.sums += weighed.sum(axis=0, dtype=np.float64)
        self.products += weighed.T @ features
        self.labels += (labels * known[:, None]).sum(axis=0, dtype=np.float64)
        self.features_and_labels += weighed.T @ labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A rough centre and spread of each feature, so that sums of products lose no digits; no label is in it."""

    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, features: Features) -> Scale:
        """Take it from the first films."""
        some = np.asarray(features.rows(0, CHUNK), dtype=np.float64)
        spread = some.std(axis=0)
        spread[spread < 1e-6] = 1.0
        return cls(centre=some.mean(axis=0).astype(np.float32), spread=spread.astype(np.float32))

    def chunks(self, features: Features) -> Iterator[tuple[slice, Floats]]:
        """Read all features in the order of the films, a chunk at a time, scaled."""
        for start in range(0, len(features.image_ids), CHUNK):
            part = slice(start, min(start + CHUNK, len(features.image_ids)))
            rows = np.asarray(features.rows(part.start, part.stop), dtype=np.float32)
            yield part, (rows - self.centre) / self.spread


def gather(features: Features, scale: Scale, told: Told, known: Bools) -> list[Moments]:
    """Add up each fold by itself, in one pass, for the findings that share what is known of them."""
    labels = np.where(told.known, told.states, 0).astype(np.float32)
    folds = [Moments.nothing(features.width, labels.shape[1]) for _ in range(told.folds)]
    for part, rows in scale.chunks(features):
        for number, moments in enumerate(folds):
            here = told.fold[part] == number
            if here.any():
                moments.add(rows[here], labels[part][here], known[part][here].astype(np.float32))
    return folds
