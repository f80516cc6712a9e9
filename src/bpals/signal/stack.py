"""One family of judges as one judge: what its members say of a finding, stacked against the claims of other patients.

The weights are those of a linear discriminant, W^-1 d: d is how far the members' evidence lies apart between claimed
presences and absences, W how it varies within them. So members that vary together share one weight. Who did not
answer is left out of d and W, film by film. A logistic regression then turns the score into a probability of the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpals.signal.dealt import joined
from bpals.signal.grid import Grid, Line
from bpals.signal.pairs import Matrix
from bpals.signal.voices import Bools, Ints

FURTHEST = 4.0
"""Evidence beyond so many deviations counts as so many: one strange film must not outvote everybody."""
CONTRAST = 30.0
"""Claimed presences at which what tells the members apart counts half; with fewer, they tend to equal weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """A family's answer about one finding, to each part of the patients by what no claim of the part reached."""

    answered: Bools
    """Films of which a member spoke."""
    scores: Sequence[Matrix]
    """A part each: how strongly the family speaks for the finding, a number a film."""
    lines: Sequence[Line | None]
    """A part each: from the score to a logit; None where there was nothing to fit it on."""
    weights: Matrix
    """A row a part, a column a member: the absolute weight where all answered, times the evidence's deviation."""

    def answer(self, part: int) -> Matrix:
        """Give every film's logit as that part may see it; NaN where there is none."""
        line = self.lines[part]
        if line is None:
            return np.full(len(self.answered), np.nan)
        z = line.answer(self.scores[part])
        return z if self.answered.all() else np.where(self.answered, z, np.nan)

    def spread(self, part: int, piece: slice) -> Matrix:
        """Give the standard deviation of some films' logits."""
        line = self.lines[part]
        return np.zeros(piece.stop - piece.start) if line is None else line.spread(self.scores[part][piece])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """Counts, sums and products of the members' evidence on some films."""

    pairs: Matrix
    """Films that both members answered."""
    sums: Matrix
    """Of the row's member, over the films that the column's answered too."""
    products: Matrix

    @classmethod
    def of(cls, known: Matrix, said: Matrix) -> _Moments:
        return cls(pairs=known.T @ known, sums=said.T @ known, products=said.T @ said)

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
        """Products about the means, over the films that both answered."""
        return self.products - self.sums * self.sums.T / np.maximum(self.pairs, 1)


def stack(evidence: Matrix, state: Matrix, parts: Sequence[slice]) -> Stacked:
    """Stack the members' evidence about one finding, for each part of the patients from the claims of the others.

    `evidence` has a row a film, part by part, and a column a member.
    """
    known = ~np.isnan(evidence)
    said = np.clip(evidence, -FURTHEST, FURTHEST)
    said[~known] = 0
    deviation = np.sqrt((said**2).sum(axis=0) / np.maximum(known.sum(axis=0), 1))
    answered = np.asarray(known.any(axis=1))
    absence, presence = state == 0, state == 1
    definite = answered & (absence | presence)
    taught = [_those(definite, part) for part in parts]
    absences, presences = (_left_out(known, said, side, parts) for side in (absence, presence))
    some, by_member = _partial(known), np.ascontiguousarray(said.T)
    scores: list[Matrix] = []
    lines: list[Line | None] = []
    weights = np.zeros((len(parts), evidence.shape[1]))
    for number, (absent, present) in enumerate(zip(absences, presences, strict=True)):
        if min(np.diag(present.pairs).max(), np.diag(absent.pairs).max()) == 0:
            scores.append(np.zeros(len(state)))
            lines.append(None)
            continue
        score, whole = _discriminate(absent, present, by_member, some)
        others = taught[:number] + taught[number + 1 :]
        usual = joined(score, others)
        line = Grid.of(usual, joined(presence, others)).line()
        scores.append(_within_reach(score, usual))
        lines.append(line)
        weights[number] = np.abs(line.slope * whole) * deviation
    return Stacked(answered=answered, scores=scores, lines=lines, weights=weights)


def _those(chosen: Bools, part: slice) -> slice | Ints:
    """Give the places of the chosen films of a part; mostly all are chosen, and it is the part itself."""
    its = chosen[part]
    return part if its.all() else np.flatnonzero(its) + part.start


def _left_out(known: Bools, said: Matrix, chosen: Bools, parts: Sequence[slice]) -> list[_Moments]:
    """Give, for each part, the moments of the chosen films in all the other parts."""
    its = []
    for part in parts:
        films = np.flatnonzero(chosen[part])
        # `take` is a tenth of the time of square brackets, which must be ready for any index.
        its.append(_Moments.of(known[part].take(films, axis=0).astype(float), said[part].take(films, axis=0)))
    # Added up anew for each part: what is added and taken off again leaves a trace in the last bit.
    return [_Moments.sum(its[:own] + its[own + 1 :]) for own in range(len(parts))]


def _partial(known: Bools) -> list[tuple[Bools, Ints]]:
    """List the films of which some members spoke and some did not: who spoke, and where."""
    some = np.flatnonzero(~known.all(axis=1))
    pattern = known[some] @ (1 << np.arange(known.shape[1]))
    films = [some[pattern == number] for number in np.unique(pattern) if number]
    return [(known[its[0]], its) for its in films]


def _discriminate(
    absent: _Moments, present: _Moments, said: Matrix, some: Sequence[tuple[Bools, Ints]]
) -> tuple[Matrix, Matrix]:
    """Score every film by the weights of those who answered it; and give the weights where all did."""
    without, beside = absent.mean, present.mean
    apart, middle = beside - without, (beside + without) / 2
    within = (absent.scatter + present.scatter) / np.maximum(absent.pairs + present.pairs - 2, 1)
    presences = float(np.diag(present.pairs).max())
    whole = _solve(within, apart, presences)
    score = np.dot(whole, said)  # as `@` gives, which is slow where a family is one judge
    score -= middle @ whole
    for spoke, films in some:
        own = _solve(within[np.ix_(spoke, spoke)], apart[spoke], presences)
        score[films] = own @ said[np.ix_(spoke, films)] - middle[spoke] @ own
    return score, whole


def _within_reach(score: Matrix, usual: Matrix) -> Matrix:
    """Count a score beyond the furthest deviation as the furthest, in place: the fit has not seen its like."""
    middle, reach = float(usual.mean()), FURTHEST * float(usual.std())
    return np.clip(score, middle - reach, middle + reach, out=score)


def _equalising(count: int, presences: float) -> Matrix:
    """Variance to add to what tells the members apart, so that few presences cannot set one against another."""
    return (np.eye(count) - 1 / count) * CONTRAST / max(presences, 1.0)


def _solve(within: Matrix, apart: Matrix, presences: float) -> Matrix:
    """Solve for the weights; a member without variance, or one that repeats others, is no obstacle."""
    floor = 1e-6 * np.eye(len(apart))
    return np.asarray(np.linalg.solve(within + floor + _equalising(len(apart), presences), apart))
