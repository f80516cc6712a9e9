"""A source that reads the labels from the names of files: 0001_Effusion.png."""

from __future__ import annotations

import hashlib
from pathlib import Path

import polars as pl

from bpals.errors import SourceError
from bpals.findings import Vocabulary
from bpals.registry import SourceKind
from bpals.types import IMAGES, Dataset, claims_schema

FINDINGS = Vocabulary(name="folder", findings=("Effusion", "Mass"))


def load(target: str) -> Dataset:
    """Read a folder; a finding that a name does not have is absent."""
    names = sorted(path.name for path in Path(target).glob("*.png"))
    if not names:
        raise SourceError(f"{target} has no PNG. Name another folder: --source folder:PATH")
    rows = [{"image_id": name, "patient_id": name.partition("_")[0]} for name in names]
    claims = [
        {"image_id": name, "finding": finding, "says": "present" if finding in name else "absent"}
        for name in names
        for finding in FINDINGS.findings
    ]
    return Dataset(
        name="folder",
        title="A folder of images",
        vocabulary=FINDINGS,
        images=pl.DataFrame(rows, schema=IMAGES),
        claims=pl.DataFrame(claims, schema=claims_schema(FINDINGS)),
        attribution="Made up.",
        inputs={"names": "sha256:" + hashlib.sha256("\n".join(names).encode()).hexdigest()},
    )


SOURCE = SourceKind(name="folder", form="folder:PATH", summary="labels in the names of files", load=load)
