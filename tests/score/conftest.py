"""Small audits with answers that can be worked out by hand."""

import polars as pl
import pytest

from bpals.findings import NIH
from bpals.store.workspace import Workspace
from bpals.types import IMAGES, claims_schema, judgments_schema, signal_schema


@pytest.fixture
def audit(tmp_path):
    """Write a workspace from rows `(image, finding, says, p_present)`; the patient is the image's first letter."""

    def write(rows, *, method="record", judged=None, groups=None, calibration=None, name="audit"):
        home = Workspace(tmp_path / name)
        films = list(dict.fromkeys(row[0] for row in rows))
        with home.writing() as staging:
            images = pl.DataFrame({"image_id": films, "patient_id": [film[0] for film in films]})
            missing = [pl.lit(None, IMAGES[column]).alias(column) for column in IMAGES if column not in images.columns]
            staging.write_table("images.parquet", images.with_columns(missing).select(IMAGES.names()))
            claims = pl.DataFrame([row[:3] for row in rows if row[2]], claims_schema(NIH), orient="row")
            staging.write_table("claims.parquet", claims)
            for judge, answers in (judged or {"record": [(*row[:2], row[3]) for row in rows]}).items():
                staging.write_table(f"judgments/{judge}.parquet", judgments(answers, judge))
            staging.write_table("signal.parquet", signal(rows, NIH.findings, method))
            if groups:
                staging.write_table("groups.parquet", signal(groups, ("Nodule or mass", "Airspace opacity"), method))
            if calibration:
                schema = {"image_id": pl.String, "finding": pl.String, "present": pl.Boolean, "fold": pl.Int32}
                used = pl.DataFrame([(*pair, True, 0) for pair in calibration], schema, orient="row")
                staging.write_table("calibration.parquet", used)
            staging.finish({"bpals": "test", "source": "nih"})
        return home.path

    return write


def judgments(answers, judge):
    """Turn `(image, finding, p_present)` into judgments; None is a failure."""
    rows = [
        (image, finding, judge, "record", "failed" if p is None else "answered", p, None, None)
        for image, finding, p in answers
    ]
    return pl.DataFrame(rows, judgments_schema(NIH), orient="row")


def signal(rows, findings, method):
    """Turn `(image, finding, says, p_present[, method])` into rows of a signal."""
    lines = []
    for image, finding, says, p, *own in rows:
        if says:
            trust = None if p is None or says == "uncertain" else p if says == "present" else 1 - p
            how = own[0] if own else method
            row = {"image_id": image, "finding": finding, "says": says, "p_present": p, "trust": trust, "answered": 1}
            lines.append(
                row | {"flag": "trusted", "reasons": [], "review_rank": 1, "devices": "unknown", "method": how}
            )
    return pl.DataFrame(lines, signal_schema(findings))
