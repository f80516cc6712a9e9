"""What a reader writes about one case, and how long it took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["present", "absent", "uncertain", "unreadable"]
Quality = Literal["good", "limited", "unreadable"]
Devices = Literal["present", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Where a finding is, in pixels of the film."""

    finding: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is written of one case; a finding that is not among the verdicts has none yet."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    confidence: Mapping[str, int] = field(default_factory=dict)
    """0 to 100, by finding; nobody must give one."""
    boxes: tuple[Box, ...] = ()
    note: str = ""
    quality: Quality | None = None
    devices: Devices | None = None

    def as_dict(self) -> dict[str, Any]:
        """Write it out in plain values."""
        return {
            "verdicts": dict(self.verdicts),
            "confidence": dict(self.confidence),
            "boxes": [asdict(box) for box in self.boxes],
            "note": self.note,
            "quality": self.quality,
            "devices": self.devices,
        }

    def as_json(self) -> str:
        """Write it as the ledger keeps it: the same answer gives the same text."""
        return json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """Read what the ledger kept."""
        kept = json.loads(text)
        return cls(**{**kept, "boxes": tuple(Box(**box) for box in kept["boxes"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds on a case, as the browser counted them; the room bounds them by its own clock."""

    active_s: float
    """With the page visible and a key or pointer moved in the last minute."""
    wall_s: float
