"""The images of a dataset, found by name in a folder, a tar or a zip, and given as bytes or with a reason why not.

`open_index` lists every container once. An `ImageIndex` reads many images in the cheapest order, `RandomAccess` reads
single ones in any order, and `InMemoryImages` carries bytes to a process that does not see the folder.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bpals.errors import FilmError
from bpals.images.archives import (
    HEAD,
    Closing,
    Container,
    Entry,
    Folder,
    Location,
    Readers,
    count_pixels,
    gzipped,
    open_archive,
)
from bpals.images.formats import Refused
from bpals.text import several
from bpals.types import Notice, Refusal

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".dcm", ".dicom", ".dic")
# Found by name, so that they are refused for what they are and not counted as missing.
OTHER_IMAGES = (".gif", ".webp", ".svg", ".tif", ".tiff", ".bmp")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")

MISSING = Refusal(code="missing", message="no file under --images has its name")
VERSION = 1  # of the file that remembers what compressed tars hold
# What such a file raises that is not ours or not whole: it is made again.
DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError)


def open_index(
    path: str | os.PathLike[str],
    wanted: Collection[str] | None = None,
    *,
    listing: str | os.PathLike[str] | None = None,
) -> ImageIndex:
    """Find the images of a dataset in a folder (with what archives it holds), a tar or a zip; unpack nothing.

    `listing` is a file that remembers what compressed tars hold, so that they are unpacked once for it and not at
    every start.
    """
    root = Path(path)
    if not root.is_dir() and not root.is_file():
        raise FilmError(f"--images {path} is no folder and no file. Name a folder, a tar or a zip of films")
    known = Listing(listing)
    survey = Survey(None if wanted is None else Names(wanted), known)
    if root.is_file():
        survey.add(open_archive(root), root.name)
    else:
        folder, archives = Folder(root.resolve()), list[Entry]()
        survey.add(folder, "", archives)
        for entry in archives:
            survey.add(open_archive(folder.path / entry.name), entry.name)
    known.save()
    survey.settle()
    if not survey.locations:
        raise FilmError(f"--images {path} holds no film{survey.why_none()}")
    image_ids = survey.locations if wanted is None else dict.fromkeys(wanted)
    locations = {image_id: survey.locations[image_id] for image_id in image_ids if image_id in survey.locations}
    missing = [image_id for image_id in image_ids if image_id not in locations]
    return ImageIndex(survey.containers, locations, missing, survey.notices(root.name, missing))


class ImageIndex:
    """Images by their ids."""

    found: tuple[str, ...]  # ids that are there, in the order in which they were wanted
    missing: tuple[str, ...]  # ids that were wanted and are not there
    notices: tuple[Notice, ...]  # images missing or not in the dataset, copies, archives read in part

    def __init__(
        self,
        containers: list[Container],
        locations: dict[str, Location],
        missing: Iterable[str],
        notices: Iterable[Notice],
    ) -> None:
        """Take what `open_index` found."""
        self._containers = containers
        self._locations = locations
        self.found = tuple(locations)
        self.missing = tuple(missing)
        self.notices = tuple(notices)

    def order(self, image_ids: Iterable[str]) -> list[str]:
        """Return the ids in the order in which reading is cheap.

        Images in folders, zips and plain tars come first, in the given order; those in compressed tars follow in the
        order of the tar. Idempotent.
        """
        loose, streamed = [], []
        for image_id in image_ids:
            if self.streams(image_id):
                location = self._locations[image_id]
                streamed.append((location.container, location.entry.at, image_id))
            else:
                loose.append(image_id)
        return loose + [image_id for _, _, image_id in sorted(streamed)]

    def streams(self, image_id: str) -> bool:
        """Return whether an image lies in a compressed tar, which is read from its beginning."""
        location = self._locations.get(image_id)
        return location is not None and self._containers[location.container].sequential

    def read(self, image_ids: Iterable[str]) -> Generator[tuple[str, bytes | Refusal], None, None]:
        """Read images one by one, in the order of `order`; only one is in memory."""
        with Readers(self._containers) as readers:
            for image_id in self.order(image_ids):
                yield image_id, _read(readers, self._locations.get(image_id))

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folders and archives in which its images lie."""
        used = dict.fromkeys(location.container for location in self._locations.values())
        return tuple(self._containers[number].path for number in used)

    def only(self, image_ids: Iterable[str]) -> ImageIndex:
        """Return an index of some of its images, small enough to be sent elsewhere."""
        wanted = list(image_ids)
        locations = {image_id: self._locations[image_id] for image_id in wanted if image_id in self._locations}
        return ImageIndex(self._containers, locations, [name for name in wanted if name not in locations], ())

    def random_access(self) -> RandomAccess:
        """Open the index for single images in any order, and for several threads at once."""
        return RandomAccess(self._containers, self._locations)


