"""Hardness: where readers would split, so that low trust means nobody can tell rather than the label is wrong.

Pairs that two or more readers read teach it: a ridge logistic regression of `the readers split or one hedged` on what
is known of every pair before anybody reads it. Findings share the slopes and have levels of their own, so that one with
few reads borrows from the others. Slopes of their own are tried too, and kept if patients that were held out are
predicted better by them. A pair on an image that was read gets its chance from a fit without the image's patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from bpals.findings import Group
from bpals.numeric import Matrix, logit, newton, sigmoid
from bpals.signal.flags import LOW_TRUST
from bpals.signal.layout import Bools, Estimate, Hard, Ints
from bpals.text import several

FEWEST_PAIRS = 100
"""With fewer pairs that several readers read, or ..."""
FEWEST_SPLITS = 20
"""... fewer of them split, or as few not split, nothing is fitted."""
FEWEST_OF_FINDING = 20
"""A finding with fewer such pairs is not spoken of: its own level is not known."""
PENALTIES = ((10.0, np.inf), (100.0, np.inf), (10.0, 100.0), (100.0, 300.0))
"""What pulls the shared slopes to 0, and a finding's own slopes to the shared ones; the plainest first."""
LEVEL_PENALTY = 1.0
"""What pulls a finding's own level to the level of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What is known of the images: a number per image."""

    view: Matrix
    """1 on an image of the rarer view."""
    devices: Matrix
    """1 where image judges see support devices."""
    crowd: Matrix
    """How many findings are labelled present."""
    fold: Ints
    """By patient."""

    @property
    def columns(self) -> list[Matrix]:
        """Give what the model sees."""
        return [self.view, self.devices, self.crowd, (self.crowd == 0).astype(float)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One finding or group as the model sees it: a number per image."""

    finding: str
    states: Matrix
    """1 present, 0 absent, 0.5 uncertain, NaN silent."""
    p_present: Matrix
    spread: Matrix
    """Standard deviation of the metadata judge's own logit: what a fit adds to it says little of readers."""
    quarrel: Matrix
    """How far the judges lie apart; 0 where fewer than two of them answered."""

    @property
    def trust(self) -> Matrix:
        """Say how far the label is trusted; NaN where it is uncertain or silent, or nobody answered."""
        definite = (self.states == 0) | (self.states == 1)
        return np.where(definite, np.where(self.states == 1, self.p_present, 1 - self.p_present), np.nan)

    def columns(self, conditions: Conditions) -> Matrix:
        """Lay out what the model sees of every image."""
        p = np.nan_to_num(self.p_present, nan=0.5)
        z = logit(p)
        own = [z, np.abs(z), p * (1 - p), np.nan_to_num(self.states, nan=0.5), self._own_spread, self.quarrel]
        return np.stack([*own, *conditions.columns], axis=1)

    @property
    def _own_spread(self) -> Matrix:
        """The spread; where the metadata judge did not answer and others did, the usual one."""
        known = self.spread[~np.isnan(self.spread)]
        return np.nan_to_num(self.spread, nan=float(known.mean()) if len(known) else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardness:
    """What single reads say of all findings."""

    findings: Mapping[str, Hard] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    """How it was fitted, or why not: for the run record."""

    def followed_by(self, groups: Sequence[Group]) -> Hardness:
        """Let the members of a group follow it where nobody read them themselves."""
        members = {
            member: self.findings[group.name]
            for group in groups
            if group.name in self.findings
            for member in group.members
        }
        return replace(self, findings=members | dict(self.findings))


def subjects_of(estimate: Estimate) -> list[Subject]:
    """Give each finding as the model of readers who split sees it."""
    # Row by row in memory: in another order a column's sum differs in the last bit.
    judges = [
        logit(estimate.record.p_present),
        *(np.where(its.used, np.ascontiguousarray(its.evidence), np.nan) for its in estimate.judges),
    ]
    apart = quarrel(judges)
    return [
        Subject(
            finding=finding,
            states=estimate.pairs.states[:, column],
            p_present=estimate.p_present[:, column],
            spread=estimate.record.spread[:, column],
            quarrel=apart[:, column],
        )
        for column, finding in enumerate(estimate.pairs.findings)
    ]


def quarrel(judges: Sequence[Matrix]) -> Matrix:
    """Say how far judges lie apart, each on a scale of its own; 0 where fewer than two of them answered."""
    count, total, squares = (np.zeros(judges[0].shape) for _ in range(3))
    for logits in judges:
        known = ~np.isnan(logits)
        number = np.maximum(known.sum(axis=0), 1)
        centred = np.where(known, logits - np.nansum(logits, axis=0) / number, 0.0)
        deviation = np.sqrt((centred**2).sum(axis=0) / number)
        scaled = centred / np.where(deviation > 0, deviation, 1.0)
        count, total, squares = count + known, total + scaled, squares + scaled**2
    mean = total / np.maximum(count, 1)
    variance = squares / np.maximum(count, 1) - mean**2
    return np.where(count > 1, np.sqrt(np.maximum(variance, 0)), 0.0)


def disagreements(reads: pl.DataFrame) -> pl.DataFrame:
    """Say of each pair that several readers read whether they split: two verdicts differ, or one hedged."""
    unsure = pl.col("verdict").is_in(["uncertain", "unreadable"]).any()
    pairs = reads.group_by("image_id", "finding", maintain_order=True).agg(
        reads=pl.len(), split=(pl.col("verdict").n_unique() > 1) | unsure
    )
    return pairs.filter(pl.col("reads") > 1).select("image_id", "finding", "split")


def fit(subjects: Sequence[Subject], conditions: Conditions, reads: pl.DataFrame, image_ids: pl.Series) -> Hardness:
    """Fit on REVIEWS where readers split; with too few of them nothing is fitted, and the summary says so."""
    images = pl.DataFrame({"image_id": image_ids}).with_row_index("row")
    split = disagreements(reads).join(images, on="image_id")
    named = set(split["finding"].unique())
    subjects = [subject for subject in subjects if subject.finding in named]
    places = {subject.finding: place for place, subject in enumerate(subjects)}
    split = split.filter(pl.col("finding").is_in(list(places)))
    split = split.with_columns(subject=pl.col("finding").replace_strict(places, return_dtype=pl.Int64))
    sample = _Sample.of(subjects, conditions, split.sort("subject", "row"))
    summary = {"pairs": len(sample.split), "split": int(sample.split.sum())}
    if len(sample.split) < FEWEST_PAIRS or min(summary["split"], summary["pairs"] - summary["split"]) < FEWEST_SPLITS:
        pairs = several(summary["pairs"], "pair was", "pairs were")
        words = (
            f"too few reads to learn where readers split: {pairs} read by two or more readers, "
            f"who split on {summary['split']}; it takes {FEWEST_PAIRS} pairs, {FEWEST_SPLITS} split and as many not"
        )
        return Hardness(summary=summary | {"words": words})
    return _fitted(subjects, conditions, sample, summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """The pairs that several readers read."""

    columns: Matrix
    subject: Ints
    row: Ints
    fold: Ints
    split: Bools
    subjects: int

    @classmethod
    def of(cls, subjects: Sequence[Subject], conditions: Conditions, read: pl.DataFrame) -> _Sample:
        """Lay the pairs out; a pair that no judge answered about teaches nothing."""
        subject, row = (read[name].to_numpy().astype(np.int64) for name in ("subject", "row"))
        laid = [each.columns(conditions)[row[subject == place]] for place, each in enumerate(subjects)]
        silent = [np.isnan(each.p_present[row[subject == place]]) for place, each in enumerate(subjects)]
        whole = cls(
            columns=np.concatenate(laid) if laid else np.zeros((0, 0)),
            subject=subject,
            row=row,
            fold=conditions.fold[row],
            split=read["split"].to_numpy(),
            subjects=len(subjects),
        )
        return whole.take(~np.concatenate(silent)) if silent else whole

    def take(self, kept: Bools) -> _Sample:
        """Keep some of the pairs."""
        return _Sample(
            columns=self.columns[kept],
            subject=self.subject[kept],
            row=self.row[kept],
            fold=self.fold[kept],
            split=self.split[kept],
            subjects=self.subjects,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """Slopes and levels, and the scale of the columns that they belong to."""

    centre: Matrix
    scale: Matrix
    subjects: int
    own_slopes: bool
    weights: Matrix = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, sample: _Sample, penalty: tuple[float, float]) -> _Fit:
        """Fit by damped Newton steps."""
        shared, own = penalty
        fit = cls(
            centre=sample.columns.mean(axis=0),
            scale=np.where(np.ptp(sample.columns, axis=0) > 0, sample.columns.std(axis=0), 1.0),
            subjects=sample.subjects,
            own_slopes=bool(np.isfinite(own)),
        )
        width = sample.columns.shape[1]
        ridge = [1e-3, *[shared] * width, *[LEVEL_PENALTY] * sample.subjects]
        ridge += [own] * (width * sample.subjects) if fit.own_slopes else []
        inputs = fit.inputs(sample.columns, sample.subject)
        weights, _ = newton(inputs, np.zeros(len(inputs)), sample.split.astype(float), np.array(ridge))
        return replace(fit, weights=weights)

    def inputs(self, columns: Matrix, subject: Ints) -> Matrix:
        """Lay out the model's columns: the level of all, shared slopes, each finding's level, and slopes of its own."""
        scaled = (columns - self.centre) / self.scale
        levels = np.eye(self.subjects)[subject]
        own = [scaled * levels[:, [place]] for place in range(self.subjects)] if self.own_slopes else []
        return np.concatenate([np.ones((len(scaled), 1)), scaled, levels, *own], axis=1)

    def logits(self, columns: Matrix, subject: Ints) -> Matrix:
        """Give the logit of the chance that readers split."""
        return np.asarray(self.inputs(columns, subject) @ self.weights)


def _chosen(sample: _Sample) -> tuple[float, float]:
    """Choose the penalties that tell held-out patients best; slopes of one's own must be better beyond chance."""
    best, losses = PENALTIES[0], _held_out(sample, PENALTIES[0])
    for penalty in PENALTIES[1:]:
        tried = _held_out(sample, penalty)
        gain = losses - tried
        if gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)):
            best, losses = penalty, tried
    return best


def _held_out(sample: _Sample, penalty: tuple[float, float]) -> Matrix:
    """Measure each pair's log-loss under a fit that did not see its patient."""
    losses = np.empty(len(sample.split))
    for fold in np.unique(sample.fold):
        held = sample.fold == fold
        here = sample.take(held)
        z = _Fit.of(sample.take(~held), penalty).logits(here.columns, here.subject)
        losses[held] = np.logaddexp(0, -np.where(here.split, 1.0, -1.0) * z)
    return losses


def _fitted(subjects: Sequence[Subject], conditions: Conditions, sample: _Sample, summary: dict[str, Any]) -> Hardness:
    """Predict every image; an image that was read comes from a fit without its fold of patients."""
    penalty = _chosen(sample)
    whole = _Fit.of(sample, penalty)
    folds = {}
    for fold in np.unique(sample.fold):
        others = sample.take(sample.fold != fold)
        folds[int(fold)] = _Fit.of(others, _chosen(others))
    read = np.unique(sample.row)
    findings, few = {}, {}
    for place, subject in enumerate(subjects):
        here = sample.subject == place
        if here.sum() < FEWEST_OF_FINDING:
            few[subject.finding] = int(here.sum())
            continue
        columns = subject.columns(conditions)
        everyone = np.full(len(columns), place)
        z = whole.logits(columns, everyone)
        for fold, fit in folds.items():
            rows = read[conditions.fold[read] == fold]
            z[rows] = fit.logits(columns[rows], everyone[rows])
        p_split = np.where(np.isnan(subject.p_present), np.nan, sigmoid(z))
        findings[subject.finding] = Hard(
            p_split=p_split,
            cut=_cut(p_split[sample.row[here]], subject.trust[sample.row[here]]),
            usual=float(sample.split[here].mean()),
            pairs=int(here.sum()),
        )
    return Hardness(findings=findings, summary=summary | _summary(findings, few, penalty))


def _cut(p_split: Matrix, trust: Matrix) -> float:
    """Take the median chance of the reviewed labels of low trust, or of all of them where none is low."""
    low = trust < LOW_TRUST
    return float(np.median(p_split[low] if low.any() else p_split))


def _summary(findings: Mapping[str, Hard], few: Mapping[str, int], penalty: tuple[float, float]) -> dict[str, Any]:
    """Write down what was fitted, and of which findings it was too little."""
    words = "ridge logistic regression of `the readers split or one hedged`, cross-fitted by patient"
    if lacking := [f"{finding} ({pairs})" for finding, pairs in few.items() if pairs]:
        words += f"; too few pairs with two reads, of {FEWEST_OF_FINDING}: {', '.join(lacking)}"
    return {
        "words": words,
        "penalty": {"shared": penalty[0], "own": penalty[1] if np.isfinite(penalty[1]) else None},
        "findings": {
            name: {"pairs": hard.pairs, "split": round(hard.usual, 4), "hard_above": round(hard.cut, 4)}
            for name, hard in findings.items()
        },
    }
