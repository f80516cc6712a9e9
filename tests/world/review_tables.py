"""Made-up reviews with every column filled somewhere, and texts that break careless files."""

from __future__ import annotations

import io
import json

import numpy as np
import polars as pl
from hypothesis import strategies as st

from bpals.reviews.exchange import KEPT, TABLE
from bpals.store.ledger.schema import PHASES, VERDICTS

NASTY = (
    "=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\ttab", "\rreturn", "\nline", "'quoted", "''twice", "'=both",
    "a,b;c\td", 'say "so"', "two\nlines\r\n", " blanks ", "", "<script>alert(1)</script>", "Größe \u202e", "\uff1dwide",
)  # fmt: skip
FINDINGS = ("Mass", "Nodule or mass", "Pleural_Thickening", "Fracture")


def reviews(count: int = 24, *, images: tuple[str, ...] = ("a.png", "b.png", "c.png")) -> pl.DataFrame:
    """Reviews as TABLE: two readers, every phase and verdict, boxes, notes, times."""
    rows = []
    for number in range(count):
        seen = number % 3 == 1
        rows.append(
            {
                "image_id": images[number // 4 % len(images)],
                "finding": FINDINGS[number % len(FINDINGS)],
                "reader": ("ann", "bob@example.org")[number // 2 % 2],
                "phase": PHASES[number % len(PHASES)],
                "round": number % 2,
                "repeat": number % 2,
                "verdict": VERDICTS[number % len(VERDICTS)],
                "confidence": number * 4 if number % 2 else None,
                "saw_signal": int(seen),
                "signal": "sha256:ab" if seen else None,
                "inclusion": 1 / (number + 3) if number % 2 else None,
                "box": json.dumps([[1.5, 2, 30.25, 0.1 + 0.2]] * (1 + number % 2)) if number % 4 == 0 else None,
                "note": NASTY[number % len(NASTY)] if number % 5 else None,
                "quality": ("good", "limited", "unreadable", None)[number % 4],
                "devices": ("present", "absent", None)[number % 3],
                "active_s": number / 7,
                "wall_s": number / 3,
                "position": number,
                "at": f"2026-11-16T07:00:{number:02}.000+00:00",
                "external_id": f"read/{number}",
                "stands": 1,
                "study": "night",
                "reading_id": f"reading{number // 4}",
                "source": "room",
            }
        )
    return pl.DataFrame(rows, schema=TABLE)


def same(back: pl.DataFrame, sent: pl.DataFrame, columns: tuple[str, ...] = tuple(KEPT.names())) -> bool:
    """Say whether reviews came back as they were sent, in any order."""
    mine, theirs = (table.select(columns).sort("external_id") for table in (back, sent))
    return mine.equals(theirs)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "image_id": TEXTS.filter(str.strip), "finding": TEXTS.filter(str.strip), "reader": TEXTS.filter(str.strip),
            "phase": st.sampled_from(PHASES), "round": st.integers(0, 9), "repeat": st.integers(0, 1),
            "verdict": st.sampled_from(VERDICTS), "confidence": st.none() | st.integers(0, 100),
            "saw_signal": st.integers(0, 1), "signal": st.none() | TEXTS, "note": st.none() | TEXTS,
            "inclusion": st.none() | st.floats(1e-300, 1), "active_s": st.none() | st.floats(0, 1e6),
            "at": TEXTS.filter(str.strip), "study": st.none() | TEXTS,
        }
    ),
    min_size=1, max_size=6,
)  # fmt: skip
"""Reviews with any text anywhere."""


def of_rows(rows: list[dict[str, object]]) -> pl.DataFrame:
    """Make TABLE of drawn rows, each with an id of its own."""
    whole = [
        dict.fromkeys(TABLE.names()) | row | {"external_id": f"-{place}", "stands": 1} for place, row in enumerate(rows)
    ]
    return pl.DataFrame(whole, schema=TABLE)


def dicom(*, patient: str = "Doe^Jane", side: int = 64) -> bytes:
    """A small DICOM film with the tags that a report refers to."""
    from pydicom.dataset import Dataset, FileMetaDataset  # noqa: PLC0415
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid  # noqa: PLC0415

    film = Dataset()
    film.file_meta = FileMetaDataset()
    film.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    film.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    film.SOPInstanceUID, film.StudyInstanceUID, film.SeriesInstanceUID = (generate_uid() for _ in range(3))
    film.Modality, film.PatientName, film.PatientID = "DX", patient, "7"
    film.Rows, film.Columns, film.SamplesPerPixel, film.PixelRepresentation = side, side, 1, 0
    film.BitsAllocated, film.BitsStored, film.HighBit = 8, 8, 7
    film.PhotometricInterpretation = "MONOCHROME2"
    film.PixelData = np.random.default_rng(0).integers(0, 255, (side, side), np.uint8).tobytes()
    written = io.BytesIO()
    film.save_as(written, enforce_file_format=True)
    return written.getvalue()
