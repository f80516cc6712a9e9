"""What the desk hands over: readings, disagreements, and the receipt of what was saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bpals.review.desk.answer import Answer, Box, Devices, Quality, Verdict

State = Literal["leased", "locked", "done", "skipped", "released"]
ViewPhase = Literal["blind", "second", "done"]
WhyNone = Literal["", "empty", "read", "held", "skipped", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingView:
    """One reader's reading of one case, as it stands."""

    reading_id: str
    """Random: it may stand in an address."""
    case_id: int
    """Never sent to a blind reader: a hidden repeat has the case of the first reading."""
    case_no: int
    """1, 2, ... in the order in which this reader was handed them."""
    image_id: str
    """Never sent to a blind reader."""
    findings: tuple[str, ...]
    state: State
    version: int
    answer: Answer
    phase: ViewPhase
    """What may be written now: the blind read, the second one after the reveal, or nothing more."""
    revealed: bool
    """True where this reader may see label, judges and trust."""
    signal: str | None = None
    """Version of the signal that was revealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindRead:
    """What is stored of a blind read: a verdict on every finding that was asked, also on those left unmarked."""

    verdicts: Mapping[str, Verdict]
    quality: Quality | None
    devices: Devices | None
    second: Mapping[str, Verdict] | None = None
    """What is stored after the reveal, apart from the blind read; None before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastReading:
    """A reading that its reader has finished, in few words: what they said themselves, and nothing else."""

    reading_id: str
    case_no: int
    locked: float
    """Seconds since 1970, by the database's clock."""
    marked: Mapping[str, Verdict]
    """Finding -> verdict, as it stands now; what was left unmarked is not among them."""
    quality: Quality | None
    amended: bool
    blind: Mapping[str, Verdict]
    """Finding -> verdict, as it is stored of the blind read, also where it was left unmarked."""
    second: Mapping[str, Verdict] | None
    """The same of the second read; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What a reader reads now, what comes next, and why there is nothing where there is nothing."""

    current: ReadingView | None
    ahead: tuple[ReadingView, ...] = ()
    of: int = 0
    """About how many cases the reader will be handed, hidden repeats among them."""
    why_none: str = ""
    """One sentence for the reader."""
    why_code: WhyNone = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The receipt: it is durable. The same key again gives the same receipt."""

    version: int
    reply: Mapping[str, Any]
    """What was answered, as JSON: `reading_id` or `case_id`, `version`, `state`."""
    view: ReadingView | None = None
    """The reading as it stands now, where the page goes on with it: after a lock, a skip, an undo or an amendment."""
    read: BlindRead | None = None
    """What is stored of it, once its second read may be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What one reader says of a disputed finding, without a name."""

    reader: str
    """`Reader 1`, `Reader 2`: the order is another in every case."""
    verdict: Verdict
    confidence: int | None = None
    boxes: tuple[Box, ...] = ()
    note: str = ""
    round: int = 0
    """0 for the blind read, then the rounds of a discussion."""
    yours: bool = False
    amended: Verdict | None = None
    """What the reader says since, with a reason, having seen label and trust: it is shown, and does not vote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """One finding about which readers differ."""

    finding: str
    opinions: tuple[Opinion, ...]
    """The newest of each reader."""
    earlier: tuple[Opinion, ...] = ()
    """What they said in the rounds before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One case that readers read differently, as one moment saw it."""

    case_id: int
    image_id: str
    """Never sent to a reader in a discussion: the film is fetched by case."""
    disputes: tuple[Dispute, ...]
    pinned: Mapping[str, int] = field(default_factory=dict)
    """reading_id -> the last thing its reader said: sent back with the verdict, so that nothing newer is overlooked."""
    round: int = 0
    """Of a discussion: the round that is asked for now, from 1."""
    rounds: int = 0
    """After how many the majority counts."""
