"""The shelf: where each film of a dataset lies, in a folder, a tar or a zip, and its bytes when they are wanted.

A film is found by the stem of its name, so that `00000013_008.jpg` is the film `00000013_008.png` of the table. An id
with folders in it (`train/patient00001/study1/view1_frontal.jpg`) is found by its path; its first folder may be left
out. Where a film is found twice, the one with more pixels is taken, and it is counted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterable
from pathlib import Path

from bpals.errors import FilmError
from bpals.films.folder import Folder
from bpals.films.holder import Entry, Holder, Readers, Spot
from bpals.films.lending import MISSING, Lending
from bpals.films.listing import Listing
from bpals.films.names import Names
from bpals.films.refused import Refused
from bpals.films.survey import Survey
from bpals.films.tarred import BZIP2, GZIP, XZ, StreamedTar, Tar
from bpals.films.zipped import START as ZIP_STARTS
from bpals.films.zipped import Zip
from bpals.types import Notice, Refusal


class Shelf:
    """Films by their ids."""

    found: tuple[str, ...]
    """Ids that are there, in the order in which they were asked for."""
    missing: tuple[str, ...]
    """Ids that were asked for and are not there."""
    notices: tuple[Notice, ...]
    """What is odd about the shelf: films missing, films that nobody asked for, copies, archives read in part."""

    def __init__(
        self, holders: list[Holder], spots: dict[str, Spot], missing: Iterable[str], notices: Iterable[Notice]
    ) -> None:
        """Take what `open_shelf` found."""
        self._holders = holders
        self._spots = spots
        self.found = tuple(spots)
        self.missing = tuple(missing)
        self.notices = tuple(notices)

    def order(self, image_ids: Iterable[str]) -> list[str]:
        """Give the ids in the order in which reading is cheap.

        Films in folders, zips and plain tars come first and stay as they are; those in compressed tars follow as they
        stand there. The order of an order is itself.
        """
        loose, streamed = [], []
        for image_id in image_ids:
            spot = self._spots.get(image_id)
            if spot is None or not self._holders[spot.holder].sequential:
                loose.append(image_id)
            else:
                streamed.append((spot.holder, spot.entry.at, image_id))
        return loose + [image_id for _, _, image_id in sorted(streamed)]

    def read(self, image_ids: Iterable[str]) -> Generator[tuple[str, bytes | Refusal], None, None]:
        """Read films one by one, in the order of `order`; only one is in memory."""
        with Readers(self._holders) as readers:
            for image_id in self.order(image_ids):
                spot = self._spots.get(image_id)
                if spot is None:
                    yield image_id, MISSING
                    continue
                try:
                    yield image_id, readers.read(spot)
                except Refused as refused:
                    yield image_id, refused.refusal

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folders and archives in which its films lie."""
        used = dict.fromkeys(spot.holder for spot in self._spots.values())
        return tuple(self._holders[number].path for number in used)

    def only(self, image_ids: Iterable[str]) -> Shelf:
        """Give a shelf of some of its films, small enough to be sent elsewhere."""
        wanted = list(image_ids)
        spots = {image_id: self._spots[image_id] for image_id in wanted if image_id in self._spots}
        return Shelf(self._holders, spots, [name for name in wanted if name not in spots], ())

    def streams(self, image_id: str) -> bool:
        """Say whether a film lies in a compressed tar, which is read from its beginning."""
        spot = self._spots.get(image_id)
        return spot is not None and self._holders[spot.holder].sequential

    def lend(self) -> Lending:
        """Open the shelf for single films in any order, and for several who ask at once."""
        return Lending(self._holders, self._spots)


def open_shelf(
    path: str | os.PathLike[str],
    wanted: Collection[str] | None = None,
    *,
    listing: str | os.PathLike[str] | None = None,
) -> Shelf:
    """Find the films of a dataset in a folder (with what archives it holds), a tar or a zip; unpack nothing.

    `listing` is a file that remembers what compressed tars hold, so that they are unpacked once for it and not at
    every start.
    """
    root = Path(path)
    if not root.is_dir() and not root.is_file():
        raise FilmError(f"--images {path} is no folder and no file. Name a folder, a tar or a zip of films")
    known = Listing(listing)
    survey = Survey(None if wanted is None else Names(wanted))
    _survey_all(root, known, survey)
    known.save()
    survey.settle()
    if not survey.spots:
        raise FilmError(f"--images {path} holds no film{survey.why_none()}")
    asked = survey.spots if wanted is None else dict.fromkeys(wanted)
    spots = {image_id: survey.spots[image_id] for image_id in asked if image_id in survey.spots}
    missing = [image_id for image_id in asked if image_id not in spots]
    return Shelf(survey.holders, spots, missing, survey.notices(root.name, missing))


def _survey_all(root: Path, known: Listing, survey: Survey) -> None:
    if root.is_file():
        survey.add(_archive(root), known, root.name)
        return
    folder = Folder(root.resolve())
    archives: list[Entry] = []
    survey.add(folder, known, "", archives)
    for entry in archives:
        survey.add(_archive(folder.path / entry.name), known, entry.name)


def _archive(path: Path) -> Holder:
    """Say what an archive is, by its first bytes."""
    try:
        with path.open("rb") as stream:
            start = stream.read(6)
    except OSError:  # said when it is listed
        return Tar(path)
    if start.startswith(ZIP_STARTS):
        return Zip(path)
    return StreamedTar(path) if start.startswith((GZIP, BZIP2, XZ)) else Tar(path)