def _read(readers: Readers, location: Location | None) -> bytes | Refusal:
    if location is None:
        return MISSING
    try:
        return readers.read(location)
    except Refused as refused:
        return refused.refusal


class InMemoryImages(ImageIndex):
    """A few images with their bytes."""

    def __init__(self, contents: Sequence[tuple[str, bytes | Refusal]]) -> None:
        """Take what was read."""
        super().__init__([], {}, (), ())
        self._contents = dict(contents)
        self.found = tuple(self._contents)

    def read(self, image_ids: Iterable[str]) -> Generator[tuple[str, bytes | Refusal], None, None]:
        """Return images one by one, in the order in which they are wanted."""
        for image_id in image_ids:
            yield image_id, self._contents.get(image_id, MISSING)


class RandomAccess(Closing):
    """The images of one index, one at a time; threads may share it."""

    def __init__(self, containers: Sequence[Container], locations: dict[str, Location]) -> None:
        """Open nothing yet."""
        self._containers = [gzipped(container) for container in containers]
        self._locations = locations
        # A thread that waits for a compressed tar must not hold up one that wants an image that lies open.
        self._open = {sequential: (threading.Lock(), Readers(self._containers)) for sequential in (False, True)}

    def fetch(self, image_id: str) -> bytes | Refusal:
        """Read one image whole, or return why not."""
        location = self._locations.get(image_id)
        lock, readers = self._open[location is not None and self._containers[location.container].sequential]
        with lock:
            return _read(readers, location)

    def notices(self) -> tuple[Notice, ...]:
        """Return which images will be slow to read, and what makes them quick."""
        slow = [location for location in self._locations.values() if self._containers[location.container].sequential]
        if not slow:
            return ()
        tars = sorted({self._containers[location.container].path.name for location in slow})
        words = (
            f"{several(len(slow), 'film lies', 'films lie')} in compressed tars "
            f"({', '.join(tars[:3])}{', ...' if len(tars) > 3 else ''}), "
            "which are unpacked up to the film that is wanted: at first some seconds to minutes per film. "
            "Unpacked to plain tars they open at once: gunzip, bunzip2 or unxz them"
        )
        return (Notice(code="films_streamed", count=len(slow), message=words),)

    def close(self) -> None:
        """Close the archives; the next image that is wanted opens its own again."""
        for lock, readers in self._open.values():
            with lock:
                readers.close()


