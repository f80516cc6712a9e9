"""What is said of each finding, as codes, and the claims table made of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.findings import Vocabulary
from bpals.types import SAYS, claims_schema

Codes = npt.NDArray[np.uint8]
"""One row a film or reader, one column a finding."""

PRESENT, ABSENT, UNCERTAIN = range(3)
"""The places of SAYS."""

SILENT = 3
"""Silence has a code while a table is read; it has no row among the claims."""

CODE = {"present": PRESENT, "absent": ABSENT, "uncertain": UNCERTAIN, "silent": SILENT}
WEAKEST_FIRST = (SILENT, ABSENT, UNCERTAIN, PRESENT)
"""When one film says two things of a finding, the last of these counts."""


def make_claims(image_ids: pl.Series, codes: Codes, vocabulary: Vocabulary) -> pl.DataFrame:
    """Write out every claim, image by image in the order of the vocabulary; silence is no row."""
    spoken = np.flatnonzero(codes.ravel() != SILENT)
    films, findings = np.divmod(spoken, len(vocabulary.findings))
    return pl.DataFrame(
        {
            "image_id": image_ids.gather(pl.Series(films, dtype=pl.UInt32)),
            "finding": pl.Series(findings.astype(np.uint32)).cat.to(vocabulary.enum),
            "says": pl.Series(codes.ravel()[spoken].astype(np.uint32)).cat.to(SAYS),
        },
        schema=claims_schema(vocabulary),
    )


def combine_readers(codes: Codes, films: npt.NDArray[np.int64], *, rule: str) -> Codes:
    """Make one claim of several readers; `films` gives the film of each row of codes, in ascending order.

    Only readers who are not silent count, and if nobody marks the finding and nobody is uncertain it is absent.
    majority: present if more than half mark it. any: present if one marks it. all: present if every one marks it.
    Anything in between is uncertain.
    """
    starts = np.flatnonzero(np.diff(films, prepend=-1))
    present, uncertain, silent = (
        np.add.reduceat((codes == code).astype(np.int64), starts, axis=0) for code in (PRESENT, UNCERTAIN, SILENT)
    )
    readers = np.diff(np.append(starts, films.size))[:, None]
    spoken = readers - silent
    needed = {"majority": 2 * present > spoken, "any": present > 0, "all": present == spoken}[rule]
    combined = np.full(present.shape, UNCERTAIN, np.uint8)
    combined[(present == 0) & (uncertain == 0)] = ABSENT
    combined[needed & (present > 0)] = PRESENT
    combined[spoken == 0] = SILENT
    return combined
