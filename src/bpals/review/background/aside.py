"""Heavy work, done aside: in a process of its own at low priority, so that no reader waits for it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

LAST_IN_LINE = 10
"""How far behind everything else the process stands for the processor."""


class Aside:
    """One piece of work at a time; it can be broken off."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._guard = threading.Lock()
        self._child: int | None = None
        self._closed = False

    def do(self, work: Callable[[Given], Made], given: Given) -> Made:
        """Wait for `work(given)`; it is a function of a module, and what goes in and comes out can be pickled.

        What the work raises is raised here; if its process is killed, a BrokenProcessPool.
        """
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh, initializer=os.nice, initargs=(LAST_IN_LINE,)) as process:
            child = process.submit(os.getpid).result()
            with self._guard:
                self._child = child
                if self._closed:
                    os.kill(child, signal.SIGTERM)
            try:
                return process.submit(work, given).result()
            finally:
                with self._guard:
                    self._child = None

    def close(self) -> None:
        """Break off what is being done, and what would be begun."""
        with self._guard:
            self._closed = True
            if self._child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._child, signal.SIGTERM)
