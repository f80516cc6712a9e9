"""Where each reader's next case is looked for first, so that nobody's read cases are gone through at every click."""

from __future__ import annotations

import time
from collections.abc import Callable

BELIEVED_S = 10.0
"""How long it is believed that the batches before have nothing: a case that is given back waits at most so long."""


class Floors:
    """The lowest batch that had a case for a reader a moment ago; a hint, and never more than that."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet; the clock is one that only goes forward."""
        self._clock = clock
        self._found: dict[int, tuple[int, float]] = {}

    def of(self, account_id: int) -> int:
        """Give the batch to begin with."""
        batch, until = self._found.get(account_id, (0, 0.0))
        return batch if self._clock() < until else 0

    def found(self, account_id: int, batch: int, *, began_at: int) -> None:
        """Remember where the search from a batch ended; what was remembered is not believed for longer thereby."""
        _, until = self._found.get(account_id, (0, 0.0))
        self._found[account_id] = (batch, until if began_at else self._clock() + BELIEVED_S)

    def forget(self) -> None:
        """Know nothing again: cases were drawn or withdrawn."""
        self._found.clear()
