"""How a judge is to be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bpals.errors import UsageError
from bpals.films.prepare import Preparation
from bpals.judges.endpoint import Endpoint
from bpals.judges.engine import Engine
from bpals.judges.pace import Pace
from bpals.sealedjudge import check_judge_name
from bpals.shard import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How a judge is to be asked: everything beside who it is and where the films are."""

    name: str = ""
    """What it is called in the workspace; by default after its model."""
    source: str | None = None
    """The dataset, as in `bpals audit`; by default the one that the workspace remembers, or NIH."""
    mapping: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    pace: Pace = field(default_factory=Pace)
    preparation: Preparation = field(default_factory=Preparation)
    limit_images: int | None = None
    """Ask about that many films only, drawn at random: the same ones each time, and a larger number adds to them."""
    require_all: bool = False
    """Refuse to begin if a film of the dataset is missing."""
    retry_failed: bool = False
    verify: int = 0
    """Ask at least that many stored questions again, whole films of them, and say how far the answers drift."""
    seed: int = 0
    ledger: str | None = None
    """The address of a PostgreSQL ledger; by default the one that the workspace remembers, or a file of its own."""
    shard: Shard | None = None
    """Ask about this part of the films only; `bpals judge merge` brings the parts together."""
    engine: Engine | None = None
    """Where films are asked about: a `RayEngine`; by default this process."""
    workers: int | None = None
    """Processes that read films; by default one a core, four at most."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the judge's own kind takes: pack, layout, method, licence, device, card."""

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        if self.name:
            check_judge_name(self.name)
        if self.limit_images is not None and self.limit_images < 1:
            raise UsageError(f"{self.limit_images} films cannot be asked about. Type: --limit-images 30")
        if self.verify < 0:
            raise UsageError(f"{self.verify} questions cannot be asked again. Type: --verify 20")
