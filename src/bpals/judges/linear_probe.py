"""The probe: reads films through a frozen backbone, and has learnt from other patients what the labels look like.

    films -> features (a backbone that was never trained here) -> a linear probe a finding -> judgments

Cross-fitted by patient, as the record judge is: no claim can reach the answer about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import polars as pl
from threadpoolctl import threadpool_limits

from bpals.findings import Vocabulary
from bpals.judges import record
from bpals.numeric import log_loss, patients, sigmoid_by_tanh
from bpals.text import several
from bpals.types import KIND, OUTCOME, JudgeCard, Notice, answers_schema

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

CHUNK = 4096
"""Films that are in memory at once."""


class Features(Protocol):
    """The features of films: a row a film, read a piece at a time."""

    @property
    def image_ids(self) -> Sequence[str]:
        """Name the films, in the order of the rows."""
        ...

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        ...

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read some rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the fit is told of films: a row a film, a column a finding."""

    states: Floats
    """1 present, 0 absent; all else, an uncertain claim or silence, teaches nothing."""
    fold: Ints
    """The fold of each film's patient."""
    folds: int

    @property
    def known(self) -> Bools:
        """Say which claims teach something."""
        return np.asarray((self.states == 0) | (self.states == 1))


@dataclass(slots=True)
class Moments:
    """Sums over films: of ones, of features, of their products, and of both with the labels."""

    films: float
    sums: Doubles
    products: Doubles
    labels: Doubles
    """A number a finding."""
    features_and_labels: Doubles
    """A row a feature, a column a finding."""

    @classmethod
    def nothing(cls, width: int, findings: int) -> Moments:
        """Begin with no film."""
        return cls(0.0, np.zeros(width), np.zeros((width, width)), np.zeros(findings), np.zeros((width, findings)))

    @classmethod
    def of(cls, parts: Sequence[Moments]) -> Moments:
        """Add up, from the first to the last."""
        first = parts[0]
        whole = cls(
            first.films,
            first.sums.copy(),
            first.products.copy(),
            first.labels.copy(),
            first.features_and_labels.copy(),
        )
        for part in parts[1:]:
            whole += part
        return whole

    def __iadd__(self, other: Self) -> Self:
        self.films += other.films
        self.sums += other.sums
        self.products += other.products
        self.labels += other.labels
        self.features_and_labels += other.features_and_labels
        return self

    def add(self, features: Floats, labels: Floats, known: Floats) -> None:
        """Add films; those whose label is not known weigh nothing, and change no shape: so they leave no trace."""
        weighed = features * known[:, None]
        self.films += float(known.sum())
        self.sums += weighed.sum(axis=0, dtype=np.float64)
        self.products += weighed.T @ features
        self.labels += (labels * known[:, None]).sum(axis=0, dtype=np.float64)
        self.features_and_labels += weighed.T @ labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A rough centre and spread of each feature, so that sums of products lose no digits; no label is in it."""

    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, features: Features) -> Scale:
        """Take it from the first films."""
        some = np.asarray(features.rows(0, CHUNK), dtype=np.float64)
        spread = some.std(axis=0)
        spread[spread < 1e-6] = 1.0
        return cls(centre=some.mean(axis=0).astype(np.float32), spread=spread.astype(np.float32))

    def chunks(self, features: Features) -> Iterator[tuple[slice, Floats]]:
        """Read all features in the order of the films, a chunk at a time, scaled."""
        for start in range(0, len(features.image_ids), CHUNK):
            part = slice(start, min(start + CHUNK, len(features.image_ids)))
            rows = np.asarray(features.rows(part.start, part.stop), dtype=np.float32)
            yield part, (rows - self.centre) / self.spread


def gather(features: Features, scale: Scale, told: Told, known: Bools) -> list[Moments]:
    """Add up each fold by itself, in one pass, for the findings that share what is known of them."""
    labels = np.where(told.known, told.states, 0).astype(np.float32)
    folds = [Moments.nothing(features.width, labels.shape[1]) for _ in range(told.folds)]
    for part, rows in scale.chunks(features):
        for number, moments in enumerate(folds):
            here = told.fold[part] == number
            if here.any():
                moments.add(rows[here], labels[part][here], known[part][here].astype(np.float32))
    return folds


FLAT = 1e-9
"""A feature that varies less is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Linear models, one a finding: label = features @ slopes + offsets + level."""

    slopes: Doubles
    """A row a feature, a column a finding."""
    offsets: Doubles
    """So that features at their mean give 0 ..."""
    level: Doubles
    """... and how common the finding is where it was fitted: no score, for where few have it more do elsewhere."""

    def squared_error(self, films: Moments) -> Doubles:
        """Say how far these are from the labels of films, finding by finding, without looking at the films again."""
        w, a = self.slopes, self.offsets + self.level
        fitted = np.einsum("dk,dk->k", w, films.products @ w) + 2 * a * (films.sums @ w) + a * a * films.films
        crossed = np.einsum("dk,dk->k", w, films.features_and_labels) + a * films.labels
        # A label is 0 or 1: it is its own square.
        return np.asarray(films.labels - 2 * crossed + fitted)


def fit(films: Moments, penalties: Sequence[float]) -> list[Lines]:
    """Fit the lines of every finding on films, once a penalty; features are standardised by these films alone."""
    count = max(films.films, 1.0)
    mean = films.sums / count
    products = films.products - np.outer(mean, films.sums)
    spread = np.sqrt(np.maximum(np.diag(products) / count, 0.0))
    scale = np.where(spread > FLAT, 1 / np.maximum(spread, FLAT), 0.0)
    products *= scale[:, None]
    products *= scale[None, :]
    aims = (films.features_and_labels - np.outer(mean, films.labels)) * scale[:, None]
    diagonal = np.diag_indices_from(products)
    unpenalised = products[diagonal].copy()
    found = []
    for penalty in penalties:
        products[diagonal] = unpenalised + penalty
        slopes: Doubles = np.asarray(np.linalg.solve(products, aims) * scale[:, None])
        found.append(Lines(slopes=slopes, offsets=-(mean @ slopes), level=films.labels / count))
    return found


ROUNDS = 50
ENOUGH = 1e-10
HALVINGS = 30


def platt(scores: Doubles, labels: Doubles) -> tuple[float, float]:
    """Fit slope and offset; a slope below zero is noise, and becomes 0: the scores say nothing.

    Labels are drawn in a little, as Platt does, so that scores that part them wholly still have a finite slope.
    """
    present = float(labels.sum())
    absent = len(labels) - present
    aims = np.where(labels > 0, (present + 1) / (present + 2), 1 / (absent + 2))
    centre, spread = float(scores.mean()), float(scores.std())
    level = float(np.log((present + 1) / (absent + 1)))
    if not spread > 0:
        return 0.0, level
    unit = (scores - centre) / spread
    slope, offset = _newton(unit, aims, level)
    if slope <= 0:
        return 0.0, level
    return slope / spread, offset - slope * centre / spread


def _newton(unit: Doubles, aims: Doubles, level: float) -> tuple[float, float]:
    """Minimise the log loss; a step that makes it worse is halved."""
    slope, offset = 0.0, level
    loss = _loss(unit * slope + offset, aims)
    for _ in range(ROUNDS):
        p = sigmoid_by_tanh(unit * slope + offset)
        weight, left = p * (1 - p), p - aims
        a, b, c = float((weight * unit * unit).sum()), float((weight * unit).sum()), float(weight.sum())
        g, h = float((left * unit).sum()), float(left.sum())
        steep = a * c - b * b
        if not steep > 0:
            break
        step = ((c * g - b * h) / steep, (a * h - b * g) / steep)
        for half in range(HALVINGS):
            tried = slope - step[0] * 0.5**half, offset - step[1] * 0.5**half
            worse = _loss(unit * tried[0] + tried[1], aims)
            if worse <= loss:
                break
        else:
            break
        better, loss = loss - worse, worse
        slope, offset = tried
        if better < ENOUGH * abs(loss):
            break
    return slope, offset


def _loss(logits: Doubles, aims: Doubles) -> float:
    return float(log_loss(logits, aims).sum())


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
        return np.stack([sigmoid_by_tanh(side) for side in (middle, middle - reach, middle + reach)])

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


VERSION = "1"
DECIMALS = 6
LICENCE = "unknown"
NOTHING_LEARNT = "what the films of other patients show tells nothing of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJudge:
    """Answers for every film that was seen, finding by finding."""

    name: str = "probe-lite0"
    backbone: str = "lite0"
    sha256: str = ""
    """Of the backbone: everything that could change a feature."""
    engine: str = ""
    preparation: Mapping[str, object] = field(default_factory=dict)
    folds: int = 5
    by_patient: bool = True
    """False where the dataset does not name the patient of every film: then films of one may teach about each other."""

    @property
    def card(self) -> JudgeCard:
        """Say who this judge is."""
        return JudgeCard(
            judge=self.name,
            kind="image",
            version=VERSION,
            model=self.backbone,
            revision=f"sha256:{self.sha256}" if self.sha256 else "",
            engine="linear probe",
            preparation=dict(self.preparation),
            settings={
                "backbone_engine": self.engine,
                "folds": self.folds,
                "by_patient": self.by_patient,
                "penalties": list(PENALTIES),
                "least_films": LEAST_FILMS,
                "least_claims": LEAST_CLAIMS,
            },
            polarities=("present",),
            trained_on_target="yes",
            held_out=self.by_patient,
            evidence=(
                "Its backbone is frozen; the line on top of it is fitted on the dataset's own labels of other "
                f"{'patients' if self.by_patient else 'films'}, cross-fitted. It never sees the claim it judges, but "
                "it shares the labeller's habits."
            ),
            licence=LICENCE,
        )

    def read(
        self,
        images: pl.DataFrame,
        claims: pl.DataFrame,
        vocabulary: Vocabulary,
        features: Features,
        *,
        progress: Progress = lambda _share: None,
    ) -> pl.DataFrame:
        """Answer for every film that has features, in their order, finding by finding: as the table of a judge.

        Claims that are uncertain, and silence, teach nothing; every finding of every film is answered all the same.
        """
        seen = pl.DataFrame({"image_id": pl.Series(features.image_ids, dtype=pl.String)})
        films = seen.join(images, on="image_id", how="inner", maintain_order="left")
        heard = claims.join(seen, on="image_id", how="semi", maintain_order="left")
        names = patients(films).to_numpy().astype(np.str_)
        told = Told(
            states=record.state_matrix(films, heard, vocabulary),
            fold=record.fold_of(names, self.folds),
            folds=self.folds,
        )
        return self._judgments(films, vocabulary, cross_fit(features, told, progress), told)

    def _judgments(self, films: pl.DataFrame, vocabulary: Vocabulary, fitted: CrossFitted, told: Told) -> pl.DataFrame:
        """Lay the answers out, a row a film and finding."""
        middle, low, high = np.round(fitted.p_present.reshape(3, -1), DECIMALS)
        count = len(vocabulary.findings)
        why = np.full((self.folds, count), None, dtype=object)
        for place, reason in fitted.why.items():
            why[place] = reason
        table = pl.DataFrame(
            {
                "image_id": films["image_id"].gather(np.repeat(np.arange(films.height), count)),
                "finding": pl.Series(vocabulary.findings * films.height, dtype=vocabulary.enum),
                "p_present": pl.Series(middle).fill_nan(None),
                "p_low": pl.Series(low).fill_nan(None),
                "p_high": pl.Series(high).fill_nan(None),
                "why": pl.Series(why[told.fold].reshape(-1).tolist(), dtype=pl.String),
            }
        )
        silent, unfitted = pl.col("p_present").is_null(), pl.col("why").is_not_null()
        outcome = pl.when(unfitted).then(pl.lit("unsupported")).when(silent).then(pl.lit("abstained"))
        schema = answers_schema(vocabulary)
        return table.with_columns(
            judge=pl.lit(self.name),
            kind=pl.lit("image", dtype=KIND),
            outcome=outcome.otherwise(pl.lit("answered")).cast(OUTCOME),
            why=pl.when(silent & ~unfitted).then(pl.lit(NOTHING_LEARNT)).otherwise("why"),
            logit_present=pl.lit(None, dtype=pl.Float64),
            logit_absent=pl.lit(None, dtype=pl.Float64),
            mass=pl.lit(None, dtype=pl.Float64),
        ).select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def without_patients(images: pl.DataFrame) -> list[Notice]:
    """Say so where the dataset names no patient of some films: then films of one patient may teach about each other."""
    count = images["patient_id"].null_count()
    if not count:
        return []
    message = (
        f"of {several(images.height, 'film')} {several(count, 'names', 'name')} no patient: each counts as a patient "
        "of its own, so that a film may be judged by what was learnt from another film of the same patient. Map "
        "patient_id if the dataset has it"
    )
    return [Notice(code="no_patient", count=count, message=message)]
