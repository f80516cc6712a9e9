"""Decoding a DICOM image: sizes checked before anything is allocated, then window, rescale and polarity applied.

Only the tags in TAGS are read. The stored values have at most 16 bits, so that what a display would show is
worked out once for each value that there can be, and looked up for each pixel.
"""

from __future__ import annotations

import io
import logging
import math
import struct
import warnings
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.errors import MissingExtra
from bpals.images.formats import JPEG_START, MOST_BYTES, Inflated, Refused, check_size, read_jpeg_header
from bpals.images.picture import Picture, Plate, span, stretch

MAGIC_AT, MAGIC = 128, b"DICM"
DEFLATED = "1.2.840.10008.1.2.1.99"
NATIVE = {"1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2", DEFLATED}
RLE = "1.2.840.10008.1.2.5"
# Value representations whose length has four bytes.
LONG = {b"OB", b"OW", b"OF", b"SQ", b"UT", b"UN", b"OD", b"OL", b"UC", b"UR", b"OV", b"SV", b"UV"}
PIECE = 1 << 20

# All that is read of a file; what is not read cannot leave.
TAGS = (
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows", "Columns",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelData", "PixelPaddingValue",
    "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence",
    "ViewPosition", "BurnedInAnnotation", "PixelSpacing", "ImagerPixelSpacing",
)  # fmt: skip

GREYS = {"MONOCHROME1", "MONOCHROME2"}
COLOURS = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
LATERAL = {"LL", "RL", "LLD", "RLD", "LLO", "RLO", "LATERAL"}
# What pydicom raises at a file that is not what it says.
UNREADABLE = (
    ArithmeticError, AttributeError, AssertionError, EOFError, LookupError, OSError, RuntimeError, TypeError,
    ValueError, struct.error, zlib.error,
)  # fmt: skip


def decode_dicom(content: bytes) -> Picture:
    """Decode one image as a display would show it."""
    with _decoding(content) as (record, stored, notes):
        if record.PhotometricInterpretation in COLOURS:
            return _uncoloured(stored, notes)
        image = _displayed(record, stored)
        if "inverted" in notes:
            image = Image.fromarray(np.uint8(255) - np.asarray(image))
        return Picture(image=image, notes=notes)


def expose_dicom(content: bytes) -> Plate:
    """Decode one image with every value that it stores, and the window through which a display would show it."""
    with _decoding(content) as (record, stored, notes):
        if record.PhotometricInterpretation in COLOURS:
            return Plate.of(_uncoloured(stored, notes))
        places, window, level, intercept, slope = _scale(record, stored)
        values, top = places[_codes(record, stored)], int(places.max())
        if "inverted" in notes:
            values, level, slope, intercept = top - values, top - level, -slope, intercept + slope * top
        return Plate(
            values=values,
            bits=max(8, top.bit_length()),
            window=window,
            level=level,
            notes=notes,
            slope=slope,
            intercept=intercept,
            spacing_mm=_spacing(record),
        )


@contextmanager
def _decoding(content: bytes) -> Generator[tuple[Any, npt.NDArray[Any], tuple[str, ...]], None, None]:
    """Give the record, what it stores, and the notes; whatever fails inside is refused as a damaged file."""
    syntax, start = _transfer_syntax(content)
    if syntax == DEFLATED:
        _check_deflated(content, start)
    try:
        import pydicom
        from pydicom.errors import BytesLengthException, InvalidDicomError
    except ImportError:
        raise MissingExtra.of("A film in DICOM", "dicom") from None
    with _silence():
        try:
            record = pydicom.dcmread(io.BytesIO(content), specific_tags=list(TAGS))
            yield record, *_stored(record, syntax)
        except EOFError:
            raise Refused("truncated", f"the DICOM ends early, after {len(content):,} bytes") from None
        except (BytesLengthException, InvalidDicomError, *UNREADABLE):
            raise Refused("corrupt", "the DICOM does not decode as its header says") from None


