"""How many requests may be in flight at one server: a limit that moves with what the server says.

It never looks at a clock: whoever uses it says what time it is, so a day of a server's life is a test of milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

START = 16
CUT = 0.8
STEP = 1.05
USED = 0.8
"""Growth needs a round in which at least this share of the limit was in use."""
COOL_DOWN_S = 15.0
GAIN = 1.03
FLAT_ROUNDS = 2
"""So many rounds in a row must say the same before it is believed."""
QUEUEING = 1.5
"""Replies this many times slower than the quickest round's wait in the server: only then is it full."""
SLOW = 3.0
"""Replies this many times slower than the quickest round's are too slow."""
ROOM = 2.0
"""A full server is sent twice what it works on at once: one to work on, one to have ready."""
REST_ROUNDS = 8
"""A limit that holds is tried again after so many rounds: servers change."""


@dataclass(slots=True)
class _Round:
    """What was seen since the limit was last thought about.

    A round has as many replies to its own requests as the limit allows, and lasts as long as a reply takes: replies may
    come in bursts, and those to earlier requests tell of an earlier limit.
    """

    since_s: float | None = None
    replies: int = 0
    own: int = 0
    own_latency_s: float = 0.0
    peak: int = 0
    clean: bool = True


class Limit:
    """A limit on requests in flight: it doubles, then creeps, holds where that no longer pays, and is cut when told."""

    def __init__(self, ceiling: int, start: int = START) -> None:
        """Begin at `start`, or at the ceiling where that is lower."""
        self.ceiling = ceiling
        self.now = min(start, ceiling)
        """How many requests may be in flight."""
        self._exact = float(self.now)
        self._round = _Round()
        self._doubling = True
        self._told = False
        self._quiet_until_s = float("-inf")
        self._best_rate = 0.0
        self._before = (self._exact, 0.0)
        self._flat = 0
        self._resting = 0
        self._quickest_s = float("inf")

    @property
    def soon(self) -> int:
        """How many there may be when films that are opened now have been asked their first question."""
        return min(self.ceiling, 4 * self.now) if self._doubling else self.now

    def sent(self, clock_s: float, in_flight: int) -> None:
        """Note that a request left, and how many are now under way."""
        if self._round.since_s is None:
            self._round.since_s = clock_s
        self._round.peak = max(self._round.peak, in_flight)

    def answered(self, clock_s: float, latency_s: float) -> None:
        """Note a reply; at the end of a round the limit moves."""
        done = self._round
        since_s = clock_s - latency_s if done.since_s is None else done.since_s
        done.replies += 1
        if clock_s - latency_s >= since_s - 1e-3:
            done.own += 1
            done.own_latency_s += latency_s
        if done.own >= self.now and clock_s - since_s >= 0.9 * done.own_latency_s / done.own:
            self._round = _Round(since_s=clock_s)
            self._turn(done, clock_s, done.replies / max(clock_s - since_s, 1e-9))

    def faulted(self) -> None:
        """Note an error of the server: nothing grows in this round."""
        self._round.clean = False

    def throttled(self, clock_s: float, wait_s: float | None = None) -> bool:
        """Cut once for all the 429s of an episode, and say whether this one began it."""
        self._told = True
        self._round.clean = False
        begins = clock_s >= self._quiet_until_s
        if begins:
            self._cut(clock_s)
        self._quiet_until_s = max(self._quiet_until_s, clock_s + (wait_s or 0.0))
        return begins

    def _move(self, exact: float) -> None:
        self._exact = max(1.0, min(float(self.ceiling), exact))
        self.now = int(self._exact)

    def _cut(self, clock_s: float) -> None:
        self._move(self._exact * CUT)
        self._quiet_until_s = clock_s + COOL_DOWN_S
        self._doubling = False
        self._best_rate, self._flat, self._resting = 0.0, 0, 0

    def _turn(self, done: _Round, clock_s: float, rate: float) -> None:
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
        """Say whether more requests in flight only wait; where the limit does not grow by this, whether they crawl."""
        if self._told or self.now >= self.ceiling:
            return mean_s > SLOW * self._quickest_s
        return mean_s > QUEUEING * self._quickest_s and rate < GAIN * self._best_rate

    def _hold(self, rate: float, mean_s: float) -> None:
        """Go back to what keeps the server busy, and stay there for a while."""
        self._before = (self._exact, mean_s)
        self._move(min(self._exact, ROOM * rate * self._quickest_s))
        self._doubling, self._flat, self._resting = False, 0, REST_ROUNDS

    def _rest(self, rate: float, mean_s: float) -> None:
        """Hold; a server that fewer requests do not make quicker is not full, it is slower than it was."""
        self._resting = self._resting - 1 if mean_s > QUEUEING * self._quickest_s else 0
        self._best_rate = rate
        exact, slow_s = self._before
        if not self._resting and self._exact < CUT * exact and mean_s > 0.9 * slow_s:
            self._quickest_s = mean_s
