"""Stage 3, calibrate: from the judges' answer and the label to P(present), fitted on expert labels of one finding.

The plainest fit is the partly pooled one (hierarchical.py), which begins with the first label. Richer ridge regressions
stand beside it, and each has a weight: how well it tells patients that it has not seen. So with many labels the richer
ones take over, a little with each label, and no single verdict turns a finding over. The trust of a reviewed pair comes
from a fit, weights included, that saw no review of its patient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bpals.numeric import Matrix, log_loss, newton, sigmoid
from bpals.signal.hierarchical import PartialPooling, Reviewed, Topic
from bpals.signal.layout import Ints
from bpals.signal.prior import NOBODY

Prediction = Callable[[Ints], tuple[Matrix, Matrix]]
"""From rows of images to their logits and the logits' standard deviations."""

BLOCK = 16_384
"""Images predicted at a time, which bounds the memory."""
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0)
OTHERS_ERRORS = 40
"""With fewer reviewed errors the answers about the other findings get no regression of their own; from there on its
weight grows, and with twice as many it is whole."""
OWN_ERRORS = 50
"""The same for a regression of the finding's own answer, label, view and whether the image has a label at all."""
WIDE_ERRORS = 100
"""The same for the wide design, which has more columns than that."""
EVIDENCE = 3.0
"""A fit that is better by this much log-loss in all, beyond one standard error, counts e times as much."""
LEAST_WEIGHT = 0.01
"""What weighs less is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One way to turn what is known of a pair into columns."""

    name: str
    start: Callable[[Ints, frozenset[int]], tuple[Matrix, Matrix]]
    """The logit that the columns correct, with its standard deviation, known without some patients' reviews."""
    columns: Callable[[Ints], Matrix] | None = None
    """From rows of images to columns: a matrix of all images would be made only to be thrown away."""
    errors: int = 0
    """With fewer reviewed errors it has no weight."""

    def ramp(self, errors: int) -> float:
        """Say how far it may count with so many errors: from 0 to 1, without a step."""
        return float(np.clip(errors / self.errors - 1, 0, 1)) if self.errors else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the designs may use beside the judges' answer and the claim."""

    no_finding: Matrix
    view: Matrix
    logits: Matrix
    """Of all findings, a column each."""
    states: Matrix
    evidence: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """One finding, calibrated: a probability for every image, with the standard deviation of its logit."""

    p_present: Matrix
    spread: Matrix
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Designs with their weights, fitted on the reviews but for those of some patients."""

    weights: Mapping[str, float]
    predict: Prediction
    held_out: Matrix
    """The logit of each of these reviews, by a fit that did not see its patient either."""


Choose = Callable[[frozenset[int]], Fitted]
"""Without the reviews of some patients: the designs, fitted and weighed."""


def designs(topic: Topic, context: Context, pooling: PartialPooling) -> list[Design]:
    """List the designs for one finding, the plainest first."""
    judged, claim = topic.judged[:, None], topic.claim[:, None]

    def pooled(rows: Ints, without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return pooling.correct(topic.finding, rows, without)

    def own(rows: Ints, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return topic.judged[rows], np.zeros(len(rows))

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
        Design(name="partly pooled", start=pooled),
        Design(name="own", start=own, columns=around, errors=OWN_ERRORS),
        Design(name="other findings", start=summed, columns=others, errors=OTHERS_ERRORS),
        Design(name="wide", start=nothing, columns=wide, errors=WIDE_ERRORS),
    ]


def chooser(topic: Topic, context: Context, pooling: PartialPooling) -> Choose:
    """Weigh the designs for one finding."""
    listed = designs(topic, context, pooling)
    return lambda without: weigh_designs(listed, topic, without)


def calibrate(topic: Topic, choose: Choose, crossed: Ints, fold: Ints) -> Calibrated:
    """Fit one finding on its reviews; the images `crossed` get a probability that no review of their patient touched.

    `fold` is that of every image.
    """
    fitted = choose(NOBODY)
    z, spread = fitted.predict(np.arange(len(topic.judged)))
    for one in np.unique(fold[crossed]):
        rows = crossed[fold[crossed] == one]
        z[rows], spread[rows] = choose(frozenset({int(one)})).predict(rows)
    return Calibrated(p_present=sigmoid(z), spread=spread, weights=fitted.weights)


def weigh_designs(listed: Sequence[Design], topic: Topic, without: frozenset[int]) -> Fitted:
    """Fit every design with every penalty, and weigh them by patients that they have not seen."""
    reviewed, errors = topic.reviewed.without(without), topic.errors(without)
    first = _held_out(listed[0], PENALTIES[-1], topic, without)
    tried = [(listed[0], PENALTIES[-1], 1.0, first)]
    if len(np.unique(reviewed.fold)) > 1:
        for design in listed[1:]:
            if ramp := design.ramp(errors):
                penalties = PENALTIES if design.columns else PENALTIES[-1:]
                tried += [(design, one, ramp, _held_out(design, one, topic, without)) for one in penalties]
    fits = [design.name for design, *_ in tried]
    prior = [1 / fits.count(name) for name in fits]
    weight = weights(prior, [losses(z, reviewed) for *_, z in tried], [ramp for _, _, ramp, _ in tried])
    held_out = np.sum([its * z for its, (*_, z) in zip(weight, tried, strict=True)], axis=0)
    kept = [(its, design, one) for its, (design, one, *_) in zip(weight, tried, strict=True) if its]
    named = {design.name: sum(its for its, other, _ in kept if other is design) for _, design, _ in kept}
    parts = []
    for design in (one for one in listed if one.name in named):
        penalised = {one: its / named[design.name] for its, other, one in kept if other is design}
        parts.append((named[design.name], _fit(design, penalised, topic, without)))
    return Fitted(weights=named, predict=mixed(parts), held_out=np.asarray(held_out))


def weights(prior: Sequence[float], losses: Sequence[Matrix], ramps: Sequence[float]) -> Matrix:
    """Weigh fits by their log-losses on unseen patients, pair by pair; the first is the one to beat.

    A fit counts exp((gain - its standard error) / EVIDENCE) times as much as the first (pseudo-BMA, Yao et al. 2018). A
    ramp below 1 is the part of the vote that a fit takes part in, so it is also the most that it can weigh.
    """
    score = np.zeros(len(prior))
    for place, its in enumerate(losses[1:], start=1):
        gain = losses[0] - its
        score[place] = (gain.sum() - np.sqrt(len(gain)) * gain.std()) / EVIDENCE
    weight, below = np.zeros(len(prior)), 0.0
    # Were the ramp a factor of its share, strong evidence would swamp it, and one verdict could turn a finding over.
    for level in sorted(set(ramps)):
        open_to = np.array(ramps) >= level
        votes = np.where(open_to, np.array(prior) * np.exp(score - score[open_to].max()), 0.0)
        weight += (level - below) * votes / votes.sum()
        below = level
    weight[weight < LEAST_WEIGHT] = 0
    return np.asarray(weight / weight.sum())


def mixed(parts: Sequence[tuple[float, Prediction]]) -> Prediction:
    """Average fits by their weights; where they differ the answer is less sure."""
    if len(parts) == 1:
        return parts[0][1]

    def predict(rows: Ints) -> tuple[Matrix, Matrix]:
        z, square = np.zeros(len(rows)), np.zeros(len(rows))
        for weight, part in parts:
            its, spread = part(rows)
            z += weight * its
            square += weight * (its**2 + spread**2)
        return z, np.sqrt(np.maximum(square - z**2, 0))

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
        z[held], _ = _fit(design, {penalty: 1.0}, topic, without | {int(fold)})(reviewed.rows[held])
    return z


def _fit(design: Design, penalties: Mapping[float, float], topic: Topic, without: frozenset[int]) -> Prediction:
    """Fit a design, with each penalty by its share; the answer is a function from images to logits and deviations."""
    if design.columns is None:
        return lambda rows: _in_blocks(rows, lambda some: design.start(some, without))
    reviewed = topic.reviewed.without(without)
    made = design.columns
    sample = made(reviewed.rows)
    centre = sample.mean(axis=0) if len(sample) else np.zeros(sample.shape[1])
    scale = np.where(np.ptp(sample, axis=0) > 0, sample.std(axis=0), 1.0) if len(sample) else np.ones(sample.shape[1])

    def columns(rows: Ints) -> Matrix:
        return np.concatenate([np.ones((len(rows), 1)), (made(rows) - centre) / scale], axis=1)

    inputs, start = columns(reviewed.rows), design.start(reviewed.rows, without)[0]
    coefficients, covariance = np.zeros(inputs.shape[1]), np.zeros((inputs.shape[1], inputs.shape[1]))
    for penalty, share in penalties.items():
        ridge = np.full(inputs.shape[1], penalty)
        # A weak pull to the judges' own rate holds the intercept, so that a handful of reviews cannot run away.
        ridge[0] = 1.0
        its, curvature = newton(inputs, start, reviewed.present, ridge, reviewed.weight)
        # Logits are linear in the coefficients, so the average of the fits is the fit of the average.
        coefficients += share * its
        covariance += share * np.linalg.inv(curvature)

    def predict(rows: Ints) -> tuple[Matrix, Matrix]:
        known = columns(rows)
        from_start, unsure = design.start(rows, without)
        spread = np.sqrt(np.maximum(((known @ covariance) * known).sum(axis=1), 0) + unsure**2)
        return known @ coefficients + from_start, spread

    return lambda rows: _in_blocks(rows, predict)


def _in_blocks(rows: Ints, predict: Prediction) -> tuple[Matrix, Matrix]:
    z, spread = np.empty(len(rows)), np.empty(len(rows))
    for begin in range(0, len(rows), BLOCK):
        block = slice(begin, begin + BLOCK)
        z[block], spread[block] = predict(rows[block])
    return z, spread