def dicom_size(content: bytes) -> tuple[int, int] | None:
    """Give width and height in pixels; None where the file, or a missing package, does not say."""
    try:
        import pydicom
    except ImportError:
        return None
    with _silence():
        try:
            found = pydicom.dcmread(io.BytesIO(content), specific_tags=["Rows", "Columns"], stop_before_pixels=True)
            return int(found.Columns), int(found.Rows)
        except UNREADABLE:
            return None


@contextmanager
def _silence() -> Iterator[None]:
    """Keep pydicom from warning and logging: oddities are refused or noted, and tags name patients."""
    log = logging.getLogger("pydicom")
    was = log.level
    with warnings.catch_warnings(action="ignore"):
        log.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            log.setLevel(was)


def _transfer_syntax(content: bytes) -> tuple[str, int]:
    """Read how the file is written from its first group, and give where the rest starts."""
    at, syntax = MAGIC_AT + len(MAGIC), ""
    while content[at : at + 2] == b"\x02\x00" and at + 12 <= len(content):
        element, kind, short = struct.unpack_from("<H2sH", content, at + 2)
        long = kind in LONG
        length = struct.unpack_from("<I", content, at + 8)[0] if long else short
        at += 12 if long else 8
        if element == 0x0010:
            syntax = content[at : at + length].decode("ascii", "replace").rstrip("\0 ")
        at += length
    if not syntax:
        raise Refused("truncated", "the DICOM ends inside its first header, or has none")
    return syntax, at


def _check_deflated(content: bytes, start: int) -> None:
    """Count what the file unpacks to and keep none of it."""
    packed = Inflated(most=MOST_BYTES, piece=PIECE, stream=zlib.decompressobj(-zlib.MAX_WBITS))
    try:
        packed.feed(memoryview(content)[start:])
        packed.end()
    except zlib.error:
        raise Refused("corrupt", "the DICOM does not unpack") from None
    if packed.count > MOST_BYTES:
        raise Refused("bomb", f"the DICOM of {len(content):,} bytes unpacks to over {MOST_BYTES:,}")
    if not packed.stream.eof:
        raise Refused("truncated", f"the DICOM ends early, after {len(content):,} bytes")


