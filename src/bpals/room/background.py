"""The notice board: numbers that take seconds to work out, shown at once as they were last worked out."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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


Gathered = TypeVar("Gathered")
Learned = TypeVar("Learned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps(Generic[Gathered, Learned]):
    """What a lesson does."""

    gather: Callable[[], Gathered]
    """Read from the ledger what there is to learn from."""
    learn: Callable[[Gathered], Learned]
    """Learn from it, in another process: a function of a module."""
    follow: Callable[[Learned], Mapping[str, Any]]
    """Let the queue follow, and say what came of it, for the progress page."""


class Learner(Generic[Gathered, Learned]):
    """Counts locked readings, and gives a lesson after every `every` of them; one at a time."""

    def __init__(self, steps: Steps[Gathered, Learned], *, every: int, behind: int = 0) -> None:
        """Begin with `behind` readings that no lesson has heard; with `every` 0 nothing is learned."""
        self._steps = steps
        self._every = every
        self._waiting = behind
        self._lessons = 0
        self._running_since: float | None = None
        self._closed = False
        self._last: Mapping[str, Any] | None = None
        self._failure: str | None = None
        self._guard = threading.Lock()
        self._aside = Aside()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")

    def tell(self) -> None:
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
                "last": None if self._last is None else dict(self._last),
                "failure": self._failure,
            }

    def close(self) -> None:
        """End; a lesson that is being given is broken off, and the next room gives it anew."""
        with self._guard:
            self._closed = True
        self._aside.close()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _begin_if_due(self) -> None:
        if self._closed or self._running_since is not None or not 0 < self._every <= self._waiting:
            return
        self._waiting, self._running_since = 0, time.monotonic()
        self._thread.submit(self._lesson).add_done_callback(self._note)

    def _lesson(self) -> dict[str, Any]:
        began = time.monotonic()
        gathered = self._steps.gather()
        learned = self._aside.do(self._steps.learn, gathered)
        told = dict(self._steps.follow(learned))
        return told | {"took_s": round(time.monotonic() - began, 1)}

    def _note(self, done: Future[dict[str, Any]]) -> None:
        """Keep what came of a lesson; where readings came meanwhile, the next may be due."""
        failed = None if done.cancelled() else done.exception()
        with self._guard:
            self._running_since = None
            self._lessons += 1
            if failed is not None:
                self._failure = f"{type(failed).__name__}: {failed}"
            elif not done.cancelled():
                self._last, self._failure = done.result(), None
            self._begin_if_due()


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers(Generic[Gathered]):
    """How the numbers are made."""

    state: Callable[[], object]
    """Something quick that changes when the numbers may, such as how many reviews there are."""
    gather: Callable[[], Gathered]
    """Read what they are made of."""
    work: Callable[[Gathered], Mapping[str, Any]]
    """Work them out, in another process: a function of a module."""
    then: Callable[[Mapping[str, Any]], None] = lambda _numbers: None
    """Told of every new set of numbers."""


class NoticeBoard(Generic[Gathered]):
    """Shows the last numbers, and has new ones made in the background when something has changed."""

    def __init__(self, numbers: Numbers[Gathered]) -> None:
        """Nothing is worked out until somebody looks."""
        self._numbers = numbers
        self._guard = threading.Lock()
        self._shown: Mapping[str, Any] | None = None
        self._state: object = None
        self._busy = False
        self._failure: str | None = None
        self._aside = Aside()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noticeboard")

    def look(self) -> dict[str, Any]:
        """Give the numbers at once; beside them `ready`, `fresh` (nothing has changed since) and `failure`."""
        state = self._numbers.state()
        with self._guard:
            changed = state != self._state
            if changed and not self._busy:
                self._busy, self._state = True, state
                self._thread.submit(self._work).add_done_callback(self._note)
            fresh = not changed and not self._busy
            ready = self._shown is not None
            return {**(self._shown or {}), "ready": ready, "fresh": fresh, "failure": self._failure}

    def close(self) -> None:
        """Break off what is being worked out."""
        self._aside.close()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _work(self) -> Mapping[str, Any]:
        made = self._aside.do(self._numbers.work, self._numbers.gather())
        self._numbers.then(made)
        return made

    def _note(self, done: Future[Mapping[str, Any]]) -> None:
        failed = None if done.cancelled() else done.exception()
        with self._guard:
            self._busy = False
            if failed is not None:
                self._failure = f"{type(failed).__name__}: {failed}"
            elif not done.cancelled():
                self._shown, self._failure = done.result(), None
