"""Turns: a lock that is given in the order in which it was asked for, so that a busy thread keeps nobody waiting."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

from bpals.errors import ContractBroken

LOOK_UP_S = 0.5
"""How long Ctrl-C may go unheard by a thread that waits for its turn."""


class Turn:
    """Held by one thread at a time; the others come next in the order of their asking."""

    def __init__(self) -> None:
        """Begin free."""
        self._state = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._holder: int | None = None

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._state:
            if self._holder is None:
                self._holder = me
                return
            if self._holder == me:
                raise ContractBroken("a transaction was opened inside another one of the same thread")
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        given = False
        try:
            while not given:
                # polars lets the system resume a wait after Ctrl-C: only between two waits can it be heard.
                given = gate.acquire(timeout=LOOK_UP_S)
        finally:
            if not given:  # interrupted while it waited
                self._give_up(gate)
        self._holder = me

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._state:
            if self._waiting:
                # Held by nobody that could ask again, until the next one wakes.
                self._holder = 0
                self._waiting.popleft().release()
            else:
                self._holder = None

    def _give_up(self, gate: threading.Lock) -> None:
        with self._state:
            still_waiting = gate in self._waiting
            if still_waiting:
                self._waiting.remove(gate)
        if not still_waiting:
            self._pass_on()
