"""The vocabulary: what the findings of a dataset are called, and which of them form a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import UnknownName, UsageError


def fold(word: str) -> str:
    """Fold a label as people write it: blanks, case, `_` and `-` do not matter."""
    return " ".join(word.replace("_", " ").replace("-", " ").split()).casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Findings that a reference speaks of together, such as nodule or mass."""

    name: str
    members: tuple[str, ...]

    def claim(self, states: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Say what a film claims of the group, from a column a member: 1 present, 0 absent, 0.5 uncertain, NaN silent.

        Present if a member is, absent if all are, silent if all are; else uncertain.
        """
        silent = np.isnan(states).all(axis=1)
        claim = np.where((states == 1).any(axis=1), 1.0, np.where((states == 0).all(axis=1), 0.0, 0.5))
        return np.where(silent, np.nan, claim).astype(states.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The closed list of findings that are audited, in the order of every table."""

    name: str
    findings: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings: alias -> finding."""

    def __post_init__(self) -> None:
        """Refuse two findings that fold to one word."""
        folded = [fold(f) for f in self.findings]
        if doubled := {f for f in folded if folded.count(f) > 1}:
            raise UsageError(f"vocabulary {self.name!r} has a finding twice: {sorted(doubled)}")

    @property
    def enum(self) -> pl.Enum:
        """The column type of `finding`."""
        return pl.Enum(self.findings)

    @property
    def spellings(self) -> dict[str, str]:
        """Every folded spelling -> finding."""
        named = {fold(f): f for f in self.findings}
        return {fold(a): f for a, f in self.aliases.items()} | named

    def resolve(self, words: Iterable[str], *, where: str = "") -> list[str]:
        """Turn words as people write them into findings; an unknown one is answered with `Did you mean`."""
        spellings = self.spellings
        resolved = []
        for word in words:
            if fold(word) not in spellings:
                raise UnknownName.of("finding", word, self.findings, where=where)
            resolved.append(spellings[fold(word)])
        return resolved


NIH = Vocabulary(
    name="nih",
    findings=(
        "Atelectasis",
        "Cardiomegaly",
        "Effusion",
        "Infiltration",
        "Mass",
        "Nodule",
        "Pneumonia",
        "Pneumothorax",
        "Consolidation",
        "Edema",
        "Emphysema",
        "Fibrosis",
        "Pleural_Thickening",
        "Hernia",
    ),
    aliases={"Pleural effusion": "Effusion", "Pleural thickening": "Pleural_Thickening"},
)
"""The 14 findings of NIH ChestX-ray14, spelled as NIH spells them."""

NODULE_OR_MASS = Group(name="Nodule or mass", members=("Nodule", "Mass"))
AIRSPACE_OPACITY = Group(
    name="Airspace opacity",
    members=("Consolidation", "Infiltration", "Pneumonia", "Edema", "Atelectasis"),
)
