"""Heavy work beside the readers, in a process of its own: learning from reads, and the numbers of the progress page."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Made = TypeVar("Made")

NICENESS = 10  # readers come first: the process asks for the processor after everything else


class LowPriorityProcess:
    """Runs one piece of work at a time in a fresh process; it can be broken off."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._guard = threading.Lock()
        self._child: int | None = None
        self._closed = False

    def run(self, work: Callable[[], Made]) -> Made:
        """Wait for `work()`, a partial of a module's function; what goes in and comes out can be pickled.

        What the work raises is raised here; if its process is killed, a BrokenProcessPool.
        """
        # Spawned, not forked: a fork would take over the threads' locks and the open ledger.
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh, initializer=os.nice, initargs=(NICENESS,)) as process:
            child = process.submit(os.getpid).result()
            with self._guard:
                self._child = child
                if self._closed:
                    os.kill(child, signal.SIGTERM)
            try:
                return process.submit(work).result()
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


class _Background:
    """One thread that waits for one process; the last result stays until a new one is there, and so does a failure."""

    def __init__(self, name: str) -> None:
        self._guard = threading.Lock()
        self._result: Mapping[str, Any] | None = None
        self._failure: str | None = None
        self._closed = False
        self._process = LowPriorityProcess()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def close(self) -> None:
        """End, and break off what is being worked out."""
        with self._guard:
            self._closed = True
        self._process.close()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _keep(self, done: Future[dict[str, Any]]) -> None:
        failed = None if done.cancelled() else done.exception()
        if failed is not None:
            self._failure = f"{type(failed).__name__}: {failed}"
        elif not done.cancelled():
            self._result, self._failure = done.result(), None


class Learner(_Background, Generic[Made]):
    """Counts locked readings, and learns from all reads after every `every` of them; one lesson at a time."""

    def __init__(
        self,
        prepare: Callable[[], Callable[[], Made]],
        follow: Callable[[Made], Mapping[str, Any]],
        *,
        every: int,
        behind: int = 0,
    ) -> None:
        """Begin with `behind` readings that no lesson has used; with `every` 0 nothing is learned.

        `prepare` reads the ledger and gives the work of a lesson; `follow` lets the queue follow from its result, and
        says for the progress page what changed.
        """
        super().__init__("learner")
        self._prepare = prepare
        self._follow = follow
        self._every = every
        self._waiting = behind
        self._lessons = 0
        self._running_since: float | None = None

    def count_lock(self) -> None:
        """Note one more locked reading; it returns at once, and is what a room calls `after_lock`."""
        with self._guard:
            self._waiting += 1
            self._begin_if_due()

    def state(self) -> dict[str, Any]:
        """Say how it stands: `every`, `waiting` readings, `lessons` given, `running`, the `last` one, its `failure`."""
        with self._guard:
            since = self._running_since
            return {
                "every": self._every,
                "waiting": self._waiting,
                "lessons": self._lessons,
                "running": since is not None,
                "running_s": None if since is None else round(time.monotonic() - since, 1),
                "last": None if self._result is None else dict(self._result),
                "failure": self._failure,
            }

    def _begin_if_due(self) -> None:
        if self._closed or self._running_since is not None or not 0 < self._every <= self._waiting:
            return
        self._waiting, self._running_since = 0, time.monotonic()
        self._thread.submit(self._lesson).add_done_callback(self._note)

    def _lesson(self) -> dict[str, Any]:
        began = time.monotonic()
        changes = dict(self._follow(self._process.run(self._prepare())))
        return changes | {"took_s": round(time.monotonic() - began, 1)}

    def _note(self, done: Future[dict[str, Any]]) -> None:
        with self._guard:
            self._running_since = None
            self._lessons += 1
            self._keep(done)
            # Readings that were locked meanwhile may make the next lesson due.
            self._begin_if_due()


class ProgressNumbers(_Background):
    """Gives the last numbers at once, and has new ones made in the background when something has changed."""

    def __init__(self, state: Callable[[], object], prepare: Callable[[], Callable[[], Mapping[str, Any]]]) -> None:
        """Take something quick that changes when the numbers may, and what gives the work of making them.

        Nothing is worked out until somebody looks.
        """
        super().__init__("progress")
        self._read_state = state
        self._prepare = prepare
        self._state: object = None
        self._busy = False

    def latest(self) -> dict[str, Any]:
        """Give the numbers at once; beside them `ready`, `fresh` (nothing has changed since) and `failure`."""
        state = self._read_state()
        with self._guard:
            changed = state != self._state
            if changed and not self._busy:
                self._busy, self._state = True, state
                self._thread.submit(lambda: dict(self._process.run(self._prepare()))).add_done_callback(self._note)
            fresh = not changed and not self._busy
            ready = self._result is not None
            return {**(self._result or {}), "ready": ready, "fresh": fresh, "failure": self._failure}

    def _note(self, done: Future[dict[str, Any]]) -> None:
        with self._guard:
            self._busy = False
            self._keep(done)
