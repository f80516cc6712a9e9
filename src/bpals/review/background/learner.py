"""The learner: after so many locked readings, what was read becomes a new signal and a new queue, in the background.

A lesson has three steps, which whoever opens the room hands in. The first and the last work with the ledger and run in
a thread; the middle one is heavy and runs in a process of its own, at low priority, so that no reader waits for it. A
lesson that fails is kept and shown, and costs nothing but itself: the readings are in the ledger.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bpals.review.background.aside import Aside

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
