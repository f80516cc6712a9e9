"""The checks of a file before anything decodes it: PNG and JPEG, the limits, and every reason for a refusal.

truncated        the file, or the archive it stands in, ends early
corrupt          its bytes contradict themselves
unexpected_size  it holds more or fewer pixels than its header says, or has the shape of no image
giant            more than 50 million pixels
too_large        more than 128 MiB of file
bomb             it unpacks to far more than it is
tiny             a side below 32 pixels
blank            every pixel is the same
not_an_image     an error page, an empty file, zeros
format           an image, but neither PNG, JPEG nor DICOM
codec            a way of compressing pixels that is not read here
frames           a DICOM with several frames
missing          nothing under --images has its name
unreadable       the disk does not give it
changed          its archive is not the one that was listed
encrypted  link  unsafe_path  duplicate_name     members of archives that are not read
poison           preparing it ended its worker three times
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from bpals.types import Refusal

MOST_BYTES = 128 << 20  # of one file: 50 million pixels of 16 bits, and room to spare
MOST_PIXELS = 50_000_000  # of one image; the largest detectors have 20 million
LEAST_SIDE_PX = 32
MOST_ASPECT = 8  # how many times longer than wide an image may be, or wider than long
MOST_MEMBERS = 500_000  # files in one archive; NIH's twelve hold 112,120 in all
MOST_RATIO = 200  # how many times larger than its packed form a member may be; images are packed two to ten times
SMALL_BYTES = 1 << 20  # below this size no ratio is a danger

PNG_START, JPEG_START = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"

MOST_SCANS = 100  # a progressive JPEG has about ten, and each costs a pass over every pixel
PADDING = 1 << 16  # bytes that may follow the end: cameras and archives pad
DECODED = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}  # baseline, extended, progressive, and two arithmetic frames
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers that state the size
BARE = {0x01, *range(0xD0, 0xD9)}  # markers without a length
SCAN, END = 0xDA, 0xD9

PIECE = 1 << 16  # bytes that are unpacked at a time while they are only counted
MOST_TEXT = 4 << 20  # bytes that a text or a colour profile may unpack to; a large profile has 2 MB

DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # of each colour type
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
KEPT = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
PACKED_TEXT = {b"zTXt", b"iTXt", b"iCCP"}


class Refused(Exception):
    """An image is refused: raised inside this package, which hands out the Refusal instead."""

    def __init__(self, code: str, message: str) -> None:
        """Keep the reason."""
        super().__init__(message)
        self.refusal = Refusal(code=code, message=message)


def check_bytes(size: int) -> None:
    """Refuse a file for its size before it is read."""
    if size > MOST_BYTES:
        raise Refused("too_large", f"the file has {size:,} bytes; more than {MOST_BYTES:,} are not read")


def check_size(width_px: int, height_px: int) -> None:
    """Refuse an image for what its header says of its size, before anything is decoded."""
    size = f"{width_px:,} x {height_px:,} pixels"
    if width_px * height_px > MOST_PIXELS:
        raise Refused("giant", f"its header says {size}; more than {MOST_PIXELS:,} in all are not decoded")
    if min(width_px, height_px) < LEAST_SIDE_PX:
        raise Refused("tiny", f"it has {size}; an image has at least {LEAST_SIDE_PX} on each side")
    if max(width_px, height_px) > MOST_ASPECT * min(width_px, height_px):
        raise Refused("unexpected_size", f"it has {size}: no image is {MOST_ASPECT} times longer than wide")


def read_size(content: bytes) -> tuple[int, int] | None:
    """Give width and height in pixels from the start of a PNG or JPEG; None for any other file."""
    try:
        if content.startswith(PNG_START):
            return read_png_header(content)[:2]
        return read_jpeg_header(content)[:2] if content.startswith(JPEG_START) else None
    except Refused:
        return None


class JpegHeader(NamedTuple):
    """What the frame marker says."""

    width_px: int
    height_px: int
    depth: int
    marker: int


def read_jpeg_header(content: bytes) -> JpegHeader:
    """Find the size; a JPEG states it before its first scan."""
    for marker, at, length in _segments(content):
        if marker in FRAMES:
            if length < 6:
                raise Refused("corrupt", "the JPEG has no valid header")
            depth, height, width = struct.unpack_from(">BHH", content, at)
            return JpegHeader(width, height, depth, marker)
        if marker in {SCAN, END}:
            break
    raise Refused("corrupt", "the JPEG does not say how large it is")


def check_jpeg(content: bytes) -> None:
    """Refuse a JPEG that is too large, of a kind that is not decoded, or without an end."""
    header = read_jpeg_header(content)
    if not header.width_px or not header.height_px:
        raise Refused("corrupt", "the JPEG does not say how large it is")
    check_size(header.width_px, header.height_px)
    if header.marker not in DECODED or header.depth != 8:
        raise Refused("codec", f"the JPEG is lossless or has {header.depth} bits: save it as PNG")
    # Inside a scan 0xff is always followed by zero or a restart, so that these bytes are always a marker.
    if content.count(b"\xff\xda") > MOST_SCANS:
        raise Refused("bomb", f"the JPEG has more than {MOST_SCANS} scans")
    if b"\xff\xd9" not in content[-PADDING:]:
        raise Refused("truncated", f"the JPEG has no end, after {len(content):,} bytes")


def _segments(content: bytes) -> Iterator[tuple[int, int, int]]:
    """Give each marker before the first scan, with where its data starts and how long they are."""
    at = 2
    while at + 1 < len(content):
        if content[at] != 0xFF:
            raise Refused("corrupt", f"the JPEG has no marker at byte {at:,}")
        marker = content[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in BARE:
            at += 2
        else:
            if at + 4 > len(content):
                break
            (length,) = struct.unpack_from(">H", content, at + 2)
            if length < 2 or at + 2 + length > len(content):
                break
            yield marker, at + 4, length - 2
            at += 2 + length
    raise Refused("truncated", f"the JPEG ends inside its header, after {len(content):,} bytes")


@dataclass(slots=True, kw_only=True)
class Inflated:
    """A zlib stream whose bytes are counted and never kept."""

    most: int
    piece: int = PIECE
    count: int = 0
    stream: zlib._Decompress = field(default_factory=zlib.decompressobj)

    def feed(self, packed: memoryview) -> None:
        """Count what a part of the stream unpacks to, and stop one piece past the most."""
        for start in range(0, len(packed), self.piece):
            waiting: bytes | memoryview = packed[start : start + self.piece]
            while len(waiting) and not self.stream.eof and self.count <= self.most:
                self.count += len(self.stream.decompress(waiting, self.piece))
                waiting = self.stream.unconsumed_tail

    def end(self) -> None:
        """Count what the stream still holds back."""
        while not self.stream.eof and self.count <= self.most:
            if not (rest := len(self.stream.decompress(b"", self.piece))):
                return
            self.count += rest


class PngHeader(NamedTuple):
    """What the first chunk says."""

    width_px: int
    height_px: int
    depth: int
    colour: int
    interlaced: bool

    @property
    def raw_bytes(self) -> int:
        """How many bytes the pixels must unpack to, the filter byte of each line included."""
        bits = self.depth * CHANNELS[self.colour]
        total = 0
        for left, top, across, down in ADAM7 if self.interlaced else ((0, 0, 1, 1),):
            width, height = -(-(self.width_px - left) // across), -(-(self.height_px - top) // down)
            total += height * (1 + (width * bits + 7) // 8) if width > 0 and height > 0 else 0
        return total


def read_png_header(content: bytes) -> PngHeader:
    """Read the first chunk."""
    if len(content) < 33:
        raise Refused("truncated", "the PNG ends inside its header")
    length, kind = struct.unpack_from(">I4s", content, 8)
    width, height, depth, colour, packing, filtering, interlace = struct.unpack_from(">IIBBBBB", content, 16)
    # The checksum of this chunk is checked with all others.
    fits = depth in DEPTHS.get(colour, ()) and packing == filtering == 0 and interlace in {0, 1}
    if (length, kind) != (13, b"IHDR") or not fits or not width or not height:
        raise Refused("corrupt", "the PNG has no valid header")
    return PngHeader(width, height, depth, colour, interlaced=bool(interlace))


def check_png(content: bytes) -> bytes:
    """Give the same PNG with nothing but its pixels in it, or refuse it."""
    header = read_png_header(content)
    check_size(header.width_px, header.height_px)
    pixels = Inflated(most=header.raw_bytes)
    kept: list[memoryview | bytes] = [PNG_START]
    try:
        for kind, data, whole in _chunks(content):
            _check_chunk(kind, data)
            if kind == b"IDAT":
                pixels.feed(data)
            if kind in KEPT:
                kept.append(whole)
        pixels.end()
    except zlib.error:
        raise Refused("corrupt", "the pixels of the PNG do not unpack") from None
    if pixels.count != pixels.most:
        words = f"{'more' if pixels.count > pixels.most else 'fewer'} pixels than the"
        size = f"{header.width_px:,} x {header.height_px:,}"
        raise Refused("unexpected_size", f"the PNG holds {words} {size} of its header")
    return b"".join(kept)


def _chunks(content: bytes) -> Iterator[tuple[bytes, memoryview, memoryview]]:
    view, at = memoryview(content), len(PNG_START)
    while at + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        end = at + 12 + length
        if end > len(content):
            break
        (stated,) = struct.unpack_from(">I", content, end - 4)
        if zlib.crc32(view[at + 4 : end - 4]) != stated:
            raise Refused("corrupt", f"the checksum of the PNG's part at byte {at:,} is wrong")
        yield kind, view[at + 8 : end - 4], view[at:end]
        if kind == b"IEND":
            return
        at = end
    raise Refused("truncated", f"the PNG ends early, after {len(content):,} bytes")


def _check_chunk(kind: bytes, data: memoryview) -> None:
    if kind in PACKED_TEXT:
        _check_text(kind, data)
    elif (kind == b"PLTE" and len(data) > 768) or (kind == b"tRNS" and len(data) > 256):
        raise Refused("corrupt", "the palette of the PNG has more than 256 colours")
    elif not kind[0] & 0x20 and kind not in KEPT:
        raise Refused("format", "the PNG has a part that plain PNG does not know, and may not be read without it")


def _check_text(kind: bytes, data: memoryview) -> None:
    """Refuse a text or profile that unpacks to too much; one that does not unpack at all is left out like any other."""
    head, _, rest = bytes(data).partition(b"\0")
    packed = rest[1:]
    if kind == b"iTXt":
        packed = rest[2:].split(b"\0", 2)[-1] if rest[:1] == b"\1" else b""
    text = Inflated(most=MOST_TEXT)
    try:
        text.feed(memoryview(packed))
    except zlib.error:
        return
    if text.count > MOST_TEXT:
        what = "colour profile" if kind == b"iCCP" else "text"
        raise Refused("bomb", f"a {what} of {len(head) + len(rest):,} bytes in the PNG unpacks to over {MOST_TEXT:,}")
