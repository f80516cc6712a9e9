"""Looking: films of a shelf, shown one after another to a function that makes numbers of them.

No picture is written on the way: bytes -> 8-bit grey -> a grey square -> numbers. The function is made in each worker
from its name, so that nothing but words goes to a worker, and nothing but words and numbers comes back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.films.passage import Passage
from bpals.films.picture import Picture
from bpals.films.prepare import decode
from bpals.films.refused import Refused
from bpals.films.shelf import Shelf
from bpals.films.work import called
from bpals.types import Refusal

THUMBNAIL_PX = 32

Grey = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Eye = Callable[[Grey], Floats]
"""Makes a row of numbers of a grey square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One film, looked at."""

    image_id: str = ""
    sha256: str
    """Of the file's bytes: which film this is."""
    width_px: int
    height_px: int
    """Of the film as it lies in its file."""
    notes: tuple[str, ...]
    """Keys of `prepare.NOTES`."""
    features: Floats
    """What the eye made of it."""
    thumbnail: Grey
    """The film at 32 x 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How films are looked at: the side of the square, and the eye, by the name of what makes it."""

    side_px: int = 224
    eye: str
    """`module:function`; called with `given`, in each worker, it gives the eye."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What JSON can carry."""

    def as_dict(self) -> dict[str, Any]:
        """Write it out for a worker."""
        return asdict(self)

    def begin(self) -> Callable[[bytes], Seen | Refusal]:
        """Make the eye, and give what looks at the bytes of one film."""
        eye: Eye = called(self.eye)(**self.given)

        def look(content: bytes) -> Seen | Refusal:
            try:
                picture = decode(content)
            except Refused as refused:
                return refused.refusal
            return _seen(picture, eye, self.side_px, hashlib.sha256(content).hexdigest())

        return look

    def pack(self, made: Seen) -> tuple[dict[str, Any], bytes]:
        """Take apart what was seen, for the way from a worker."""
        about = {"sha256": made.sha256, "size": [made.width_px, made.height_px], "notes": made.notes}
        return about, made.thumbnail.tobytes() + made.features.tobytes()

    def unpack(self, about: Mapping[str, Any], body: bytes) -> Seen:
        """Put together what was seen."""
        pixels = THUMBNAIL_PX**2
        width_px, height_px = about["size"]
        return Seen(
            sha256=str(about["sha256"]),
            width_px=int(width_px),
            height_px=int(height_px),
            notes=tuple(about["notes"]),
            features=np.frombuffer(body, np.float32, offset=pixels),
            thumbnail=np.frombuffer(body, np.uint8, pixels).reshape(THUMBNAIL_PX, THUMBNAIL_PX),
        )


class Looking(Passage[Seen, Seen]):
    """Films, looked at, in the order of `shelf.order(image_ids)`."""

    def _given(self, image_id: str, made: Seen) -> Seen:
        return replace(made, image_id=image_id)


def looked(shelf: Shelf, image_ids: Iterable[str], look: Look, *, workers: int | None = None) -> Looking:
    """Look at films, in the order of `shelf.order(image_ids)`; 0 workers look in this process."""
    return Looking(shelf, image_ids, look, workers=workers)


def square(image: Image.Image, side_px: int) -> Grey:
    """Shrink or enlarge a grey film to a square: all of it is shown, and its proportions are not kept."""
    return np.asarray(image.resize((side_px, side_px), Image.Resampling.LANCZOS))


def _seen(picture: Picture, eye: Eye, side_px: int, sha256: str) -> Seen:
    shown = square(picture.image, side_px)
    small = Image.fromarray(shown).resize((THUMBNAIL_PX, THUMBNAIL_PX), Image.Resampling.BOX)
    return Seen(
        sha256=sha256,
        width_px=picture.image.width,
        height_px=picture.image.height,
        notes=picture.notes,
        features=np.ascontiguousarray(eye(shown), dtype=np.float32),
        thumbnail=np.asarray(small),
    )
