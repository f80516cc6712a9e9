"""Films, dealt by part of the patients and by the record judge's fold, and sorted, so that each cell is one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bpals.signal.voices import Bools, Ints

Value = TypeVar("Value", bound=np.generic)

PARTS = 5
"""Parts of the patients: each is answered from the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """Some films of a dataset, part by part and in each part fold by fold."""

    films: Ints
    """Their rows in the dataset."""
    cell: Ints
    """Part and fold of each, as one number."""
    folds: int

    @classmethod
    def of(cls, part: Ints, fold: Ints) -> Dealt:
        """Deal all films; the folds may have any numbers."""
        names, number = np.unique(fold, return_inverse=True)
        cell = part * len(names) + number
        return cls(films=np.argsort(cell, kind="stable"), cell=np.sort(cell), folds=len(names))

    def only(self, wanted: Bools) -> Dealt:
        """Keep some of the films: `wanted` has a value for every film of the dataset."""
        kept = wanted[self.films]
        return Dealt(films=self.films[kept], cell=self.cell[kept], folds=self.folds)

    @property
    def pieces(self) -> list[list[slice]]:
        """Give the places of the films of each part and fold."""
        ends = np.searchsorted(self.cell, np.arange(PARTS * self.folds + 1)).tolist()
        cells = [slice(*ends[number : number + 2]) for number in range(PARTS * self.folds)]
        return [cells[part * self.folds : (part + 1) * self.folds] for part in range(PARTS)]

    @property
    def parts(self) -> list[slice]:
        """Give the places of the films of each part."""
        return [slice(of_part[0].start, of_part[-1].stop) for of_part in self.pieces]


def joined(values: NDArray[Value], pieces: Sequence[slice | Ints]) -> NDArray[Value]:
    """Put pieces of a row, or of the columns of a matrix, one after the other."""
    return np.concatenate([values[..., piece] for piece in pieces], axis=-1)
