"""Skill: how well a judge tells images with a finding from images without, by AUROC.

Experts are the yardstick where they read the finding, else the dataset's labels. The interval treats the images of
one patient as one cluster (`intervals.py`). A judge whose interval does not lie above .5 has no signal for that
finding, and must not move its trust: chance alone passes that test 1 time in 40.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.numeric import patients
from bpals.score.intervals import Placed
from bpals.types import SKILL, Reference

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_PATIENTS = 10
"""With fewer patients on either side the interval would be too narrow: there is none, and so no signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of one judge, as matrices: one row per image, one column per finding."""

    judge: str
    findings: tuple[str, ...]
    given: Floats
    """Larger means more likely present; NaN where it did not answer."""
    states: Floats
    """What the labels say: 1 present, 0 absent, anything else neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """The patient of each image, and the experts' truth."""

    patient: Ints
    """One number per image."""
    truth: pl.DataFrame
    """row (of an image), finding, present."""

    @classmethod
    def of(cls, images: pl.DataFrame, reference: Reference | None = None) -> Yardstick:
        """Number the patients, and find the images that experts read."""
        rows = images.select("image_id").with_row_index("row")
        patient = patients(images).rank("dense").to_numpy().astype(np.int64)
        empty = pl.DataFrame(schema={"row": pl.UInt32, "finding": pl.String, "present": pl.Boolean})
        if reference is None or reference.positives_only:
            return cls(patient=patient, truth=empty)
        truth = reference.truth.join(rows, on="image_id", how="inner", maintain_order="left")
        return cls(patient=patient, truth=truth.select("row", "finding", "present"))

    def measure(self, scores: Scores) -> pl.DataFrame:
        """Give the skill of one judge, one row per finding."""
        # Sorting a column of 112,120 scores releases the interpreter's lock, so threads pay.
        with ThreadPoolExecutor(pl.thread_pool_size()) as hands:
            rows = list(hands.map(lambda column: self._finding(scores, column), range(len(scores.findings))))
        return pl.DataFrame(rows, schema=SKILL, orient="row")

    def _finding(self, scores: Scores, column: int) -> Sequence[object]:
        finding, given, state = scores.findings[column], scores.given[:, column].copy(), scores.states[:, column].copy()
        key = (scores.judge, finding)
        read = self.truth.filter(pl.col("finding") == finding)
        films = read["row"].to_numpy().astype(np.int64)
        answered = ~np.isnan(given[films])
        films, present = films[answered], read["present"].to_numpy()[answered]
        if self._enough(films, present):
            return (*key, "experts", *_auroc(given[films], present, self.patient[films]))
        films = np.flatnonzero(((state == 1) | (state == 0)) & ~np.isnan(given))
        present = state[films] == 1
        if self._enough(films, present):
            return (*key, "claims", *_auroc(given[films], present, self.patient[films]))
        return (*key, "claims", len(films), int(present.sum()), None, None, None, False)

    def _enough(self, films: Ints, present: NDArray[np.bool_]) -> bool:
        who = self.patient[films]
        # A patient may have images with the finding and without it, and then counts on both sides.
        having = np.bincount(who, weights=present)
        sides = (having > 0, np.bincount(who) > having)
        return all(np.count_nonzero(side) >= FEWEST_PATIENTS for side in sides)


def _auroc(given: Floats, present: NDArray[np.bool_], patient: Ints) -> tuple[int, int, float, float, float, bool]:
    placed = Placed.auroc(given, present, patient)
    low, high = placed.interval
    return len(given), int(present.sum()), placed.value, low, high, low > 0.5


def skill(
    answers: pl.DataFrame, claims: pl.DataFrame, images: pl.DataFrame, reference: Reference | None = None
) -> pl.DataFrame:
    """Give the skill of each judge of an answers table, one row per judge and finding, in the order of their names."""
    findings = tuple(claims.schema["finding"].categories)  # type: ignore[attr-defined]
    yardstick = Yardstick.of(images, reference)
    labels = claims.select("image_id", "finding", value=pl.col("says").cast(pl.String).replace_strict(STATES))
    states = _matrix(labels, images, findings)
    tables = []
    for judge in answers["judge"].unique().sort():
        its = answers.filter((pl.col("judge") == judge) & (pl.col("outcome") == "answered"))
        given = _matrix(its.select("image_id", "finding", value="p_present"), images, findings)
        tables.append(yardstick.measure(Scores(judge=judge, findings=findings, given=given, states=states)))
    return pl.concat(tables) if tables else pl.DataFrame(schema=SKILL)


STATES = {"present": 1.0, "absent": 0.0, "uncertain": 0.5}


def _matrix(table: pl.DataFrame, images: pl.DataFrame, findings: tuple[str, ...]) -> Floats:
    """Lay values out, one row per image and one column per finding; NaN where there is none."""
    rows = images.select("image_id").with_row_index("row")
    columns = pl.DataFrame({"finding": list(findings)}, schema={"finding": pl.String}).with_row_index("column")
    placed = (
        table.with_columns(pl.col("finding").cast(pl.String))
        .join(rows, on="image_id", how="inner", maintain_order="left")
        .join(columns, on="finding", how="inner", maintain_order="left")
    )
    matrix = np.full((images.height, len(findings)), np.nan)
    matrix[placed["row"].to_numpy(), placed["column"].to_numpy()] = placed["value"].to_numpy()
    return matrix
