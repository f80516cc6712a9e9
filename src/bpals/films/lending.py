"""Lending: single films of a shelf in any order, for many who ask at once; its archives stay open.

A film in a folder, a zip or a plain tar is read where it lies. A compressed tar has no places: it is unpacked up to the
film that is wanted. Of a gzip what was passed once is found again (see `gzipped`); a bz2 or xz starts anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from bpals.films.gzipped import gzipped
from bpals.films.holder import Holder, Readers, Spot
from bpals.films.refused import Refused
from bpals.plural import several
from bpals.types import Notice, Refusal

MISSING = Refusal(code="missing", message="no file under --images has its name")


class Lending:
    """The films of one shelf, one at a time; threads may share it."""

    def __init__(self, holders: Sequence[Holder], spots: dict[str, Spot]) -> None:
        """Open nothing yet."""
        self._holders = [gzipped(holder) for holder in holders]
        self._spots = spots
        # Who waits for a compressed tar holds up nobody who wants a film that lies open.
        self._direct, self._streamed = Readers(self._holders), Readers(self._holders)
        self._direct_lock, self._streamed_lock = threading.Lock(), threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fetch(self, image_id: str) -> bytes | Refusal:
        """Read one film whole, or say why not."""
        spot = self._spots.get(image_id)
        if spot is None:
            return MISSING
        streamed = self._holders[spot.holder].sequential
        try:
            with self._streamed_lock if streamed else self._direct_lock:
                return (self._streamed if streamed else self._direct).read(spot)
        except Refused as refused:
            return refused.refusal

    def notices(self) -> tuple[Notice, ...]:
        """Say which films will be slow to come, and what makes them quick."""
        slow = [spot for spot in self._spots.values() if self._holders[spot.holder].sequential]
        if not slow:
            return ()
        tars = sorted({self._holders[spot.holder].path.name for spot in slow})
        words = (
            f"{several(len(slow), 'film lies', 'films lie')} in compressed tars "
            f"({', '.join(tars[:3])}{', ...' if len(tars) > 3 else ''}), "
            "which are unpacked up to the film that is wanted: at first some seconds to minutes a film. "
            "Unpacked to plain tars they open at once: gunzip, bunzip2 or unxz them"
        )
        return (Notice(code="films_streamed", count=len(slow), message=words),)

    def close(self) -> None:
        """Close the archives; the next film that is asked for opens its own again."""
        with self._direct_lock:
            self._direct.close()
        with self._streamed_lock:
            self._streamed.close()
