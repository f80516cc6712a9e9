"""Films, pulled in a thread a few ahead of the asking: nothing is built first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class _End:
    """What comes after the last item."""


END = _End()


class Intake(Generic[T]):
    """An iterable, read in a thread of its own, never more than `ahead` items before they are wanted."""

    def __init__(self, items: Iterable[T], ahead: int) -> None:
        """Start to read; this needs a running event loop."""
        self._items = items
        self._slots = threading.Semaphore(ahead)
        self._stopped = False
        self._queue: asyncio.Queue[T | _End] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "bpals-films")
        self._pulling = asyncio.get_running_loop().run_in_executor(
            self._thread, self._pull, asyncio.get_running_loop().call_soon_threadsafe
        )
        self._pulling.add_done_callback(self._end)

    def _pull(self, call_soon: Callable[..., object]) -> None:
        items = iter(self._items)
        while self._slots.acquire() and not self._stopped:
            item = next(items, END)
            if isinstance(item, _End):
                return
            call_soon(self._queue.put_nowait, item)

    async def get(self) -> T | None:
        """Give the next item, or nothing at the end; what went wrong in the thread is raised here."""
        item = await self._queue.get()
        if isinstance(item, _End):
            self._queue.put_nowait(END)
            await self._pulling
            return None
        self._slots.release()
        return item

    def _end(self, pulling: asyncio.Future[None]) -> None:
        self._queue.put_nowait(END)
        # Nobody may ask for more: then its error is of no interest.
        _ = pulling.cancelled() or pulling.exception()

    async def close(self, wait_s: float) -> None:
        """Read no further; an item that takes longer than this to be read is let go."""
        self._stopped = True
        self._slots.release()
        await asyncio.wait([self._pulling], timeout=wait_s)
        self._thread.shutdown(wait=False, cancel_futures=True)