class Survey:
    """What was found while looking for images."""

    def __init__(self, names: Names | None, listing: Listing) -> None:
        """Look for these images, or for all."""
        self._names = names
        self._listing = listing
        self.containers: list[Container] = []
        self.locations: dict[str, Location] = {}
        self._duplicates: dict[str, list[Location]] = {}
        self._unmatched = 0
        self._nested = 0
        self._refused: Counter[Refusal] = Counter()
        self._damages: list[str] = []
        self._empty: list[str] = []

    def add(self, container: Container, name: str, archives: list[Entry] | None = None) -> None:
        """Look through one container; the archives in a folder are put aside, those in archives are not opened."""
        number = len(self.containers)
        self.containers.append(container)
        above = "" if archives is None else f"{container.path}/"
        entries, damage = self._listing.entries(container, name)
        if damage:
            self._damages.append(damage)
        elif not entries and archives is None:
            self._empty.append(f"{container.path.name} is no archive, or an empty one")
        for entry in entries:
            if not is_archive(entry.name):
                self._place(above + entry.name, Location(number, entry))
            elif archives is None:
                self._nested += 1
            elif entry.refusal is None:
                archives.append(entry)

    def _place(self, name: str, location: Location) -> None:
        if location.entry.refusal is not None:
            self._refused[location.entry.refusal] += 1
        path = name.replace("\\", "/")
        if self._names is not None:
            image_id = self._names.of(path)
        else:  # without a dataset an image is named after its file
            image_id = stem(path.rpartition("/")[2]) if is_image(path) else None
        if image_id is None:
            self._unmatched += is_image(path)
        elif image_id in self.locations:
            self._duplicates.setdefault(image_id, [self.locations[image_id]]).append(location)
        else:
            self.locations[image_id] = location

    def settle(self) -> None:
        """Where an image was found several times, take the one with the most pixels, or else the most bytes."""
        with Readers(self.containers) as readers:

            def rank(location: Location) -> tuple[bool, int, int]:
                pixels = location.entry.pixels
                if pixels is None and location.entry.refusal is None:
                    try:
                        pixels = count_pixels(readers.read(location, HEAD))
                    except Refused:
                        pixels = None
                return location.entry.refusal is None, pixels or 0, location.entry.size

            for image_id, duplicates in self._duplicates.items():
                self.locations[image_id] = max(duplicates, key=rank)

    def why_none(self) -> str:
        """Return why nothing was found, and what to do."""
        damage = next((f" ({each})" for each in (*self._damages, *self._empty)), "")
        if self._names is None or not self._unmatched:
            return f"{damage}. Name a folder, a tar or a zip of PNG, JPEG or DICOM files"
        others = several(self._unmatched, "is", "are")
        return (
            f" of this dataset{damage}: {others} there, none is called {self._names.first}. "
            "NIH is the default dataset; name your own with --source table:FILE --mapping FILE.toml"
        )

    def notices(self, place: str, missing: list[str]) -> Iterator[Notice]:
        """Count what is odd."""
        if missing:
            whole, verb = several(len(missing) + len(self.locations), "film"), "is" if len(missing) == 1 else "are"
            words = f"{len(missing):,} of {whole} {verb} not under {place}, the first is {missing[0]}: not judged"
            yield Notice(code="films_missing", count=len(missing), message=words)
        if self._unmatched:
            others = several(self._unmatched, f"film under {place} is", f"films under {place} are")
            words = f"{others} not in the dataset: not read"
            yield Notice(code="films_unasked", count=self._unmatched, message=words)
        if self._duplicates:
            twice = several(len(self._duplicates), "film lies", "films lie")
            words = f"{twice} under {place} more than once: the largest was taken"
            yield Notice(code="film_copies", count=len(self._duplicates), message=words)
        for refusal, count in sorted(self._refused.items(), key=lambda item: item[0].code):
            files = several(count, f"file under {place} is not read,", f"files under {place} are not read, each")
            yield Notice(code="files_refused", count=count, message=f"{files} because {refusal.message}")
        if self._nested:
            one = f"archive inside an archive under {place} was not opened: unpack the outer one"
            more = f"archives inside archives under {place} were not opened: unpack the outer ones"
            yield Notice(code="archives_nested", count=self._nested, message=several(self._nested, one, more))
        for damage in self._damages:
            yield Notice(code="archive_damaged", count=1, message=f"{damage}: its other films are read")
        for empty in self._empty:
            yield Notice(code="archive_damaged", count=1, message=f"{empty}: no film in it is read")


