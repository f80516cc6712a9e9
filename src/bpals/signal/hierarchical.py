"""Partial pooling: one model of all findings and groups, in which few expert labels move little.

    logit P(present) = x + c (m_k + beta + delta_k),    beta ~ N(0, B),    delta_k ~ N(0, D_k)

x is the judges' logit and c the pair's columns: the direction of its label, x by direction, whether the image carries
no label, and the judges' logits of the other findings. k is the finding or group. beta is what all share (and what a
group shares with its members), delta_k what a finding has of its own. m_k and D_k come from an expert calibration that
was fitted elsewhere (prior.py); without one m_k is 0. So with no expert label the judges' answer stands, the first
labels move all findings a little, and a finding that was read often follows its own readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bpals.numeric import Matrix, log_loss, newton, sigmoid
from bpals.signal.layout import Bools, Ints, in_blocks
from bpals.signal.prior import DIRECTION, NOBODY, READERS, Inputs, Prior, Rows, quadratic

BOTH, EACH = 1.0, 0.3
"""The deviations that are expected of a finding's shift, and of what its two directions have of their own."""
SHARED: Mapping[str, float] = dict(zip(DIRECTION, (0.3, 0.5, 0.15, 0.15, 0.5), strict=True))
"""How far what all findings share is expected to differ from the judges' answer: standard deviations of B.

Little for presences: readers confirm two in three labels of one finding and none of another, so that the first reads of
some findings say little about the labels of others. For absences more lost log-loss in the first thirty reads."""
INTERCEPTS = ("present", "absent")
OWN: Mapping[str, float] = dict(zip(DIRECTION, (0.8, 0.8, 0.1, 0.1, 0.3), strict=True))
"""How far a finding is expected to differ from what all share: standard deviations of D_k."""
UNREAD = 2.5
"""The deviation of a finding's intercepts that intervals allow for before anybody read it, instead of OWN's.

OWN holds the estimate, which pays; but readers confirm two in three labels of one finding and none of another, so an
interval by OWN would call labels of findings trusted, or mislabelled, that nobody ever read."""
FAMILY = 0.3
"""The same for what a group shares with its members: an intercept for each direction."""
OTHERS, SEEN, CIRCUMSTANCES = 0.15, 0.3, 0.1
"""The same for the logits of other findings, for having been seen by an image judge, and for view, age and the like."""
SCALES = (0.1, 0.4, 1.0)
"""Shares of those deviations that are tried for all columns but intercepts; the evidence weighs them (`averaged`).

Where other findings say nothing, as in made-up datasets, columns of them are noise that costs error AP; on NIH they are
worth .03."""
DRIFT = 0.5
"""What experts here may change of a calibration, as a share of what they may change of the judges' answer."""
NO_MORE = 1e-3
"""A deviation so small that it adds nothing, and a matrix with it can still be inverted."""
ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """The expert labels of one finding: which images, what is there, how much each counts, the patient's fold."""

    rows: Ints
    present: Matrix
    """1 or 0, or the chance that the finding is there where readers left it open."""
    weight: Matrix
    """How much a review counts: those that were drawn with a small chance stand for more pairs."""
    fold: Ints
    settled: Callable[[frozenset[int]], Matrix] | None = None
    """What is there, as reads without some patients make it; None where no review leans on another."""

    def without(self, folds: frozenset[int]) -> Reviewed:
        """Leave out the reviews of some patients, and what they taught about the readers of the others."""
        kept = ~np.isin(self.fold, list(folds))
        present = self.settled(folds) if self.settled and folds else self.present
        return Reviewed(rows=self.rows[kept], present=present[kept], weight=self.weight[kept], fold=self.fold[kept])

    def only(self, kept: Bools) -> Reviewed:
        """Keep some of the reviews."""
        settled = self.settled
        return Reviewed(
            rows=self.rows[kept],
            present=self.present[kept],
            weight=self.weight[kept],
            fold=self.fold[kept],
            settled=None if settled is None else lambda folds: settled(folds)[kept],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A finding or group: the judges' answer, the label, and the reviews if there are any."""

    finding: str
    judged: Matrix
    """The judges' logit of every image; NaN where nobody answered."""
    summed: Matrix
    """The same from the members of a group: min(1, sum of their probabilities); for a finding, its own."""
    claim: Matrix
    """The label: 1 present, 0 absent, 0.5 neither."""
    by_image: Matrix
    """1 where an image judge took part, else 0."""
    reviewed: Reviewed

    def errors(self, without: frozenset[int] = NOBODY) -> int:
        """Count the labels that the reviews contradict, but for those of some patients."""
        reviewed = self.reviewed.without(without)
        claim, there = self.claim[reviewed.rows], reviewed.present > 0.5
        return int(((claim == 1) & ~there | (claim == 0) & there).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """What was fitted: for each subject its coefficients beside the prior's, and their covariance."""

    mean: Matrix
    covariance: Matrix
    evidence: float
    """The log of how probable the reviews are under such deviations (Laplace's approximation)."""


@dataclass(slots=True)
class PartialPooling:
    """The fit of all subjects together; fits without some patients are kept, because many ask for them."""

    inputs: Inputs
    reviewed: Mapping[str, Reviewed]
    """Subject -> what experts say of it."""
    families: Sequence[Sequence[str]] = ()
    """Subjects that share intercepts: a group and its members."""
    prior: Prior | None = None
    elsewhere: Inputs | None = None
    """What the prior reads: the metadata judge alone. None: the same."""
    fits: dict[frozenset[int], Coefficients] = field(default_factory=dict)
    whole: dict[str, tuple[Matrix, Matrix]] = field(default_factory=dict)
    """Subject -> the answer about all images by the fit of all patients, which groups ask for again."""

    def correct(self, subject: str, rows: Rows, without: frozenset[int]) -> tuple[Matrix, Matrix]:
        """Give the corrected logit of some images and its standard deviation, fitted without some patients."""
        if without:
            return self._correct(subject, rows, without)
        if subject not in self.whole:
            count = len(self.inputs.no_finding)
            z, spread = np.empty(count), np.empty(count)

            def work(block: slice) -> None:
                z[block], spread[block] = self._correct(subject, block, without)

            in_blocks(count, work)
            self.whole[subject] = z, spread
        z, spread = self.whole[subject]
        return z[rows], spread[rows]

    def _correct(self, subject: str, rows: Rows, without: frozenset[int]) -> tuple[Matrix, Matrix]:
        place = self.inputs.subjects.index(subject)
        start = self.inputs.start(place, rows, without)
        laid = self.inputs.lay(place, rows, start)
        z, variance = start + self._prior_shift(place, laid, rows, without), np.zeros(len(start))
        if self.reviewed:
            fit = self.fit(without)
            z += laid @ fit.mean[place]
            variance += quadratic(laid, fit.covariance[place])
            if self.prior is not None:
                variance += self.prior.extrapolation(subject, laid, rows)
        elif self.prior is not None:
            variance += self.prior.variance(subject, self.inputs.columns, laid, rows)
        return z, np.sqrt(np.maximum(variance, 0))

    def fit(self, without: frozenset[int]) -> Coefficients:
        """Fit beta and every delta at once, without the reviews of some patients."""
        if without not in self.fits:
            self.fits[without] = self._fit(without)
        return self.fits[without]

    def _prior_shift(self, place: int, laid: Matrix, rows: Rows, without: frozenset[int]) -> Matrix:
        """Give what a calibration that was fitted elsewhere adds to the logits."""
        if self.prior is None:
            return np.zeros(len(laid))
        read = self.elsewhere or self.inputs
        if read is not self.inputs:
            laid = read.lay(place, rows, read.start(place, rows, without))
        return self.prior.shift(read.subjects[place], read.columns, laid, rows)

    def _fit(self, without: frozenset[int]) -> Coefficients:
        data = [self._data(place, without) for place in range(len(self.inputs.subjects))]
        return averaged([self._solve(data, scale) for scale in SCALES])

    def _data(self, place: int, without: frozenset[int]) -> _Data | None:
        """Lay out the reviewed pairs of a subject, but for those of some patients; None where there are none."""
        reviewed = self.reviewed.get(self.inputs.subjects[place])
        kept = None if reviewed is None else reviewed.without(without)
        if kept is None or not len(kept.rows):
            return None
        start = self.inputs.start(place, kept.rows, without)
        laid = self.inputs.lay(place, kept.rows, start)
        start = start + self._prior_shift(place, laid, kept.rows, without)
        return _Data(columns=laid, start=start, present=kept.present, weight=kept.weight)

    def _solve(self, data: Sequence[_Data | None], scale: float) -> Coefficients:
        """Fit all subjects with a share of the deviations that columns other than intercepts may have."""
        inputs, columns = self.inputs, self.inputs.columns
        families = [set(family) for family in self.families]
        firm = 1.0 if self.prior is None else 1 / DRIFT
        intercepts = np.array([name in INTERCEPTS for name in columns])
        scaled = np.where(intercepts, 1.0, scale)
        wide = np.array([SHARED.get(name, 0.0) for name in columns]) * scaled
        common = np.flatnonzero(wide)
        shared = np.concatenate([wide[common], np.full(2 * len(families), FAMILY)]) / firm
        parts = []
        for subject, its in zip(inputs.subjects, data, strict=True):
            # gamma = spread_out . (beta, families) + delta
            spread_out = np.zeros((len(columns), len(shared)))
            spread_out[common, np.arange(len(common))] = 1
            for number, family in enumerate(families):
                if subject in family:
                    spread_out[[0, 1], [len(common) + 2 * number, len(common) + 2 * number + 1]] = 1
            own = own_deviations(inputs) * scaled / firm
            known = 0.0 if self.prior is None else self.prior.covariance(subject, columns)
            # Without any read the interval is that of the calibration alone, so that the first read changes little.
            unread = np.where(intercepts, UNREAD, own) if self.prior is None else np.where(intercepts, READERS, NO_MORE)
            parts.append(
                _Part(
                    spread_out=spread_out,
                    firm=np.asarray(np.linalg.inv(np.diag(own**2) + known)),
                    unread=np.asarray(np.linalg.inv(np.diag(unread**2) + known)),
                    data=its,
                )
            )
        return solve(parts, np.diag(1 / shared**2), shared_doubt=self.prior is None)


def own_deviations(inputs: Inputs) -> Matrix:
    """Give each column's standard deviation in a finding."""
    seen = () if inputs.seen is None else (SEEN, OWN["present x logit"])
    parts = [*OWN.values(), *[OTHERS] * len(inputs.findings), *seen, *[CIRCUMSTANCES] * len(inputs.circumstances)]
    return np.array(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """The reviewed pairs of one subject."""

    columns: Matrix
    start: Matrix
    present: Matrix
    weight: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One subject: how the shared coefficients enter, how firmly its own are held, and its reviewed pairs.

    `firm` and `unread` are precisions.
    """

    spread_out: Matrix
    firm: Matrix
    unread: Matrix
    """The same for intervals: how little is known of it before anybody reads."""
    data: _Data | None

    def logits(self, data: _Data, beta: Matrix, delta: Matrix) -> Matrix:
        """Give the logits of the reviewed pairs."""
        return np.asarray(data.start + data.columns @ (self.spread_out @ beta + delta))


def averaged(fits: Sequence[Coefficients]) -> Coefficients:
    """Average fits by their evidence; where they differ, the covariance grows."""
    evidence = np.array([fit.evidence for fit in fits])
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()
    mean = sum(its * fit.mean for its, fit in zip(weight, fits, strict=True))
    covariance = np.zeros_like(fits[0].covariance)
    for its, fit in zip(weight, fits, strict=True):
        off = fit.mean - mean
        covariance += its * (fit.covariance + off[:, :, None] * off[:, None, :])
    return Coefficients(mean=np.asarray(mean), covariance=covariance, evidence=float(weight @ evidence))


def solve(parts: Sequence[_Part], firm: Matrix, *, shared_doubt: bool = True) -> Coefficients:
    """Find the most probable coefficients by damped Newton steps, with their covariance (Laplace's approximation).

    `shared_doubt`: whether intervals count what is not known of the shared coefficients.
    """
    arrow = _Arrow(parts=parts, firm=firm)
    beta, deltas = np.zeros(len(firm)), [np.zeros(len(part.firm)) for part in parts]
    now = arrow.loss(beta, deltas)
    for _ in range(ROUNDS):
        curvature, step, steps = arrow.step(beta, deltas)
        length, then = 1.0, np.inf
        while True:
            # A full step may overshoot where the loss is far from a parabola: it is halved until it helps.
            tried = [delta + length * its for delta, its in zip(deltas, steps, strict=True)]
            then = arrow.loss(beta + length * step, tried)
            if then <= now + 1e-12 or length < 1e-6:
                break
            length /= 2
        beta, deltas, gained, now = beta + length * step, tried, now - then, then
        if gained < 1e-9 * max(1.0, abs(now)):
            break
    mean = [part.spread_out @ beta + delta for part, delta in zip(parts, deltas, strict=True)]
    held = _log_determinant(firm) + sum(_log_determinant(part.firm) for part in parts)
    evidence = (held - curvature.log_determinant()) / 2 - now
    return Coefficients(mean=np.array(mean), covariance=curvature.covariance(parts, shared_doubt), evidence=evidence)


def _log_determinant(matrix: Matrix) -> float:
    return float(np.linalg.slogdet(matrix)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curvature:
    """The curvature of the loss: what is left of the shared part, and each subject's own with how both meet."""

    left: Matrix
    own: Sequence[tuple[Matrix, Matrix]]

    def log_determinant(self) -> float:
        """Give the log determinant of the whole curvature: that of an arrow is the product of its parts'."""
        return _log_determinant(self.left) + sum(_log_determinant(own) for own, _ in self.own)

    def covariance(self, parts: Sequence[_Part], shared_doubt: bool) -> Matrix:  # noqa: FBT001  of `solve`
        """Give the covariance of each subject's coefficients, shared and own together."""
        shared, found = np.linalg.inv(self.left), []
        for part, (own, _) in zip(parts, self.own, strict=True):
            curve = own - part.firm
            wide = curve + part.unread
            found.append(np.linalg.inv(wide))
            if shared_doubt:
                through = part.spread_out - np.linalg.solve(wide, curve @ part.spread_out)
                found[-1] = found[-1] + through @ shared @ through.T
        return np.array(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrow:
    """The loss of all subjects together.

    Each subject's own coefficients meet only the shared ones, so the curvature is an arrow: the subjects are solved one
    by one, and what they leave of the shared part (its Schur complement) once.
    """

    parts: Sequence[_Part]
    firm: Matrix

    def loss(self, beta: Matrix, deltas: Sequence[Matrix]) -> float:
        """Give the log-loss of all reviewed pairs, and what holds the coefficients."""
        total = 0.5 * float(beta @ self.firm @ beta)
        for part, delta in zip(self.parts, deltas, strict=True):
            total += 0.5 * float(delta @ part.firm @ delta)
            if (data := part.data) is not None:
                total += float((data.weight * log_loss(part.logits(data, beta, delta), data.present)).sum())
        return total

    def step(self, beta: Matrix, deltas: Sequence[Matrix]) -> tuple[_Curvature, Matrix, list[Matrix]]:
        """Give the curvature here, and the step to the bottom of its parabola."""
        left, slope, solved, own = self.firm.copy(), -self.firm @ beta, [], []
        for part, delta in zip(self.parts, deltas, strict=True):
            curve, pull = np.zeros_like(part.firm), np.zeros(len(part.firm))
            if (data := part.data) is not None:
                p = sigmoid(part.logits(data, beta, delta))
                curve = (data.columns * (data.weight * p * (1 - p))[:, None]).T @ data.columns
                pull = data.columns.T @ (data.weight * (data.present - p))
            meets = part.spread_out.T @ curve
            own.append(curve + part.firm)
            both = np.column_stack([meets.T, pull - part.firm @ delta])
            solved.append(np.asarray(np.linalg.solve(own[-1], both), dtype=np.float64))
            left += meets @ part.spread_out - meets @ solved[-1][:, :-1]
            slope += part.spread_out.T @ pull - meets @ solved[-1][:, -1]
        step = np.asarray(np.linalg.solve(left, slope), dtype=np.float64)
        steps = [np.asarray(its[:, -1] - its[:, :-1] @ step) for its in solved]
        curvature = _Curvature(left=left, own=[(one, its[:, :-1]) for one, its in zip(own, solved, strict=True)])
        return curvature, step, steps


def shifts(z: Matrix, claim: Matrix, sample: Reviewed) -> tuple[float, float]:
    """Find what to add to the logits of labelled presences, and absences, from a random sample of images.

    logit P(present) + a + d,    a ~ N(0, 1) for the finding, d ~ N(0, .3^2) for presences and for absences
    """
    # Only shifts are fitted, and they are held: 200 images say little more.
    claimed = claim[sample.rows]
    inputs = np.stack([np.ones(len(claimed)), claimed == 1, claimed == 0], axis=1).astype(float)
    ridge = np.array([1 / BOTH**2, 1 / EACH**2, 1 / EACH**2])
    (both, present, absent), _ = newton(inputs, z[sample.rows], sample.present, ridge, sample.weight)
    return float(both + present), float(both + absent)


def refit(z: Matrix, claim: Matrix, sample: Reviewed) -> Matrix:
    """Shift every logit; the images of the sample by what the other patients of the sample say."""
    moved = _shifted(z, claim, shifts(z, claim, sample))
    for fold in np.unique(sample.fold):
        rows = sample.rows[sample.fold == fold]
        others = sample.without(frozenset({int(fold)}))
        moved[rows] = _shifted(z, claim, shifts(z, claim, others))[rows]
    return moved


def _shifted(z: Matrix, claim: Matrix, by: tuple[float, float]) -> Matrix:
    present, absent = by
    neither = (present + absent) / 2
    return np.asarray(z + np.where(claim == 1, present, np.where(claim == 0, absent, neither)))
