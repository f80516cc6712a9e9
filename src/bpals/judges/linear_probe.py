"""The linear probe: a line per finding, fitted on features of a frozen backbone and on what is known of other patients.

    images -> features (a backbone that is never trained here) -> one linear model per finding -> answers

What is known of them is their labels, or soft targets: what an audit without the patients of a fold says of the
others. Cross-fitted by patient, as the metadata judge is: no label can reach the answer about itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl
from threadpoolctl import threadpool_limits

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.judges.record import DECIMALS, STUDENT_T, Progress, fold_of, state_matrix
from bpals.numeric import log_loss, patients, sigmoid_by_tanh
from bpals.store.features import StoredFeatures
from bpals.text import several
from bpals.types import KIND, OUTCOME, JudgeCard, Notice, answers_schema

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

VERSION = "1"
LABELS, SIGNAL = "labels", "signal"
"""What a line may be fitted to: labels as they are, or the targets of an audit that left the judged fold out."""
NOTHING_LEARNT = "what the films of other patients show tells nothing of it"
# Images that are in memory at once.
CHUNK = 4096
# Tried, times the number of features: about the ratio of the noise of a label to the signal of an image.
PENALTIES = (6.0, 24.0, 96.0, 384.0)
LEAST_FILMS = 200
# Labels of other patients, present ones and absent ones, below which a fit would be of noise.
LEAST_CLAIMS = 10
# A feature that varies less is left out.
FLAT = 1e-9
# Newton steps and halvings of one step at most, and the relative gain below which the fit ends.
ROUNDS, HALVINGS, ENOUGH = 50, 30, 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJudge:
    """Answers for every image that has features, finding by finding."""

    name: str = "probe-lite0"
    backbone: str = "lite0"
    sha256: str = ""
    """Of the backbone: everything that could change a feature."""
    engine: str = ""
    preparation: Mapping[str, object] = field(default_factory=dict)
    folds: int = 5
    targets: str = LABELS
    """What the lines are fitted to: the labels, or the soft targets of audits."""
    by_patient: bool = True
    """False where the dataset does not name the patient of every image: one patient may then be on both sides."""

    @property
    def card(self) -> JudgeCard:
        """The judge's card."""
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
                # Not for labels: their card, and so its fingerprint, stays that of earlier versions.
                **({} if self.targets == LABELS else {"targets": self.targets}),
            },
            polarities=("present",),
            trained_on_target="yes",
            held_out=self.by_patient,
            evidence=(
                f"Its backbone is frozen; the line on top of it is fitted on {_FITTED_ON[self.targets]} other "
                f"{'patients' if self.by_patient else 'films'}, cross-fitted. It never sees the claim it judges, but "
                "it shares the labeller's habits."
            ),
        )

    def read(
        self,
        images: pl.DataFrame,
        claims: pl.DataFrame,
        vocabulary: Vocabulary,
        features: StoredFeatures,
        *,
        targets: Floats | None = None,
        progress: Progress = lambda _share: None,
    ) -> pl.DataFrame:
        """Answer for every image that has features, in their order, finding by finding: the table of a judge.

        Uncertain and missing labels are not fitted on; every finding of every image is answered all the same.
        `targets` are fitted instead of the labels: one row per image of `images`, one column per finding, once per
        fold, for the answers about that fold. They must come from an audit without that fold's patients.
        """
        seen = pl.DataFrame({"image_id": pl.Series(features.image_ids, dtype=pl.String)})
        films = seen.join(images, on="image_id", how="inner", maintain_order="left")
        used = claims.join(seen, on="image_id", how="semi", maintain_order="left")
        names = patients(films).to_numpy().astype(np.str_)
        states, fold = state_matrix(films, used, vocabulary), fold_of(names, self.folds)
        labels = Labels(states=states, fold=fold, folds=self.folds, soft=self._soft(images, films, targets))
        fitted = cross_fit(features, labels, progress)
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
                "why": pl.Series(why[labels.fold].reshape(-1).tolist(), dtype=pl.String),
            }
        )
        unanswered, unfitted = pl.col("p_present").is_null(), pl.col("why").is_not_null()
        outcome = pl.when(unfitted).then(pl.lit("unsupported")).when(unanswered).then(pl.lit("abstained"))
        return table.with_columns(
            judge=pl.lit(self.name),
            kind=pl.lit("image", dtype=KIND),
            outcome=outcome.otherwise(pl.lit("answered")).cast(OUTCOME),
            why=pl.when(unanswered & ~unfitted).then(pl.lit(NOTHING_LEARNT)).otherwise("why"),
            logit_present=None,
            logit_absent=None,
            mass=None,
        ).select(pl.col(name).cast(dtype) for name, dtype in answers_schema(vocabulary).items())

    def _soft(self, images: pl.DataFrame, films: pl.DataFrame, targets: Floats | None) -> Floats | None:
        """Take the targets of the images with features; a judge that says what it was fitted to must have been."""
        if (targets is not None) != (self.targets == SIGNAL):
            raise UsageError(f"a probe on {self.targets} was given {'labels only' if targets is None else 'targets'}")
        if targets is None:
            return None
        place = films.select("image_id").join(images.with_row_index("place"), on="image_id", maintain_order="left")
        return np.asarray(targets[:, place["place"].to_numpy()], dtype=np.float32)


