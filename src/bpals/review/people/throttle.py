"""The throttle: how often one may try to enter, by account and by address."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

MOST_KEYS = 10_000
"""Keys that are remembered; the one that was tried longest ago is forgotten first."""


class Throttle:
    """Counts tries in a sliding window; a try is counted before it is looked at, so that many at once count as many."""

    def __init__(self, most: int, window_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow so many tries in so many seconds."""
        self._most = most
        self._window_s = window_s
        self._clock = clock
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()
        self._turn = threading.Lock()

    def wait_s(self, key: str) -> float:
        """Count a try and give 0, or give the seconds until the next is allowed."""
        with self._turn:
            now = self._clock()
            tries = self._tries.setdefault(key, deque())
            self._tries.move_to_end(key)
            while tries and tries[0] <= now - self._window_s:
                tries.popleft()
            if len(tries) >= self._most:
                return tries[0] + self._window_s - now
            tries.append(now)
            while len(self._tries) > MOST_KEYS:
                self._tries.popitem(last=False)
            return 0.0

    def take_back(self, key: str) -> None:
        """Do not count the last try: it was right."""
        with self._turn:
            if tries := self._tries.get(key):
                tries.pop()

    def forget(self, key: str) -> None:
        """Count from nothing again."""
        with self._turn:
            self._tries.pop(key, None)
