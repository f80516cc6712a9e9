"""A certificate: what is promised of a set of claims, for whom, on how many reviews; or what it would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Promise = Literal["precision", "trusted", "trusted_above", "misses", "discoveries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A promise about the claims of one finding and direction on one side of a cut; each has its own doubt."""

    promise: Promise
    """`precision`: of the claims up to the cut at least `level` are wrong. `trusted`, `trusted_above`: from the cut on
    at most `level` are. `misses`: at most `level` of the wrong claims lie above the cut. `discoveries`: of the list of
    claims up to the cut at most `level` are right."""
    level: float
    doubt: float | None
    """The chance that the reviews were so unlucky that the promise is broken; None: it holds on average."""
    cut: float | None
    """The trust that divides; None: nothing is certified."""
    reviewed: int
    """Reviewed claims that the promise rests on: one a patient, each with the same chance to be among them."""
    wrong: int
    """How many of those are wrong."""
    more: int | None
    """About how many more reviews it takes; 0 if certified, None if more of what was seen would not do it, or if fewer
    claims are left."""
    population: str
    """Which claims it is a promise about."""
    words: str

    @property
    def certified(self) -> bool:
        """Whether the promise is made."""
        return self.cut is not None
