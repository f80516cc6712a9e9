"""Sources: a dataset becomes a table of images and a table of labels (`claims`).

nih.py      the embedded NIH ChestX-ray14 record, or your own copy of its CSV
tabular.py  any multi-label table, read through a mapping
mapping.py  the mapping: which column means what, and which value says what
columns.py  the cells of a table become images and codes

Here is the last step of every source: codes become labels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.findings import Vocabulary
from bpals.types import SAYS, claims_schema

Codes = npt.NDArray[np.uint8]
"""One row per image or reader, one column per finding."""

PRESENT, ABSENT, UNCERTAIN = range(3)  # the places of SAYS
SILENT = 3  # silence has a code while a table is read; it has no row among the labels


def make_claims(image_ids: pl.Series, codes: Codes, vocabulary: Vocabulary) -> pl.DataFrame:
    """Make the table of labels from codes, image by image in the order of the vocabulary; silence gives no row."""
    spoken = np.flatnonzero(codes.ravel() != SILENT)
    images, findings = np.divmod(spoken, len(vocabulary.findings))
    return pl.DataFrame(
        {
            "image_id": image_ids.gather(pl.Series(images, dtype=pl.UInt32)),
            "finding": pl.Series(findings.astype(np.uint32)).cat.to(vocabulary.enum),
            "says": pl.Series(codes.ravel()[spoken].astype(np.uint32)).cat.to(SAYS),
        },
        schema=claims_schema(vocabulary),
    )
