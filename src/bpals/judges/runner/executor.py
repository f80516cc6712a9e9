"""Where the work on images happens: an interface, and this process behind it; `ray_executor` is the other one.

In this process an event loop asks judges behind endpoints, one thread asks a judge that computes, another thread reads
the images ahead of them, and worker processes decode them. On Ray, the same code runs in each worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Worker(Protocol[T_contra, R_co]):
    """Does tasks, one at a time, as a pure function: it may be killed at any moment, and the task is done elsewhere."""

    def __call__(self, task: T_contra, /) -> R_co:
        """Do one task."""

    def close(self) -> None:
        """Release what was opened; the end of the process does so, too."""


MakeWorker = Callable[[], Worker[T, R]]
"""Makes a worker, once in each process: it is pickled and sent there, and opens what is heavy when it is called."""


class Results(Iterator[R_co], Protocol[R_co]):
    """The results, in any order, one per task; close it, or read it to its end."""

    def close(self) -> None:
        """End the workers; unfinished tasks are lost."""


class Executor(Protocol):
    """A place where tasks are done; whoever runs it writes everything down, the workers write nothing."""

    @property
    def workers(self) -> int:
        """How many tasks are done at one time."""

    @property
    def in_blocks(self) -> bool:
        """Whether images travel to the workers in blocks; otherwise this process reads and judges them one by one."""

    def map(self, tasks: Iterator[T], make_worker: MakeWorker[T, R]) -> Results[R]:
        """Do the tasks; they are pulled as they are needed, never all at once. Errors of a worker are raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalExecutor:
    """This process: threads and an event loop, and worker processes that decode images.

    `in_blocks` sends images as to a cluster, to a worker in this process: tests run that way without Ray.
    """

    processes: int | None = None
    """Processes that decode images; 0 is this one, None as many as pay."""
    in_blocks: bool = False
    workers: int = 1

    def map(self, tasks: Iterator[T], make_worker: MakeWorker[T, R]) -> Generator[R, None, None]:
        """Do the tasks one after another."""
        with contextlib.closing(make_worker()) as work:
            for task in tasks:
                yield work(task)


def call(executor: Executor, function: Callable[[], R]) -> R:
    """Let one worker call a function, such as one that reads a table."""
    results = executor.map(iter([function]), _Caller)
    try:
        return next(iter(results))
    finally:
        results.close()


class _Caller:
    """A worker that calls what it is given."""

    def __call__(self, function: Callable[[], R]) -> R:
        return function()

    def close(self) -> None:
        """Release nothing."""


class ReadAhead(Generic[T]):
    """An iterable, read in a thread of its own, at most `ahead` items before they are wanted."""

    def __init__(self, items: Iterable[T], ahead: int) -> None:
        """Start to read; this needs a running event loop."""
        self._items = iter(items)
        self._thread = ThreadPoolExecutor(1, "bpals-films")
        self._coming = deque(self._next() for _ in range(ahead))

    def _next(self) -> asyncio.Future[T | None]:
        coming = asyncio.get_running_loop().run_in_executor(self._thread, next, self._items, None)
        # If nobody waits for this one, its error is of no interest: looking at it keeps asyncio from reporting it.
        coming.add_done_callback(lambda future: future.cancelled() or future.exception())
        return coming

    async def get(self) -> T | None:
        """Return the next item, or None at the end; an error in the thread is raised here."""
        # Shielded: a cancelled wait must not hide from close() that the thread is still reading.
        item = await asyncio.shield(self._coming[0])
        self._coming.popleft()
        self._coming.append(self._next())
        return item

    async def close(self, wait_s: float) -> None:
        """Read no further; an item that takes longer than this to read is abandoned."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.wait(self._coming, timeout=wait_s)
