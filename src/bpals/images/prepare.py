"""Preparing an image: the bytes of a file become the grey PNG that a judge is shown, by one fixed rule.

1. What it is, by its first bytes and not by its name: PNG, JPEG or DICOM.
2. Its size, from its header, before anything is decoded.
3. 8-bit grey: see NOTES for what is done to the images that are something else.
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
from typing import Any, Literal, TypeVar

from PIL import Image

from bpals.images.dicom import MAGIC, MAGIC_AT, decode_dicom, dicom_size
from bpals.images.formats import JPEG_START, PNG_START, Refused, check_bytes, read_size
from bpals.images.picture import Picture, decode_jpeg, decode_png
from bpals.types import Film, Refusal

T = TypeVar("T")
Kind = Literal["png", "jpeg", "dicom"]

DECODERS = {"png": decode_png, "jpeg": decode_jpeg, "dicom": decode_dicom}
# How images begin that are not read here.
OTHERS = {
    b"GIF8": "a GIF", b"BM": "a BMP", b"II*\0": "a TIFF", b"MM\0*": "a TIFF", b"\0\0\x01\0": "an icon",
    b"\0\0\0\x0cjP  ": "a JPEG 2000", b"\xff\x4f\xff\x51": "a JPEG 2000", b"8BPS": "a Photoshop file",
}  # fmt: skip
FLAT = 2  # grey levels between the darkest and the brightest pixel, up to which an image shows nothing
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
"""What an image was, and what was done about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is done to every image; part of a judge's identity."""

    side_px: int = 512
    codec: Literal["png"] = "png"
    interpolation: Literal["lanczos"] = "lanczos"
    rule: int = 1  # counts up when the way to 8-bit grey changes

    def as_dict(self) -> dict[str, Any]:
        """Write it out for the judge's card, and for a worker."""
        return asdict(self)

    def begin(self) -> Callable[[bytes], Prepared | Refusal]:
        """Give the function that prepares the bytes of one file."""
        return partial(prepare, preparation=self)

    def pack(self, made: Prepared) -> tuple[dict[str, Any], bytes]:
        """Take an image apart for the way from a worker: words, and pixels."""
        film = made.film
        about = {"sha256": film.sha256, "width_px": film.width_px, "height_px": film.height_px}
        return {"film": about, "notes": made.notes}, film.png

    def unpack(self, about: Mapping[str, Any], body: bytes) -> Prepared:
        """Put an image together again."""
        return Prepared(film=Film(png=body, **about["film"]), notes=tuple(about["notes"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An image as a judge sees it, and what it was before."""

    film: Film
    notes: tuple[str, ...] = ()  # keys of NOTES

    @property
    def sha256(self) -> str:
        """Of the file's bytes: which image this is."""
        return self.film.sha256


def prepare(content: bytes, preparation: Preparation) -> Prepared | Refusal:
    """Make the image of a file's bytes, or say why it cannot be shown; the hash is of the same bytes."""
    return decode_then(partial(_encode, preparation), content)


def decode_then(make: Callable[[Picture, str], T], content: bytes) -> T | Refusal:
    """Decode a file and make something of its picture and its sha256, or give the reason why it is refused."""
    try:
        return make(decode(content), hashlib.sha256(content).hexdigest())
    except Refused as refused:
        return refused.refusal


def decode(content: bytes) -> Picture:
    """Decode a file into 8-bit grey at its full size, or raise Refused."""
    picture = DECODERS[kind_of(content)](content)
    low, high = picture.image.getextrema()
    if high - low <= FLAT:  # type: ignore[operator]  # a grey image has one pair
        raise Refused("blank", "every pixel has the same grey")
    return picture


def _encode(preparation: Preparation, picture: Picture, sha256: str) -> Prepared:
    image = picture.image
    longer = max(image.size)
    if longer > preparation.side_px:
        width, height = (max(1, round(side * preparation.side_px / longer)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    # Pillow writes what a file said about itself into the PNG: an image made of bare pixels has nothing to say.
    bare = Image.frombytes("L", image.size, image.tobytes())
    # Z_RLE on chest images: a seventh of the time of zlib's default, and 5 % fewer bytes.
    bare.save(written, format="PNG", compress_level=6, compress_type=zlib.Z_RLE)
    film = Film(sha256=sha256, png=written.getvalue(), width_px=image.width, height_px=image.height)
    return Prepared(film=film, notes=picture.notes)


def kind_of(content: bytes) -> Kind:
    """Say what a file is, or refuse it: for its size, or because it is no image that is read here."""
    check_bytes(len(content))
    if content.startswith(PNG_START):
        return "png"
    if content.startswith(JPEG_START):
        return "jpeg"
    if is_dicom(content):
        return "dicom"
    raise _other_file(content)


def _other_file(content: bytes) -> Refused:
    """Say what a file is that is neither PNG, JPEG nor DICOM."""
    known = next((what for start, what in OTHERS.items() if content.startswith(start)), "")
    head = content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        known = "a WebP"
    elif b"<svg" in head:
        known = "an SVG, which is never read"
    if known:
        return Refused("format", f"it is {known}; images are PNG, JPEG or DICOM")
    if content and (PNG_START.startswith(content) or JPEG_START.startswith(content)):
        return Refused("truncated", f"the file ends after {len(content)} bytes")
    what = "no PNG, JPEG or DICOM"
    if not content:
        what = "empty"
    elif head.startswith(b"<"):
        what = "a web page, such as a server sends instead of a file"
    elif not head.strip(b"\0"):
        what = "nothing but zeros"
    return Refused("not_an_image", f"the file is {what}")


def is_dicom(content: bytes) -> bool:
    """Say whether a file is DICOM."""
    return content[MAGIC_AT : MAGIC_AT + len(MAGIC)] == MAGIC


def size_of(content: bytes) -> tuple[int, int] | None:
    """Give width and height in pixels; None for a file that does not say."""
    if content.startswith((PNG_START, JPEG_START)) or not is_dicom(content):
        return read_size(content)
    return dicom_size(content)
