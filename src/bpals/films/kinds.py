"""Which kind of film a file is, by its first bytes and not by its name."""

from __future__ import annotations

from typing import Literal

from bpals.films.dicom import MAGIC, MAGIC_AT
from bpals.films.jpeg import START
from bpals.films.png import SIGNATURE
from bpals.films.refused import MOST_BYTES, Refused

OTHERS = {
    b"GIF8": "a GIF", b"BM": "a BMP", b"II*\0": "a TIFF", b"MM\0*": "a TIFF", b"\0\0\x01\0": "an icon",
    b"\0\0\0\x0cjP  ": "a JPEG 2000", b"\xff\x4f\xff\x51": "a JPEG 2000", b"8BPS": "a Photoshop file",
}  # fmt: skip
"""How images begin that are not read here."""

Kind = Literal["png", "jpeg", "dicom"]


def kind_of(content: bytes) -> Kind:
    """Say what a file is, or refuse it: for its size, or because it is no film."""
    if len(content) > MOST_BYTES:
        raise Refused("too_large", f"the file has {len(content):,} bytes; more than {MOST_BYTES:,} are not read")
    if content.startswith(SIGNATURE):
        return "png"
    if content.startswith(START):
        return "jpeg"
    if content[MAGIC_AT : MAGIC_AT + len(MAGIC)] == MAGIC:
        return "dicom"
    raise _stranger(content)


def _stranger(content: bytes) -> Refused:
    """Say what a file is that is no film."""
    known = next((what for start, what in OTHERS.items() if content.startswith(start)), "")
    head = content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        known = "a WebP"
    elif b"<svg" in head:
        known = "an SVG, which is never read"
    if known:
        return Refused("format", f"it is {known}; films are PNG, JPEG or DICOM")
    if content and (SIGNATURE.startswith(content) or START.startswith(content)):
        return Refused("truncated", f"the file ends after {len(content)} bytes")
    what = "no PNG, JPEG or DICOM"
    if not content:
        what = "empty"
    elif head.startswith(b"<"):
        what = "a web page, such as a server sends instead of a file"
    elif not head.strip(b"\0"):
        what = "nothing but zeros"
    return Refused("not_an_image", f"the file is {what}")
