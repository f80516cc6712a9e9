"""Everything that the pages and routes work with, and what is known of a film without its readers.

The room knows neither images nor signal: whoever opens it hands in functions that answer for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import polars as pl

from bpals.room.desk.desk import Desk
from bpals.room.desk.study import Study
from bpals.room.people.accounts import Accounts
from bpals.room.people.oidc import Provider
from bpals.room.people.sessions import Sessions
from bpals.types import Refusal


class Rendition(Protocol):
    """A film as a browser gets it, decoded and encoded again by us: `images.rendition` makes them."""

    @property
    def kind(self) -> Literal["png8", "grey16"]:
        """png8: a PNG; grey16: gzip."""

    @property
    def content(self) -> bytes:
        """The bytes that are sent."""

    def about(self) -> Mapping[str, object]:
        """Say what a browser must know to show it: size, bits, window, level; nothing tells which film it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientFilm:
    """One of a patient's films."""

    image_id: str
    when: str  # as a reader sees it, such as `follow-up 3` or `2 years before`; empty where nobody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswer:
    """The answer of one judge about a pair."""

    judge: str
    outcome: str
    p_present: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealedPair:
    """What is known of one finding on a film without asking a reader."""

    finding: str
    says: str | None  # the label: present, absent or uncertain; None where it is silent
    p_present: float | None
    trust: float | None
    trust_low: float | None
    trust_high: float | None
    flag: str | None
    reasons: tuple[str, ...]
    judges: tuple[JudgeAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed:
    """What a reader is shown after the lock."""

    version: str  # of the signal: sha256 of signal.parquet
    pairs: tuple[RevealedPair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the room is reached, and how long one may stay in."""

    origin: str
    """The address as the browser writes it, without a path: http://127.0.0.1:8765 or https://room.example.org."""
    title: str = "Reading room"
    dataset: str = ""
    idle_s: float = 8 * 3600  # a session ends when nothing came from it for so long
    stay_s: float = 24 * 3600  # and after so long in any case
    body_bytes: int = 256 << 10  # the longest body of a request that is read
    body_s: float = 15.0  # how long a body may take to arrive

    @property
    def secure(self) -> bool:
        """Say whether the browser speaks TLS to us or to the proxy before us."""
        return self.origin.startswith("https://")

    @property
    def cookie(self) -> str:
        """The name of the session's cookie; without TLS a browser refuses the prefix, and all ports share one jar."""
        return "__Host-bpals" if self.secure else f"bpals-{urlsplit(self.origin).port or 80}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One study, opened to its readers."""

    settings: Settings
    study: Study
    desk: Desk
    accounts: Accounts
    sessions: Sessions
    film: Callable[[str], Rendition | Refusal]  # an image id -> its pixels, or why not
    others: Callable[[str], Sequence[PatientFilm]]
    """An image id -> the patient's films in time order, itself among them."""
    signal: Callable[[], str]  # the version of the signal that is in force
    reveal: Callable[[str], Revealed]
    """An image id -> label, trust, reasons and judges' answers: asked only after the lock."""
    progress: Callable[[], Mapping[str, Any]]  # the numbers of the progress page
    after_lock: Callable[[], None]  # called after every blind read that was locked; it returns at once
    oidc: Provider | None = None


SIGNAL = ("image_id", "finding", "says", "p_present", "trust", "trust_low", "trust_high", "flag", "reasons")
JUDGMENTS = ("image_id", "finding", "judge", "outcome", "p_present")
IMAGES = ("image_id", "patient_id", "follow_up")


class _RowsByFilm:
    """A table whose rows are found by film."""

    def __init__(self, table: pl.DataFrame) -> None:
        """Take a table in any order; the rows of a film are laid side by side."""
        runs = table["image_id"].rle().struct.unnest()
        if runs["value"].n_unique() != runs.height:
            table = table.sort("image_id", maintain_order=True)
            runs = table["image_id"].rle().struct.unnest()
        self._table = table
        starts = runs["len"].cast(pl.Int64).cum_sum() - runs["len"].cast(pl.Int64)
        self._where = dict(zip(runs["value"], zip(starts, runs["len"], strict=True), strict=True))

    def of(self, image_id: str) -> pl.DataFrame:
        """Give the rows of a film."""
        start, length = self._where.get(image_id, (0, 0))
        return self._table.slice(start, length)


class Evidence:
    """What one version of the signal says, by film; it is shown to readers after the lock only."""

    def __init__(
        self, *, version: str, signal: pl.DataFrame, judgments: Sequence[pl.DataFrame], images: pl.DataFrame
    ) -> None:
        """Lay the tables of a workspace out by film: one table of judgments per judge."""
        self.version = version
        # Held by film from the start: a filter over 1.5 million rows at every lock would keep the reader waiting.
        self._signal = _RowsByFilm(signal.select(SIGNAL))
        self._judgments = [_RowsByFilm(table.select(JUDGMENTS)) for table in judgments]
        placed = images.select(IMAGES).with_row_index("row")
        self._names, self._patients, self._follow_ups = (placed[name].to_list() for name in IMAGES)
        self._rows = {image_id: row for row, image_id in enumerate(self._names)}
        of_patients = placed.filter(pl.col("patient_id").is_not_null()).group_by("patient_id")
        self._films: Mapping[str, list[int]] = dict(
            of_patients.agg(pl.col("row").sort_by("follow_up", "row", nulls_last=True)).iter_rows()
        )

    def reveal(self, image_id: str) -> Revealed:
        """Give label, trust, reasons and the judges' answers of every finding that the dataset speaks of."""
        answers: dict[str, list[JudgeAnswer]] = {}
        for judgments in self._judgments:
            for row in judgments.of(image_id).iter_rows(named=True):
                answer = JudgeAnswer(judge=row["judge"], outcome=row["outcome"], p_present=row["p_present"])
                answers.setdefault(row["finding"], []).append(answer)
        pairs = tuple(
            RevealedPair(
                **{name: row[name] for name in SIGNAL[1:-1]},
                reasons=tuple(row["reasons"] or ()),
                judges=tuple(answers.get(row["finding"], ())),
            )
            for row in self._signal.of(image_id).iter_rows(named=True)
        )
        return Revealed(version=self.version, pairs=pairs)

    def others(self, image_id: str) -> list[PatientFilm]:
        """Give the patient's films in time order, the film itself among them."""
        row = self._rows.get(image_id)
        if row is None:
            return [PatientFilm(image_id=image_id, when="")]
        patient = self._patients[row]
        return [self._film(other) for other in (self._films[patient] if patient is not None else [row])]

    def _film(self, row: int) -> PatientFilm:
        at = self._follow_ups[row]
        return PatientFilm(image_id=self._names[row], when="" if at is None else f"follow-up {at}")
