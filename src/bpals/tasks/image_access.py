"""The images of a dataset: found under a path, drawn, read here, or cut into blocks for the workers of an executor.

A worker opens an image where it lies if it sees the folder or archive, and decodes it there. Images in compressed
tars, and those of a folder that a worker does not see, are read here and sent as bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from PIL import Image

from bpals.errors import FilmError, UsageError
from bpals.findings import Vocabulary
from bpals.images.collection import ImageIndex, InMemoryImages, open_index
from bpals.images.prepare import NOTES, Preparation
from bpals.images.stream import Crew, Passage, Reading, prepared, same_films
from bpals.judges.runner.executor import Executor, MakeWorker, Results
from bpals.store.shards import Draw
from bpals.store.workspace import Workspace
from bpals.tasks.datasets import dataset_of, load_source
from bpals.text import several
from bpals.types import Film, Notice, Refusal

# What compressed archives hold, so that they are not unpacked again just to list them.
LISTING = "films.json"
# Images for which a second process does not pay: it takes half a second to start.
IMAGES_PER_WORKER = 32
# Images that a judge is tried on, found among so many candidates: some may be unreadable.
TRIAL_IMAGES, TRIAL_CANDIDATES = 4, 40
# What a worker that dies costs.
IMAGES_PER_BLOCK = 32
# A small run is cut finer, so that every worker has something to do.
BLOCKS_PER_WORKER = 4
# An image in the report, drawn at 110 to 160 px: 9 KB as a JPEG, a fifth of the PNG.
REPORT_PX, JPEG_QUALITY = 256, 80
STREAMED = "it lies in a compressed archive: unpack that to see it here"

W = TypeVar("W")
Images = Iterable[tuple[str, Any]]
"""Image ids, each with its image or with the reason why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageManifest:
    """What a judge may know of a dataset: its images and findings, and no label."""

    dataset: str
    vocabulary: Vocabulary
    image_ids: tuple[str, ...]
    fingerprint: str
    """The hash of the dataset's files."""


class ReadImages(Protocol):
    """What reading images, here or in a worker, found odd about them."""

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
class DatasetImages:
    """The images of a dataset that were found under a path."""

    manifest: ImageManifest
    images: Path
    index: ImageIndex
    preparation: Preparation

    def draw(self, count: int | None, seed: int) -> list[str]:
        """Draw images, or all of them; an image's place in the draw does not depend on which others are there."""

        def place(image_id: str) -> bytes:
            return hashlib.sha256(f"{seed} {image_id}".encode()).digest()

        # As they stand in compressed archives, where reading them in another order would cost hours.
        return self.index.order(sorted(self.index.found, key=place)[:count])

    def describe(self, count: int | None, seed: int) -> Draw:
        """Describe that draw, for a record."""
        return Draw.of(self.index.found, count, seed)

    def read(self, image_ids: Sequence[str], *, workers: int | None = 0) -> Reading:
        """Read and prepare images, here or in so many processes; None is as many as pay, one per core at most."""
        if workers is None and len(image_ids) <= IMAGES_PER_WORKER:
            workers = 1
        return prepared(self.index, image_ids, self.preparation, workers=workers)

    def first(self, image_ids: Sequence[str]) -> list[Film]:
        """Read the first images that can be read, to try a judge on."""
        candidates, images = image_ids[:TRIAL_CANDIDATES], list[Film]()
        with self.read(candidates) as reading:
            for _, image in reading:
                images += [image] if isinstance(image, Film) else []
                if len(images) == TRIAL_IMAGES:
                    break
        if not images:
            raise UsageError(
                f"of the first {several(len(candidates), 'image')} in {self.images} none can be read "
                f"({_listed(reading.refused)}). Name a folder, a tar or a zip with readable images: --images PATH"
            )
        return images


