"""Skill: how well a judge tells images with a finding from images without, by AUROC.

Experts are the yardstick where they read the finding, else the dataset's labels. The interval treats the images of
one patient as one cluster: `Placed` has each patient's part in a figure, after DeLong. A judge whose interval does not
lie above .5 has no signal for that finding, and must not move its trust: chance alone passes that test 1 time in 40.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.numeric import NORMAL_95, order, patients
from bpals.types import SKILL, Reference

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_PATIENTS = 10
"""With fewer patients on either side the interval would be too narrow: there is none, and so no signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A figure between 0 and 1, and each patient's part in it."""

    value: float
    patients: NDArray[Any]
    parts: Floats
    """One number per patient; they add up to 0."""

    @classmethod
    def auroc(cls, score: Floats, present: NDArray[np.bool_], patients: NDArray[Any]) -> Placed:
        """Rank the images of each class among those of the other; there must be some of both."""
        places = order(score)
        ordered, hit = score[places], present[places]
        # Equal scores are one step: a tie counts half, whatever the order of the rows.
        step = np.cumsum(np.append(False, ordered[1:] != ordered[:-1]))
        hits = np.bincount(step, weights=hit)
        others = np.bincount(step) - hits
        above, below = hits.sum(), others.sum()
        beaten, outdone = (np.cumsum(side) - side / 2 for side in (others, hits))
        auroc = float((hits * beaten).sum() / (above * below))
        part = np.empty(len(score))
        part[places] = np.where(
            hit, ((beaten / below - auroc) / above)[step], ((1 - outdone / above - auroc) / below)[step]
        )
        return cls.of(auroc, part, patients)

    @classmethod
    def of(cls, value: float, part: Floats, patients: NDArray[Any]) -> Placed:
        """Add up the parts of each patient's images."""
        if patients.dtype.kind == "i" and patients.min(initial=0) >= 0 and patients.max(initial=0) <= 2 * len(patients):
            known = np.flatnonzero(np.bincount(patients))  # numbered already, and counting is quicker than sorting
            parts = np.bincount(patients, weights=part)[known]
        else:
            known, place = np.unique(patients, return_inverse=True)
            parts = np.bincount(place, weights=part, minlength=len(known))
        return cls(value=value, patients=known, parts=parts.astype(np.float64))

    @property
    def error(self) -> float:
        """The standard error of the figure."""
        return standard_error(self.parts)

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, worked out on the logit so that it stays between 0 and 1."""
        # At 0 or 1 the logit is infinite.
        inside = min(max(self.value, 1e-6), 1 - 1e-6)
        middle = math.log(inside / (1 - inside))
        reach = NORMAL_95 * self.error / (inside * (1 - inside))
        return _logistic(middle - reach), _logistic(middle + reach)


def _logistic(z: float) -> float:
    """A probability; far out it is 0 or 1, not an overflow."""
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def standard_error(parts: Floats) -> float:
    """Give the standard error of a figure from the patients' parts in it."""
    # n / (n - 1): with few patients the plain sum is too small.
    count = len(parts)
    return math.sqrt(float((parts**2).sum()) * count / max(count - 1, 1))


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
