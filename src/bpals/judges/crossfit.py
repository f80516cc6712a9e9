"""A linear probe, cross-fitted by patient: what is said of a patient was learnt from others, every choice included.

For each fold i of patients, from the folds without it alone:
    the penalty     models that leave out i and j are measured on j, for every other j
    the model       fitted on all folds but i, under that penalty
    the probability Platt's line on what the models without i and j say of j
    the interval    how far the models without i and j differ, as a jackknife that leaves out one fold at a time
No claim of a patient in fold i has a part in any of these: flipping one changes no bit of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from bpals.judges.moments import Bools, Doubles, Features, Floats, Moments, Scale, Told, gather
from bpals.judges.platt import platt, sigmoid
from bpals.judges.ridges import Lines, fit
from bpals.plural import several

PENALTIES = (6.0, 24.0, 96.0, 384.0)
"""Tried, times the number of features: about how many times larger the noise of a label is than what films tell."""
LEAST_FILMS = 200
LEAST_CLAIMS = 10
"""Present claims, and absent ones, of other patients, below which a fit would be of noise."""
STUDENT_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""97.5 % point of Student's t, by degrees of freedom."""

Progress = Callable[[float], None]
"""Called with the share of the work that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossFitted:
    """What the probe says: a row a film, a column a finding."""

    p_present: Doubles
    """Probability, low and high; NaN where it does not say."""
    why: dict[tuple[int, int], str] = field(default_factory=dict)
    """(fold, finding) -> why nothing could be fitted; where it was and is still NaN, films tell nothing of it."""


def cross_fit(features: Features, told: Told, progress: Progress = lambda _share: None) -> CrossFitted:
    """Answer for every film from the claims about other patients."""
    why = _unsupported(told)
    p_present = np.full((3, *told.states.shape), np.nan)
    if len(why) < told.folds * told.states.shape[1]:
        scale = Scale.of(features)
        known, group = np.unique(told.known, axis=1, return_inverse=True)
        with threadpool_limits(1):
            for number in range(known.shape[1]):
                findings = np.flatnonzero(group == number)

                def told_of(share: float, number: int = number) -> None:
                    progress((number + share) / known.shape[1])

                group_fit = _Group(features, scale, told, known[:, number], told_of)
                for fold in range(told.folds):
                    for finding in findings:
                        if (fold, int(finding)) not in why:
                            here = told.fold == fold
                            p_present[:, here, finding] = group_fit.answers(fold, int(finding))
    return CrossFitted(p_present=p_present, why=why)


def _unsupported(told: Told) -> dict[tuple[int, int], str]:
    """Say for which patients and findings there is too little to learn from; only other patients are counted."""
    why = {}
    films, findings = told.states.shape
    for fold in range(told.folds):
        others = told.states[told.fold != fold]
        for finding in range(findings):
            present, absent = int((others[:, finding] == 1).sum()), int((others[:, finding] == 0).sum())
            if films < LEAST_FILMS:
                seen = several(films, "film was", "films were")
                why[fold, finding] = f"{seen} seen; a probe learns from at least {LEAST_FILMS}"
            elif min(present, absent) < LEAST_CLAIMS:
                side, count = ("present", present) if present < absent else ("absent", absent)
                why[fold, finding] = (
                    f"it is {side} on {several(count, 'film')} of other patients; "
                    f"a probe learns from at least {LEAST_CLAIMS}"
                )
    return why


class _Group:
    """The fits of all findings whose claims are known for the same films."""

    def __init__(self, features: Features, scale: Scale, told: Told, known: Bools, progress: Progress) -> None:
        self._told, self._known = told, known
        self._folds = gather(features, scale, told, known)
        progress(0.2)
        self._penalties = [each * features.width for each in PENALTIES]
        self._pairs: dict[tuple[int, int], list[Lines]] = {}
        for done, (i, j) in enumerate(pairs := list(_pairs(told.folds))):
            self._pairs[i, j] = self._pairs[j, i] = fit(self._without(i, j), self._penalties)
            progress(0.2 + 0.5 * (done + 1) / len(pairs))
        self._chosen = [self._choose(fold) for fold in range(told.folds)]
        self._final = [self._fitted(fold) for fold in range(told.folds)]
        progress(0.9)
        self._scores = self._score(features, scale)
        progress(1.0)

    def answers(self, fold: int, finding: int) -> Doubles:
        """Give probability, low and high for the films of a fold."""
        others = self._others(fold)
        of = self._told.fold
        heard = self._known & (of != fold)
        inner = np.empty(len(of))
        for other in others:
            here = of == other
            inner[here] = self._scores[1 + fold, here, finding]
        slope, offset = platt(inner[heard], self._told.states[heard, finding].astype(np.float64))
        here = of == fold
        if slope == 0:
            # How common a finding is elsewhere is no evidence about a film: where few have it here, more do there.
            return np.full((3, int(here.sum())), np.nan)
        middle = slope * self._scores[0, here, finding].astype(np.float64) + offset
        apart = np.stack([self._scores[1 + self._told.folds + other, here, finding] for other in others])
        count = len(others)
        error = slope * np.sqrt((count - 1) / count * ((apart - apart.mean(axis=0)) ** 2).sum(axis=0))
        reach = STUDENT_T.get(count - 1, 1.96) * error
        return np.stack([sigmoid(middle), sigmoid(middle - reach), sigmoid(middle + reach)])

    def _others(self, *folds: int) -> list[int]:
        """Name the folds that have films, but these."""
        return [each for each in range(self._told.folds) if each not in folds and self._folds[each].films > 0]

    def _without(self, *folds: int) -> Moments:
        return Moments.of([self._folds[each] for each in range(self._told.folds) if each not in folds])

    def _choose(self, fold: int) -> npt.NDArray[np.int64]:
        """Choose a penalty for each finding, by what models without this fold and another say of that other."""
        errors = np.zeros((len(self._penalties), self._told.states.shape[1]))
        for other in self._others(fold):
            errors += [lines.squared_error(self._folds[other]) for lines in self._pairs[fold, other]]
        return np.asarray(errors.argmin(axis=0))

    def _fitted(self, fold: int) -> Lines:
        used = sorted(set(self._chosen[fold].tolist()))
        lines = dict(zip(used, fit(self._without(fold), [self._penalties[each] for each in used]), strict=True))
        return _picked(lines, self._chosen[fold])

    def _score(self, features: Features, scale: Scale) -> Floats:
        """Score every film, in one pass: the answer; as one of others, for each fold; without each other fold."""
        folds, (films, findings) = self._told.folds, self._told.states.shape
        scores = np.full((1 + 2 * folds, films, findings), np.nan, dtype=np.float32)
        wanted = [list(self._models(fold)) for fold in range(folds)]
        for part, rows in scale.chunks(features):
            for fold, models in enumerate(wanted):
                here = np.flatnonzero(self._told.fold[part] == fold)
                if not len(here):
                    continue
                slopes = np.concatenate([lines.slopes for _, lines in models], axis=1).astype(np.float32)
                offsets = np.concatenate([lines.offsets for _, lines in models]).astype(np.float32)
                made = (rows[here] @ slopes + offsets).reshape(len(here), len(models), findings)
                for number, (place, _) in enumerate(models):
                    scores[place, part.start + here] = made[:, number]
        return scores

    def _models(self, fold: int) -> Iterator[tuple[int, Lines]]:
        """List the models that score the films of a fold, each with the place of its scores."""
        yield 0, self._final[fold]
        for other in range(self._told.folds):
            if other != fold:
                lines = dict(enumerate(self._pairs[fold, other]))
                yield 1 + other, _picked(lines, self._chosen[other])
                yield 1 + self._told.folds + other, _picked(lines, self._chosen[fold])


def _pairs(folds: int) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(folds) for j in range(i + 1, folds))


def _picked(lines: dict[int, Lines], chosen: Sequence[int] | npt.NDArray[np.int64]) -> Lines:
    """Take each finding's line under the penalty that was chosen for it."""
    columns = range(len(chosen))
    return Lines(
        slopes=np.stack([lines[int(chosen[each])].slopes[:, each] for each in columns], axis=1),
        offsets=np.array([lines[int(chosen[each])].offsets[each] for each in columns]),
        level=next(iter(lines.values())).level,
    )
