"""Image judges that answer nearly alike count as one: who they are, and what each such group says of a finding.

Two judges are correlated if their evidence correlates by .6 or more, or if they are the same model; so are those that
a third one links. Inside a group, the members' evidence is weighed by a linear discriminant against the labels of other
patients; a logistic regression turns the score into a logit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bpals.numeric import Matrix, newton
from bpals.signal.layout import Bools, Ints, JudgeAnswers, Value

CORRELATED = 0.6
"""Judges whose evidence correlates at least this far are of one group."""
SAME = 1e-9
"""Evidence that differs by no more than this is the same evidence under another name."""
SAMPLE = 20_000
"""Images on which correlation is measured, evenly spaced: more would not change it."""
ENOUGH = 200
"""Pairs that two judges must both have answered before they can be found correlated."""
PARTS = 5
"""Parts of the patients: each is answered from the others."""
PLACES = 1024
"""Places of the grid of scores ..."""
REACH = 32.0
"""... and where it ends: scores beyond it are at its end."""
FURTHEST = 4.0
"""Evidence beyond so many deviations counts as so many: one strange image must not outvote everybody."""
CONTRAST = 30.0
"""Labelled presences at which what tells the members apart counts half; with fewer, they tend to equal weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeGroups:
    """The image judges sorted into groups of correlated ones."""

    members: tuple[tuple[JudgeAnswers, ...], ...]
    """Every judge once: of judges that are the same under several names only the first counts."""
    names: Mapping[str, tuple[str, ...]]
    """Judge that counts -> all the names under which it came."""
    correlation: Matrix
    """Of every two judges, in the order of their names; NaN where too few pairs were answered by both."""

    @property
    def votes(self) -> dict[str, float]:
        """Judge -> its part of the vote of one: the names of one judge share it."""
        return {name: 1 / len(names) for names in self.names.values() for name in names}

    @property
    def heads(self) -> dict[str, str]:
        """Judge -> the first judge of its group."""
        return {name: group[0].name for group in self.members for judge in group for name in self.names[judge.name]}

    @property
    def effective(self) -> float:
        """How many independent judges they are worth (Kish); a correlation that nobody could measure counts as 0."""
        count = len(self.correlation)
        if count < 2:
            return float(count)
        others = ~np.eye(count, dtype=bool)
        return count / (1 + (count - 1) * float(np.maximum(np.nan_to_num(self.correlation[others]), 0).mean()))


def group_judges(judges: Sequence[JudgeAnswers]) -> JudgeGroups:
    """Sort the judges into groups of correlated ones. The order in which they are named does not matter."""
    # Correlation is measured on the answers alone, so no label can reach it.
    judges = sorted(judges, key=lambda judge: judge.name)
    correlation = _correlation(judges)
    first = [_first_like(judges, place, correlation) for place in range(len(judges))]
    # Of answers that are the same under several names, one card that admits the training is enough.
    trained = {place: any(its.trained for its, like in zip(judges, first, strict=True) if like == place)
               for place in first}  # fmt: skip
    judges = [replace(judge, trained=trained[like]) for judge, like in zip(judges, first, strict=True)]
    head = list(range(len(judges)))
    for one in range(len(judges)):
        for other in range(one):
            a, b = judges[one], judges[other]
            alike = correlation[one, other] >= CORRELATED or (a.model and a.model == b.model)
            # Judges trained on the labels never join the others: the labels would count in the others' name.
            if alike and a.trained == b.trained and head[one] != head[other]:
                old, new = head[one], head[other]
                head = [new if its == old else its for its in head]
    distinct = [place for place in range(len(judges)) if first[place] == place]
    members = {root: tuple(judges[place] for place in distinct if head[place] == root) for root in head}
    names = {
        judges[place].name: tuple(judge.name for judge, like in zip(judges, first, strict=True) if like == place)
        for place in distinct
    }
    return JudgeGroups(members=tuple(its for its in members.values() if its), names=names, correlation=correlation)


