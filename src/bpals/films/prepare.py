"""Preparing a film: the bytes of a file become the grey PNG that a judge is shown, by one fixed rule.

1. What it is, by its first bytes and not by its name: PNG, JPEG or DICOM.
2. Its size, from its header, before anything is decoded.
3. 8-bit grey: see NOTES for what is done to the films that are something else.
4. Longer side to `side_px`, never enlarged, proportions kept.
5. Encoded anew: pixels and nothing else.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from PIL import Image

from bpals.films.dicom import decode_dicom
from bpals.films.kinds import kind_of
from bpals.films.picture import Picture, decode_jpeg, decode_png
from bpals.films.refused import Refused
from bpals.types import Film, Refusal

NOTES = {
    "deep": "more than 8 bits: shown by its window, or else from its darkest to its brightest value",
    "inverted": "stored white on black (MONOCHROME1): turned back",
    "colour": "its channels differ: weighed .299 red, .587 green, .114 blue",
    "palette": "stored as a palette: looked up",
    "alpha": "has transparency: left out",
    "turned": "turned upright by its EXIF orientation",
    "lateral": "a lateral view, by its DICOM tag",
    "burned_in": "says that text is burnt into its pixels (BurnedInAnnotation = YES)",
}
"""What a film was, and what was done about it."""

DECODERS = {"png": decode_png, "jpeg": decode_jpeg, "dicom": decode_dicom}

FLAT = 2
"""Grey levels between the darkest and the brightest pixel, up to which a film shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is done to every film; part of who a judge is."""

    side_px: int = 512
    codec: Literal["png"] = "png"
    interpolation: Literal["lanczos"] = "lanczos"
    rule: int = 1
    """Counts up when the way to 8-bit grey changes."""

    def as_dict(self) -> dict[str, Any]:
        """Write it out for the judge's card, and for a worker."""
        return asdict(self)

    def begin(self) -> Callable[[bytes], Prepared | Refusal]:
        """Give what prepares the bytes of one film."""
        return partial(prepare, preparation=self)

    def pack(self, made: Prepared) -> tuple[dict[str, Any], bytes]:
        """Take a film apart for the way from a worker: words, and pixels."""
        film = made.film
        about = {"sha256": film.sha256, "width_px": film.width_px, "height_px": film.height_px}
        return {"film": about, "notes": made.notes}, film.png

    def unpack(self, about: Mapping[str, Any], body: bytes) -> Prepared:
        """Put a film together again."""
        return Prepared(film=Film(png=body, **about["film"]), notes=tuple(about["notes"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A film as a judge sees it, and what it was before."""

    film: Film
    notes: tuple[str, ...] = ()
    """Keys of NOTES."""

    @property
    def sha256(self) -> str:
        """Of the file's bytes: which film this is."""
        return self.film.sha256


def prepare(content: bytes, preparation: Preparation) -> Prepared | Refusal:
    """Make the film of a file's bytes, or say why it cannot be shown; the hash is of the same bytes."""
    try:
        picture = decode(content)
        return _encode(picture, preparation, sha256=hashlib.sha256(content).hexdigest())
    except Refused as refused:
        return refused.refusal


def decode(content: bytes) -> Picture:
    """Decode a file into 8-bit grey at its full size, or raise Refused."""
    picture = DECODERS[kind_of(content)](content)
    low, high = picture.image.getextrema()
    if high - low <= FLAT:  # type: ignore[operator]  # a grey image has one pair
        raise Refused("blank", "every pixel has the same grey")
    return picture


def _encode(picture: Picture, preparation: Preparation, *, sha256: str) -> Prepared:
    image = picture.image
    longer = max(image.size)
    if longer > preparation.side_px:
        shrunk = tuple(max(1, round(side * preparation.side_px / longer)) for side in image.size)
        image = image.resize((shrunk[0], shrunk[1]), Image.Resampling.LANCZOS)
    bare = Image.frombytes("L", image.size, image.tobytes())
    written = io.BytesIO()
    # Z_RLE on films: a seventh of the time of zlib's default, and 5 % fewer bytes.
    bare.save(written, format="PNG", compress_level=6, compress_type=zlib.Z_RLE)
    film = Film(sha256=sha256, png=written.getvalue(), width_px=image.width, height_px=image.height)
    return Prepared(film=film, notes=picture.notes)
