"""The lightbox: the films of a dataset as a judge is to be shown them, found, drawn and read.

Only the names of the films and of the findings are taken from the dataset: no claim is read here.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bpals.audit import load_source
from bpals.draw import Draw
from bpals.errors import UsageError
from bpals.films.prepare import NOTES, Preparation
from bpals.films.reading import Reading, prepared
from bpals.films.shelf import Shelf, open_shelf
from bpals.findings import Vocabulary
from bpals.plural import several
from bpals.types import Film, Notice
from bpals.workspace import Workspace

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
    described = mapping or (None if source else home.remembered("mapping"))
    chosen = source or home.remembered("source") or "nih"
    films = films_of(chosen, described)
    home.remember_dataset(chosen, described, films.fingerprint)
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
