"""Films that are treated elsewhere: blocks of them travel to the workers of an engine, as places on a disk or as bytes.

A worker opens a film where it lies if it sees the folder or archive, and prepares it there. Films in compressed tars,
and those of a folder that a worker does not see, are read here and sent as bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.images.collection import Carried, Shelf, open_shelf
from bpals.images.prepare import NOTES, Preparation
from bpals.images.stream import Crew, Look, Looking, Passage, Reading, Seen, prepared, same_films
from bpals.judges.engine import Engine, Hire, Results
from bpals.store.shards import Draw
from bpals.store.workspace import Workspace
from bpals.tasks.datasets import dataset_of, load_source
from bpals.text import several
from bpals.types import Film, Notice, Refusal

LISTING = "films.json"
"""What compressed archives hold, so that they are not unpacked again just to see."""
FILMS_A_WORKER = 32
"""Films for which a second process would not pay: it takes half a second to start."""
FILMS_TO_TRY = 4
"""Films that a judge is tried on before anything is asked for good ..."""
FILMS_TO_LOOK_AT = 40
"""... found among so many: some may be unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a judge may know of a dataset: which films there are, and what is looked for."""

    dataset: str
    vocabulary: Vocabulary
    image_ids: tuple[str, ...]
    fingerprint: str
    """The hash of what was read of it."""


class Oddities(Protocol):
    """Films that were read, here or elsewhere, and what was odd about them."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is odd about them taken together."""

    @property
    def notes(self) -> Counter[str]:
        """How many had each note of `prepare.NOTES`."""

    @property
    def refused(self) -> Counter[str]:
        """How many were refused for each reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightbox:
    """The films that were found."""

    films: Named
    images: Path
    shelf: Shelf
    preparation: Preparation

    def draw(self, count: int | None, seed: int) -> list[str]:
        """Draw films, or all of them; a film's place in the draw does not depend on which others are there."""

        def place(image_id: str) -> bytes:
            return hashlib.sha256(f"{seed} {image_id}".encode()).digest()

        # As they stand in compressed archives, where reading them in another order would cost hours.
        return self.shelf.order(sorted(self.shelf.found, key=place)[:count])

    def describe(self, count: int | None, seed: int) -> Draw:
        """Say which draw that is, for a record."""
        return Draw.of(self.shelf.found, count, seed)

    def read(self, image_ids: Sequence[str], *, workers: int | None = 0) -> Reading:
        """Read and prepare films, in this process or in so many others; None is as many as pay, one a core at most."""
        if workers is None and len(image_ids) <= FILMS_A_WORKER:
            workers = 1
        return prepared(self.shelf, image_ids, self.preparation, workers=workers)

    def first(self, image_ids: Sequence[str]) -> list[Film]:
        """Read the first films that can be read, to try a judge on."""
        looked_at, films = image_ids[:FILMS_TO_LOOK_AT], list[Film]()
        with self.read(looked_at) as reading:
            for _, film in reading:
                films += [film] if isinstance(film, Film) else []
                if len(films) == FILMS_TO_TRY:
                    break
        if not films:
            raise UsageError(
                f"of the first {several(len(looked_at), 'film')} in {self.images} none can be read "
                f"({_listed(reading.refused)}). "
                "Name a folder, a tar or a zip with films that can: --images PATH"
            )
        return films


def name_films(home: Workspace, source: str | None, mapping: str | None) -> Named:
    """Name the films and findings of a dataset, by default of the one that the workspace remembers, or NIH."""
    chosen = dataset_of(home, source, mapping)
    films = films_of(*chosen)
    home.remember_dataset(*chosen, films.fingerprint)
    return films


def films_of(source: str, mapping: str | None) -> Named:
    """Name the films and findings of a dataset."""
    dataset = load_source(source, mapping)
    return Named(
        dataset=dataset.name,
        vocabulary=dataset.vocabulary,
        image_ids=tuple(dataset.images["image_id"].to_list()),
        fingerprint=dataset.fingerprint,
    )


