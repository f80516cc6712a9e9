"""Calibration on expert labels: from the judge's answer and the claim to P(the finding is there).

For each finding a ridge logistic regression is fitted on the reviewed pairs. Which one, of a few designs and penalties,
is chosen by cross-validation over patients, so that few reviews leave the judge's own answer nearly alone and many
reviews may correct it. The trust of a reviewed pair comes from a fit, choice included, that saw no review of its
patient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.signal.pairs import Matrix, Pairs, logit, sigmoid
from bpals.signal.ridge import newton

Rows = npt.NDArray[np.int64]
Prediction = Callable[[Rows], tuple[Matrix, Matrix]]

FOLDS = 5
BLOCK = 16_384
"""Films predicted at a time, which bounds the memory."""
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0)
ENOUGH_ERRORS = 20
"""With fewer reviewed errors the judge's answer is only shifted, never reshaped."""
WIDE_ERRORS = 200
"""With fewer, the wide design is not tried: it has more columns than errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One way to turn what is known of a pair into columns."""

    name: str
    columns: Callable[[Rows], Matrix]
    """From rows of films to columns: a matrix of all films would be made only to be thrown away."""
    width: int
    offset: bool
    """Whether the judge's logit enters with weight one and the columns only correct it."""
    errors: int = 0
    """With fewer reviewed errors it is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the designs may use beside the judge's answer and the claim."""

    no_finding: Matrix
    view: Matrix
    logits: Matrix
    """Of all findings, a column each."""
    states: Matrix
    evidence: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """The expert labels of one finding: which films, what is there, whose they are."""

    rows: Rows
    present: npt.NDArray[np.bool_]
    fold: npt.NDArray[np.int64]

    def take(self, kept: npt.NDArray[np.bool_]) -> Reviewed:
        """Keep some of the reviews."""
        return Reviewed(rows=self.rows[kept], present=self.present[kept], fold=self.fold[kept])

    @property
    def one_sided(self) -> bool:
        """Say that there are no two different verdicts to learn from."""
        return bool(self.present.all() or not self.present.any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """One finding, calibrated: a probability for every film, with the standard deviation of its logit."""

    p_present: Matrix
    spread: Matrix
    design: str
    penalty: float
    n: int
    errors: int


def fold_of_patient(patients: pl.Series) -> npt.NDArray[np.int64]:
    """Give each film a fold by a hash of its patient alone."""
    names = patients.unique(maintain_order=True)
    folds = [int(hashlib.sha256(b"calibrate:" + name.encode()).hexdigest()[:8], 16) % FOLDS for name in names]
    return patients.replace_strict(names, folds, return_dtype=pl.Int64).to_numpy()


def designs(pairs: Pairs, finding: str, context: Context) -> list[Design]:
    """List the designs for one finding, the plainest first."""
    column = pairs.column(finding)
    judged = logit(pairs.p_present[:, column])[:, None]
    claim = np.nan_to_num(pairs.states[:, column], nan=0.5)[:, None]
    plain = [judged, claim]
    around = [*plain, context.no_finding, context.view]
    wide = [*around, context.logits, context.states, context.evidence]

    def beside(parts: list[Matrix]) -> Callable[[Rows], Matrix]:
        return lambda rows: np.concatenate([part[rows] for part in parts], axis=1)

    def crossed(rows: Rows) -> Matrix:
        return np.concatenate([beside(wide)(rows), context.logits[rows] * claim[rows]], axis=1)

    width = sum(part.shape[1] for part in wide) + context.logits.shape[1]
    corrected = [("judge, claim", plain, 2), ("judge, claim, no finding, view", around, 4)]
    return [
        Design(name="judge", columns=lambda rows: judged[rows][:, :0], width=0, offset=True),
        *(
            Design(name=name, columns=beside(parts), width=columns, offset=True, errors=ENOUGH_ERRORS)
            for name, parts, columns in corrected
        ),
        Design(name="wide", columns=crossed, width=width, offset=False, errors=WIDE_ERRORS),
    ]


def calibrate(pairs: Pairs, finding: str, context: Context, reviewed: Reviewed) -> Calibrated:
    """Fit one finding on its reviews; reviewed films get a probability that their patient's reviews did not touch."""
    column = pairs.column(finding)
    judged = logit(pairs.p_present[:, column])
    listed = designs(pairs, finding, context)

    def fit(reviews: Reviewed) -> tuple[str, float, Prediction]:
        errors = _errors(pairs.states[reviews.rows, column], reviews)
        return _choose_and_fit([design for design in listed if errors >= design.errors], judged, reviews)

    design, penalty, fitted = fit(reviewed)
    z, spread = fitted(np.arange(len(judged)))
    p_present = sigmoid(z)
    for fold in np.unique(reviewed.fold):
        held = reviewed.fold == fold
        rows, others = reviewed.rows[held], reviewed.take(~held)
        if others.one_sided:
            # The other patients teach nothing, so the judge's own word stands.
            p_present[rows], spread[rows] = pairs.p_present[rows, column], 0.0
            continue
        z, spread[rows] = fit(others)[2](rows)
        p_present[rows] = sigmoid(z)
    return Calibrated(
        p_present=p_present,
        spread=np.sqrt(spread**2 + pairs.spread[:, column] ** 2),
        design=design,
        penalty=penalty,
        n=len(reviewed.rows),
        errors=_errors(pairs.states[reviewed.rows, column], reviewed),
    )


def _errors(said: Matrix, reviewed: Reviewed) -> int:
    """Count the claims that the reviews contradict."""
    return int((said == 1 - reviewed.present.astype(float)).sum())


def _choose_and_fit(tried: Sequence[Design], judged: Matrix, reviewed: Reviewed) -> tuple[str, float, Prediction]:
    """Choose design and penalty by cross-validation over patients, then fit on all the reviews.

    A wider design must be better by more than one standard error of the difference, pair by pair: what is gained by
    chance on the reviewed films is lost on the others.
    """
    design, penalty = tried[0], PENALTIES[-1]
    if len(tried) == 1 or len(np.unique(reviewed.fold)) == 1:
        return design.name, penalty, _fit(design, penalty, judged, reviewed)
    losses = _held_out_losses(design, penalty, judged, reviewed)
    for wider in tried[1:]:
        by_penalty = {choice: _held_out_losses(wider, choice, judged, reviewed) for choice in PENALTIES}
        best = min(PENALTIES, key=lambda choice: float(by_penalty[choice].mean()))
        gain = losses - by_penalty[best]
        if gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)):
            design, penalty, losses = wider, best, by_penalty[best]
    return design.name, penalty, _fit(design, penalty, judged, reviewed)


