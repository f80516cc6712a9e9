"""The notice board: numbers that take seconds to work out, shown at once as they were last worked out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bpals.review.background.aside import Aside

Gathered = TypeVar("Gathered")


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
