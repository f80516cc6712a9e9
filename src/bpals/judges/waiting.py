"""Waiting for what runs in an event loop, from code that has none, or that is inside one already."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, also inside a notebook, where this thread's event loop is taken."""
    if not _in_a_loop():
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "bpals-run") as thread:
        return thread.submit(asyncio.run, work).result()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