def _held_out_losses(design: Design, penalty: float, judged: Matrix, reviewed: Reviewed) -> Matrix:
    """Measure each review's log-loss under a fit that did not see its patient."""
    losses = np.empty(len(reviewed.rows))
    for fold in np.unique(reviewed.fold):
        held = reviewed.fold == fold
        z, _ = _fit(design, penalty, judged, reviewed.take(~held))(reviewed.rows[held])
        losses[held] = np.logaddexp(0, -np.where(reviewed.present[held], 1.0, -1.0) * z)
    return losses


def _fit(design: Design, penalty: float, judged: Matrix, reviewed: Reviewed) -> Prediction:
    """Fit by damped Newton steps; the answer is a function from films to logits and their standard deviation."""
    sample = design.columns(reviewed.rows)
    centre = sample.mean(axis=0)
    scale = np.where(np.ptp(sample, axis=0) > 0, sample.std(axis=0), 1.0)

    def columns(rows: Rows) -> Matrix:
        return np.concatenate([np.ones((len(rows), 1)), (design.columns(rows) - centre) / scale], axis=1)

    def offset(rows: Rows) -> Matrix:
        return judged[rows] if design.offset else np.zeros(len(rows))

    inputs, start = columns(reviewed.rows), offset(reviewed.rows)
    ridge = np.full(inputs.shape[1], penalty)
    # A weak pull to the judge's own rate holds the intercept, so that a handful of reviews cannot run away.
    ridge[0] = 1.0
    weights, curvature = newton(inputs, start, reviewed.present.astype(float), ridge)
    covariance = np.linalg.inv(curvature)

    def predict(rows: Rows) -> tuple[Matrix, Matrix]:
        z, spread = np.empty(len(rows)), np.empty(len(rows))
        for start in range(0, len(rows), BLOCK):
            block = slice(start, start + BLOCK)
            known = columns(rows[block])
            z[block] = known @ weights + offset(rows[block])
            spread[block] = np.sqrt(np.maximum(((known @ covariance) * known).sum(axis=1), 0))
        return z, spread

    return predict
