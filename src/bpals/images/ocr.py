"""Lettering: words burnt into films, read by OCR. Only the usual markers leave a worker; of other text only that it is.

What else stands on a film may name the patient: it is neither kept nor shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from bpals.errors import MissingExtra, UsageError
from bpals.images.collection import Shelf
from bpals.images.formats import Refused
from bpals.images.prepare import decode
from bpals.images.stream import Passage
from bpals.optional import import_silent
from bpals.types import Refusal

OCR = "rapidocr_onnxruntime"
SURE = 0.8
"""The OCR's own confidence below which a word is not believed."""
LONG = 4
"""Letters and digits from which a word is text; shorter ones are sides, and initials of whoever took the film."""
MARKERS = frozenset(
    {
        "AP", "PA", "PORTABLE", "PORT", "SUPINE", "ERECT", "UPRIGHT", "SEMI", "SEMIERECT", "SEMIUPRIGHT", "SITTING",
        "STANDING", "LEFT", "RIGHT", "LATERAL", "LAT", "DECUB", "DECUBITUS", "EXPIRATION", "INSPIRATION",
    }
)  # fmt: skip
"""Words that stand on films as they should."""
SAY_AP, SAY_PA = frozenset({"AP", "PORTABLE", "PORT", "SUPINE"}), frozenset({"PA"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lettered:
    """What is written on a film."""

    image_id: str = ""
    sha256: str
    notes: tuple[str, ...]
    markers: tuple[str, ...]
    """The usual markers, each once, in the order of the alphabet."""
    text: bool
    """Whether anything else of four letters or more is written on it."""

    @property
    def view(self) -> str | None:
        """Name the view that the markers speak of; None where they speak of none, or of both."""
        sides = [name for name, words in (("AP", SAY_AP), ("PA", SAY_PA)) if words.intersection(self.markers)]
        return sides[0] if len(sides) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lettering:
    """How films are read: at their full size, by rapidocr on one thread."""

    def as_dict(self) -> dict[str, Any]:
        """Write it out for a worker."""
        return {}

    def begin(self) -> Callable[[bytes], Lettered | Refusal]:
        """Load the OCR, and give what reads one film."""
        read = import_silent(OCR).RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)

        def look(content: bytes) -> Lettered | Refusal:
            try:
                picture = decode(content)
            except Refused as refused:
                return refused.refusal
            grey = np.asarray(picture.image)
            lines, _ = read(np.stack([grey, grey, grey], axis=-1))
            said = [(str(text), float(sure)) for _, text, sure in lines or ()]
            return spell(said, hashlib.sha256(content).hexdigest(), picture.notes)

        return look

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


def spell(said: Iterable[tuple[str, float]], sha256: str, notes: tuple[str, ...]) -> Lettered:
    """Tell markers from other text in what an OCR read, each with its confidence."""
    words = [word for text, sure in said if sure >= SURE for word in re.findall(r"\w+", text.upper())]
    markers = MARKERS.intersection(words)
    text = any(len(word) >= LONG and word not in MARKERS for word in words)
    return Lettered(sha256=sha256, notes=notes, markers=tuple(sorted(markers)), text=text)


class Spelling(Passage[Lettered, Lettered]):
    """What is written on films, in the order of `shelf.order(image_ids)`."""

    def _given(self, image_id: str, made: Lettered) -> Lettered:
        return replace(made, image_id=image_id)


def spelt(shelf: Shelf, image_ids: Iterable[str], *, workers: int | None = None) -> Spelling:
    """Read what is written on films; 0 workers read in this process."""
    if find_spec(OCR) is None:
        raise MissingExtra.of("Reading text on films", "ocr")
    try:
        import_silent(OCR)
    except ImportError as error:
        raise UsageError(
            f"the OCR is installed and cannot be loaded ({error}). On Debian type: apt-get install libgl1 "
            "libglib2.0-0; elsewhere: pip install opencv-python-headless"
        ) from None
    return Spelling(shelf, image_ids, Lettering(), workers=workers)
