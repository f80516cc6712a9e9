"""How far a run is: the numbers of the live line, of `judge status` and of the record of the run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bpals.types import Judgment, Reply, Usage

State = Literal["running", "done", "interrupted", "budget", "failures", "stopped"]
RECENT = 2048
# Rates are those of the last seconds: an average since the start would hide that a server went slow.
WINDOW_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How far a run is; everything but `attempts` and `in_flight` counts durable answers."""

    stage: str = ""
    """The present step, where it is neither asking about images nor looking at them."""
    films_done: int = 0
    films_all: int = 0
    replies: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Outcome -> replies."""
    refused_films: int = 0
    """Images that could not be shown, each with its reason in the ledger."""
    changed_films: int = 0
    """Images whose bytes have changed since they were hashed: not judged."""
    pairs_per_s: float = 0.0
    in_flight: int = 0
    limit: int = 0
    p50_s: float = 0.0
    p95_s: float = 0.0
    tokens: Usage = field(default_factory=Usage)
    attempts: int = 0
    """Requests sent, including those that failed and were sent again."""
    eta_s: float | None = None
    elapsed_s: float = 0.0

    @property
    def cached_share(self) -> float:
        """The share of prompt tokens that came from the server's cache."""
        return self.tokens.cached / self.tokens.prompt if self.tokens.prompt else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as a dict, for the ledger and for a program."""
        return {**asdict(self), "cached_share": self.cached_share}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally(Snapshot):
    """How a run ended."""

    state: State = "done"
    model: str = ""
    """The model's name in the server's replies, without a path; empty for a judge in this process."""
    warnings: tuple[str, ...] = ()


class Progress:
    """Counts while a run goes on; the caller passes the time."""

    def __init__(self, films_all: int, clock_s: float) -> None:
        """Start at zero."""
        self.films_all = films_all
        self.attempts = 0
        self.refused_films = 0
        self.changed_films = 0
        self._began_s = clock_s
        self._films = 0
        self._outcomes: Counter[str] = Counter()
        self._prompt = self._cached = self._output = 0
        self._latencies: deque[float] = deque(maxlen=RECENT)
        self._written: deque[tuple[float, int, int]] = deque([(clock_s, 0, 0)])
        self._pairs = 0

    def answered(self, latency_s: float) -> None:
        """Count a reply of a server."""
        self._latencies.append(latency_s)

    def written(self, replies: Sequence[Reply], judgments: Sequence[Judgment]) -> None:
        """Count an image whose answers are durable."""
        self._films += 1
        self._pairs += len(judgments)
        self._outcomes.update(reply.outcome for reply in replies)
        for reply in replies:
            self._prompt += reply.usage.prompt
            self._cached += reply.usage.cached
            self._output += reply.usage.output

    def snapshot(self, clock_s: float, *, in_flight: int = 0, limit: int = 0) -> Snapshot:
        """Return how far the run is; rates are those of the last seconds."""
        while len(self._written) > 1 and self._written[0][0] < clock_s - WINDOW_S:
            self._written.popleft()
        since_s, films, pairs = self._written[0]
        if clock_s > self._written[-1][0]:
            self._written.append((clock_s, self._films, self._pairs))
        seconds = max(clock_s - since_s, 1e-9)
        films_per_s = (self._films - films) / seconds
        # Of the latest replies only: a run of a week must not keep every latency.
        ordered = sorted(self._latencies)
        return Snapshot(
            films_done=self._films,
            films_all=self.films_all,
            replies=self._outcomes.total(),
            outcomes=dict(self._outcomes),
            refused_films=self.refused_films,
            changed_films=self.changed_films,
            pairs_per_s=(self._pairs - pairs) / seconds,
            in_flight=in_flight,
            limit=limit,
            p50_s=ordered[len(ordered) // 2] if ordered else 0.0,
            p95_s=ordered[len(ordered) * 95 // 100] if ordered else 0.0,
            tokens=Usage(prompt=self._prompt, cached=self._cached, output=self._output),
            attempts=self.attempts,
            eta_s=(self.films_all - self._films - self.changed_films) / films_per_s if films_per_s else None,
            elapsed_s=clock_s - self._began_s,
        )
