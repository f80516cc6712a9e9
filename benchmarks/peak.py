"""The peak: the most memory that a process had at once, in MB.

`getrusage` tells it too, but begins with the peak of the process that started this one; Linux's own counter does not.
"""

from __future__ import annotations

import re
import resource
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

EVERY_S = 0.2


def peak_mb(process: str = "self") -> float:
    """Give the most memory that a process had so far; this one, unless another that lives is named by its number."""
    if sys.platform == "linux":
        status = (Path("/proc") / process / "status").read_text(encoding="ascii", errors="replace")
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


class ChildrenWatch:
    """Looks at the processes that this one started, as long as it is entered; only where there is /proc."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._peaks: dict[str, float] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop."""
        self._ends.set()
        self._thread.join()

    @property
    def peak_mb(self) -> float:
        """The most memory that one of them had."""
        return max(self._peaks.values(), default=0.0)

    def _watch(self) -> None:
        while not self._ends.wait(EVERY_S):
            for listed in Path("/proc/self/task").glob("*/children"):
                try:
                    for child in listed.read_text().split():
                        # The last look counts: before its program starts, a child has the memory of its parent.
                        self._peaks[child] = peak_mb(child)
                except (OSError, IndexError):  # It ended while it was looked at.
                    continue
