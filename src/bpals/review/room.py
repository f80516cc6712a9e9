"""The room: everything the pages and routes work with, handed in by whoever opens it.

The room knows neither films nor signal: it is given functions that answer for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from bpals.review.desk.desk import Desk
from bpals.review.desk.study import Study
from bpals.review.people.accounts import Accounts
from bpals.review.people.oidc import Provider
from bpals.review.people.sessions import Sessions
from bpals.types import Refusal

Kind = Literal["png8", "grey16"]


class Rendition(Protocol):
    """A film as a browser gets it, decoded and encoded again by us: `films.rendition` makes them."""

    @property
    def kind(self) -> Kind:
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
    when: str
    """As a reader sees it, such as `follow-up 3` or `2 years before`; empty where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswer:
    """What one judge said of a pair."""

    judge: str
    outcome: str
    p_present: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealedPair:
    """What is known of one finding on a film without asking a reader."""

    finding: str
    says: str | None
    """What the dataset claims: present, absent or uncertain; None where it is silent."""
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

    version: str
    """Of the signal: sha256 of signal.parquet."""
    pairs: tuple[RevealedPair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the room is reached, and how long one may stay in."""

    origin: str
    """The address as the browser writes it, without a path: http://127.0.0.1:8765 or https://room.example.org."""
    title: str = "Reading room"
    dataset: str = ""
    idle_s: float = 8 * 3600
    """A session ends when nothing came from it for so long ..."""
    stay_s: float = 24 * 3600
    """... and after so long in any case."""
    body_bytes: int = 256 << 10
    """The longest body of a request that is read."""
    body_s: float = 15.0
    """How long a body may take to arrive."""

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
    film: Callable[[str], Rendition | Refusal]
    """An image id -> its pixels, or why not."""
    others: Callable[[str], Sequence[PatientFilm]]
    """An image id -> the patient's films in time order, itself among them."""
    signal: Callable[[], str]
    """The version of the signal that is in force."""
    reveal: Callable[[str], Revealed]
    """An image id -> label, trust, reasons and judges' answers: asked only after the lock."""
    progress: Callable[[], Mapping[str, Any]]
    """The numbers of the progress page."""
    after_lock: Callable[[], None]
    """Called after every blind read that was locked; it returns at once."""
    oidc: Provider | None = None
