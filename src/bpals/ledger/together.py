"""Works done together: what several threads want written at one moment goes into one transaction, and one sync.

A sync costs as much as all else of a small change. So whoever's turn it is does what waits behind him too, and they
find it done. If one of the works fails, nothing of it counts, and each is done by itself: the one fails alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from bpals.ledger.turn import Turn

MOST = 16
"""Works in one transaction, so that nobody waits long for the others."""

_Given = TypeVar("_Given")
Begin = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction; it is durable when it ends."""


class _Work(Generic[_Given]):
    """What one thread wants done."""

    def __init__(self, work: Callable[[Connection], _Given]) -> None:
        self.work = work
        self.given: list[_Given] = []
        """What it gave, once that is durable."""


class Together:
    """Does works in the order in which they came, as many at once as wait."""

    def __init__(self, turn: Turn, begin: Begin) -> None:
        """Take the turn of whoever writes, and how a transaction begins."""
        self._turn = turn
        self._begin = begin
        self._waiting: deque[_Work[Any]] = deque()

    def do(self, work: Callable[[Connection], _Given]) -> _Given:
        """Have a work done, and give what it gives once that is durable; it may be begun anew."""
        mine = _Work(work)
        self._waiting.append(mine)
        try:
            with self._turn:
                if not mine.given:
                    self._do_with(mine)
        finally:
            if not mine.given and mine in self._waiting:
                self._waiting.remove(mine)
        return mine.given[0]

    def _do_with(self, mine: _Work[Any]) -> None:
        """Do a work, together with some that wait; where that fails, the work alone."""
        batch = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        if mine not in batch:  # more wait than fit: it came behind them
            self._waiting.remove(mine)
            batch.append(mine)
        if len(batch) > 1 and self._all(batch):
            return
        self._waiting.extendleft(other for other in reversed(batch) if other is not mine)
        with self._begin() as connection:
            given = mine.work(connection)
        mine.given.append(given)

    def _all(self, batch: list[_Work[Any]]) -> bool:
        """Do several in one transaction; say whether that went well."""
        given = []
        try:
            with self._begin() as connection:
                given = [each.work(connection) for each in batch]
        except Exception:  # noqa: BLE001  whatever it was, it is raised again where it belongs, by the work alone
            return False
        for each, result in zip(batch, given, strict=True):
            each.given.append(result)
        return True
