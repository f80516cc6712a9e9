"""How fast and how stubbornly a run asks."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Everything about a run that changes its speed and never an answer."""

    in_flight: int = 64
    """The most requests under way at one endpoint; the limit moves below it."""
    tries: int = 6
    """How often one request is sent before its question counts as failed."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    """The wait before a retry is drawn from 0 to first_wait_s doubled each time, up to longest_wait_s."""
    retry_after_cap_s: float = 120.0
    """A server that asks for a longer wait than this stops the run."""
    patience_s: float = 300.0
    """How long every endpoint may be down or throttled without one reply before the run stops."""
    faults_to_open: int = 8
    """Faults in a row after which an endpoint is left alone but for one probe at a time."""
    failure_share: float = 0.005
    failure_floor: int = 200
    """The run stops once more than failure_share of at least failure_floor replies have failed."""
    refused_in_a_row: int = 20
    budget_tokens: int | None = None
    drain_s: float = 30.0
    """How long open films may still be finished after the run was told to stop."""
    commit_every_s: float = 0.05
    commit_rows: int = 512
    queue_rows: int = 4096
    watch_every_s: float = 0.2
    seed: int = 0

    def retry_wait_s(self, attempt: int, draw: random.Random) -> float:
        """Draw the wait after a failed attempt, the first being 1: anything up to a bound that doubles."""
        return draw.uniform(0.0, min(self.longest_wait_s, self.first_wait_s * 2.0 ** (attempt - 1)))
