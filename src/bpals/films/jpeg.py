"""A JPEG, read marker by marker before anything decodes it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from bpals.films.refused import Refused, check_size

START = b"\xff\xd8\xff"
MOST_SCANS = 100
"""Passes over the film; a progressive JPEG has about ten, and each costs a pass over every pixel."""
PADDING = 1 << 16
"""Bytes that may follow the end: cameras and archives pad."""

DECODED = {0xC0: "baseline", 0xC1: "extended", 0xC2: "progressive", 0xC9: "arithmetic", 0xCA: "arithmetic"}
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that state the size."""
BARE = {0x01, *range(0xD0, 0xD9)}
"""Markers without a length."""
SCAN, END = 0xDA, 0xD9


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the frame marker says."""

    width_px: int
    height_px: int
    depth: int
    channels: int
    marker: int


def read_header(content: bytes) -> Header:
    """Find the size; a JPEG states it before its first scan."""
    for marker, at, length in _segments(content):
        if marker in FRAMES:
            if length < 6:
                raise Refused("corrupt", "the JPEG has no valid header")
            depth, height, width, channels = struct.unpack_from(">BHHB", content, at)
            return Header(width_px=width, height_px=height, depth=depth, channels=channels, marker=marker)
        if marker in {SCAN, END}:
            break
    raise Refused("corrupt", "the JPEG does not say how large it is")


def check(content: bytes) -> Header:
    """Refuse a JPEG that is too large, of a kind that is not decoded, or without an end."""
    header = read_header(content)
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
    return header


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
