"""Voices: what image judges say, as matrices: a row a film, a column a finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.findings import Group
from bpals.signal.blocks import in_blocks
from bpals.signal.devices import Devices
from bpals.signal.filmchecks import FilmChecks
from bpals.signal.pairs import Matrix, Pairs, answers, by_finding, places_of, usual

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.integer[Any]]

TINY = 1e-12
"""Scores may be smaller than any probability that is reported; nearer to 0 or 1 than this they are one."""

Measure = Callable[[str, tuple[str, ...], Matrix, Matrix], pl.DataFrame]
"""(judge, findings, what it gives, what is claimed) -> SKILL: how well it tells, and whether it has a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """What one image judge says of every film."""

    judge: str
    p_present: Matrix
    """The judge's own probability, as it gave it; NaN where it did not answer."""
    evidence: Matrix
    """Its logits, each finding's with mean 0 and deviation 1 over the films it answered; NaN where it did not."""
    heeded: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """A column a finding: whether it has a signal there. Elsewhere it is not heard."""
    kin: str = ""
    """The model behind it: judges of one model are one family. Empty where nobody said."""
    told: bool = False
    """Whether it was trained on the labels of these very films: then it may only repeat what it was told."""
    family: str = ""
    """The judge whose name stands for its family. Empty where it has none but itself."""
    vote: float = 1.0
    """How it counts inside its family, which has one vote: the names of one judge share what it counts."""

    @property
    def answered(self) -> Bools:
        """Where it answered."""
        return np.asarray(~np.isnan(self.p_present))

    @property
    def usual(self) -> Matrix:
        """Its mean probability of each finding; NaN where it never answered."""
        return usual(self.p_present)

    def of_groups(self, pairs: Pairs, groups: Sequence[Group]) -> Voice:
        """Speak of groups: a group is as evident as its most evident member, and answered if all members are."""
        p_present, evidence = [], []
        for group in groups:
            members = [pairs.column(name) for name in group.members]
            p_present.append(1 - np.prod(1 - self.p_present[:, members], axis=1))
            evidence.append(self.evidence[:, members].max(axis=1))
        return Voice(
            judge=self.judge,
            p_present=np.stack(p_present, axis=1),
            evidence=_standardised(np.stack(evidence, axis=1)),
            kin=self.kin,
            told=self.told,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The image judges of an audit, and how to find out which of them to heed."""

    voices: tuple[Voice, ...]
    measure: Measure
    fold: Ints
    """The record judge's fold of each film: inside a fold its answers rest on no claim of the fold's other patients."""
    devices: Devices
    checks: FilmChecks | None = None
    """What is odd about the films themselves; None where nobody looked."""

    def of_groups(self, pairs: Pairs, groups: Sequence[Group]) -> Panel:
        """Let every judge speak of groups."""
        return replace(self, voices=tuple(voice.of_groups(pairs, groups) for voice in self.voices))

    def heed(self, pairs: Pairs) -> tuple[tuple[Voice, ...], pl.DataFrame]:
        """Measure every judge, the record's too; give the voices with what they are heeded on, and the skills."""
        states, given = by_finding(pairs.states), by_finding(pairs.p_present)
        recorded = self.measure("record", pairs.findings, given, states)
        heard, skills = [], [recorded] if recorded["n"].sum() else []
        for voice in self.voices:
            skills.append(self.measure(voice.judge, pairs.findings, voice.evidence, states))
            heard.append(replace(voice, heeded=skills[-1]["signal"].to_numpy()))
        return tuple(heard), pl.concat(skills) if skills else recorded.clear()


def hear(judge: str, table: pl.DataFrame, images: pl.DataFrame, findings: tuple[str, ...]) -> Voice:
    """Lay a judge's answers out; what it says of films or findings that are not here is passed over."""
    told = table.filter(pl.col("outcome") == "answered")
    column = told["finding"].cast(pl.Enum(findings), strict=False).to_physical()
    told, column = told.filter(column.is_not_null()), column.drop_nulls()
    places = places_of(told["image_id"], column.to_numpy(), images["image_id"], len(findings))
    given = told["p_present"].to_numpy()
    p_present = np.full((images.height, len(findings)), np.nan)
    if not isinstance(places, slice):
        here = places < p_present.size
        places, given = places[here], given[here]
    p_present.ravel()[places] = given
    logits = np.empty(p_present.shape)

    def weigh(films: slice) -> None:
        kept = np.clip(p_present[films], TINY, 1 - TINY)
        np.log(kept / (1 - kept), out=logits[films])

    in_blocks(len(logits), weigh)
    return Voice(judge=judge, p_present=p_present, evidence=_standardised(logits))


def _standardised(logits: Matrix) -> Matrix:
    """Give each column mean 0 and deviation 1, in place; a judge that always says the same says nothing: 0.

    The columns come out one behind the other in memory, because evidence is weighed finding by finding.
    """
    count, silent = np.maximum(answers(logits), 1), np.flatnonzero(np.isnan(logits))
    logits.put(silent, 0)
    logits -= logits.sum(axis=0) / count
    logits.put(silent, 0)
    deviation = np.sqrt((logits**2).sum(axis=0) / count)
    logits /= np.where(deviation > TINY, deviation, 1.0)
    logits.put(silent, np.nan)
    return by_finding(logits)
