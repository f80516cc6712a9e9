"""Devices: whether a film shows tubes, lines, drains, pacemakers or wires, as image judges see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.signal.pairs import logit
from bpals.signal.sentences import Sentences
from bpals.types import DEVICES

TOPIC = "devices"
"""What a judge is asked of the film."""
PRESENT, ABSENT, UNKNOWN = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one judge says of the films themselves."""

    judge: str
    answers: pl.DataFrame
    """FILM_ANSWERS."""
    offsets: Mapping[str, Any]
    """Topic -> its mean logits without a film, `[present, absent]`; either may be null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Whether each film shows devices, and who sees them."""

    state: npt.NDArray[np.uint32]
    """A place in DEVICES, a film."""
    seen_by: pl.Series
    """The judges that see devices where they are present, else null: a sentence, a film."""

    @property
    def column(self) -> pl.Series:
        """The states as words."""
        return pl.Series("devices", DEVICES.categories, dtype=DEVICES).gather(self.state)

    def sentences(self, findings: int) -> Sentences:
        """Say it of every finding of the film."""
        words = self.seen_by.drop_nulls().unique(maintain_order=True)
        which = self.seen_by.replace_strict(words, range(1, len(words) + 1), default=0, return_dtype=pl.Int32)
        return Sentences(words=[None, *words], which=np.broadcast_to(which.to_numpy()[:, None], (len(which), findings)))

    @property
    def present(self) -> npt.NDArray[np.float64]:
        """1 where devices are seen, else 0."""
        return np.asarray(self.state == PRESENT, dtype=np.float64)


def read_devices(images: pl.DataFrame, judges: Sequence[Asked]) -> Devices:
    """Average the judges' evidence, each less its answer without a film; above zero is present, no answer unknown."""
    films = images.select("image_id")
    evidence = np.stack([_evidence(films, judge) for judge in judges]) if judges else np.full((1, films.height), np.nan)
    answered = (~np.isnan(evidence)).sum(axis=0)
    mean = np.nansum(evidence, axis=0) / np.maximum(answered, 1)
    state = np.where(answered == 0, UNKNOWN, np.where(mean > 0, PRESENT, ABSENT)).astype(np.uint32)
    return Devices(state=state, seen_by=_seen_by([judge.judge for judge in judges], evidence, state))


def _evidence(films: pl.DataFrame, judge: Asked) -> npt.NDArray[np.float64]:
    """Give one judge's logit, film by film, less its answer without a film; NaN where it did not answer."""
    its = judge.answers.filter((pl.col("topic") == TOPIC) & (pl.col("outcome") == "answered"))
    placed = films.join(its.select("image_id", "p_present"), on="image_id", how="left", maintain_order="left")
    p = placed["p_present"].fill_null(float("nan")).to_numpy()
    present, absent = judge.offsets.get(TOPIC) or (None, None)
    sides = [side for side in (present, None if absent is None else -absent) if side is not None]
    return np.asarray(logit(p) - (sum(sides) / len(sides) if sides else 0.0))


def _seen_by(names: list[str], evidence: npt.NDArray[np.float64], state: npt.NDArray[np.uint32]) -> pl.Series:
    """Name, for each film with devices, the judges whose evidence is above zero."""
    said = pl.Series([None] * len(state), dtype=pl.String)
    if not names:
        return said
    seeing = [pl.when(pl.Series(row > 0)).then(pl.lit(name)) for name, row in zip(names, evidence, strict=True)]
    listed = pl.concat_list(seeing).list.drop_nulls()
    verb = pl.when(listed.list.len() > 1).then(pl.lit(" see ")).otherwise(pl.lit(" sees "))
    sentence = "devices: " + listed.list.join(" and ") + verb + "support devices on the film"
    return pl.select(pl.when(pl.Series(state == PRESENT)).then(sentence)).to_series()