_FITTED_ON = {
    LABELS: "the dataset's own labels of",
    SIGNAL: "what an audit without the judged patients says of",
}


def without_patients(images: pl.DataFrame) -> list[Notice]:
    """Warn where some images name no patient: one patient may then be both fitted on and judged."""
    count = images["patient_id"].null_count()
    if not count:
        return []
    message = (
        f"of {several(images.height, 'film')} {several(count, 'names', 'name')} no patient: each counts as a patient "
        "of its own, so that a film may be judged by what was learnt from another film of the same patient. Map "
        "patient_id if the dataset has it"
    )
    return [Notice(code="no_patient", count=count, message=message)]


class CrossFitted(NamedTuple):
    """The answers of the probe: one row per image, one column per finding."""

    p_present: Doubles
    """Probability, low and high; NaN where there is no answer."""
    why: dict[tuple[int, int], str]
    """(fold, finding) -> why nothing could be fitted; a NaN without a reason: the images tell nothing of it."""


def cross_fit(features: StoredFeatures, labels: Labels, progress: Progress = lambda _share: None) -> CrossFitted:
    """Answer for every image from the labels of other patients."""
    why = _unsupported(labels)
    p_present = np.full((3, *labels.states.shape), np.nan)
    if len(why) < labels.folds * labels.states.shape[1]:
        scale = Scale.of(features)
        # One column per view and finding; views differ only where a target is missing, so that they share all sums.
        columns = np.concatenate(list(labels.known), axis=1)
        known, group = np.unique(columns, axis=1, return_inverse=True)
        group = group.reshape(labels.views, -1)
        with threadpool_limits(1):
            for number in range(known.shape[1]):
                here_known = group == number

                def report(share: float, number: int = number) -> None:
                    progress((number + share) / known.shape[1])

                group_fit = _Group(features, scale, labels, known[:, number], report)
                for fold in range(labels.folds):
                    for finding in np.flatnonzero(here_known[labels.view(fold)]):
                        if (fold, int(finding)) not in why:
                            here = labels.fold == fold
                            p_present[:, here, finding] = group_fit.answers(fold, int(finding))
    return CrossFitted(p_present, why)