def images_path(home: Workspace, images: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Return the given path of the images, or the one that the workspace remembers."""
    where = images if images is not None else home.remembered("images")
    if where is None:
        raise UsageError("where are the images? Type: --images PATH (a folder, a tar or a zip)")
    return where


def thumbnails(
    home: Workspace,
    image_ids: Sequence[str],
    *,
    side_px: int,
    images: str | os.PathLike[str] | None = None,
    most: int | None = None,
) -> dict[str, bytes | str]:
    """Read images for a page, each as a small PNG or why it cannot be shown; those that are not there are left out.

    Without `images` they are sought where the workspace remembers them. They may be gone from there: then there is
    none. `most`: so many of those that are there.
    """
    path = images if images is not None else home.remembered("images")
    if path is None:
        return {}
    try:
        index = open_index(path, image_ids, listing=home.path / LISTING)
    except FilmError:
        if images is None:  # they were there when a judge was asked, and are gone
            return {}
        raise
    with prepared(index, index.found[:most], Preparation(side_px=side_px), workers=0) as reading:
        return {image_id: film.png if isinstance(film, Film) else film.message for image_id, film in reading}


def report_images(home: Workspace, image_ids: Sequence[str]) -> dict[str, bytes | str]:
    """Read images for the report, each as a small JPEG or why it cannot be shown; no image stops an audit.

    Those in compressed tars are left out: such a tar is read from its beginning, which takes minutes.
    """
    found: dict[str, bytes | str] = {}
    # A folder that is gone, or that holds none of them: the page says for each that it is not at hand.
    with contextlib.suppress(FilmError, OSError):
        index = open_index(home.remembered("images") or "", image_ids, listing=home.path / LISTING)
        found = dict.fromkeys((name for name in index.found if index.streams(name)), STREAMED)
        quick = [name for name in index.found if name not in found]
        # A process of its own decodes: a file that ends it is refused, and the audit goes on.
        with prepared(index, quick, Preparation(side_px=REPORT_PX), workers=1) as reading:
            for image_id, film in reading:
                found[image_id] = _jpeg(film.png) if isinstance(film, Film) else film.message
    return found


def _jpeg(png: bytes) -> bytes:
    """Encode an image of the report anew."""
    written = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.save(written, format="JPEG", quality=JPEG_QUALITY)
    return written.getvalue()


def open_manifest(home: Workspace, source: str | None, mapping: str | None) -> ImageManifest:
    """List the images and findings of a dataset, by default the one that the workspace remembers, or NIH."""
    chosen = dataset_of(home, source, mapping)
    manifest = manifest_of(*chosen)
    home.remember_dataset(*chosen, manifest.fingerprint)
    return manifest


def manifest_of(source: str, mapping: str | None) -> ImageManifest:
    """List the images and findings of a dataset."""
    dataset = load_source(source, mapping)
    return ImageManifest(
        dataset=dataset.name,
        vocabulary=dataset.vocabulary,
        image_ids=tuple(dataset.images["image_id"].to_list()),
        fingerprint=dataset.fingerprint,
    )


def open_images(
    home: Workspace,
    manifest: ImageManifest,
    images: str | os.PathLike[str],
    preparation: Preparation,
    *,
    require_all: bool,
) -> DatasetImages:
    """Find the images under a path and remember it; missing ones are counted, or refused."""
    path = Path(images).resolve()
    index = open_index(path, manifest.image_ids, listing=home.path / LISTING)
    if require_all and index.missing:
        gone = several(len(index.missing), "image is", "images are")
        raise UsageError(f"--require-all: {gone} not in {path}. Leave it out to ask about the others")
    home.remember(images=str(path))
    return DatasetImages(manifest=manifest, images=path, index=index, preparation=preparation)


def image_notices(reading: ReadImages, changed: int) -> list[Notice]:
    """Count what was odd about the images of a run."""
    notices = [
        *reading.notices,
        *(
            Notice(code=f"films_{note}", count=count, message=f"{several(count, 'image')}: {NOTES[note]}")
            for note, count in sorted(reading.notes.items())
        ),
    ]
    if count := reading.refused.total():
        shown = several(count, "image cannot be shown and counts", "images cannot be shown and count")
        words = f"{shown} as failed: {_listed(reading.refused)}"
        notices.append(Notice(code="films_refused", count=count, message=f"{words}. Mended ones: --retry-failed"))
    if changed:
        others = several(changed, "image has changed since it was", "images have changed since they were")
        words = f"{others} judged: not judged again"
        notices.append(Notice(code="films_changed", count=changed, message=words))
    return notices


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {code}" for code, count in sorted(counts.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some images, and how a worker gets at them."""

    index: ImageIndex
    image_ids: tuple[str, ...]
    known: Mapping[str, str] = field(default_factory=dict)
    """Image id -> sha256 of its file when it was last hashed."""

    @property
    def unseen(self) -> bool:
        """Whether this process lacks a folder or archive that holds the images."""
        return not all(path.exists() for path in self.index.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult(Generic[W]):
    """What a worker made of a block."""

    image_ids: tuple[str, ...]
    value: W | None = None
    """None where the worker does not see the images."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Image id -> sha256 of the images that could be read."""
    notes_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)


class ImageBlocks(Generic[W]):
    """The values of all blocks, as workers finish them; oddities of the images are counted as in a `Passage`."""

    def __init__(
        self,
        executor: Executor,
        index: ImageIndex,
        image_ids: Sequence[str],
        make_worker: MakeWorker[Block, BlockResult[W]],
        known: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet: the first call of next() does."""
        self._executor = executor
        self._make_worker = make_worker
        self._index = index
        self._known = known or {}
        self._as_bytes = False
        self._unseen: list[tuple[str, ...]] = []
        self._first_of: dict[str, str] = {}
        self._same: list[tuple[str, str]] = []
        self.notes: Counter[str] = Counter()
        self.notes_of: dict[str, tuple[str, ...]] = {}
        self.refused: Counter[str] = Counter()
        self._results = self._map(list(_cut(index.order(image_ids), executor.workers)))

    def __iter__(self) -> Iterator[W]:
        return self

    def __next__(self) -> W:
        while True:
            try:
                result = next(self._results)
            except StopIteration:
                if not self._unseen:
                    raise
                self._results.close()
                self._unseen, again = [], self._unseen
                self._results = self._map(again)
                continue
            if result.value is not None:
                self._count(result)
                return result.value
            # From now on images travel as bytes: any worker may be one that does not see them.
            self._as_bytes = True
            self._unseen.append(result.image_ids)

    def _map(self, blocks: Sequence[tuple[str, ...]]) -> Results[BlockResult[W]]:
        return self._executor.map(self._blocks(blocks), self._make_worker)

    def close(self) -> None:
        """End the workers."""
        self._results.close()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is odd about the images so far, taken together."""
        return same_films(self._same)

    def _blocks(self, blocks: Sequence[tuple[str, ...]]) -> Iterator[Block]:
        """Yield blocks one by one; images that travel as bytes are read only then."""
        for image_ids in blocks:
            as_bytes = self._as_bytes or any(self._index.streams(image_id) for image_id in image_ids)
            index = InMemoryImages(list(self._index.read(image_ids))) if as_bytes else self._index.only(image_ids)
            known = {image_id: self._known[image_id] for image_id in image_ids if image_id in self._known}
            yield Block(index=index, image_ids=tuple(image_ids), known=known)

    def _count(self, result: BlockResult[W]) -> None:
        self.notes_of.update(result.notes_of)
        self.notes.update(note for notes in result.notes_of.values() for note in notes)
        self.refused.update(result.refused)
        # Workers see their own block only: images of the same bytes in two blocks are found here.
        for image_id, sha256 in result.hashes.items():
            if (first := self._first_of.setdefault(sha256, image_id)) != image_id:
                self._same.append((first, image_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cut(image_ids: Sequence[str], workers: int) -> Iterator[tuple[str, ...]]:
    size = max(1, min(IMAGES_PER_BLOCK, -(-len(image_ids) // (BLOCKS_PER_WORKER * workers))))
    for start in range(0, len(image_ids), size):
        yield tuple(image_ids[start : start + size])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTask(Generic[W]):
    """Makes a worker for blocks: `reads` opens the images of a block, and what `begin` returns handles them."""

    work: Any
    """What is done to each image: see `images.worker`."""
    reads: type[Passage[Any, Any]]
    begin: Callable[[], Callable[[Images, Block], W]]
    """Called once in each process: what is heavy is opened then."""

    def __call__(self) -> _BlockWorker[W]:
        """Open what is heavy, and start a process that decodes images."""
        return _BlockWorker(self, self.begin(), Crew(1, self.work))


@dataclass(frozen=True, slots=True)
class _BlockWorker(Generic[W]):
    task: BlockTask[W]
    handle: Callable[[Images, Block], W]
    crew: Crew[Any]

    def __call__(self, block: Block) -> BlockResult[W]:
        """Handle a block, or return that this machine does not see its images."""
        if block.unseen:
            return BlockResult(image_ids=block.image_ids)
        hashes: dict[str, str] = {}

        def hashed(images: Images) -> Iterator[tuple[str, Any]]:
            for image_id, image in images:
                if not isinstance(image, Refusal):
                    hashes[image_id] = image.sha256
                yield image_id, image

        with self.task.reads(block.index, block.image_ids, self.task.work, crew=self.crew) as passage:
            value = self.handle(hashed(passage), block)
        return BlockResult(
            image_ids=block.image_ids, value=value, hashes=hashes, notes_of=passage.notes_of, refused=passage.refused
        )

    def close(self) -> None:
        """End the process that decodes images."""
        self.crew.close()
