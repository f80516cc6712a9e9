"""Group commits: whole films, one thread, and nothing is called written before it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from bpals.judges.pace import Pace

T = TypeVar("T")
Note = tuple[str, str]
"""A kind of event and its detail."""


class Writer(Generic[T]):
    """Gathers what is finished and commits it together; its queue is the back-pressure of a run."""

    def __init__(
        self, commit: Callable[[Sequence[T], Sequence[Note]], None], wrote: Callable[[T], None], pace: Pace
    ) -> None:
        """Start; `commit` runs in one thread and is durable when it returns, then `wrote` is told of each item."""
        self._commit = commit
        self._wrote = wrote
        self._pace = pace
        self._queue: list[tuple[T, int, asyncio.Future[None]]] = []
        self._notes: list[Note] = []
        self._rows = 0
        self._closing = False
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "bpals-ledger")
        self._task = asyncio.create_task(self._write_all())

    async def put(self, item: T, rows: int) -> asyncio.Future[None]:
        """Wait for room and queue an item; the future that comes back is done when the item is durable."""
        while self._rows >= self._pace.queue_rows and not self._task.done():
            self._room.clear()
            await self._room.wait()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody may be waiting for this one: its error is raised by close().
        written.add_done_callback(lambda future: future.cancelled() or future.exception())
        if self._task.done():
            written.cancel()
            return written
        self._queue.append((item, rows, written))
        self._rows += rows
        self._some.set()
        return written

    def note(self, kind: str, detail: str) -> None:
        """Queue an event; it is written with the next films."""
        self._notes.append((kind, detail))
        self._some.set()

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Tell somebody at once if the thread cannot write."""

        def look(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()):
                tell(error)

        self._task.add_done_callback(look)

    async def close(self) -> None:
        """Write what is queued and stop; raises what went wrong in the thread."""
        self._closing = True
        self._some.set()
        try:
            await self._task
        finally:
            self._thread.shutdown(wait=False)

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._closing or self._queue or self._notes:
                await self._some.wait()
                await self._gather(loop.time() + self._pace.commit_every_s)
                self._some.clear()
                queue, self._queue = self._queue, []
                notes, self._notes = self._notes, []
                await loop.run_in_executor(self._thread, self._commit, [item for item, _, _ in queue], notes)
                for item, rows, written in queue:
                    self._wrote(item)
                    self._rows -= rows
                    if not written.done():
                        written.set_result(None)
                self._room.set()
        finally:
            self._room.set()
            for _, _, written in self._queue:
                written.cancel()

    async def _gather(self, until_s: float) -> None:
        """Let films gather for a while, unless there are enough of them or the run ends."""
        loop = asyncio.get_running_loop()
        while self._rows < self._pace.commit_rows and not self._closing and (left_s := until_s - loop.time()) > 0:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._some.wait()
