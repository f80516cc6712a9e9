"""A passage: films of a shelf, treated one after another, in bounded memory; no film stops it."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from bpals.films.crew import MEMORY_BYTES, Crew
from bpals.films.shelf import Shelf
from bpals.films.work import M, Work
from bpals.plural import several
from bpals.types import Notice, Refusal

G = TypeVar("G")

MOST_WORKERS = 4
MOST_DEATHS = 3
"""Workers that one film may end."""
AHEAD = 2
"""Films that are read or ready, for each worker."""


@dataclass(slots=True)
class _Slot(Generic[M]):
    """One film on its way."""

    image_id: str
    content: bytes
    result: M | Refusal | None = None
    given: bool = False
    deaths: int = 0


class Passage(Iterator[tuple[str, G | Refusal]], Generic[M, G]):
    """What was made of films, in the order of `shelf.order(image_ids)`.

    Bytes are read in this process; at most two films a worker are on their way. A film that ends its worker is tried
    again alone, and refused as `poison` when it has ended three. Close it, or read it to its end.
    """

    notes: Counter[str]
    """How many films had each note of `prepare.NOTES`, so far."""
    notes_of: dict[str, tuple[str, ...]]
    """The notes of each film that has some."""
    refused: Counter[str]
    """How many films were refused for each reason."""

    def __init__(
        self,
        shelf: Shelf,
        image_ids: Iterable[str],
        work: Work[M],
        *,
        workers: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        crew: Crew[M] | None = None,
    ) -> None:
        """Start nothing yet: the first film that is asked for does. No workers is this process, None one a core.

        A crew that is lent is used for this work alone, and left as it is at the end.
        """
        self._work = work
        self._treat: Callable[[bytes], M | Refusal] | None = None
        self._size = min(MOST_WORKERS, os.cpu_count() or 1) if workers is None else workers
        if crew is not None:
            self._size = crew.size
        self._lent = crew is not None
        self._memory_bytes = memory_bytes
        self._crew = crew
        self._contents = shelf.read(image_ids)
        self._slots: dict[int, _Slot[M]] = {}
        self._next = 0
        self._over = False
        self._first_of: dict[str, str] = {}
        self._same: list[tuple[str, str]] = []
        self.notes = Counter()
        self.notes_of = {}
        self.refused = Counter()

    def __next__(self) -> tuple[str, G | Refusal]:
        while True:
            self._read_on()
            if not self._slots:
                self.close()
                raise StopIteration
            number = next(iter(self._slots))
            slot = self._slots[number]
            if slot.result is not None:
                del self._slots[number]
                return slot.image_id, self._count(slot.image_id, slot.result)
            self._go_on(slot)

    def close(self) -> None:
        """Let go of files and workers; nothing more comes."""
        self._over = True
        self._slots.clear()
        self._contents.close()
        if self._crew is not None and not self._lent:
            self._crew.close()
        self._crew = None

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Say what is odd about the films that were read so far, taken together."""
        return same_films(self._same)

    @property
    def pids(self) -> list[int]:
        """The worker processes, for whoever watches them."""
        return self._crew.pids if self._crew else []

    def _read_on(self) -> None:
        """Read films until two a worker are on their way."""
        while not self._over and len(self._slots) < max(1, AHEAD * self._size):
            following = next(self._contents, None)
            if following is None:
                self._over = True
                return
            image_id, content = following
            refusal = content if isinstance(content, Refusal) else None
            self._slots[self._next] = _Slot(image_id, b"" if isinstance(content, Refusal) else content, refusal)
            self._next += 1

    @abstractmethod
    def _given(self, image_id: str, made: M) -> G:
        """Say what is given of what was made of a film."""

    def _go_on(self, slot: _Slot[M]) -> None:
        """Bring some film further."""
        if self._size == 0:
            self._treat = self._treat or self._work.begin()
            slot.result = self._treat(slot.content)
            return
        if self._crew is None:
            self._crew = Crew(self._size, self._work, self._memory_bytes)
        self._hand_out(self._crew)
        for number, result in self._crew.wait():
            self._take_back(self._slots[number], result)

    def _hand_out(self, crew: Crew[M]) -> None:
        waiting = [(number, slot) for number, slot in self._slots.items() if slot.result is None and not slot.given]
        suspects = [(number, slot) for number, slot in waiting if slot.deaths]
        tried = any(slot.given and slot.deaths for slot in self._slots.values())
        # A film that ended a worker has the machine to itself, so that it is tried fairly and harms no other.
        room = (0 if crew.busy else 1) if suspects else 0 if tried else crew.idle
        for number, slot in (suspects or waiting)[:room]:
            slot.given = True
            crew.give(number, slot.content)

    def _take_back(self, slot: _Slot[M], result: M | Refusal | None) -> None:
        slot.given = False
        slot.result = result
        if result is None:
            slot.deaths += 1
            if slot.deaths >= MOST_DEATHS:
                slot.result = Refusal(code="poison", message=f"reading it ended {MOST_DEATHS} worker processes")
        if slot.result is not None:
            slot.content = b""

    def _count(self, image_id: str, result: M | Refusal) -> G | Refusal:
        if isinstance(result, Refusal):
            self.refused[result.code] += 1
            return result
        if result.notes:
            self.notes.update(result.notes)
            self.notes_of[image_id] = result.notes
        first = self._first_of.setdefault(result.sha256, image_id)
        if first != image_id:
            self._same.append((first, image_id))
        return self._given(image_id, result)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def same_films(pairs: Sequence[tuple[str, str]]) -> tuple[Notice, ...]:
    """Say how many films are others under another name, if any are."""
    if not pairs:
        return ()
    first, second = pairs[0]
    same = several(len(pairs), "film has", "films have")
    words = f"{same} the same bytes as another, first {second} as {first}: both are judged"
    return (Notice(code="same_film", count=len(pairs), message=words),)
