"""Reviewed claims of one finding and direction, and how they were drawn: what every guarantee rests on.

A guarantee carries over from the reviewed to the other claims if both were drawn alike. Claims that were chosen because
they looked suspect are thinned until each had the same chance to be kept: a claim drawn with chance c stays with chance
m / c, where m is the smallest c of those in question. Films of a patient are alike, so then one claim a patient stays.
What is left is a uniform sample of the claims whose chance was at least m, and every textbook test holds on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

SEED = 1
"""Which of a patient's claims stands for it, and which of the targeted ones stay, is drawn by lot, and always alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The films on which experts read one finding, a place in each array a film."""

    films: Ints
    wrong: Bools
    """Whether what they settled on is not what is claimed."""
    patient: Ints
    inclusion: Floats | None = None
    """The chance with which each was drawn to be read; None where it is not known of all."""

    def among(self, here: Bools, trust: Floats, split: Floats) -> tuple[Ints, Drawn]:
        """Give the films that make a claim, `here`, and what was read of them."""
        kept = here[self.films]
        films = self.films[kept]
        return films, Drawn(
            trust=trust[films],
            wrong=self.wrong[kept],
            patient=self.patient[kept],
            inclusion=None if self.inclusion is None else self.inclusion[kept],
            split=split[films],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Reviewed claims, a place in each array a claim."""

    trust: Floats
    """Made without the claim's own review."""
    wrong: Bools
    patient: Ints | None = None
    """None: each claim is of another patient."""
    inclusion: Floats | None = None
    """The chance with which each was drawn to be read; None: nobody knows, so they stand for claims like themselves."""
    split: Floats | None = None
    """1 where readers would probably split over it, 0 where not, NaN where nobody knows."""

    def __len__(self) -> int:
        return len(self.trust)

    @property
    def every(self) -> Bools:
        """All of them, as a choice among them."""
        return np.ones(len(self), dtype=bool)

    @property
    def patients(self) -> int:
        """How many patients were reviewed."""
        return len(self) if self.patient is None else len(np.unique(self.patient))

    def take(self, places: Bools | Ints) -> Drawn:
        """Keep some of the claims."""
        return Drawn(
            trust=self.trust[places],
            wrong=self.wrong[places],
            patient=None if self.patient is None else self.patient[places],
            inclusion=None if self.inclusion is None else self.inclusion[places],
            split=None if self.split is None else self.split[places],
        )

    def fair(self, among: Bools, least: float | None = None) -> Bools:
        """Choose claims, of those in question, that are of different patients and had the same chance to be chosen."""
        lots = np.random.default_rng(SEED).random(len(self))
        kept = among
        if self.inclusion is not None and among.any():
            # A lot times the chance is even below the smallest chance, whatever the chance was: it can serve again.
            lots = lots * self.inclusion
            kept = among & (lots <= (self.inclusion[among].min() if least is None else least))
        if self.patient is None:
            return kept
        places = np.flatnonzero(kept)
        places = places[np.argsort(lots[places], kind="stable")]
        _, first = np.unique(self.patient[places], return_index=True)
        chosen = np.zeros(len(self), dtype=bool)
        chosen[places[first]] = True
        return chosen

    def population(self, among: Bools) -> str:
        """Say which claims the reviewed ones in question stand for."""
        if self.inclusion is None:
            return "claims on films like those that were read, one a patient"
        if not among.any():
            return "none: nothing was read there"
        least = self.inclusion[among].min()
        return f"claims that had a chance of at least {least:.2g} to be read, one a patient"
