"""Films in blocks: so few at a time that what is in hand stays in the processor's cache, and on all cores.

Fresh memory for a matrix of all pairs costs more than most of what is done in it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import polars as pl

BLOCK = 4096
"""Films at a time."""


def in_blocks(films: int, work: Callable[[slice], None]) -> None:
    """Do the work on every block of the films."""
    with ThreadPoolExecutor(pl.thread_pool_size()) as hands:
        list(hands.map(work, (slice(start, start + BLOCK) for start in range(0, films, BLOCK))))
