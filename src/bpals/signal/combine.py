"""The first combination of judges: the record's answer, corrected by what image judges see.

For each finding a ridge logistic regression is fitted to the dataset's claims. The record judge's logit stands with
weight one; each image judge that has a signal for the finding adds an intercept and its evidence times a weight, and
the record's own weight may change where one of them answered:

    logit p = logit p_record + sum over judges (a + b * evidence) + c * logit p_record

Where no such judge answered, the record's own probability stands to the last bit. Cross-fitted: an answer rests on a
fit to the claims of other patients of the record judge's same fold, whose record answers in turn rest on none of that
fold's claims. So no claim reaches the answer about itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.signal.pairs import Matrix, Pairs, logit, sigmoid
from bpals.signal.ridge import newton
from bpals.signal.voices import Bools, Ints, Voice

PARTS = 5
"""Parts of the patients of a fold: each is answered from the others."""
PENALTY = 3.0
"""Pull of every weight towards 0: with few claims to learn from the record's answer stays nearly alone."""
SHIFT_PENALTY = 1.0
"""The same for intercepts."""
FURTHEST = 4.0
"""Evidence beyond so many deviations counts as so many: one strange film must not outvote the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """Judges, combined."""

    pairs: Pairs
    """As one judge: the combined probability, its spread, and how many judges answered."""
    moved: Bools
    """Pairs whose probability an image judge took part in."""
    weights: Mapping[str, Matrix]
    """Judge -> its absolute standardised weight, a number a finding; 0 where it is not heeded."""

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """Each judge's weight as a share of all judges', finding by finding; none where nobody is heeded."""
        total = np.sum(list(self.weights.values()), axis=0)
        return {
            judge: {
                finding: float(own / whole)
                for finding, own, whole in zip(self.pairs.findings, weight, total, strict=True)
                if whole > 0
            }
            for judge, weight in self.weights.items()
        }

    @property
    def effective(self) -> dict[str, float]:
        """Each judge's effective weight: the mean of its shares."""
        return {judge: float(np.mean(list(its.values()))) if its else 0.0 for judge, its in self.shares.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One finding, on the films where a heeded image judge answered."""

    films: Ints
    state: Matrix
    recorded: Matrix
    """The record's logit; NaN where it has none."""
    spread: Matrix
    voiced: Matrix
    """For each judge whether it answered and its evidence, 0 where it did not: two columns a judge."""

    def take(self, chosen: Bools) -> _Column:
        """Keep some of the films."""
        return _Column(
            films=self.films[chosen],
            state=self.state[chosen],
            recorded=self.recorded[chosen],
            spread=self.spread[chosen],
            voiced=self.voiced[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """The weights of one finding, from some patients."""

    usual: float
    """Logit of how often the finding is claimed: it stands where the record has no answer."""
    centre: float
    scale: float
    weights: Matrix
    covariance: Matrix

    @property
    def record_weight(self) -> float:
        """What the record's logit is multiplied by."""
        return float(1 + self.weights[-1] / self.scale)

    @classmethod
    def of(cls, column: _Column) -> _Fit | None:
        """Fit on definite claims; None where they are all of one kind."""
        known = column.take((column.state == 0) | (column.state == 1))
        present = int(known.state.sum())
        if not 0 < present < len(known.films):
            return None
        recorded = known.recorded[~np.isnan(known.recorded)]
        deviation = float(recorded.std()) if len(recorded) else 0.0
        bare = cls(
            usual=float(np.log(present / (len(known.films) - present))),
            centre=float(recorded.mean()) if len(recorded) else 0.0,
            scale=deviation if deviation > 0 else 1.0,
            weights=np.zeros(0),
            covariance=np.zeros(0),
        )
        inputs, start = bare.inputs(known), bare.start(known)
        ridge = np.full(inputs.shape[1], PENALTY)
        ridge[:-1:2] = SHIFT_PENALTY
        weights, curvature = newton(inputs, start, known.state, ridge)
        # What the record alone would be corrected to is no merit of the judges: it is taken off.
        blind = inputs.copy()
        blind[:, 1:-1:2] = 0
        unseen, _ = newton(blind, start, known.state, ridge)
        covariance = np.asarray(np.linalg.inv(curvature), dtype=np.float64)
        return replace(bare, weights=weights - unseen, covariance=covariance)

    def start(self, column: _Column) -> Matrix:
        """What stands before any image judge is heard."""
        return np.where(np.isnan(column.recorded), self.usual, column.recorded)

    def inputs(self, column: _Column) -> Matrix:
        """The columns that the weights multiply."""
        recorded = np.nan_to_num((column.recorded - self.centre) / self.scale)
        return np.concatenate([column.voiced, recorded[:, None]], axis=1)

    def answer(self, column: _Column) -> tuple[Matrix, Matrix]:
        """Give the logit and its standard deviation: the record's own, as far as it counts, and that of the fit."""
        inputs = self.inputs(column)
        fit = ((inputs @ self.covariance) * inputs).sum(axis=1)
        spread = np.sqrt((self.record_weight * column.spread) ** 2 + np.maximum(fit, 0))
        return self.start(column) + inputs @ self.weights, spread


def combine(pairs: Pairs, voices: Sequence[Voice], patients: pl.Series, fold: Ints) -> Combined:
    """Correct the record's answers by the image judges that are heeded; each voice knows where it is."""
    answered = pairs.answered + np.sum([voice.answered for voice in voices], axis=0, dtype=np.int32)
    p_present, spread = pairs.p_present.copy(), pairs.spread.copy()
    moved = np.zeros(pairs.states.shape, dtype=bool)
    weights = {voice.judge: np.zeros(len(pairs.findings)) for voice in voices}
    own = np.zeros(len(pairs.findings))
    part = _part_of_patient(patients)
    for place in range(len(pairs.findings)):
        heard = [voice for voice in voices if voice.heeded[place]]
        column = _column(pairs, heard, place)
        fits = []
        for held, fit in _crossfit(column, fold, part) if heard else ():
            its = column.take(held)
            z, spread[its.films, place] = fit.answer(its)
            p_present[its.films, place], moved[its.films, place] = sigmoid(z), True
            fits.append(fit)
        own[place] = _record_weight(pairs, place, fits)
        for number, voice in enumerate(heard):
            evidence = column.voiced[column.voiced[:, 2 * number] > 0, 2 * number + 1]
            by_fit = [abs(fit.weights[2 * number + 1]) for fit in fits]
            weights[voice.judge][place] = np.mean(by_fit) * evidence.std() if by_fit else 0.0
    return Combined(
        pairs=replace(pairs, p_present=p_present, spread=spread, answered=answered),
        moved=moved,
        weights={"record": own, **weights} if (pairs.answered > 0).any() else weights,
    )


def _column(pairs: Pairs, heard: Sequence[Voice], place: int) -> _Column:
    """Gather one finding on the films where somebody who is heeded answered."""
    if not heard:
        nobody = np.zeros(0)
        return _Column(films=nobody.astype(np.int64), state=nobody, recorded=nobody, spread=nobody, voiced=nobody)
    films = np.flatnonzero(np.any([voice.answered[:, place] for voice in heard], axis=0))
    recorded = pairs.p_present[films, place]
    voiced = []
    for voice in heard:
        said = np.clip(voice.evidence[films, place], -FURTHEST, FURTHEST)
        voiced += [(~np.isnan(said)).astype(float), np.nan_to_num(said)]
    return _Column(
        films=films,
        state=pairs.states[films, place],
        recorded=np.where(np.isnan(recorded), np.nan, logit(recorded)),
        spread=pairs.spread[films, place],
        voiced=np.stack(voiced, axis=1),
    )


def _crossfit(column: _Column, fold: Ints, part: Ints) -> Iterator[tuple[Bools, _Fit]]:
    """Go through the parts of each fold, with the fit on its other parts; where none is possible the record stands."""
    fold, part = fold[column.films], part[column.films]
    for number in np.unique(fold):
        here = fold == number
        for held_out in np.unique(part[here]):
            held = here & (part == held_out)
            fit = _Fit.of(column.take(here & ~held))
            if fit is not None:
                yield held, fit


def _record_weight(pairs: Pairs, place: int, fits: Sequence[_Fit]) -> float:
    """The record's absolute standardised weight: what its logit counts, times the logit's deviation."""
    known = pairs.p_present[:, place]
    known = known[~np.isnan(known)]
    if len(known) == 0:
        return 0.0
    counts = float(np.mean([abs(fit.record_weight) for fit in fits])) if fits else 1.0
    return counts * float(logit(known).std())


def _part_of_patient(patients: pl.Series) -> npt.NDArray[np.int64]:
    """Give each film a part by a hash of its patient alone."""
    names = patients.unique(maintain_order=True)
    parts = [int(hashlib.sha256(b"combine:" + name.encode()).hexdigest()[:8], 16) % PARTS for name in names]
    return patients.replace_strict(names, parts, return_dtype=pl.Int64).to_numpy()
