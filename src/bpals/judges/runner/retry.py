"""How a run treats its servers: how long to wait, when to leave a server alone, and how many requests to have open.

Nothing here reads a clock: the caller passes the time, so a test lives through a server's day in milliseconds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SERVER_STATES = frozenset({429, 503, 529})

# The concurrency limit grows and shrinks by these; each was set against simulated servers (tests/judges/test_retry.py).
START = 16
CUT = 0.8
STEP = 1.05
# The limit grows only after a round that used at least this share of it.
USED = 0.8
COOL_DOWN_S = 15.0
GAIN = 1.03
# One flat round is often noise: this many in a row count.
FLAT_ROUNDS = 2
# Replies this many times slower than in the quickest round wait in the server's queue: only then is it full ...
QUEUEING = 1.5
# ... and these are too slow, even where the limit is at its ceiling.
SLOW = 3.0
# A full server gets twice what it works on at once: one request to work on, one ready.
ROOM = 2.0
# A limit that holds is tested again after this many rounds: servers change.
REST_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """Everything about a run that changes its speed or its end, and never an answer."""

    in_flight: int = 64
    """The most requests open at one endpoint; the concurrency limit moves below it."""
    tries: int = 6
    """How often to send one request before its question counts as failed."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    """The wait before a retry is drawn from 0 to first_wait_s, doubled each time, up to longest_wait_s."""
    retry_after_cap_s: float = 120.0
    """A server that asks for a longer wait than this stops the run."""
    patience_s: float = 300.0
    """How long all endpoints may be down or throttled without one reply before the run stops."""
    faults_to_open: int = 8
    """Consecutive faults after which an endpoint gets one probe at a time and nothing else."""
    failure_share: float = 0.005
    failure_floor: int = 200
    """The run stops once more than failure_share of at least failure_floor replies have failed."""
    refused_in_a_row: int = 20
    budget_tokens: int | None = None
    drain_s: float = 30.0
    """How long open images may still finish after the run was told to stop."""
    commit_every_s: float = 0.05
    commit_rows: int = 512
    queue_rows: int = 4096
    watch_every_s: float = 0.2
    seed: int = 0

    def retry_wait_s(self, attempt: int, draw: random.Random) -> float:
        """Draw the wait after a failed attempt, counted from 1, below a bound that doubles."""
        return draw.uniform(0.0, min(self.longest_wait_s, self.first_wait_s * 2.0 ** (attempt - 1)))


def is_server_state(kind: str, status: int | None) -> bool:
    """Tell whether a fault reflects the server's state alone, so that it does not use up a try of the request.

    A server that restarts refuses connections for minutes; the requests that wait for it have done nothing wrong.
    """
    return kind == "connect" or status in SERVER_STATES


class CircuitBreaker:
    """Access to one server: closed when all is well, open after faults in a row, half-open for one probe."""

    def __init__(self, policy: RunPolicy, draw: random.Random) -> None:
        """Start closed."""
        self._policy = policy
        self._draw = draw
        self.is_open = False
        """Whether the server gets probes only."""
        self._faults = 0
        self._probes = 0
        self._not_before_s = float("-inf")
        self._ill_since_s: float | None = None

    def most_now(self, clock_s: float, limit: int) -> int:
        """Return how many requests may be open now: none, one probe, or as many as the limit allows."""
        if clock_s < self._not_before_s:
            return 0
        return min(1, limit) if self.is_open else limit

    def wait_s(self, clock_s: float) -> float:
        """Return the seconds until the next request may go out."""
        return max(0.0, self._not_before_s - clock_s)

    def ill_for_s(self, clock_s: float) -> float:
        """Return how long there have been faults and no reply."""
        return 0.0 if self._ill_since_s is None else clock_s - self._ill_since_s

    def answered(self) -> bool:
        """Record a reply, and return whether it closed an open circuit."""
        was_open, self.is_open = self.is_open, False
        self._faults = self._probes = 0
        self._ill_since_s = None
        return was_open

    def faulted(self, clock_s: float, *, throttled: bool = False) -> bool:
        """Record a transient fault, and return whether it opened the circuit; a request to go slower never does."""
        if self._ill_since_s is None:
            self._ill_since_s = clock_s
        if throttled:
            return False
        was_open = self.is_open
        self._faults += 1
        self.is_open = self._faults >= self._policy.faults_to_open
        # Requests that were open when the circuit opened fail later: those are no failed probes.
        if self.is_open and clock_s >= self._not_before_s:
            self._probes += 1
            # At least half the bound: a server that is starting needs a rest, and a draw near 0 would be none.
            rest_s = min(self._policy.longest_wait_s, self._policy.first_wait_s * 2.0**self._probes)
            self.pause(clock_s, rest_s * self._draw.uniform(0.5, 1.0))
        return self.is_open and not was_open

    def pause(self, clock_s: float, seconds: float) -> None:
        """Send nothing for a while, as the server asked."""
        self._not_before_s = max(self._not_before_s, clock_s + seconds)


@dataclass(slots=True)
class _Round:
    """The replies since the limit last moved.

    A round has as many replies to its own requests as the limit allows, and lasts as long as one reply takes. Replies
    come in bursts, and those to earlier requests reflect an earlier limit.
    """

    since_s: float | None = None
    replies: int = 0
    own: int = 0
    own_latency_s: float = 0.0
    peak: int = 0
    clean: bool = True


class ConcurrencyLimit:
    """The most requests open at one server: it doubles, then creeps, holds where more is no faster, and is cut by 429.

    It never looks at a clock itself.
    """

    def __init__(self, ceiling: int, start: int = START) -> None:
        """Begin at `start`, or at the ceiling where that is lower."""
        self.ceiling = ceiling
        self.now = min(start, ceiling)
        """How many requests may be open."""
        self._exact = float(self.now)
        self._round = _Round()
        self._doubling = True
        self._was_throttled = False
        self._quiet_until_s = float("-inf")
        self._best_rate = 0.0
        self._before = (self._exact, 0.0)
        self._flat = 0
        self._resting = 0
        self._quickest_s = float("inf")

    @property
    def soon(self) -> int:
        """How many there may be by the time images that are opened now have the reply to their first question."""
        return min(self.ceiling, 4 * self.now) if self._doubling else self.now

    def sent(self, clock_s: float, in_flight: int) -> None:
        """Record that a request left, and how many are open now."""
        if self._round.since_s is None:
            self._round.since_s = clock_s
        self._round.peak = max(self._round.peak, in_flight)

    def answered(self, clock_s: float, latency_s: float) -> None:
        """Record a reply; at the end of a round the limit moves."""
        done = self._round
        since_s = clock_s - latency_s if done.since_s is None else done.since_s
        done.replies += 1
        if clock_s - latency_s >= since_s - 1e-3:
            done.own += 1
            done.own_latency_s += latency_s
        if done.own >= self.now and clock_s - since_s >= 0.9 * done.own_latency_s / done.own:
            self._round = _Round(since_s=clock_s)
            self._end_round(done, clock_s, done.replies / max(clock_s - since_s, 1e-9))

    def faulted(self) -> None:
        """Record an error of the server: nothing grows in this round."""
        self._round.clean = False

    def throttled(self, clock_s: float, wait_s: float | None = None) -> bool:
        """Cut the limit once for all the 429s of an episode, and return whether this one began it."""
        self._was_throttled = True
        self._round.clean = False
        begins = clock_s >= self._quiet_until_s
        if begins:
            self._move(self._exact * CUT)
            self._quiet_until_s = clock_s + COOL_DOWN_S
            self._doubling = False
            self._best_rate, self._flat, self._resting = 0.0, 0, 0
        self._quiet_until_s = max(self._quiet_until_s, clock_s + (wait_s or 0.0))
        return begins

    def _move(self, exact: float) -> None:
        self._exact = max(1.0, min(float(self.ceiling), exact))
        self.now = int(self._exact)

    def _end_round(self, done: _Round, clock_s: float, rate: float) -> None:
        mean_s = done.own_latency_s / done.own
        self._quickest_s = min(self._quickest_s, mean_s)
        if clock_s < self._quiet_until_s:
            return
        if self._resting:
            self._rest(rate, mean_s)
            return
        full = self._is_full(rate, mean_s)
        self._flat = self._flat + 1 if full else 0
        self._best_rate = max(self._best_rate, rate)
        if self._flat >= FLAT_ROUNDS:
            self._hold(rate, mean_s)
        elif not full and done.clean and done.peak >= USED * self.now:
            self._move(self._exact * 2 if self._doubling else max(self._exact + 1, self._exact * STEP))

    def _is_full(self, rate: float, mean_s: float) -> bool:
        """Tell whether further requests would only wait; at the ceiling or after a 429, whether replies crawl."""
        if self._was_throttled or self.now >= self.ceiling:
            return mean_s > SLOW * self._quickest_s
        return mean_s > QUEUEING * self._quickest_s and rate < GAIN * self._best_rate

    def _hold(self, rate: float, mean_s: float) -> None:
        """Go back to what keeps the server busy, and stay there for a while."""
        self._before = (self._exact, mean_s)
        self._move(min(self._exact, ROOM * rate * self._quickest_s))
        self._doubling, self._flat, self._resting = False, 0, REST_ROUNDS

    def _rest(self, rate: float, mean_s: float) -> None:
        """Hold; if fewer requests do not make the server quicker, it is not full but slower than it was."""
        self._resting = self._resting - 1 if mean_s > QUEUEING * self._quickest_s else 0
        self._best_rate = rate
        exact, slow_s = self._before
        if not self._resting and self._exact < CUT * exact and mean_s > 0.9 * slow_s:
            self._quickest_s = mean_s
