"""Stage 3, calibrate: from the judges' answer and the label to P(present), fitted on expert labels of one finding.

For each finding a ridge logistic regression is fitted on the reviewed pairs. Which one, of a few designs and penalties,
is chosen by cross-validation over patients: few reviews leave the judges' answer nearly alone, many may correct it.
Labels of presence and of absence are then bent apart. The trust of a reviewed pair comes from a fit, choice included,
that saw no review of its patient.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from bpals.numeric import NORMAL_95, Matrix, log_loss, logit, newton, sigmoid
from bpals.signal.hierarchical import Reviewed, SharedFit, Topic
from bpals.signal.layout import Bools, Ints

Prediction = Callable[[Ints], tuple[Matrix, Matrix]]
"""From rows of images to their logits and the logits' standard deviations."""
Curve = Callable[[Matrix], Matrix]

FOLDS = 5
BLOCK = 16_384
"""Images predicted at a time, which bounds the memory."""
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0)
ENOUGH_ERRORS = 12
"""With fewer reviewed errors, whichever fold of patients is left out, nothing is fitted: a handful would decide."""
OWN_ERRORS = 100
"""With fewer, a finding borrows from the others; from here on it has enough of its own."""
OTHERS_ERRORS = 40
"""With fewer, the answers about the other findings are not used."""
WIDE_ERRORS = 200
"""With fewer, the wide design is not tried: it has more columns than errors."""
NOBODY: frozenset[int] = frozenset()
"""No patient is left out."""
FEW, MANY = 100, 1000
"""Reviews of one direction up to which a line bends the logit, and up to which Venn-Abers does."""
STRETCH = np.array([1.0, 4.0])
"""How firmly shift and stretch are held where reviews are few."""
SMOOTH = 0.02
"""Isotonic chances are kept this far from 0 and 1: nobody has seen enough to be certain."""
MOST_BINS = 128
"""Neighbouring scores are taken together until there are no more than this: the cost grows with the third power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One way to turn what is known of a pair into columns."""

    name: str
    start: Callable[[Ints, frozenset[int]], tuple[Matrix, Matrix]]
    """The logit that the columns correct, with its standard deviation, known without some patients' reviews."""
    columns: Callable[[Ints], Matrix] | None = None
    """From rows of images to columns: a matrix of all images would be made only to be thrown away."""
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
    def common(self) -> Matrix:
        """What all findings share."""
        return np.concatenate([self.no_finding, self.view], axis=1)


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


def fold_of_patient(patients: pl.Series) -> Ints:
    """Give each image a fold by a hash of its patient alone."""
    names = patients.unique(maintain_order=True).to_list()
    folds = [int.from_bytes(hashlib.sha256(b"calibrate:" + name.encode()).digest()[:4]) % FOLDS for name in names]
    return patients.replace_strict(names, folds, return_dtype=pl.Int64).to_numpy()


