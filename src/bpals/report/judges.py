"""The judges: who answered, how well each tells, and how much it counts, as the run record has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from bpals.report.wording import NONE, count, interval, of, probability, share, spoken

TRAINED = {"yes": "It was trained on these labels, so it weighs less", "no": "It was not trained on these labels"}
UNKNOWN = "Whether it was trained on these labels is not known; it weighs as if it was not"
HELD_OUT = "It was trained on these labels, but of other patients only"
YARDSTICKS = {"experts": "experts' reads", "claims": "the dataset's labels"}
FACTS = ("model", "revision", "engine", "pack", "preparation", "settings", "observed", "sealed")
"""What a card may say beyond name, licence and training, in the order of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """One judge of the audit."""

    name: str
    kind: str
    title: str
    trained: str
    facts: tuple[tuple[str, Any], ...]
    answered: str
    signal: str
    weight: str
    skill: tuple[tuple[str, ...], ...]
    """A row a finding: finding, yardstick, films, presences, AUROC, interval, signal, share of the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """How many films show support devices."""

    present: int
    absent: int
    unknown: int


def judges(listed: Sequence[Mapping[str, Any]]) -> tuple[Judge, ...]:
    """Read the judges of a run record; what it leaves out is shown as left out."""
    return tuple(_judge(entry) for entry in listed)


def devices(signal: pl.DataFrame) -> Devices | None:
    """Count the films by devices; None where nobody was asked."""
    if (signal["devices"] == "unknown").all():
        return None
    films = signal.select("image_id", pl.col("devices").cast(pl.String)).unique()
    counted = dict(films.group_by("devices").len().iter_rows())
    return Devices(**{word: counted.get(word, 0) for word in ("present", "absent", "unknown")})


def _judge(entry: Mapping[str, Any]) -> Judge:
    licence = str(entry.get("licence") or "licence not stated")
    if entry.get("commercial_use") == "no":
        licence += ", no commercial use"
    version = f"version {entry['version']}" if entry.get("version") else "version not stated"
    trained = TRAINED.get(str(entry.get("trained_on_target")), UNKNOWN)
    if entry.get("trained_on_target") == "yes" and entry.get("held_out"):
        trained = HELD_OUT
    evidence = str(entry.get("evidence") or "")
    rows = [row for row in entry.get("skill") or () if isinstance(row, Mapping)]
    return Judge(
        name=str(entry.get("judge", "?")),
        kind=str(entry.get("kind", "?")),
        title=", ".join((f"{entry.get('kind', '?')} judge", version, licence)),
        trained=f"{trained}: {evidence}" if evidence else f"{trained}.",
        facts=tuple((name, entry[name]) for name in FACTS if entry.get(name)),
        answered=_answered(entry.get("counts")),
        signal=f"{sum(bool(row.get('signal')) for row in rows)} of {len(rows)}" if rows else NONE,
        weight=share(entry["effective_weight"]) if isinstance(entry.get("effective_weight"), float) else NONE,
        skill=tuple(_skill(row) for row in rows),
    )


def _answered(counts: Any) -> str:
    """Write how many of the pairs it was asked about it answered; a record judge is asked anew, and not counted."""
    if not isinstance(counts, Mapping):
        return NONE
    asked = sum(counts.values())
    return f"{count(counts.get('answered', 0))} ({of(counts.get('answered', 0), asked)})"


def _skill(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        spoken(str(row["finding"])),
        YARDSTICKS.get(str(row["against"]), str(row["against"])),
        count(row["n"]),
        count(row["positives"]),
        NONE if row["auroc"] is None else f"{row['auroc']:.3f}",
        interval(row["low"], row["high"]),
        "signal" if row["signal"] else "no signal" if row["auroc"] is not None else "too few to tell",
        NONE if row.get("weight") is None else probability(row["weight"]),
    )
