"""Voices: what image judges say, as matrices: a row a film, a column a finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.findings import Group
from bpals.signal.devices import Devices
from bpals.signal.filmchecks import FilmChecks
from bpals.signal.pairs import Matrix, Pairs, rows_of

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

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
        count = self.answered.sum(axis=0)
        return np.where(count > 0, np.nansum(self.p_present, axis=0) / np.maximum(count, 1), np.nan)

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
        recorded = self.measure("record", pairs.findings, pairs.p_present, pairs.states)
        heard, skills = [], [recorded] if recorded["n"].sum() else []
        for voice in self.voices:
            skills.append(self.measure(voice.judge, pairs.findings, voice.evidence, pairs.states))
            heard.append(replace(voice, heeded=skills[-1]["signal"].to_numpy()))
        return tuple(heard), pl.concat(skills) if skills else recorded.clear()


def hear(judge: str, answers: pl.DataFrame, images: pl.DataFrame, findings: tuple[str, ...]) -> Voice:
    """Lay a judge's answers out; what it says of films or findings that are not here is passed over."""
    told = answers.filter(pl.col("outcome") == "answered")
    rows = rows_of(told["image_id"], images["image_id"])
    column = told["finding"].cast(pl.Enum(findings), strict=False).to_physical()
    here = (rows < images.height) & column.is_not_null().to_numpy()
    p_present = np.full((images.height, len(findings)), np.nan)
    places = rows * len(findings) + column.fill_null(0).to_numpy()
    p_present.ravel()[places[here]] = told["p_present"].to_numpy()[here]
    kept = np.clip(p_present, TINY, 1 - TINY)
    kept /= 1 - kept
    return Voice(judge=judge, p_present=p_present, evidence=_standardised(np.log(kept, out=kept)))


def _standardised(logits: Matrix) -> Matrix:
    """Give each column mean 0 and deviation 1; a judge that always says the same says nothing: 0."""
    known = ~np.isnan(logits)
    count = np.maximum(known.sum(axis=0), 1)
    centred = logits - np.nansum(logits, axis=0) / count
    deviation = np.sqrt(np.nansum(centred**2, axis=0) / count)
    return np.asarray(centred / np.where(deviation > TINY, deviation, 1.0))
