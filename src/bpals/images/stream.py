"""A stream of images: read here one after another, treated in worker processes, and given in order.

`prepared` returns each image as a judge is shown it. `image_features` returns numbers: bytes -> 8-bit grey -> a grey
square -> a row of features, with no picture written on the way. Each worker makes what treats an image from its name:
nothing but words goes to a worker, and nothing but words and numbers comes back.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.errors import FilmError
from bpals.images.archives import Closing
from bpals.images.collection import ImageIndex
from bpals.images.formats import MOST_BYTES
from bpals.images.picture import Picture
from bpals.images.prepare import Preparation, Prepared, decode_then
from bpals.images.worker import READY, M, Work, called, terms, unpack
from bpals.text import several
from bpals.types import Film, Notice, Refusal

G = TypeVar("G")
Grey = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Extractor = Callable[[Grey], Floats]
"""Makes a row of features of a grey square."""

MEMORY_BYTES = 2 << 30  # what one image may need: 50 million pixels in 16-bit colour take 1 GB
MOST_WORKERS = 4
MOST_DEATHS = 3  # workers that one image may end
AHEAD = 2  # images that are read or ready, for each worker
THUMBNAIL_PX = 32
GONE = (EOFError, OSError)  # what a channel raises whose other end is gone
GARBLED = (ValueError, TypeError, LookupError, RuntimeError, struct.error)  # what a reply of no sound worker raises


def prepared(
    index: ImageIndex, image_ids: Iterable[str], preparation: Preparation, *, workers: int | None = None
) -> Reading:
    """Read and prepare images, in the order of `index.order(image_ids)`; 0 workers prepare in this process."""
    return Reading(index, image_ids, preparation, workers=workers)


def image_features(
    index: ImageIndex, image_ids: Iterable[str], feature_spec: FeatureSpec, *, workers: int | None = None
) -> FeatureStream:
    """Extract features, in the order of `index.order(image_ids)`; 0 workers extract in this process."""
    return FeatureStream(index, image_ids, feature_spec, workers=workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFeatures:
    """One image as numbers."""

    image_id: str = ""
    sha256: str  # of the file's bytes: which image this is
    width_px: int  # of the image as it lies in its file
    height_px: int
    notes: tuple[str, ...]  # keys of `prepare.NOTES`
    features: Floats
    thumbnail: Grey  # the image at 32 x 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """How images become numbers: the side of the square, and the function for it, by the name of its maker."""

    side_px: int = 224
    extractor: str  # `module:function`; called with `given`, in each worker, it returns the extractor
    given: Mapping[str, Any] = field(default_factory=dict)  # what JSON can carry

    def begin(self) -> Callable[[bytes], ImageFeatures | Refusal]:
        """Make the extractor, and return the function that extracts features from the bytes of one file."""
        return partial(decode_then, partial(_extract, called(self.extractor)(**self.given), self.side_px))

    def pack(self, made: ImageFeatures) -> tuple[dict[str, Any], bytes]:
        """Serialise the features, to send them from a worker."""
        about = {"sha256": made.sha256, "size": [made.width_px, made.height_px], "notes": made.notes}
        return about, made.thumbnail.tobytes() + made.features.tobytes()

    def unpack(self, about: Mapping[str, Any], body: bytes) -> ImageFeatures:
        """Deserialise what `pack` wrote."""
        pixels = THUMBNAIL_PX**2
        width_px, height_px = about["size"]
        return ImageFeatures(
            sha256=str(about["sha256"]),
            width_px=int(width_px),
            height_px=int(height_px),
            notes=tuple(about["notes"]),
            features=np.frombuffer(body, np.float32, offset=pixels),
            thumbnail=np.frombuffer(body, np.uint8, pixels).reshape(THUMBNAIL_PX, THUMBNAIL_PX),
        )


def _extract(extractor: Extractor, side_px: int, picture: Picture, sha256: str) -> ImageFeatures:
    whole = square(picture.image, side_px)
    small = Image.fromarray(whole).resize((THUMBNAIL_PX, THUMBNAIL_PX), Image.Resampling.BOX)
    return ImageFeatures(
        sha256=sha256,
        width_px=picture.image.width,
        height_px=picture.image.height,
        notes=picture.notes,
        features=np.ascontiguousarray(extractor(whole), dtype=np.float32),
        thumbnail=np.asarray(small),
    )


def square(image: Image.Image, side_px: int) -> Grey:
    """Shrink or enlarge a grey image to a square: all of it is shown, and its proportions are not kept."""
    return np.asarray(image.resize((side_px, side_px), Image.Resampling.LANCZOS))


@dataclass(slots=True)
class _Slot(Generic[M]):
    """One image on its way."""

    image_id: str
    content: bytes
    result: M | Refusal | None = None
    given: bool = False
    deaths: int = 0


class Passage(Closing, Iterator[tuple[str, G | Refusal]], Generic[M, G]):
    """What was made of images, in the order of `index.order(image_ids)`.

    Bytes are read in this process; at most two images per worker are on their way. An image that ends its worker is
    tried again alone, and refused as `poison` when it has ended three. Close it, or read it to its end.
    """

    notes: Counter[str]  # how many images had each note of `prepare.NOTES`, so far
    notes_of: dict[str, tuple[str, ...]]  # the notes of each image that has some
    refused: Counter[str]  # how many images were refused for each reason

    def __init__(
        self,
        index: ImageIndex,
        image_ids: Iterable[str],
        work: Work[M],
        *,
        workers: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        crew: Crew[M] | None = None,
    ) -> None:
        """Start nothing yet: the first call of next() does. 0 workers is this process, None one per core.

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
        self._contents = index.read(image_ids)
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

    def __del__(self) -> None:
        self.close()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Return what is odd about the images that were read so far, taken together."""
        return same_films(self._same)

    @property
    def pids(self) -> list[int]:
        """The worker processes, for whoever watches them."""
        return self._crew.pids if self._crew else []

    def _given(self, image_id: str, made: M) -> G:
        """Choose what is given of what was made of an image: all of it, where a subclass does not choose."""
        del image_id
        return cast("G", made)

    def _read_on(self) -> None:
        """Read images until two per worker are on their way."""
        while not self._over and len(self._slots) < max(1, AHEAD * self._size):
            following = next(self._contents, None)
            if following is None:
                self._over = True
                return
            image_id, content = following
            slot = _Slot[M](image_id, b"", content) if isinstance(content, Refusal) else _Slot[M](image_id, content)
            self._slots[self._next] = slot
            self._next += 1

    def _go_on(self, slot: _Slot[M]) -> None:
        """Bring some image further."""
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
        # An image that ended a worker has the machine to itself, so that it is tried fairly and harms no other.
        room = (0 if crew.busy else 1) if suspects else 0 if tried else crew.size - crew.busy
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


def same_films(pairs: Sequence[tuple[str, str]]) -> tuple[Notice, ...]:
    """Return how many images have the bytes of another image, if any have."""
    if not pairs:
        return ()
    first, second = pairs[0]
    same = several(len(pairs), "film has", "films have")
    words = f"{same} the same bytes as another, first {second} as {first}: both are judged"
    return (Notice(code="same_film", count=len(pairs), message=words),)


class Reading(Passage[Prepared, Film]):
    """Prepared images, in the order of `index.order(image_ids)`."""

    def _given(self, image_id: str, made: Prepared) -> Film:
        del image_id  # a film has no name: it goes to a judge
        return made.film


class FeatureStream(Passage[ImageFeatures, ImageFeatures]):
    """Images as numbers, in the order of `index.order(image_ids)`."""

    def _given(self, image_id: str, made: ImageFeatures) -> ImageFeatures:
        return replace(made, image_id=image_id)


class Crew(Generic[M]):
    """Workers, each with at most one image: which image ended a worker is never in doubt."""

    def __init__(self, size: int, work: Work[M], memory_bytes: int = MEMORY_BYTES) -> None:
        """Start the workers; they come up while the first images are read."""
        self._work = work
        self._terms = (terms(work), memory_bytes)
        self._started = False
        self._workers = [_Worker(*self._terms) for _ in range(size)]

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    @property
    def busy(self) -> int:
        """How many have an image."""
        return sum(worker.image is not None for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """The processes, for whoever watches them."""
        return [worker.process.pid for worker in self._workers]

    def give(self, number: int, content: bytes) -> None:
        """Hand an image to a worker that has none."""
        worker = next(worker for worker in self._workers if worker.image is None)
        worker.image = number
        try:
            self._meet(worker)
            worker.channel.send_bytes(content)
        except GONE:  # noticed again, and dealt with, where its reply is waited for
            return

    def wait(self) -> Iterator[tuple[int, M | Refusal | None]]:
        """Wait for at least one worker: the number of its image with what came of it, None if the worker died."""
        channels: dict[object, _Worker] = {w.channel: w for w in self._workers if w.image is not None}
        for channel in wait([w.channel for w in channels.values()]):
            worker = channels[channel]
            number = worker.image
            assert number is not None  # noqa: S101  only those with an image are waited for
            try:
                result = unpack(self._work, worker.channel.recv_bytes(MOST_BYTES))
            except (*GONE, *GARBLED):
                worker.close()
                self._workers[self._workers.index(worker)] = _Worker(*self._terms)
                yield number, None
                continue
            worker.image = None
            yield number, result

    def close(self) -> None:
        """End all workers."""
        while self._workers:
            self._workers.pop().close()

    def _meet(self, worker: _Worker) -> None:
        """Wait until a new worker says that it is up."""
        if worker.ready:
            return
        try:
            worker.ready = self._started = worker.channel.recv_bytes(len(READY)) == READY
        except GONE:
            if self._started:
                raise
            raise FilmError("the process that reads films does not start. Type: bpals doctor") from None


class _Worker:
    """One process and the channel to it."""

    def __init__(self, work: str, memory_bytes: int) -> None:
        self.channel, theirs = Pipe()
        words = [str(theirs.fileno()), work, str(memory_bytes)]
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)  # noqa: PTH109  as Python itself reads it
        self.process = subprocess.Popen(  # noqa: S603  ourselves
            [sys.executable, "-P", "-m", "bpals.images.worker", *words],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # decoders print what they find in an image, and it may name a patient
            env=os.environ | {"PYTHONPATH": path, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self.ready = False
        self.image: int | None = None  # the number of the image it has

    def close(self) -> None:
        """End it at once; it holds nothing that is not also here."""
        self.channel.close()
        self.process.kill()
        self.process.wait()