def _correlation(judges: Sequence[JudgeAnswers]) -> Matrix:
    """Correlate the evidence of every two judges over what both answered."""
    count = len(judges)
    correlation = np.eye(count)
    if count < 2:
        return correlation
    step = max(1, len(judges[0].evidence) // SAMPLE)
    evidence = [judge.evidence[::step].ravel() for judge in judges]
    known = [~np.isnan(each) for each in evidence]
    for one in range(count):
        for other in range(one):
            both = known[one] & known[other]
            correlation[one, other] = correlation[other, one] = _cosine(evidence[one][both], evidence[other][both])
    return correlation


def _cosine(one: Matrix, other: Matrix) -> float:
    """Evidence is centred already, finding by finding."""
    size = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other / size) if len(one) >= ENOUGH and size > 0 else np.nan


def _first_like(judges: Sequence[JudgeAnswers], place: int, correlation: Matrix) -> int:
    """Find the first judge that says the same of the same images."""
    mine = judges[place].evidence
    for earlier in range(place):
        alike = np.isnan(correlation[place, earlier]) or correlation[place, earlier] > 1 - 1e-6
        if alike and np.allclose(mine, judges[earlier].evidence, rtol=0, atol=SAME, equal_nan=True):
            return earlier
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Some images of a dataset, sorted by part of the patients and by fold, so that each cell is one slice."""

    images: Ints
    """Their rows in the dataset."""
    cell: Ints
    """Part and fold of each, as one number."""
    folds: int

    @classmethod
    def of(cls, part: Ints, fold: Ints) -> Cells:
        """Sort all images; the folds may have any numbers."""
        names, number = np.unique(fold, return_inverse=True)
        cell = part * len(names) + number
        return cls(images=np.argsort(cell, kind="stable"), cell=np.sort(cell), folds=len(names))

    def only(self, wanted: Bools) -> Cells:
        """Keep some of the images: `wanted` has a value for every image of the dataset."""
        kept = wanted[self.images]
        return Cells(images=self.images[kept], cell=self.cell[kept], folds=self.folds)

    @property
    def pieces(self) -> list[list[slice]]:
        """Give the places of the images of each part and fold."""
        ends = np.searchsorted(self.cell, np.arange(PARTS * self.folds + 1)).tolist()
        cells = [slice(*ends[number : number + 2]) for number in range(PARTS * self.folds)]
        return [cells[part * self.folds : (part + 1) * self.folds] for part in range(PARTS)]

    @property
    def parts(self) -> list[slice]:
        """Give the places of the images of each part."""
        return [slice(of_part[0].start, of_part[-1].stop) for of_part in self.pieces]


def joined(values: NDArray[Value], pieces: Sequence[slice | Ints]) -> NDArray[Value]:
    """Put pieces of a row, or of the columns of a matrix, one after the other."""
    return np.concatenate([values[..., piece] for piece in pieces], axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A logit that is a straight line of one score."""

    intercept: float
    slope: float
    covariance: Matrix

    def answer(self, score: Matrix) -> Matrix:
        """Give the logit."""
        z = self.slope * score
        z += self.intercept
        return np.asarray(z)

    def spread(self, score: Matrix) -> Matrix:
        """Give the standard deviation of the logit."""
        (first, both), (_, second) = self.covariance
        return np.asarray(np.sqrt(np.maximum(first + 2 * both * score + second * score**2, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Scores counted place by place, so that a fit costs the same however many images there are."""

    count: Matrix
    hits: Matrix
    """How many of them have the finding."""
    centre: Matrix
    """Their mean score."""

    @classmethod
    def of(cls, score: Matrix, present: Bools) -> Grid:
        """Put the images on the grid."""
        along = np.clip(score, -REACH, REACH)
        along += REACH
        along *= (PLACES - 1) / (2 * REACH)
        place = along.astype(np.int32)  # numpy takes ten times as long to make longer ones
        count = np.bincount(place, minlength=PLACES)
        used = count > 0
        hits = np.bincount(place[present], minlength=PLACES)[used]
        total = np.bincount(place, score, minlength=PLACES)[used]
        return cls(count=count[used].astype(float), hits=hits.astype(float), centre=total / count[used])

    def line(self) -> Line:
        """Fit a line to definite labels; weak pulls hold the intercept near their rate and the slope near 1."""
        rate = (self.hits.sum() + 0.5) / (self.count.sum() + 1)
        usual = float(np.log(rate / (1 - rate)))
        inputs = np.stack([np.ones(len(self.centre)), self.centre], axis=1)
        fitted, curvature = newton(
            inputs, usual + self.centre, self.hits / self.count, np.array([0.1, 1.0]), self.count
        )
        return Line(
            intercept=usual + float(fitted[0]),
            slope=max(1 + float(fitted[1]), 0.0),
            covariance=np.asarray(np.linalg.inv(curvature)),
        )

    def shift(self, pull: float) -> float:
        """Find the shift of the scores, taken as logits, that makes them right on average; `pull` holds it near 0."""
        alone = np.ones((len(self.centre), 1))
        fitted, _ = newton(alone, self.centre, self.hits / self.count, np.array([pull]), self.count)
        return float(fitted[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """A group's logit z about one finding, for each part of the patients from labels of the others."""

    answered: Bools
    """Images that a member answered."""
    scores: Sequence[Matrix]
    """By part: how strongly the group speaks for the finding, a number per image."""
    lines: Sequence[Line | None]
    """By part: from the score to a logit; None where there was nothing to fit it on."""
    weights: Matrix
    """One row per part, one column per member: its absolute weight where all answered, times its deviation."""

    def answer(self, part: int) -> Matrix:
        """Give every image's logit as that part may see it; NaN where there is none."""
        line = self.lines[part]
        if line is None:
            return np.full(len(self.answered), np.nan)
        z = line.answer(self.scores[part])
        return z if self.answered.all() else np.where(self.answered, z, np.nan)

    def spread(self, part: int, piece: slice) -> Matrix:
        """Give the standard deviation of some images' logits."""
        line = self.lines[part]
        return np.zeros(piece.stop - piece.start) if line is None else line.spread(self.scores[part][piece])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """Counts, sums and products of the members' evidence on some images."""

    pairs: Matrix
    """Images that both members answered."""
    sums: Matrix
    """Of the row's member, over the images that the column's answered too."""
    products: Matrix

    @classmethod
    def of(cls, known: Matrix, evidence: Matrix) -> _Moments:
        return cls(pairs=known.T @ known, sums=evidence.T @ known, products=evidence.T @ evidence)

    @classmethod
    def sum(cls, several: Sequence[_Moments]) -> _Moments:
        return cls(
            pairs=np.sum([each.pairs for each in several], axis=0),
            sums=np.sum([each.sums for each in several], axis=0),
            products=np.sum([each.products for each in several], axis=0),
        )

    @property
    def mean(self) -> Matrix:
        return np.diag(self.sums) / np.maximum(np.diag(self.pairs), 1)

    @property
    def scatter(self) -> Matrix:
        """Products about the means, over the images that both answered."""
        return self.products - self.sums * self.sums.T / np.maximum(self.pairs, 1)


def stack(evidence: Matrix, state: Matrix, parts: Sequence[slice]) -> Stacked:
    """Stack the members' evidence about one finding: score = W^-1 d (e - middle), then z = a + b score.

    `evidence` has one row per image, part by part, and one column per member. d is how far the members' means lie apart
    between labelled presences and absences, W how they vary within both: so members that vary together share a weight.
    """
    known = ~np.isnan(evidence)
    given = np.clip(evidence, -FURTHEST, FURTHEST)
    given[~known] = 0
    deviation = np.sqrt((given**2).sum(axis=0) / np.maximum(known.sum(axis=0), 1))
    answered = np.asarray(known.any(axis=1))
    absence, presence = state == 0, state == 1
    definite = answered & (absence | presence)
    fitted_on = [_those(definite, part) for part in parts]
    absences, presences = (_left_out(known, given, side, parts) for side in (absence, presence))
    some, by_member = _partial(known), np.ascontiguousarray(given.T)
    scores: list[Matrix] = []
    lines: list[Line | None] = []
    weights = np.zeros((len(parts), evidence.shape[1]))
    for number, (absent, present) in enumerate(zip(absences, presences, strict=True)):
        if min(np.diag(present.pairs).max(), np.diag(absent.pairs).max()) == 0:
            scores.append(np.zeros(len(state)))
            lines.append(None)
            continue
        score, whole = _discriminate(absent, present, by_member, some)
        others = fitted_on[:number] + fitted_on[number + 1 :]
        usual = joined(score, others)
        line = Grid.of(usual, joined(presence, others)).line()
        scores.append(_within_reach(score, usual))
        lines.append(line)
        weights[number] = np.abs(line.slope * whole) * deviation
    return Stacked(answered=answered, scores=scores, lines=lines, weights=weights)


def _those(chosen: Bools, part: slice) -> slice | Ints:
    """Give the places of the chosen images of a part; mostly all are chosen, and it is the part itself."""
    its = chosen[part]
    return part if its.all() else np.flatnonzero(its) + part.start


def _left_out(known: Bools, evidence: Matrix, chosen: Bools, parts: Sequence[slice]) -> list[_Moments]:
    """Give, for each part, the moments of the chosen images in all the other parts."""
    its = []
    for part in parts:
        rows = np.flatnonzero(chosen[part])
        # `take` is a tenth of the time of square brackets, which must be ready for any index.
        its.append(_Moments.of(known[part].take(rows, axis=0).astype(float), evidence[part].take(rows, axis=0)))
    # Added up anew for each part: what is added and taken off again leaves a trace in the last bit.
    return [_Moments.sum(its[:own] + its[own + 1 :]) for own in range(len(parts))]


def _partial(known: Bools) -> list[tuple[Bools, Ints]]:
    """List the images that some members answered and some did not: who answered, and where."""
    some = np.flatnonzero(~known.all(axis=1))
    pattern = known[some] @ (1 << np.arange(known.shape[1]))
    rows = [some[pattern == number] for number in np.unique(pattern) if number]
    return [(known[its[0]], its) for its in rows]


def _discriminate(
    absent: _Moments, present: _Moments, evidence: Matrix, some: Sequence[tuple[Bools, Ints]]
) -> tuple[Matrix, Matrix]:
    """Score every image by the weights of those who answered it; and give the weights where all did."""
    without, having = absent.mean, present.mean
    apart, middle = having - without, (having + without) / 2
    within = (absent.scatter + present.scatter) / np.maximum(absent.pairs + present.pairs - 2, 1)
    presences = float(np.diag(present.pairs).max())
    whole = _solve(within, apart, presences)
    score = np.dot(whole, evidence)  # as `@` gives, which is slow where a group is one judge
    score -= middle @ whole
    # Who did not answer an image is left out of d and W there, so an abstention equals an absence.
    for who, rows in some:
        own = _solve(within[np.ix_(who, who)], apart[who], presences)
        score[rows] = own @ evidence[np.ix_(who, rows)] - middle[who] @ own
    return score, whole


def _within_reach(score: Matrix, usual: Matrix) -> Matrix:
    """Count a score beyond the furthest deviation as the furthest, in place: the fit has not seen its like."""
    middle, reach = float(usual.mean()), FURTHEST * float(usual.std())
    return np.clip(score, middle - reach, middle + reach, out=score)


def _solve(within: Matrix, apart: Matrix, presences: float) -> Matrix:
    """Solve for the weights; a member without variance, or one that repeats others, is no obstacle."""
    count = len(apart)
    floor = 1e-6 * np.eye(count)
    # Variance is added to what tells the members apart, so that few presences cannot set one against another.
    equalising = (np.eye(count) - 1 / count) * CONTRAST / max(presences, 1.0)
    return np.asarray(np.linalg.solve(within + floor + equalising, apart))
