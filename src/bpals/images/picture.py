"""Decoding PNG and JPEG: into 8-bit grey for a judge, or into every grey value for a reader who sets the window."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.images import formats
from bpals.images.formats import Refused

ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # EXIF orientation -> what puts the image upright
# What Pillow raises at a file whose header is sound and whose pixels are not.
UNDECODABLE = (OSError, ValueError, SyntaxError, struct.error, LookupError, TypeError, OverflowError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One image, decoded into 8-bit grey."""

    image: Image.Image
    notes: tuple[str, ...]  # keys of `prepare.NOTES`


@dataclass(frozen=True, slots=True, kw_only=True)
class Plate:
    """One image with every grey value that it has: 0 is darkest, and a display shows `level` half bright."""

    values: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
    bits: int  # of one value
    window: float  # how many values lie between black and white, around the level
    level: float
    notes: tuple[str, ...]  # keys of `prepare.NOTES`
    slope: float = 1.0
    intercept: float = 0.0  # a value times the slope, plus this, is what the file calls it
    spacing_mm: tuple[float, float] | None = None  # from one pixel to the next, down and across

    @classmethod
    def of(cls, picture: Picture) -> Plate:
        """Take a picture of 8 bits as it is."""
        return cls(values=np.asarray(picture.image), bits=8, window=255.0, level=127.5, notes=picture.notes)


def decode_png(content: bytes) -> Picture:
    """Decode a PNG that may have any depth and colour."""
    image, notes = _open_png(content)
    if image.mode.startswith("I"):
        return Picture(image=stretch(np.asarray(image)), notes=notes)
    return _grey(image, notes)


def expose_png(content: bytes) -> Plate:
    """Decode a PNG and keep all 16 bits where it is grey and has them."""
    image, notes = _open_png(content)
    if not image.mode.startswith("I"):
        return Plate.of(_grey(image, notes))
    values = np.asarray(image).astype(np.uint16)
    window, level = span(values)
    return Plate(values=values, bits=16, window=window, level=level, notes=notes)


def _open_png(content: bytes) -> tuple[Image.Image, tuple[str, ...]]:
    notes = ("deep",) if formats.read_png_header(content).depth == 16 else ()
    return _load(formats.check_png(content), "PNG"), notes


def decode_jpeg(content: bytes) -> Picture:
    """Decode a JPEG and put it upright as its EXIF says."""
    formats.check_jpeg(content)
    image = _load(content, "JPEG")
    turn = TURNS.get(_orientation(image))
    if turn is None:
        return _grey(image, ())
    picture = _grey(image, ("turned",))
    return Picture(image=picture.image.transpose(turn), notes=picture.notes)


def stretch(values: npt.NDArray[Any], *, padding: int | None = None) -> Image.Image:
    """Spread values that come without a window from the darkest (0) to the brightest (255) that is there."""
    low, high = _extremes(values if padding is None else values[values != padding])
    if high == low:
        return Image.fromarray(np.zeros(values.shape, np.uint8))
    table = np.arange(high - low + 1, dtype=np.float64) * (255.0 / (high - low))
    shown = np.rint(table).astype(np.uint8)
    return Image.fromarray(shown[np.clip(values, low, high).astype(np.int64) - low])


def span(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Give the window and level that show values from the darkest to the brightest that is there."""
    low, high = _extremes(values)
    return float(max(high - low, 1)), (low + high) / 2


def _extremes(values: npt.NDArray[Any]) -> tuple[int, int]:
    return (int(values.min()), int(values.max())) if values.size else (0, 0)


def _load(content: bytes, kind: str) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(content), formats=(kind,))
        image.load()
    except UNDECODABLE as error:
        if "truncated" in str(error):
            raise Refused("truncated", f"the {kind} ends early") from None
        raise Refused("corrupt", f"the {kind} cannot be decoded") from None
    return image


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except UNDECODABLE:
        return 1


def _grey(image: Image.Image, notes: tuple[str, ...]) -> Picture:
    """Make 8-bit grey: alpha is left out, a palette is looked up, colours weigh .299, .587 and .114."""
    if image.mode in {"LA", "RGBA", "PA"} or "transparency" in image.info:
        notes = (*notes, "alpha")
    if image.mode in {"P", "PA"}:
        notes = (*notes, "palette")
    if image.mode == "LA":
        return Picture(image=image.getchannel("L"), notes=notes)
    if image.mode in {"L", "1"}:
        return Picture(image=image.convert("L"), notes=notes)
    colours = image.convert("RGB")
    red, green, blue = colours.split()
    # A grey image saved in colour must equal its grey original: weighing three equal channels could round.
    if red.tobytes() == green.tobytes() == blue.tobytes():
        return Picture(image=red, notes=notes)
    return Picture(image=colours.convert("L"), notes=(*notes, "colour"))
