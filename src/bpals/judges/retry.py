"""When to ask again, and when to leave a server alone."""

from __future__ import annotations

import random

from bpals.judges.pace import Pace

STATES_OF_THE_SERVER = frozenset({429, 503, 529})


def blameless(kind: str, status: int | None) -> bool:
    """Say whether a fault tells only of the server's state, so that it does not use up a try of the request.

    A server that is being restarted refuses connections for minutes; the questions that wait for it have done nothing.
    """
    return kind == "connect" or status in STATES_OF_THE_SERVER


class Circuit:
    """The way to one server: closed when all is well, open after faults in a row, half-open for one probe."""

    def __init__(self, pace: Pace, draw: random.Random) -> None:
        """Begin closed."""
        self._pace = pace
        self._draw = draw
        self.is_open = False
        """Whether the server is left alone but for probes."""
        self._faults = 0
        self._probes = 0
        self._not_before_s = float("-inf")
        self._ill_since_s: float | None = None

    def most_now(self, clock_s: float, limit: int) -> int:
        """How many requests may be under way now: none, one probe, or as many as the limit allows."""
        if clock_s < self._not_before_s:
            return 0
        return min(1, limit) if self.is_open else limit

    def wait_s(self, clock_s: float) -> float:
        """How long until the server may be asked again."""
        return max(0.0, self._not_before_s - clock_s)

    def ill_for_s(self, clock_s: float) -> float:
        """How long there have been faults and no reply."""
        return 0.0 if self._ill_since_s is None else clock_s - self._ill_since_s

    def answered(self) -> bool:
        """Note a reply, and say whether it closed an open circuit."""
        was_open, self.is_open = self.is_open, False
        self._faults = self._probes = 0
        self._ill_since_s = None
        return was_open

    def faulted(self, clock_s: float, *, throttled: bool = False) -> bool:
        """Note a passing fault, and say whether it opened the circuit; being told to go slower never does."""
        if self._ill_since_s is None:
            self._ill_since_s = clock_s
        if throttled:
            return False
        was_open = self.is_open
        self._faults += 1
        self.is_open = self._faults >= self._pace.faults_to_open
        # What was under way when the circuit opened fails later: that is no failed probe.
        if self.is_open and clock_s >= self._not_before_s:
            self._probes += 1
            # At least half the bound: a probe that is drawn at once is no rest for a server that starts.
            rest_s = min(self._pace.longest_wait_s, self._pace.first_wait_s * 2.0**self._probes)
            self.pause(clock_s, rest_s * self._draw.uniform(0.5, 1.0))
        return self.is_open and not was_open

    def pause(self, clock_s: float, seconds: float) -> None:
        """Send nothing for a while, as the server asked."""
        self._not_before_s = max(self._not_before_s, clock_s + seconds)