def _stored(record: Any, syntax: str) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Check the record, decode what it stores, and note what it is."""
    _check_header(record)
    _check_pixel_data(record, syntax)
    stored = record.pixel_array
    if stored.shape[:2] != (record.Rows, record.Columns):
        raise Refused("unexpected_size", "the DICOM holds another number of pixels than its header says")
    found = {
        "lateral": str(record.get("ViewPosition", "") or "").upper() in LATERAL,
        "burned_in": str(record.get("BurnedInAnnotation", "") or "").upper() == "YES",
        "deep": record.PhotometricInterpretation in GREYS and record.BitsStored > 8,
        "inverted": record.PhotometricInterpretation == "MONOCHROME1",
    }
    return stored, tuple(note for note, holds in found.items() if holds)


def _uncoloured(stored: npt.NDArray[Any], notes: tuple[str, ...]) -> Picture:
    return Picture(image=Image.fromarray(stored.astype(np.uint8)).convert("L"), notes=(*notes, "colour"))


def _check_header(record: Any) -> None:
    """Refuse by what the header says: size, frames, depth, colour."""
    if "PixelData" not in record or not record.get("Rows") or not record.get("Columns"):
        raise Refused("truncated", "the DICOM ends before its pixels, or has none")
    check_size(int(record.Columns), int(record.Rows))
    frames = int(record.get("NumberOfFrames") or 1)
    if frames != 1:
        raise Refused("frames", f"the DICOM has {frames:,} frames; an image has one")
    colour = record.PhotometricInterpretation in COLOURS
    if not colour and record.PhotometricInterpretation not in GREYS:
        raise Refused("codec", "the DICOM is neither grey nor RGB: save it as PNG")
    if record.SamplesPerPixel != (3 if colour else 1) or record.BitsAllocated not in ({8} if colour else {8, 16}):
        raise Refused("codec", f"the DICOM has {record.BitsAllocated} bits per value, which no image has")
    if not 0 < record.BitsStored <= record.HighBit + 1 <= record.BitsAllocated:
        raise Refused("corrupt", "the DICOM says that it stores more bits than it has")


def _check_pixel_data(record: Any, syntax: str) -> None:
    """Compare the size that the header states with what is there, before pixels are allocated."""
    rows, columns, width = int(record.Rows), int(record.Columns), record.BitsAllocated // 8
    if syntax in NATIVE:
        line = columns * record.SamplesPerPixel * width
        if record.PhotometricInterpretation == "YBR_FULL_422":
            line = columns * 2 * width
        if len(record.PixelData) < rows * line:
            raise Refused("truncated", f"the DICOM has fewer pixels than the {columns:,} x {rows:,} of its header")
        if len(record.PixelData) > (rows + 1) * line:
            raise Refused("unexpected_size", f"the DICOM has more pixels than the {columns:,} x {rows:,} of its header")
        return
    from pydicom.encaps import get_frame
    from pydicom.pixels.decoders.base import get_decoder

    try:
        readable = get_decoder(syntax).is_available
    except NotImplementedError:
        readable = False
    if not readable:
        raise Refused("codec", f"pixels packed as {syntax} are not read here: unpack the DICOM first")
    if syntax == RLE:
        return
    try:
        frame = bytes(get_frame(record.PixelData, 0, number_of_frames=1))
    except UNREADABLE:
        raise Refused("truncated", "the packed pixels of the DICOM end early") from None
    if _codestream_size(frame) != (columns, rows):
        raise Refused("unexpected_size", f"the picture inside the DICOM is not {columns:,} x {rows:,} as it says")


def _codestream_size(frame: bytes) -> tuple[int, int]:
    """Read width and height from a JPEG, JPEG-LS or JPEG 2000 stream, which decoders trust more than the DICOM."""
    if frame.startswith(JPEG_START):
        header = read_jpeg_header(frame)
        return header.width_px, header.height_px
    start = frame.find(b"\xff\x4f\xff\x51", 0, 4096)
    if start < 0 or len(frame) < start + 24:
        raise Refused("codec", "the packed pixels of the DICOM are neither JPEG nor JPEG 2000: unpack it first")
    right, bottom, left, top = struct.unpack_from(">IIII", frame, start + 8)
    return right - left, bottom - top


def _displayed(record: Any, stored: npt.NDArray[Any]) -> Image.Image:
    """Look up what each stored value looks like: rescale, then window, or the full range where there is none."""
    codes, values = _codes(record, stored), _meanings(record)
    shown = _window(record, _rescaled(record, values))
    if shown is None:
        padding = record.get("PixelPaddingValue")
        rising = _rescale(record)[0] > 0
        image = stretch(values[codes], padding=None if padding is None else int(padding))
        return image if rising else Image.fromarray(np.uint8(255) - np.asarray(image))
    return Image.fromarray(np.rint(np.clip(shown, 0, 1) * 255).astype(np.uint8)[codes])


def _scale(record: Any, stored: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint16], float, float, float, float]:
    """Give the place of each stored code among the greys, then window, level, the value of place 0, and the step."""
    values = _meanings(record)
    rescaled = _rescaled(record, values)
    linear = _linear(record)
    bent = record.get("VOILUTSequence") or (linear is not None and linear.bent)
    curve = _window(record, rescaled) if bent else None
    if curve is not None:  # A table or an S-curve is no window: its outcome is what is windowed further.
        return np.rint(np.clip(curve, 0, 1) * 65_535).astype(np.uint16), 65_535.0, 32_767.5, 0.0, 1.0
    step = 1.0 if record.get("ModalityLUTSequence") else abs(_rescale(record)[0])
    origin = float(rescaled.min())
    places = np.rint((rescaled - origin) / step).astype(np.uint16)
    if linear is not None:
        return places, linear.width / step, (linear.centre - origin) / step, origin, step
    codes, padding = _codes(record, stored), record.get("PixelPaddingValue")
    window, level = span(places[codes if padding is None else codes[values[codes] != int(padding)]])
    return places, window, level, origin, step


def _spacing(record: Any) -> tuple[float, float] | None:
    """Read how far apart pixels lie: in the patient where the file says so, else on the detector."""
    for name in ("PixelSpacing", "ImagerPixelSpacing"):
        several = record.get(name)
        if several is not None and not isinstance(several, str) and len(several) == 2:
            down, across = float(several[0]), float(several[1])
            if math.isfinite(down) and math.isfinite(across) and down > 0 and across > 0:
                return down, across
    return None


def _meanings(record: Any) -> npt.NDArray[np.int64]:
    """Give the value that each code stands for, with its sign."""
    bits = int(record.BitsStored)
    every = np.arange(1 << bits, dtype=np.int64)
    return np.where(every >= 1 << (bits - 1), every - (1 << bits), every) if record.PixelRepresentation == 1 else every


def _codes(record: Any, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give the stored bits alone."""
    # Old images keep overlays, with a patient's name, in the bits above.
    wide = stored.view(np.dtype(f"u{stored.dtype.itemsize}")) if stored.dtype.kind == "i" else stored
    return (wide >> (int(record.HighBit) + 1 - int(record.BitsStored))) & ((1 << int(record.BitsStored)) - 1)