def _unsupported(labels: Labels) -> dict[tuple[int, int], str]:
    """Find the folds and findings with too few labels to fit; only those of other patients count."""
    why = {}
    films, findings = labels.states.shape
    for fold in range(labels.folds):
        others = labels.states[labels.fold != fold]
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
    """The fits of all findings whose labels are known for the same images."""

    def __init__(
        self, features: StoredFeatures, scale: Scale, labels: Labels, known: Bools, progress: Progress
    ) -> None:
        self._labels, self._known, self._findings = labels, known, labels.states.shape[1]
        self._folds = gather(features, scale, labels, known)
        progress(0.2)
        self._penalties = [each * features.width for each in PENALTIES]
        self._pairs: dict[tuple[int, int], list[Lines]] = {}
        for done, (i, j) in enumerate(pairs := list(combinations(range(labels.folds), 2))):
            # One solution of the same equations for both: without targets of their own, they are the same lines.
            views = list(dict.fromkeys((labels.view(i), labels.view(j))))
            both = [
                each.split(len(views))
                for each in fit(self._without(i, j).of_views(views, self._findings), self._penalties)
            ]
            self._pairs[i, j], self._pairs[j, i] = [each[0] for each in both], [each[-1] for each in both]
            progress(0.2 + 0.5 * (done + 1) / len(pairs))
        self._chosen = [self._choose(fold) for fold in range(labels.folds)]
        self._final = [self._fitted(fold) for fold in range(labels.folds)]
        progress(0.9)
        self._scores = self._score(features, scale)
        progress(1.0)

    def answers(self, fold: int, finding: int) -> Doubles:
        """Give probability, low and high for the images of a fold."""
        here = self._labels.fold == fold
        used = self._known & ~here
        inner = self._scores[1 + fold, used, finding].astype(np.float64)
        slope, offset = platt(inner, self._labels.aims[self._labels.view(fold), used, finding].astype(np.float64))
        if slope == 0:
            # How common a finding is elsewhere is no evidence about an image: where few have it here, more do there.
            return np.full((3, int(here.sum())), np.nan)
        middle = slope * self._scores[0, here, finding].astype(np.float64) + offset
        apart = np.stack([self._scores[1 + self._labels.folds + other, here, finding] for other in self._others(fold)])
        count = len(apart)
        # The jackknife: how far the answer moves when one fold of the others is left out.
        error = slope * np.sqrt((count - 1) / count * ((apart - apart.mean(axis=0)) ** 2).sum(axis=0))
        reach = STUDENT_T.get(count, 1.96) * error
        return np.stack([sigmoid_by_tanh(side) for side in (middle, middle - reach, middle + reach)])

    def _others(self, *folds: int) -> list[int]:
        """List the folds that have images, without these."""
        return [each for each in range(self._labels.folds) if each not in folds and self._folds[each].films > 0]

    def _without(self, *folds: int) -> Moments:
        return Moments.of([self._folds[each] for each in range(self._labels.folds) if each not in folds])

    def _choose(self, fold: int) -> npt.NDArray[np.int64]:
        """Choose a penalty per finding, by the errors on each other fold of models fitted without both."""
        errors = np.zeros((len(self._penalties), self._labels.states.shape[1]))
        for other in self._others(fold):
            there = self._folds[other].of_views([self._labels.view(fold)], self._findings)
            errors += [lines.squared_error(there) for lines in self._pairs[fold, other]]
        return np.asarray(errors.argmin(axis=0))

    def _fitted(self, fold: int) -> Lines:
        used = sorted(set(self._chosen[fold].tolist()))
        films = self._without(fold).of_views([self._labels.view(fold)], self._findings)
        lines = dict(zip(used, fit(films, [self._penalties[each] for each in used]), strict=True))
        return _picked(lines, self._chosen[fold])

    def _score(self, features: StoredFeatures, scale: Scale) -> Floats:
        """Score every image in one pass: the answer; as one of the others, per fold; without each other fold."""
        folds, (films, findings) = self._labels.folds, self._labels.states.shape
        scores = np.full((1 + 2 * folds, films, findings), np.nan, dtype=np.float32)
        wanted = [list(self._models(fold)) for fold in range(folds)]
        for part, rows in scale.chunks(features):
            for fold, models in enumerate(wanted):
                here = np.flatnonzero(self._labels.fold[part] == fold)
                if not len(here):
                    continue
                slopes = np.concatenate([lines.slopes for _, lines in models], axis=1).astype(np.float32)
                offsets = np.concatenate([lines.offsets for _, lines in models]).astype(np.float32)
                made = (rows[here] @ slopes + offsets).reshape(len(here), len(models), findings)
                for number, (place, _) in enumerate(models):
                    scores[place, part.start + here] = made[:, number]
        return scores

    def _models(self, fold: int) -> Iterator[tuple[int, Lines]]:
        """List the models that score the images of a fold, each with the place of its scores."""
        yield 0, self._final[fold]
        for other in range(self._labels.folds):
            if other != fold:
                there, here = (dict(enumerate(self._pairs[pair])) for pair in ((other, fold), (fold, other)))
                yield 1 + other, _picked(there, self._chosen[other])
                yield 1 + self._labels.folds + other, _picked(here, self._chosen[fold])