def designs(topic: Topic, context: Context, shared_fit: SharedFit) -> list[Design]:
    """List the designs for one finding, the plainest first."""
    judged, claim = topic.judged[:, None], topic.claim[:, None]

    def own(rows: Ints, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return topic.judged[rows], np.zeros(len(rows))

    def shared(rows: Ints, without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return shared_fit.correct(topic, rows, without)

    def nothing(rows: Ints, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return np.zeros(len(rows)), np.zeros(len(rows))

    def summed(rows: Ints, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return topic.summed[rows], np.zeros(len(rows))

    def around(rows: Ints) -> Matrix:
        return np.concatenate([part[rows] for part in (judged, claim, context.no_finding, context.view)], axis=1)

    def others(rows: Ints) -> Matrix:
        return np.concatenate([around(rows), context.logits[rows]], axis=1)

    def wide(rows: Ints) -> Matrix:
        crossed = context.logits[rows] * claim[rows]
        return np.concatenate([others(rows), context.states[rows], context.evidence[rows], crossed], axis=1)

    return [
        Design(name="judges", start=own),
        Design(name="shared", start=shared, fewer=OWN_ERRORS),
        Design(name="own", start=own, columns=around, errors=OWN_ERRORS),
        Design(name="members", start=summed, columns=around, errors=OWN_ERRORS),
        Design(name="other findings", start=summed, columns=others, many=True, errors=OTHERS_ERRORS),
        Design(name="wide", start=nothing, columns=wide, many=True, errors=WIDE_ERRORS),
    ]


def chooser(topic: Topic, context: Context, shared_fit: SharedFit) -> Choose:
    """Choose among the designs for one finding."""
    listed = designs(topic, context, shared_fit)
    return lambda without: choose_among(listed, topic, without)


def can_fit(topic: Topic) -> bool:
    """Say whether a finding can be fitted: whichever fold of patients is left out, the others have errors enough.

    A fit of some patients' images and not of others' would put two scales into one finding.
    """
    folds = np.unique(topic.reviewed.fold)
    return topic.least_errors >= ENOUGH_ERRORS and not any(
        topic.reviewed.without(frozenset({int(fold)})).one_sided for fold in folds
    )


def calibrate(topic: Topic, choose: Choose) -> Calibrated:
    """Fit one finding on its reviews; reviewed images get a probability that their patient's reviews did not touch."""
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
    columns the firmest penalty is taken that is not worse by more: what is gained by chance on the reviewed images is
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
    claim = topic.claim[reviewed.rows]
    seen = Seen(z=fitted.held_out, present=reviewed.present, weight=reviewed.weight, fold=reviewed.fold)
    bent = directions({claimed: seen.take(claim == claimed) for claimed in (0, 1)})

    def predict(rows: Ints) -> tuple[Matrix, Matrix]:
        z, spread = fitted.predict(rows)
        claim = topic.claim[rows]
        return bent.apply(z, claim), np.hypot(spread, bent.spread(z, claim))

    return predict


def losses(z: Matrix, reviewed: Reviewed) -> Matrix:
    """Measure each review's log-loss, times its weight."""
    return np.asarray(reviewed.weight * log_loss(z, reviewed.present))


def _held_out(design: Design, penalty: float, topic: Topic, without: frozenset[int]) -> Matrix:
    """Give each review the logit of a fit that did not see its patient."""
    reviewed = topic.reviewed.without(without)
    z = np.empty(len(reviewed.rows))
    for fold in np.unique(reviewed.fold):
        held = reviewed.fold == fold
        z[held], _ = _fit(design, penalty, topic, without | {int(fold)})(reviewed.rows[held])
    return z


def _fit(design: Design, penalty: float, topic: Topic, without: frozenset[int]) -> Prediction:
    """Fit by damped Newton steps; the answer is a function from images to logits and their standard deviation."""
    reviewed = topic.reviewed.without(without)
    made = design.columns or _no_columns
    sample = made(reviewed.rows)
    centre = sample.mean(axis=0) if len(sample) else np.zeros(sample.shape[1])
    scale = np.where(np.ptp(sample, axis=0) > 0, sample.std(axis=0), 1.0) if len(sample) else np.ones(sample.shape[1])

    def columns(rows: Ints) -> Matrix:
        return np.concatenate([np.ones((len(rows), 1)), (made(rows) - centre) / scale], axis=1)

    inputs, start = columns(reviewed.rows), design.start(reviewed.rows, without)[0]
    ridge = np.full(inputs.shape[1], penalty)
    # A weak pull to the judges' own rate holds the intercept, so that a handful of reviews cannot run away.
    ridge[0] = 1.0
    weights, curvature = newton(inputs, start, reviewed.present, ridge, reviewed.weight)
    covariance = np.linalg.inv(curvature)

    def predict(rows: Ints) -> tuple[Matrix, Matrix]:
        z, spread = np.empty(len(rows)), np.empty(len(rows))
        for begin in range(0, len(rows), BLOCK):
            block = slice(begin, begin + BLOCK)
            known = columns(rows[block])
            from_start, unsure = design.start(rows[block], without)
            z[block] = known @ weights + from_start
            spread[block] = np.sqrt(np.maximum(((known @ covariance) * known).sum(axis=1), 0) + unsure**2)
        return z, spread

    return predict


def _no_columns(rows: Ints) -> Matrix:
    return np.zeros((len(rows), 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Reviewed labels of one direction: the logit that was made without the patient, and what was there."""

    z: Matrix
    present: Matrix
    weight: Matrix
    fold: Ints

    def take(self, kept: Bools) -> Seen:
        """Keep some of the claims."""
        return Seen(z=self.z[kept], present=self.present[kept], weight=self.weight[kept], fold=self.fold[kept])

    @property
    def one_sided(self) -> bool:
        """Say that nothing can be learned from them."""
        return bool((self.present > 0.5).all() or not (self.present > 0.5).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """The curve of each direction, by what is claimed (1 or 0), and how sure the probabilities are."""

    curves: Mapping[int, Curve]
    unsure: Mapping[int, Curve]

    def apply(self, z: Matrix, claim: Matrix) -> Matrix:
        """Bend the logits; a claim of neither kind keeps its own."""
        bent = z.copy()
        for claimed, curve in self.curves.items():
            its = claim == claimed
            bent[its] = curve(z[its])
        return bent

    def spread(self, z: Matrix, claim: Matrix) -> Matrix:
        """Say how unsure the probability is, as a standard deviation of its logit."""
        deviation = np.zeros(len(z))
        for claimed, unsure in self.unsure.items():
            its = claim == claimed
            deviation[its] = unsure(z[its])
        return deviation


# Below FEW reviews the logit is only stretched and shifted, held near as it is. Up to MANY Venn-Abers says the
# probability, beyond that isotonic regression; between their places the curve is straight, so that order is kept.
# These two stand only where they are better, on patients they have not seen, by more than one standard error.
def directions(seen: Mapping[int, Seen]) -> Directions:
    """Fit each direction on its own reviewed claims."""
    curves, unsure = {}, {}
    for claimed, its in seen.items():
        if its.one_sided:
            continue
        if len(its.z) < FEW or _better(its):
            curves[claimed] = _curve(its)
        unsure[claimed] = _unsure(its)
    return Directions(curves=curves, unsure=unsure)


def _curve(seen: Seen) -> Curve:
    """Fit the curve that this many reviews allow."""
    if len(seen.z) < FEW:
        shift, stretch = _stretched(seen)[0]
        return lambda z: np.asarray(shift + max(1 + stretch, 0.1) * z)
    if len(seen.z) <= MANY:
        fitted = VennAbers.of(seen.z, seen.present)
        return _through(fitted.centre, np.maximum.accumulate(logit(fitted.p)))
    places, chance = isotonic(seen.z, seen.present)
    return _through(places, logit(np.clip(chance, SMOOTH, 1 - SMOOTH)))


def _unsure(seen: Seen) -> Curve:
    """Find how unsure the curve is along the logits: as its fit says, or as far as Venn-Abers' answers lie apart."""
    if len(seen.z) < FEW:
        (first, both), (_, second) = np.linalg.inv(_stretched(seen)[1])
        return lambda z: np.asarray(np.sqrt(np.maximum(first + 2 * both * z + second * z**2, 0)))
    return VennAbers.of(seen.z, seen.present).spread


def _stretched(seen: Seen) -> tuple[Matrix, Matrix]:
    """Fit shift and stretch, with their curvature."""
    inputs = np.stack([np.ones(len(seen.z)), seen.z], axis=1)
    return newton(inputs, seen.z, seen.present, STRETCH, seen.weight)


def _through(places: Matrix, logits: Matrix) -> Curve:
    """Draw straight lines between the places, and beyond the last ones go on as the logit does."""
    first, last = places[0], places[-1]

    def curve(z: Matrix) -> Matrix:
        beyond = np.minimum(z - first, 0) + np.maximum(z - last, 0)
        return np.asarray(np.interp(z, places, logits) + beyond)

    return curve


def _better(seen: Seen) -> bool:
    """Say whether the curve tells unseen patients better than the logit as it is, by more than one standard error."""
    gain = np.zeros(len(seen.z))
    for fold in np.unique(seen.fold):
        held = seen.fold == fold
        others = seen.take(~held)
        if len(others.z) == 0 or others.one_sided:
            return False
        z, there = seen.z[held], seen.present[held]
        bent = _curve(others)(z)
        gain[held] = seen.weight[held] * (log_loss(z, there) - log_loss(bent, there))
    return bool(len(gain) > 1 and gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VennAbers:
    """Two isotonic fits, with the pair in question called absent (p0) and called present (p1).

    They enclose what can be said; one probability of them is p1 / (1 - p0 + p1).
    """

    centre: Matrix
    """The mean score of each place."""
    low: Matrix
    high: Matrix

    @classmethod
    def of(cls, score: Matrix, present: Matrix) -> VennAbers:
        """Fit scores and what was there, 1 or 0 or a chance between."""
        # Equal scores share a place, so that the order in which pairs are named does not matter.
        rank = np.searchsorted(np.sort(score), score)
        _, place = np.unique(rank * min(MOST_BINS, len(score)) // max(len(score), 1), return_inverse=True)
        count, hits, total = (
            np.bincount(place, weights).astype(np.float64) for weights in (np.ones(len(score)), present, score)
        )
        return cls(
            centre=total / count,
            low=_isotonic_with(count, hits, 0.0),
            high=_isotonic_with(count, hits, 1.0),
        )

    @property
    def p(self) -> Matrix:
        """The one probability that the two come to."""
        return np.asarray(self.high / (1 - self.low + self.high))

    def spread(self, score: Matrix) -> Matrix:
        """Say how unsure the probability is at other scores, as the standard deviation of its logit.

        The 95 % interval about p is as wide as the two answers lie apart. Their own logits would not do: where nothing
        came true one of the answers is 0, and its logit without end.
        """
        deviation = (self.high - self.low) / (2 * NORMAL_95 * self.p * (1 - self.p))
        return np.asarray(np.interp(score, self.centre, deviation))


def isotonic(score: Matrix, present: Matrix) -> tuple[Matrix, Matrix]:
    """Fit the best rising curve through what was there: scores in order, and the chance at each of them."""
    # Of equal scores the greatest outcome comes first: then they are all pooled.
    order = np.lexsort((-present, score))
    level = np.empty(0)
    size = np.empty(0)
    for value in present[order]:
        level, size = np.append(level, value), np.append(size, 1.0)
        while len(level) > 1 and level[-2] >= level[-1]:
            both = size[-2] + size[-1]
            joined = (level[-2] * size[-2] + level[-1] * size[-1]) / both
            level, size = np.append(level[:-2], joined), np.append(size[:-2], both)
    return score[order], np.repeat(level, size.astype(np.int64))


def _isotonic_with(count: Matrix, hits: Matrix, added: float) -> Matrix:
    """Give, at each place, the isotonic answer once a pair with this outcome is added there.

    The isotonic answer at a place is the greatest, over all starts up to it, of the least mean over all ends from it.
    """
    many, much = (np.concatenate([[0.0], np.cumsum(values)]) for values in (count, hits))
    answer = np.empty(len(count))
    for place in range(len(count)):
        starts, ends = slice(0, place + 1), slice(place + 1, len(count) + 1)
        mean = (much[ends] - much[starts, None] + added) / (many[ends] - many[starts, None] + 1)
        answer[place] = mean.min(axis=1).max()
    return answer