def open_lightbox(
    home: Workspace, films: Named, images: str | os.PathLike[str], preparation: Preparation, *, require_all: bool
) -> Lightbox:
    """Find the films under a path and remember it; missing ones are counted, or refused."""
    path = Path(images).resolve()
    shelf = open_shelf(path, films.image_ids, listing=home.path / LISTING)
    if require_all and shelf.missing:
        gone = several(len(shelf.missing), "film is", "films are")
        raise UsageError(f"--require-all: {gone} not in {path}. Leave it out to ask about the others")
    home.remember(images=str(path))
    return Lightbox(films=films, images=path, shelf=shelf, preparation=preparation)


def odd_films(reading: Oddities, changed: int) -> list[Notice]:
    """Count the films of a run that were unlike the others."""
    odd = [
        *reading.notices,
        *(
            Notice(code=f"films_{note}", count=count, message=f"{several(count, 'film')}: {NOTES[note]}")
            for note, count in sorted(reading.notes.items())
        ),
    ]
    if count := reading.refused.total():
        shown = several(count, "film cannot be shown and counts", "films cannot be shown and count")
        words = f"{shown} as failed: {_listed(reading.refused)}"
        odd.append(Notice(code="films_refused", count=count, message=f"{words}. Mended ones: --retry-failed"))
    if changed:
        others = several(changed, "film is no longer the file that was", "films are no longer the files that were")
        words = f"{others} asked about: not judged again"
        odd.append(Notice(code="films_changed", count=changed, message=words))
    return odd


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {code}" for code, count in sorted(counts.items(), key=lambda item: -item[1]))


FILMS_A_BLOCK = 32
"""What a worker that dies costs."""
BLOCKS_A_WORKER = 4
"""A small run is cut finer, so that every worker has something to do."""

W = TypeVar("W")
Films = Iterable[tuple[str, Any]]
"""Image ids, each with its film or with why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some films, and how a worker gets at them."""

    shelf: Shelf
    image_ids: tuple[str, ...]
    known: Mapping[str, str] = field(default_factory=dict)
    """Image id -> sha256 of its file when it was last hashed."""

    @property
    def unseen(self) -> bool:
        """Say whether this process lacks a folder or archive that the films lie in."""
        return not all(path.exists() for path in self.shelf.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated(Generic[W]):
    """What became of a block."""

    image_ids: tuple[str, ...]
    given: W | None = None
    """What the work came to; None where the worker does not see the films."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Image id -> sha256 of the films that could be read."""
    notes_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)