def _picked(lines: dict[int, Lines], chosen: Sequence[int] | npt.NDArray[np.int64]) -> Lines:
    """Take each finding's line under the penalty that was chosen for it."""
    columns = range(len(chosen))
    return Lines(
        slopes=np.stack([lines[int(chosen[each])].slopes[:, each] for each in columns], axis=1),
        offsets=np.array([lines[int(chosen[each])].offsets[each] for each in columns]),
        level=next(iter(lines.values())).level,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels that a fit may use: one row per image, one column per finding."""

    states: Floats
    """1 present, 0 absent; any other value, an uncertain label or none, is not used."""
    fold: Ints
    """The fold of each image's patient."""
    folds: int
    soft: Floats | None = None
    """Targets from 0 to 1 to fit instead, NaN where there is none: one matrix per fold, for the answers about it."""
    aims: Floats = field(init=False)
    """What is fitted: one matrix per view of the dataset. Labels have one view; targets have one per fold."""
    known: Bools = field(init=False)
    """Which of them the fit uses."""

    def __post_init__(self) -> None:
        """Lay out what is fitted."""
        if self.soft is None:
            aims = self.states[None]
            known = (aims == 0) | (aims == 1)
        else:
            aims = self.soft.copy()
            for view in range(self.folds):
                # The audit of a view left its fold out, and no fit of the view reads that fold. What stands there only
                # has to be known where the other views know it: findings that are known alike share their sums.
                here = self.fold == view
                aims[view, here] = np.where(np.isnan(self.soft[view - 1, here]), np.nan, 0)
            known = np.isfinite(aims)
        object.__setattr__(self, "aims", np.where(known, aims, 0).astype(np.float32))
        object.__setattr__(self, "known", known)

    @property
    def views(self) -> int:
        """How many matrices of aims there are."""
        return len(self.aims)

    def view(self, fold: int) -> int:
        """Give the view that the answers about a fold are fitted to."""
        return fold if self.views > 1 else 0


@dataclass(slots=True)
class Moments:
    """Sums over images: of ones, of features, of their products, and of both with the labels."""

    films: float
    sums: Doubles
    products: Doubles
    labels: Doubles
    """One number per finding, view by view."""
    squares: Doubles
    """Of the labels."""
    features_and_labels: Doubles
    """One row per feature, one column per finding, view by view."""

    @classmethod
    def nothing(cls, width: int, findings: int) -> Moments:
        """Begin with no image."""
        none = np.zeros(findings)
        return cls(0.0, np.zeros(width), np.zeros((width, width)), none, none.copy(), np.zeros((width, findings)))

    @classmethod
    def of(cls, parts: Sequence[Moments]) -> Moments:
        """Add up, from the first to the last: in another order the last bit of a sum would be another."""
        whole = copy.deepcopy(parts[0])
        for part in parts[1:]:
            whole += part
        return whole

    def of_views(self, views: Sequence[int], findings: int) -> Moments:
        """Take the labels of some views; the features are shared, not copied."""
        columns = np.concatenate([np.arange(findings) + view * findings for view in views])
        kept = self.labels[columns], self.squares[columns], self.features_and_labels[:, columns]
        return Moments(self.films, self.sums, self.products, *kept)

    def __iadd__(self, other: Self) -> Self:
        for name in self.__slots__:
            total = getattr(self, name)
            total += getattr(other, name)  # in place: the products of a wide backbone are 50 MB
            setattr(self, name, total)
        return self

    def add(self, features: Floats, labels: Floats, known: Floats) -> None:
        """Add images; one whose label is not known weighs nothing and changes no shape, so that it leaves no trace."""
        weighed = features * known[:, None]
        self.films += float(known.sum())
        self.sums += weighed.sum(axis=0, dtype=np.float64)
        self.products += weighed.T @ features
        weighed_labels = labels * known[:, None]
        self.labels += weighed_labels.sum(axis=0, dtype=np.float64)
        self.squares += (weighed_labels * labels).sum(axis=0, dtype=np.float64)
        self.features_and_labels += weighed.T @ labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A rough centre and spread of each feature, so that sums of products lose no digits; no label is in it."""

    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, features: StoredFeatures) -> Scale:
        """Take it from the first images."""
        some = np.asarray(features.rows(0, CHUNK), dtype=np.float64)
        spread = some.std(axis=0)
        spread[spread < 1e-6] = 1.0
        return cls(centre=some.mean(axis=0).astype(np.float32), spread=spread.astype(np.float32))

    def chunks(self, features: StoredFeatures) -> Iterator[tuple[slice, Floats]]:
        """Read all features in the order of the images, one chunk at a time, scaled."""
        for start in range(0, len(features.image_ids), CHUNK):
            part = slice(start, min(start + CHUNK, len(features.image_ids)))
            rows = np.asarray(features.rows(part.start, part.stop), dtype=np.float32)
            yield part, (rows - self.centre) / self.spread


def gather(features: StoredFeatures, scale: Scale, labels: Labels, known: Bools) -> list[Moments]:
    """Add up each fold by itself, in one pass, for findings whose labels are known for the same images."""
    # The root of a target: .01 and .05 are as far apart as .3 and .45. Squared errors of rare findings would else come
    # from the few large targets alone; LOG.md has the figures. A label is its own root.
    states = np.sqrt(np.concatenate(list(labels.aims), axis=1))
    folds = [Moments.nothing(features.width, states.shape[1]) for _ in range(labels.folds)]
    for part, rows in scale.chunks(features):
        for number, moments in enumerate(folds):
            here = labels.fold[part] == number
            if here.any():
                moments.add(rows[here], states[part][here], known[part][here].astype(np.float32))
    return folds


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Linear models, one per finding: label = features @ slopes + offsets + level."""

    slopes: Doubles
    """One row per feature, one column per finding."""
    offsets: Doubles
    """So that features at their mean give 0 ..."""
    level: Doubles
    """... and how common the finding is where it was fitted: no score, for where few have it more do elsewhere."""

    def squared_error(self, films: Moments) -> Doubles:
        """Give the squared error on the labels of images, per finding, without reading the images again."""
        w, a = self.slopes, self.offsets + self.level
        fitted = np.einsum("dk,dk->k", w, films.products @ w) + 2 * a * (films.sums @ w) + a * a * films.films
        crossed = np.einsum("dk,dk->k", w, films.features_and_labels) + a * films.labels
        return np.asarray(films.squares - 2 * crossed + fitted)

    def split(self, parts: int) -> list[Lines]:
        """Take lines apart that were fitted together, each part of as many findings."""
        sides = [np.split(side, parts, axis=-1) for side in (self.slopes, self.offsets, self.level)]
        return [Lines(slopes=w, offsets=a, level=level) for w, a, level in zip(*sides, strict=True)]


def fit(films: Moments, penalties: Sequence[float]) -> list[Lines]:
    """Fit the lines of every finding, once per penalty; features are standardised by these images alone."""
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


def platt(scores: Doubles, labels: Doubles) -> tuple[float, float]:
    """Fit slope and offset of a logistic line; a slope below zero is noise and becomes 0.

    Labels are drawn in a little, as Platt does, so that scores that separate them wholly still have a finite slope.
    """
    present = float(labels.sum())
    absent = len(labels) - present
    aims = labels * (present + 1) / (present + 2) + (1 - labels) / (absent + 2)
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
    loss = float(log_loss(unit * slope + offset, aims).sum())
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
            now = float(log_loss(unit * tried[0] + tried[1], aims).sum())
            if now <= loss:
                break
        else:
            break
        gained, loss = loss - now, now
        slope, offset = tried
        if gained < ENOUGH * abs(loss):
            break
    return slope, offset