def _rescale(record: Any) -> tuple[float, float]:
    slope, intercept = float(record.get("RescaleSlope") or 1), float(record.get("RescaleIntercept") or 0)
    if not math.isfinite(slope) or not math.isfinite(intercept):
        raise Refused("corrupt", "the rescale slope of the DICOM is not a number")
    return slope, intercept


def _rescaled(record: Any, values: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    if record.get("ModalityLUTSequence"):
        from pydicom.pixels.processing import apply_modality_lut

        return np.asarray(apply_modality_lut(values, record))
    slope, intercept = _rescale(record)
    return values * slope + intercept


def _window(record: Any, values: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """Map values to 0 (black) .. 1 (white) by the first window, or table, that the file has."""
    if record.get("VOILUTSequence"):
        from pydicom.pixels.processing import apply_voi

        depth = int(record.VOILUTSequence[0].LUTDescriptor[2])
        shown = np.asarray(apply_voi(values.astype(np.int64), record, index=0), np.float64) / ((1 << depth) - 1)
    elif (linear := _linear(record)) is None:
        return None
    elif linear.bent:
        shown = np.asarray(1 / (1 + np.exp(np.clip(-4 * (values - linear.centre) / linear.width, -700, 700))))
    else:
        shown = np.asarray((values - linear.centre) / linear.width + 0.5)
    if not np.isfinite(shown).all():
        raise Refused("corrupt", "the window of the DICOM is not a number")
    return shown


class _Linear(NamedTuple):
    """The first window of an image, as the middle and the length of the line from black to white."""

    centre: float
    width: float
    bent: bool  # True where the line is an S-curve


def _linear(record: Any) -> _Linear | None:
    # An image may list several windows; a display starts with the first.
    centre, width = (
        None if value is None or value == "" else float(value[0] if hasattr(value, "append") else value)
        for value in (record.get("WindowCenter"), record.get("WindowWidth"))
    )
    if centre is None or width is None:
        return None
    function = str(record.get("VOILUTFunction") or "LINEAR").upper()
    if not width > 0 or (width < 1 and function == "LINEAR"):
        raise Refused("corrupt", f"the window of the DICOM is {width:g} wide")
    if not math.isfinite(centre) or not math.isfinite(width):
        raise Refused("corrupt", "the window of the DICOM is not a number")
    if function in {"SIGMOID", "LINEAR_EXACT"}:
        return _Linear(centre, width, bent=function == "SIGMOID")
    return _Linear(centre - 0.5, max(width - 1, 1e-9), bent=False)