class Away(Generic[W]):
    """The blocks of a run, as they come back; what is odd about their films is counted as in a `Passage`."""

    def __init__(
        self,
        engine: Engine,
        shelf: Shelf,
        image_ids: Sequence[str],
        hire: Hire[Block, Treated[W]],
        known: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet: the first block that is asked for does."""
        self._engine = engine
        self._hire = hire
        self._shelf = shelf
        self._known = known or {}
        self._carry = False
        self._unseen: list[tuple[str, ...]] = []
        self._results = self._run(list(_cut(shelf.order(image_ids), engine.workers)))
        self._first_of: dict[str, str] = {}
        self._same: list[tuple[str, str]] = []
        self.notes: Counter[str] = Counter()
        self.notes_of: dict[str, tuple[str, ...]] = {}
        self.refused: Counter[str] = Counter()

    def __iter__(self) -> Iterator[W]:
        return self

    def __next__(self) -> W:
        while True:
            try:
                treated = next(self._results)
            except StopIteration:
                if not self._unseen:
                    raise
                self._results.close()
                self._unseen, again = [], self._unseen
                self._results = self._run(again)
                continue
            if treated.given is not None:
                self._count(treated)
                return treated.given
            # From now on films travel as bytes: any worker may be one that does not see them.
            self._carry = True
            self._unseen.append(treated.image_ids)

    def _run(self, blocks: Sequence[tuple[str, ...]]) -> Results[Treated[W]]:
        return self._engine.run(self._blocks(blocks), self._hire)

    def close(self) -> None:
        """Let the workers go."""
        self._results.close()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Say what is odd about the films that were read so far, taken together."""
        return same_films(self._same)

    def _blocks(self, blocks: Sequence[tuple[str, ...]]) -> Iterator[Block]:
        """Give blocks one by one, read only when they are wanted."""
        for image_ids in blocks:
            carried = self._carry or any(self._shelf.streams(image_id) for image_id in image_ids)
            shelf = Carried(list(self._shelf.read(image_ids))) if carried else self._shelf.only(image_ids)
            known = {image_id: self._known[image_id] for image_id in image_ids if image_id in self._known}
            yield Block(shelf=shelf, image_ids=tuple(image_ids), known=known)

    def _count(self, treated: Treated[W]) -> None:
        self.notes_of.update(treated.notes_of)
        self.notes.update(note for notes in treated.notes_of.values() for note in notes)
        self.refused.update(treated.refused)
        for image_id, sha256 in treated.hashes.items():
            if (first := self._first_of.setdefault(sha256, image_id)) != image_id:
                self._same.append((first, image_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cut(image_ids: Sequence[str], workers: int) -> Iterator[tuple[str, ...]]:
    size = max(1, min(FILMS_A_BLOCK, -(-len(image_ids) // (BLOCKS_A_WORKER * workers))))
    for start in range(0, len(image_ids), size):
        yield tuple(image_ids[start : start + size])


@dataclass(frozen=True, slots=True, kw_only=True)
class Treat(Generic[W]):
    """Makes the worker of an engine: `reads` opens a passage over a block's films, `works` does something with it."""

    work: Any
    """What is done to each film: see `films.work.Work`."""
    reads: type[Passage[Any, Any]]
    works: Callable[[], Callable[[Films, Block], W]]
    """Called once in each process: what is heavy is opened then."""

    def __call__(self) -> _Treating[W]:
        """Open what is heavy, start a process that reads films, and give what treats a block."""
        return _Treating(self, self.works(), Crew(1, self.work))


@dataclass(frozen=True, slots=True)
class _Treating(Generic[W]):
    """A worker of an engine."""

    treat: Treat[W]
    works: Callable[[Films, Block], W]
    crew: Crew[Any]

    def __call__(self, block: Block) -> Treated[W]:
        """Treat a block, or say that its films are not to be seen from here."""
        if block.unseen:
            return Treated(image_ids=block.image_ids)
        hashes: dict[str, str] = {}
        with self.treat.reads(block.shelf, block.image_ids, self.treat.work, crew=self.crew) as passage:
            given = self.works(_hashed(passage, hashes), block)
        return Treated(
            image_ids=block.image_ids,
            given=given,
            hashes=hashes,
            notes_of=passage.notes_of,
            refused=passage.refused,
        )

    def close(self) -> None:
        """End the process that reads films."""
        self.crew.close()


def _hashed(films: Films, hashes: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Note which film is which on the way."""
    for image_id, film in films:
        if not isinstance(film, Refusal):
            hashes[image_id] = film.sha256
        yield image_id, film


class LookingAway(Iterator[tuple[str, Seen | Refusal]]):
    """Films that are looked at elsewhere, one after another, as by `films.looking.looked`."""

    def __init__(self, engine: Engine, shelf: Shelf, image_ids: Sequence[str], look: Look) -> None:
        """Start nothing yet."""
        self._away: Away[list[tuple[str, Seen | Refusal]]] = Away(
            engine, shelf, image_ids, Treat(work=look, reads=Looking, works=_Collect)
        )
        self._ready: deque[tuple[str, Seen | Refusal]] = deque()

    def __next__(self) -> tuple[str, Seen | Refusal]:
        while not self._ready:
            self._ready.extend(next(self._away))
        return self._ready.popleft()

    @property
    def notes(self) -> Counter[str]:
        """How many films had each note of `prepare.NOTES`, so far."""
        return self._away.notes

    @property
    def refused(self) -> Counter[str]:
        """How many films were refused for each reason."""
        return self._away.refused

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Say what is odd about the films that were looked at so far, taken together."""
        return self._away.notices

    def close(self) -> None:
        """Let the workers go; nothing more comes."""
        self._ready.clear()
        self._away.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Collect:
    """Takes what a passage gives as it is."""

    def __call__(self, films: Films, _block: Block) -> list[tuple[str, Seen | Refusal]]:
        """Read it to its end."""
        return list(films)
