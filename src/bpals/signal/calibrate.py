"""Calibration on expert labels: from the judges' answer and the claim to P(the finding is there).

For each finding a ridge logistic regression is fitted on the reviewed pairs. Which one, of a few designs and penalties,
is chosen by cross-validation over patients, so that few reviews leave the judges' own answer nearly alone and many
reviews may correct it. The trust of a reviewed pair comes from a fit, choice included, that saw no review of its
patient.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.signal.directions import Seen, directions
from bpals.signal.learn import Common, Reviewed, Rows, School, Topic
from bpals.signal.pairs import Matrix, sigmoid
from bpals.signal.ridge import newton

Prediction = Callable[[Rows], tuple[Matrix, Matrix]]

FOLDS = 5
BLOCK = 16_384
"""Films predicted at a time, which bounds the memory."""
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0)
ENOUGH_ERRORS = 12
"""With fewer reviewed errors, whichever fold of patients is left out, nothing is learned: a handful would decide."""
OWN_ERRORS = 100
"""With fewer, a finding borrows from the others; from here on it has enough of its own."""
OTHERS_ERRORS = 40
"""With fewer, the answers about the other findings are not heard."""
WIDE_ERRORS = 200
"""With fewer, the wide design is not tried: it has more columns than errors."""
NOBODY: frozenset[int] = frozenset()
"""No patient is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One way to turn what is known of a pair into columns."""

    name: str
    start: Callable[[Rows, frozenset[int]], tuple[Matrix, Matrix]]
    """The logit that the columns correct, with its standard deviation, known without some patients' reviews."""
    columns: Callable[[Rows], Matrix] | None = None
    """From rows of films to columns: a matrix of all films would be made only to be thrown away."""
    many: bool = False
    """Whether it has so many columns that the firmest penalty is taken which is not clearly worse."""
    errors: int = 0
    """With fewer reviewed errors it is not tried ..."""
    fewer: float = math.inf
    """... and with as many as this neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the designs may use beside the judges' answer and the claim."""

    no_finding: Matrix
    view: Matrix
    logits: Matrix
    """Of all findings, a column each."""
    states: Matrix
    evidence: Matrix

    @property
    def common(self) -> Common:
        """What all findings share."""
        return Common(columns=np.concatenate([self.no_finding, self.view], axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """One finding, calibrated: a probability for every film, with the standard deviation of its logit."""

    p_present: Matrix
    spread: Matrix
    design: str
    penalty: float
    n: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A chosen design with its penalty, fitted on the reviews but for those of some patients."""

    design: str
    penalty: float
    predict: Prediction
    held_out: Matrix
    """The logit of each of these reviews, by a fit that did not see its patient either."""


Choose = Callable[[frozenset[int]], Fitted]
"""Without the reviews of some patients: which design, fitted."""


def fold_of_patient(patients: pl.Series) -> npt.NDArray[np.int64]:
    """Give each film a fold by a hash of its patient alone."""
    names = patients.unique(maintain_order=True).to_list()
    folds = [int.from_bytes(hashlib.sha256(b"calibrate:" + name.encode()).digest()[:4]) % FOLDS for name in names]
    return patients.replace_strict(names, folds, return_dtype=pl.Int64).to_numpy()


def designs(topic: Topic, context: Context, school: School) -> list[Design]:
    """List the designs for one finding, the plainest first."""
    judged, said = topic.judged[:, None], topic.said[:, None]

    def own(rows: Rows, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return topic.judged[rows], np.zeros(len(rows))

    def shared(rows: Rows, without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return school.correct(topic, rows, without)

    def nothing(rows: Rows, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return np.zeros(len(rows)), np.zeros(len(rows))

    def summed(rows: Rows, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return topic.summed[rows], np.zeros(len(rows))

    def around(rows: Rows) -> Matrix:
        return np.concatenate([part[rows] for part in (judged, said, context.no_finding, context.view)], axis=1)

    def others(rows: Rows) -> Matrix:
        return np.concatenate([around(rows), context.logits[rows]], axis=1)

    def wide(rows: Rows) -> Matrix:
        crossed = context.logits[rows] * said[rows]
        return np.concatenate([others(rows), context.states[rows], context.evidence[rows], crossed], axis=1)

    return [
        Design(name="judges", start=own),
        Design(name="shared", start=shared, fewer=OWN_ERRORS),
        Design(name="own", start=own, columns=around, errors=OWN_ERRORS),
        Design(name="members", start=summed, columns=around, errors=OWN_ERRORS),
        Design(name="other findings", start=summed, columns=others, many=True, errors=OTHERS_ERRORS),
        Design(name="wide", start=nothing, columns=wide, many=True, errors=WIDE_ERRORS),
    ]


def chooser(topic: Topic, context: Context, school: School) -> Choose:
    """Choose among the designs for one finding."""
    listed = designs(topic, context, school)
    return lambda without: choose_among(listed, topic, without)


def teaches(topic: Topic) -> bool:
    """Say whether a finding can be fitted: whichever fold of patients is left out, the others have errors enough.

    A fit of some patients' films and not of others' would put two scales into one finding.
    """
    folds = np.unique(topic.reviewed.fold)
    return topic.least_errors >= ENOUGH_ERRORS and not any(
        topic.reviewed.without(frozenset({int(fold)})).one_sided for fold in folds
    )


def calibrate(topic: Topic, choose: Choose) -> Calibrated:
    """Fit one finding on its reviews; reviewed films get a probability that their patient's reviews did not touch."""
    chosen = choose(NOBODY)
    z, spread = _bent(chosen, topic, NOBODY)(np.arange(len(topic.judged)))
    for fold in np.unique(topic.reviewed.fold):
        rows = topic.reviewed.rows[topic.reviewed.fold == fold]
        without = frozenset({int(fold)})
        z[rows], spread[rows] = _bent(choose(without), topic, without)(rows)
    return Calibrated(
        p_present=sigmoid(z),
        spread=spread,
        design=chosen.design,
        penalty=chosen.penalty,
        n=len(topic.reviewed.rows),
        errors=topic.errors(),
    )


def choose_among(listed: Sequence[Design], topic: Topic, without: frozenset[int]) -> Fitted:
    """Choose design and penalty by cross-validation over patients, then fit on all the reviews.

    A later design must be better by more than one standard error of the difference, pair by pair, and of one with many
    columns the firmest penalty is taken that is not worse by more: what is gained by chance on the reviewed films is
    lost on the others.
    """
    reviewed = topic.reviewed.without(without)
    errors = topic.errors(without)
    tried = [design for design in listed if design.errors <= errors < design.fewer] or listed[:1]
    design, penalty = tried[0], PENALTIES[-1]
    z = _held_out(design, penalty, topic, without)
    if len(np.unique(reviewed.fold)) > 1:
        for wider in tried[1:]:
            by_penalty = {
                choice: _held_out(wider, choice, topic, without)
                for choice in (PENALTIES if wider.columns else PENALTIES[-1:])
            }
            best = best_penalty(by_penalty, reviewed, many=wider.many)
            if better(losses(by_penalty[best], reviewed), losses(z, reviewed)):
                design, penalty, z = wider, best, by_penalty[best]
    return Fitted(design=design.name, penalty=penalty, predict=_fit(design, penalty, topic, without), held_out=z)


def best_penalty(by_penalty: Mapping[float, Matrix], reviewed: Reviewed, *, many: bool) -> float:
    """Choose a penalty by the held-out logits; with many columns, the firmest that is not clearly worse."""
    lost = {choice: losses(z, reviewed) for choice, z in by_penalty.items()}
    best = min(lost, key=lambda choice: float(lost[choice].mean()))
    return max(choice for choice in lost if not better(lost[best], lost[choice])) if many else best


def better(losses: Matrix, than: Matrix) -> bool:
    """Say whether losses are smaller than others by more than one standard error of the difference, pair by pair."""
    gain = than - losses
    return bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


def _bent(fitted: Fitted, topic: Topic, without: frozenset[int]) -> Prediction:
    """Bend the fit's logits apart for claims of presence and absence, as unseen patients show that they need it."""
    reviewed = topic.reviewed.without(without)
    said = topic.said[reviewed.rows]
    seen = Seen(z=fitted.held_out, present=reviewed.present, weight=reviewed.weight, fold=reviewed.fold)
    bent = directions({claimed: seen.take(said == claimed) for claimed in (0, 1)})

    def predict(rows: Rows) -> tuple[Matrix, Matrix]:
        z, spread = fitted.predict(rows)
        said = topic.said[rows]
        return bent.apply(z, said), np.hypot(spread, bent.spread(z, said))

    return predict


def losses(z: Matrix, reviewed: Reviewed) -> Matrix:
    """Measure each review's log-loss, times its weight."""
    return np.asarray(reviewed.weight * (np.logaddexp(0, z) - reviewed.present * z))


def _held_out(design: Design, penalty: float, topic: Topic, without: frozenset[int]) -> Matrix:
    """Give each review the logit of a fit that did not see its patient."""
    reviewed = topic.reviewed.without(without)
    z = np.empty(len(reviewed.rows))
    for fold in np.unique(reviewed.fold):
        held = reviewed.fold == fold
        z[held], _ = _fit(design, penalty, topic, without | {int(fold)})(reviewed.rows[held])
    return z


def _fit(design: Design, penalty: float, topic: Topic, without: frozenset[int]) -> Prediction:
    """Fit by damped Newton steps; the answer is a function from films to logits and their standard deviation."""
    reviewed = topic.reviewed.without(without)
    made = design.columns or _no_columns
    sample = made(reviewed.rows)
    centre = sample.mean(axis=0) if len(sample) else np.zeros(sample.shape[1])
    scale = np.where(np.ptp(sample, axis=0) > 0, sample.std(axis=0), 1.0) if len(sample) else np.ones(sample.shape[1])

    def columns(rows: Rows) -> Matrix:
        return np.concatenate([np.ones((len(rows), 1)), (made(rows) - centre) / scale], axis=1)

    inputs, start = columns(reviewed.rows), design.start(reviewed.rows, without)[0]
    ridge = np.full(inputs.shape[1], penalty)
    # A weak pull to the judges' own rate holds the intercept, so that a handful of reviews cannot run away.
    ridge[0] = 1.0
    weights, curvature = newton(inputs, start, reviewed.present, ridge, reviewed.weight)
    covariance = np.linalg.inv(curvature)

    def predict(rows: Rows) -> tuple[Matrix, Matrix]:
        z, spread = np.empty(len(rows)), np.empty(len(rows))
        for begin in range(0, len(rows), BLOCK):
            block = slice(begin, begin + BLOCK)
            known = columns(rows[block])
            from_start, unsure = design.start(rows[block], without)
            z[block] = known @ weights + from_start
            spread[block] = np.sqrt(np.maximum(((known @ covariance) * known).sum(axis=1), 0) + unsure**2)
        return z, spread

    return predict


def _no_columns(rows: Rows) -> Matrix:
    return np.zeros((len(rows), 0))
