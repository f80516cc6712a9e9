"""How large a film is, and whether it is DICOM, told from its header without decoding a pixel."""

from __future__ import annotations

import io
import warnings

from bpals.films import dicom, jpeg, png
from bpals.films.refused import Refused


def is_dicom(content: bytes) -> bool:
    """Say whether a file is DICOM."""
    return content[dicom.MAGIC_AT : dicom.MAGIC_AT + len(dicom.MAGIC)] == dicom.MAGIC


def size_of(content: bytes) -> tuple[int, int] | None:
    """Give width and height in pixels; none for what does not say."""
    try:
        if content.startswith(png.SIGNATURE):
            about: png.Header | jpeg.Header = png.read_header(content)
        elif content.startswith(jpeg.START):
            about = jpeg.read_header(content)
        else:
            return _dicom_size(content) if is_dicom(content) else None
    except Refused:
        return None
    return about.width_px, about.height_px


def _dicom_size(content: bytes) -> tuple[int, int] | None:
    try:
        import pydicom  # noqa: PLC0415
    except ImportError:
        return None
    with warnings.catch_warnings():
        # What pydicom warns of names tags, and tags name patients.
        warnings.simplefilter("ignore")
        try:
            found = pydicom.dcmread(io.BytesIO(content), specific_tags=["Rows", "Columns"], stop_before_pixels=True)
            return int(found.Columns), int(found.Rows)
        except dicom.UNREADABLE:
            return None