class Names:
    """The images that are wanted, by every path that may mean them."""

    def __init__(self, wanted: Collection[str]) -> None:
        """Take the ids as the dataset has them."""
        self.first = next(iter(wanted), "")
        self._ids: dict[str, str] = {}
        shorter: dict[str, list[str]] = {}
        for image_id in wanted:
            parts = _parts(image_id)
            self._ids.setdefault("/".join(parts), image_id)
            if len(parts) > 1:
                shorter.setdefault("/".join(parts[1:]), []).append(image_id)
        # A path without its first folder means an image only if it can mean no other.
        for tail, image_ids in shorter.items():
            if len(image_ids) == 1:
                self._ids.setdefault(tail, image_ids[0])
        self._depths = sorted({tail.count("/") + 1 for tail in self._ids}, reverse=True)

    def of(self, name: str) -> str | None:
        """Return the image id that a path means, if any."""
        parts = _parts(name)
        tails = ("/".join(parts[-depth:]) for depth in self._depths if depth <= len(parts))
        return next((self._ids[tail] for tail in tails if tail in self._ids), None)


def stem(name: str) -> str:
    """Take the ending off an image's name; what is no ending of an image belongs to the name."""
    head, dot, ending = name.rpartition(".")
    return head if dot and head and f".{ending.lower()}" in (*IMAGE_SUFFIXES, *OTHER_IMAGES) else name


def is_image(name: str) -> bool:
    """Return whether a name ends like that of an image."""
    return name.lower().endswith((*IMAGE_SUFFIXES, *OTHER_IMAGES))


def is_archive(name: str) -> bool:
    """Return whether a name ends like that of an archive that is read."""
    return name.lower().endswith(ARCHIVES)


def _parts(name: str) -> list[str]:
    return [part for part in stem(name).split("/") if part not in {"", "."}]


class Listing:
    """The entries of containers, and a file that remembers those of compressed tars by name, size and time."""

    def __init__(self, file: str | os.PathLike[str] | None = None) -> None:
        """Read the file if there is one; whatever is wrong with it, archives are only listed again."""
        self._file = None if file is None else Path(file)
        self._known = self._remembered()
        self._new = False

    def entries(self, container: Container, name: str) -> tuple[list[Entry], str]:
        """List a container: its entries, and what is wrong with it in one line, or nothing."""
        if not container.sequential:
            return _list(container)
        about = container.path.stat()
        stamp = [about.st_size, about.st_mtime_ns]
        known = self._known.get(name)
        if known is not None and known["stamp"] == stamp:
            return [_entry(row) for row in known["entries"]], known["damage"]
        entries, damage = _list(container)
        self._known[name] = {"stamp": stamp, "damage": damage, "entries": [_row(entry) for entry in entries]}
        self._new = True
        return entries, damage

    def save(self) -> None:
        """Write the file if something was listed again, whole or not at all."""
        if self._file is None or not self._new:
            return
        part = self._file.with_name(f"{self._file.name}.tmp-{os.getpid()}")
        try:
            part.write_text(json.dumps({"version": VERSION, "archives": self._known}), encoding="utf-8")
            part.replace(self._file)
        finally:
            part.unlink(missing_ok=True)

    def _remembered(self) -> dict[str, Any]:
        if self._file is None or not self._file.is_file():
            return {}
        try:
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            known = stored["archives"] if stored["version"] == VERSION else {}
            for archive in known.values():
                [_entry(row) for row in archive["entries"]]
                str(archive["damage"]), list(archive["stamp"])
        except DAMAGED:
            return {}
        return dict(known)


def _list(container: Container) -> tuple[list[Entry], str]:
    entries = list[Entry]()
    try:
        entries.extend(container.entries())  # what was listed before a damage is kept
    except FilmError as error:
        return entries, str(error)
    except OSError as error:
        return entries, f"{container.path.name} cannot be read: {error.strerror}"
    return entries, ""


def _row(entry: Entry) -> list[Any]:
    return [entry.name, entry.size, entry.at, entry.pixels, asdict(entry.refusal) if entry.refusal else None]


def _entry(row: list[Any]) -> Entry:
    name, size, at, pixels, refusal = row
    return Entry(str(name), int(size), int(at), pixels, Refusal(**refusal) if refusal else None)
