"""The garbage collector, kept from looking too often while a run goes on."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

ALLOCATIONS = 20_000
"""More objects than the open films of a run hold: what is written is freed without the collector."""


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector look after 20,000 new objects, not 700: a reply has 25, and looking took a tenth of the CPU."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], ALLOCATIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
