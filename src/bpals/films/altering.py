"""Altered copies of films: what wrong films would look like, made of your own, for the checks to learn from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.films.looking import Eye, Look, square
from bpals.films.passage import Passage
from bpals.films.prepare import decode
from bpals.films.refused import Refused
from bpals.films.shelf import Shelf
from bpals.films.work import called
from bpals.types import Refusal

Floats = npt.NDArray[np.float32]

KEPT = 0.6
"""The part of each side that is left of a cropped copy."""


def inverted(image: Image.Image) -> Image.Image:
    """Make black white."""
    return image.point([255 - grey for grey in range(256)])


def cropped(image: Image.Image) -> Image.Image:
    """Cut out the middle."""
    width, height = image.size
    across, down = round(width * (1 - KEPT) / 2), round(height * (1 - KEPT) / 2)
    return image.crop((across, down, width - across, height - down))


def shrunk(image: Image.Image) -> Image.Image:
    """Keep all of the film in as many pixels as a cropped copy has: few pixels alone are no sign of a crop."""
    sides = [max(1, round(side * KEPT)) for side in image.size]
    return image.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)


COPIES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "inverted": inverted,
    "turned_90": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "turned_180": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "turned_270": lambda image: image.transpose(Image.Transpose.ROTATE_270),
    "cropped": cropped,
    "shrunk": shrunk,
}
"""What is made of a film, in this order. Degrees are anticlockwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What an eye made of the altered copies of one film."""

    sha256: str
    notes: tuple[str, ...]
    features: Floats
    """A row a copy, in the order of COPIES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Altering:
    """How altered copies are looked at: as the films themselves are, see `looking.Look`."""

    side_px: int
    eye: str
    given: Mapping[str, Any]

    @classmethod
    def like(cls, look: Look) -> Altering:
        """Look at copies as at the films."""
        return cls(side_px=look.side_px, eye=look.eye, given=look.given)

    def as_dict(self) -> dict[str, Any]:
        """Write it out for a worker."""
        return asdict(self)

    def begin(self) -> Callable[[bytes], Copies | Refusal]:
        """Make the eye, and give what looks at the copies of one film."""
        eye: Eye = called(self.eye)(**self.given)

        def look(content: bytes) -> Copies | Refusal:
            try:
                picture = decode(content)
            except Refused as refused:
                return refused.refusal
            rows = [eye(square(alter(picture.image), self.side_px)) for alter in COPIES.values()]
            return Copies(
                sha256=hashlib.sha256(content).hexdigest(),
                notes=picture.notes,
                features=np.stack(rows).astype(np.float32),
            )

        return look

    def pack(self, made: Copies) -> tuple[dict[str, Any], bytes]:
        """Take apart what was seen, for the way from a worker."""
        return {"sha256": made.sha256, "notes": made.notes}, made.features.tobytes()

    def unpack(self, about: Mapping[str, Any], body: bytes) -> Copies:
        """Put together what was seen."""
        features = np.frombuffer(body, np.float32).reshape(len(COPIES), -1)
        return Copies(sha256=str(about["sha256"]), notes=tuple(about["notes"]), features=features)


class LookingAtCopies(Passage[Copies, Copies]):
    """The altered copies of films, looked at, in the order of `shelf.order(image_ids)`."""

    def _given(self, image_id: str, made: Copies) -> Copies:
        del image_id
        return made


def looked_at_copies(
    shelf: Shelf, image_ids: Iterable[str], look: Look, *, workers: int | None = None
) -> LookingAtCopies:
    """Look at the altered copies of films; 0 workers look in this process."""
    return LookingAtCopies(shelf, image_ids, Altering.like(look), workers=workers)
