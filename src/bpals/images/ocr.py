"""Words burnt into images, read by OCR: of the usual markers which they are, of other text only that it is there.

Other text may name the patient: it never leaves a worker, and is neither kept nor shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from bpals.errors import MissingExtra, UsageError
from bpals.images.collection import ImageIndex
from bpals.images.picture import Picture
from bpals.images.prepare import decode_then
from bpals.images.stream import Passage
from bpals.optional import import_silent
from bpals.types import Refusal

OCR = "rapidocr_onnxruntime"
SURE = 0.8  # the OCR's own confidence below which a word is not believed
LONG = 4  # letters and digits from which a word is text; shorter ones are sides, and initials of the radiographer
# Words that stand on images as they should.
MARKERS = frozenset(
    {
        "AP", "PA", "PORTABLE", "PORT", "SUPINE", "ERECT", "UPRIGHT", "SEMI", "SEMIERECT", "SEMIUPRIGHT", "SITTING",
        "STANDING", "LEFT", "RIGHT", "LATERAL", "LAT", "DECUB", "DECUBITUS", "EXPIRATION", "INSPIRATION",
    }
)  # fmt: skip
SAY_AP, SAY_PA = frozenset({"AP", "PORTABLE", "PORT", "SUPINE"}), frozenset({"PA"})


def spelt(index: ImageIndex, image_ids: Iterable[str], *, workers: int | None = None) -> Passage[Lettered, Lettered]:
    """Read what is written on images; 0 workers read in this process."""
    try:
        import_silent(OCR)
    except ImportError as error:
        if find_spec(OCR) is None:
            raise MissingExtra.of("Reading text on films", "ocr") from None
        raise UsageError(
            f"the OCR is installed and cannot be loaded ({error}). On Debian type: apt-get install libgl1 "
            "libglib2.0-0; elsewhere: pip install opencv-python-headless"
        ) from None
    return Passage(index, image_ids, Lettering(), workers=workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lettered:
    """What is written on an image."""

    sha256: str
    notes: tuple[str, ...]
    markers: tuple[str, ...]  # the usual markers, each once, in the order of the alphabet
    text: bool  # whether anything else of four letters or more is written on it

    @property
    def view(self) -> str | None:
        """Name the view that the markers speak of; None where they speak of none, or of both."""
        sides = [name for name, words in (("AP", SAY_AP), ("PA", SAY_PA)) if words.intersection(self.markers)]
        return sides[0] if len(sides) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lettering:
    """How images are read: at their full size, by rapidocr on one thread."""

    def begin(self) -> Callable[[bytes], Lettered | Refusal]:
        """Load the OCR, and give the function that reads one image."""
        read = import_silent(OCR).RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)

        def spell_picture(picture: Picture, sha256: str) -> Lettered:
            grey = np.asarray(picture.image)
            lines, _ = read(np.stack([grey, grey, grey], axis=-1))
            return spell([(str(text), float(sure)) for _, text, sure in lines or ()], sha256, picture.notes)

        return partial(decode_then, spell_picture)

    def pack(self, made: Lettered) -> tuple[dict[str, Any], bytes]:
        """Take apart what was read, for the way from a worker."""
        about = {"sha256": made.sha256, "notes": made.notes, "markers": made.markers, "text": made.text}
        return about, b""

    def unpack(self, about: Mapping[str, Any], body: bytes) -> Lettered:
        """Put together what was read; a marker is one that we know."""
        del body
        return Lettered(
            sha256=str(about["sha256"]),
            notes=tuple(about["notes"]),
            markers=tuple(sorted(MARKERS.intersection(about["markers"]))),
            text=bool(about["text"]),
        )


def spell(lines: Iterable[tuple[str, float]], sha256: str, notes: tuple[str, ...]) -> Lettered:
    """Tell markers from other text in the lines that an OCR read, each with its confidence."""
    words = [word for text, sure in lines if sure >= SURE for word in re.findall(r"\w+", text.upper())]
    text = any(len(word) >= LONG and word not in MARKERS for word in words)
    return Lettered(sha256=sha256, notes=notes, markers=tuple(sorted(MARKERS.intersection(words))), text=text)
