"""Stage 3 with expert labels: fit every finding and group on what experts say, and lay the result back.

Where image judges answered, each group of them is weighed by expert labels beside the metadata judge:

    logit P(present) = r + a + b r + sum over groups (c_f z_f) + d label

r is what expert labels made of the metadata judge alone, fitted on all reviewed images; a to d come from those that an
image judge saw. The pool's weights come from labels, which cannot teach how far a judge may be believed; they stand
until there are enough reviewed errors, and longer if they do better. Images that no image judge saw keep r.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import UsageError
from bpals.findings import Group
from bpals.numeric import SMALLEST, Matrix, logit, patients, sigmoid
from bpals.signal import hardness
from bpals.signal.calibrate import (
    OTHERS_ERRORS,
    OWN_ERRORS,
    Choose,
    Context,
    Design,
    Fitted,
    Prediction,
    better,
    calibrate,
    can_fit,
    choose_among,
    chooser,
    fold_of_patient,
    losses,
)
from bpals.signal.certificates import Read
from bpals.signal.hierarchical import Reviewed, SharedFit, Topic, refit, shifts
from bpals.signal.layout import Bools, Estimate, Ints, LaidOut, with_groups
from bpals.signal.truth import Truths
from bpals.text import several
from bpals.types import Reference, Reviews

FEWEST_PATIENTS = 10
"""Fewer reviewed patients cannot be cross-fitted."""
ALONE = "record"
"""The design that uses no image judge."""
ENOUGH = 50
"""Reviewed pairs that all judges answered; fewer give no figure of how they err together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """What experts say: adjudicated labels, single reads, and labels of a random sample of the images."""

    reference: Reference | None = None
    reviews: Reviews | None = None
    random_sample: Reference | None = None
    features: npt.NDArray[np.floating[Any]] | None = None
    """What the metadata judge sees of each image: a row per image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The estimates after the fit, and what was fitted."""

    findings: Estimate
    groups: Estimate | None = None
    truths: Truths | None = None
    """None where too few patients were read to fit anything."""
    fits: Mapping[str, Mapping[str, Any]]
    """For each calibrated finding or group: how it was fitted."""
    shifts: Mapping[str, tuple[float, float]]
    untaught: Mapping[str, int]
    used: pl.DataFrame | None = None
    """The pairs that were used, with the fold that left them out."""
    dependence: Mapping[str, Any]
    hardness: Mapping[str, Any]


def calibrate_levels(laid: LaidOut, part: Estimate, groups: Estimate | None, experts: Experts) -> Calibration:
    """Fit findings and groups on what experts say, cross-fitted by patient; the members of a group follow it."""
    parts = [part] if groups is None else [part, groups]
    reference, reviews = experts.reference, experts.reviews
    truths = Truths.of(laid.dataset, reference, reviews, _claims_in(parts))
    fold = fold_of_patient(patients(laid.dataset.images))
    if truths.patients < FEWEST_PATIENTS:
        if reference is not None:
            raise _too_few(truths, reference)
        hard = _hardness(laid, parts, experts, fold)
        part = replace(part, hard=hard.findings)
        return Calibration(findings=part, fits={}, shifts={}, untaught={}, dependence={}, hardness=hard.summary)
    context = _context(laid, part, experts.features)
    summed = [part.pairs.p_present]
    if groups is not None:
        summed.append(with_groups(part.pairs, laid.named).p_present)
    topics = [_topics(its, members, truths, fold) for its, members in zip(parts, summed, strict=True)]
    shared = SharedFit(topics=[topic for some in topics for topic in some], common=context.common)
    logits = judge_logits(parts, laid.named, context, truths, fold)
    who = "reviews" if reference is None else reference.kind
    sample = Truths.of(laid.dataset, experts.random_sample, None, _claims_in(parts[:1]))
    fits: dict[str, dict[str, Any]] = {}
    shifted: dict[str, tuple[float, float]] = {}
    for place, its in enumerate(parts):
        fitted, more = _fit(its, topics[place], context, shared, logits, who)
        parts[place], moved = _refitted(fitted, sample, fold, more)
        fits, shifted = fits | more, shifted | moved
    hard = _hardness(laid, parts, experts, fold)
    responses = [response for its, some in zip(parts, topics, strict=True) for response in _responses(its, some)]
    if groups is not None:
        groups = replace(parts[1], hard=hard.findings)
        parts[0] = follow(parts[0], groups, laid.named, fits)
    untaught = {topic.finding: topic.least_errors for some in topics for topic in some if topic.finding not in fits}
    if not fits and not untaught and reference is not None:
        raise UsageError(
            f"--calibrate {reference.kind}: nothing can be fitted on it: of no finding that was judged here does it "
            "hold presences and absences. Give other expert labels, or audit without --calibrate"
        )
    used = pl.concat([_used_pairs(truths, fits, fold), _used_pairs(sample, shifted, fold)])
    return Calibration(
        findings=replace(parts[0], hard=hard.findings),
        groups=groups,
        truths=truths,
        fits=fits,
        shifts=shifted,
        untaught=untaught,
        used=used.unique(["image_id", "finding"], keep="first", maintain_order=True),
        dependence=dependence(responses),
        hardness=hard.summary,
    )


def _too_few(truths: Truths, reference: Reference) -> UsageError:
    here = several(truths.patients, "is", "are")
    return UsageError(
        f"--calibrate {reference.kind}: of its patients {here} in this dataset, and cross-fitting "
        f"by patient needs {FEWEST_PATIENTS}. Give more expert labels, or audit without --calibrate"
    )


def _hardness(laid: LaidOut, parts: Sequence[Estimate], experts: Experts, fold: Ints) -> hardness.Hardness:
    """Fit on single reads, where there are any, on which pairs readers would split."""
    if experts.reviews is None:
        return hardness.Hardness()
    images = laid.dataset.images
    conditions = hardness.Conditions(
        view=_rarer_view(images),
        devices=np.zeros(images.height) if laid.panel is None else laid.panel.devices.present,
        crowd=(parts[0].pairs.states == 1).sum(axis=1).astype(float),
        fold=fold,
    )
    subjects = [subject for part in parts for subject in hardness.subjects_of(part)]
    fitted = hardness.fit(subjects, conditions, experts.reviews.table, images["image_id"])
    return fitted.followed_by(experts.reviews.groups_within(laid.dataset.vocabulary))


def _claims_in(parts: Sequence[Estimate]) -> Callable[[str], Matrix]:
    """Give the labels of a finding or a group, wherever it is."""
    claims = {name: part.pairs.states[:, place] for part in parts for place, name in enumerate(part.pairs.findings)}
    nobody = np.full(parts[0].pairs.states.shape[0], np.nan)
    return lambda finding: claims.get(finding, nobody)


def _topics(part: Estimate, summed: Matrix, truths: Truths, fold: Ints) -> list[Topic]:
    """Gather what is to be fitted about each finding of a part; `summed` is what their members' answers add up to."""
    topics = []
    for column, finding in enumerate(part.pairs.findings):
        p = part.pairs.p_present[:, column]
        reviewed = truths.about(finding, ~np.isnan(p), fold)
        if reviewed is not None:
            topics.append(
                Topic(
                    finding=finding,
                    judged=np.where(np.isnan(p), np.nan, logit(p)),
                    summed=np.where(np.isnan(p), np.nan, logit(np.nan_to_num(summed[:, column], nan=0.5))),
                    claim=np.nan_to_num(part.pairs.states[:, column], nan=0.5),
                    by_image=part.moved[:, column].astype(float),
                    reviewed=reviewed,
                )
            )
    return topics


def _context(laid: LaidOut, part: Estimate, features: npt.NDArray[np.floating[Any]] | None) -> Context:
    """Gather what the designs may use."""
    states = np.nan_to_num(part.pairs.states)
    return Context(
        no_finding=(states.sum(axis=1) == 0).astype(float)[:, None],
        view=_rarer_view(laid.dataset.images)[:, None],
        logits=logit(np.nan_to_num(part.pairs.p_present, nan=0.5)),
        states=states,
        evidence=np.zeros((len(states), 0)) if features is None else features.astype(float),
    )


def _rarer_view(images: pl.DataFrame) -> Matrix:
    """Mark the images of the second most frequent view."""
    views = images["view"].drop_nulls().value_counts().sort(["count", "view"], descending=[True, False])
    rarer = views["view"].to_list()[1:2]
    return images["view"].is_in(rarer).fill_null(value=False).to_numpy().astype(float)


def _fit(
    part: Estimate,
    topics: Sequence[Topic],
    context: Context,
    shared: SharedFit,
    logits: Mapping[str, JudgeLogits],
    kind: str,
) -> tuple[Estimate, dict[str, dict[str, Any]]]:
    """Calibrate each finding that experts spoke of."""
    p_present, spread = part.p_present.copy(), part.spread.copy()
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    notes, fits = dict(part.notes), {}
    for topic in topics:
        if not can_fit(topic):
            continue
        finding, column = topic.finding, part.pairs.column(topic.finding)
        choose = chooser(topic, context, shared)
        if finding in logits:
            choose = choose_with_judges(topic, choose, logits[finding])
        done = calibrate(topic, choose)
        p_present[:, column] = done.p_present
        spread[:, column] = np.hypot(done.spread, part.pairs.spread[:, column])
        fitted[:, column], reviewed[topic.reviewed.rows, column] = ~np.isnan(done.p_present), True
        notes[finding] = f"calibrated: fitted on {several(done.n, 'expert label')} of {finding} ({kind})"
        fits[finding] = {"n": done.n, "errors": done.errors, "design": done.design, "penalty": done.penalty}
    return replace(part, p_present=p_present, spread=spread, fitted=fitted, reviewed=reviewed, notes=notes), fits


def _refitted(
    part: Estimate, sample: Truths, fold: Ints, fits: Collection[str]
) -> tuple[Estimate, dict[str, tuple[float, float]]]:
    """Shift each fitted finding that a random sample speaks of to how common it is among the audited images."""
    p_present, fitted, reviewed = part.p_present.copy(), part.fitted.copy(), part.reviewed.copy()
    shifted = {}
    for column, finding in enumerate(part.pairs.findings):
        p, claim = p_present[:, column], part.pairs.states[:, column]
        labels = sample.about(finding, ~np.isnan(p), fold) if finding in fits else None
        if labels is not None:
            shifted[finding] = shifts(logit(p), claim, labels)
            p_present[:, column] = np.where(np.isnan(p), np.nan, sigmoid(refit(logit(p), claim, labels)))
            fitted[:, column], reviewed[labels.rows, column] = ~np.isnan(p), True
    return replace(part, p_present=p_present, fitted=fitted, reviewed=reviewed), shifted


def follow(part: Estimate, groups: Estimate, named: Sequence[Group], fits: Mapping[str, Any]) -> Estimate:
    """Give the members of a calibrated group their parts of its probability."""
    p_present, spread, notes = part.p_present.copy(), part.spread.copy(), dict(part.notes)
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    for column, group in enumerate(named):
        if group.name not in fits:
            continue
        members = part.pairs.members(group)
        shares = _shares(part.pairs.p_present[:, members], part.pairs.states[:, members] == 1)
        for share, place, member in zip(shares.T, members, group.members, strict=True):
            if member in fits:
                continue
            # Where the group has no answer the member keeps its own, and where it has none itself it gets none.
            its = groups.fitted[:, column] & ~np.isnan(part.pairs.p_present[:, place])
            whole, of_it = groups.p_present[its, column], share[its]
            p_present[its, place] = of_it * whole
            spread[its, place] = _unsure(of_it, whole, spread[its, place], groups.spread[its, column])
            fitted[:, place] |= its
            reviewed[:, place] |= groups.reviewed[:, column] & its
            labels = several(fits[group.name]["n"], "expert label")
            notes[member] = f"group: follows from {group.name}, which was fitted on {labels}"
    return replace(part, p_present=p_present, spread=spread, fitted=fitted, reviewed=reviewed, notes=notes)


def _shares(p_present: Matrix, claimed: Bools) -> Matrix:
    """Divide a group among its members as the judges divide it; a labelled member has all of it."""
    # The experts said whether the group is there, not which member: in that, the dataset's label is taken. It may
    # name two, and they are not rivals: experts find a group more often where more of its members are labelled.
    known = np.nan_to_num(p_present)
    total = np.maximum(known.sum(axis=1, keepdims=True), 1e-12)
    return np.where(claimed, 1.0, known / total)


def _unsure(share: Matrix, whole: Matrix, of_share: Matrix, of_whole: Matrix) -> Matrix:
    """Give the deviation of the logit of share x whole from those of the two: where the whole is sure, the share's."""
    both = np.hypot((1 - share) * of_share, (1 - whole) * of_whole)
    return np.asarray(both / np.maximum(1 - share * whole, SMALLEST))


def _used_pairs(truths: Truths, fits: Collection[str], fold: Ints) -> pl.DataFrame:
    """List the pairs that a fit rests on, with the fold that left them out."""
    used = truths.table.filter(pl.col("finding").is_in(list(fits)))
    return used.select(
        "image_id",
        "finding",
        present=pl.col("present") > 0.5,
        fold=pl.Series(fold[used["row"].to_numpy()], dtype=pl.Int32),
    )


def wrong_claims(part: Estimate, truth: pl.DataFrame) -> dict[str, Read]:
    """List, for each calibrated finding, the images that were reviewed and whether their label is wrong."""
    listed = {}
    for column, finding in enumerate(part.pairs.findings):
        its = truth.filter(pl.col("finding") == finding)
        if finding not in part.notes or its.is_empty():
            continue
        claim = part.pairs.states[its["row"].to_numpy(), column]
        its = its.with_columns(claim=pl.Series(claim)).filter(pl.col("claim").is_in([0.0, 1.0])).sort("row")
        known = its["inclusion"].is_not_null().all()
        who = its.select(pl.coalesce("patient_id", "image_id").rank("dense")).to_series()
        listed[finding] = Read(
            images=its["row"].to_numpy().astype(np.int64),
            wrong=(its["claim"] != (its["present"] > 0.5).cast(pl.Float64)).to_numpy(),
            patient=who.to_numpy().astype(np.int64),
            inclusion=its["inclusion"].to_numpy() if known else None,
        )
    return listed


# Image judges, each group weighed by expert labels beside the metadata judge.


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLogits:
    """What image judges say of one finding, beside the fit of the metadata judge alone."""

    record: Choose
    """How the metadata judge's answer alone is calibrated."""
    own: Matrix
    """The logits of the groups of judges about the finding: one row per image, one column per group."""
    others: Matrix
    """The same about all findings, group by group."""


def judge_logits(
    parts: Sequence[Estimate], groups: Sequence[Group], context: Context, truths: Truths, fold: Ints
) -> dict[str, JudgeLogits]:
    """Lay out, for each reviewed finding and group, what image judges say beside the metadata judge."""
    plain = parts[0]
    # There is nothing to lay out where the metadata judge did not answer wherever somebody did.
    same = all(bool((np.isnan(its.record.p_present) == np.isnan(its.pairs.p_present)).all()) for its in parts)
    if not plain.per_group or not same:
        return {}
    summed = [plain.record, *([with_groups(plain.record, groups)] if parts[1:] else [])]
    topics = [
        topic
        for part, members in zip(parts, summed, strict=True)
        for topic in _topics(
            replace(part, pairs=part.record, moved=np.zeros_like(part.moved)), members.p_present, truths, fold
        )
    ]
    alone = replace(context, logits=logit(np.nan_to_num(plain.record.p_present, nan=0.5)))
    shared = SharedFit(topics=topics, common=context.common)
    own = {
        name: np.stack([z[:, place] for z in plain.per_group], axis=1)
        for place, name in enumerate(plain.pairs.findings)
    }
    own |= {group.name: _of_group(plain, group) for group in groups}
    others = _filled(np.concatenate(plain.per_group, axis=1))
    return {
        topic.finding: JudgeLogits(record=chooser(topic, alone, shared), own=_filled(own[topic.finding]), others=others)
        for topic in topics
    }


def _of_group(part: Estimate, group: Group) -> Matrix:
    """Give each judge group's logit of a group: min(1, sum of its members'); the record's where it is silent."""
    members = part.pairs.members(group)
    record, laid = part.record.p_present[:, members], []
    for z in part.per_group:
        silent = np.isnan(z[:, members])
        summed = np.where(silent, record, sigmoid(z[:, members])).sum(axis=1)
        laid.append(np.where(silent.all(axis=1), np.nan, logit(summed)))
    return np.stack(laid, axis=1)


def _filled(logits: Matrix) -> Matrix:
    """Fill in what is usual where a group of judges is silent."""
    known = ~np.isnan(logits)
    usual = np.nansum(logits, axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.asarray(np.where(known, logits, usual))


def choose_with_judges(topic: Topic, pooled: Choose, logits: JudgeLogits) -> Choose:
    """Choose between the fit on the pool and the judges beside the record, by patients that neither has seen."""
    seen = replace(topic, reviewed=topic.reviewed.only(topic.by_image[topic.reviewed.rows] == 1))

    def choose(without: frozenset[int]) -> Fitted:
        first = pooled(without)
        if seen.errors(without) < OTHERS_ERRORS:
            return first
        alone = logits.record(without)
        rows = topic.reviewed.without(without).rows
        recall = _Recall.of(alone, rows, len(topic.judged))
        corrected = choose_among(_designs(topic, logits, recall), seen, without)
        saw = topic.by_image[rows] == 1
        held_out = alone.held_out
        # Where no image judge is worth using the record's answer stands as it is, unshifted.
        if corrected.design != ALONE:
            held_out = held_out.copy()
            held_out[saw] = corrected.held_out
        reviewed = seen.reviewed.without(without)
        ours, theirs = losses(held_out[saw], reviewed), losses(first.held_out[saw], reviewed)
        # Few reviews can prefer either by chance: then the pool stands unless it is clearly worse.
        if not (better(ours, theirs) if seen.errors(without) < OWN_ERRORS else ours.mean() < theirs.mean()):
            return first
        name = f"{alone.design}, {corrected.design}"
        if corrected.design == ALONE:
            return replace(alone, design=name)
        predict = _predict(topic, alone, corrected)
        return Fitted(design=name, penalty=corrected.penalty, predict=predict, held_out=held_out)

    return choose


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recall:
    """What the record alone gives: images it was fitted on have their held-out answer, others are predicted once."""

    alone: Fitted
    z: Matrix
    spread: Matrix

    @classmethod
    def of(cls, alone: Fitted, fitted_on: Ints, images: int) -> _Recall:
        z = np.full(images, np.nan)
        z[fitted_on] = alone.held_out
        return cls(alone=alone, z=z, spread=np.zeros(images))

    def answer(self, rows: Ints) -> tuple[Matrix, Matrix]:
        if len(fresh := rows[np.isnan(self.z[rows])]):
            self.z[fresh], self.spread[fresh] = self.alone.predict(fresh)
        return self.z[rows], self.spread[rows]


def _designs(topic: Topic, logits: JudgeLogits, recall: _Recall) -> list[Design]:
    """List the designs, the plainest first; each corrects what the record alone gives, and the first uses no judge."""

    def start(rows: Ints, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return recall.answer(rows)

    def own(rows: Ints) -> Matrix:
        z, _ = recall.answer(rows)
        return np.concatenate([z[:, None], topic.claim[rows][:, None], logits.own[rows]], axis=1)

    def others(rows: Ints) -> Matrix:
        return np.concatenate([own(rows), logits.others[rows]], axis=1)

    return [
        Design(name=ALONE, start=start),
        Design(name="beside", start=start, columns=own),
        Design(name="beside, other findings", start=start, columns=others, many=True),
    ]


def _predict(topic: Topic, alone: Fitted, corrected: Fitted) -> Prediction:
    """Correct the record's answer on the images that an image judge saw."""

    def predict(rows: Ints) -> tuple[Matrix, Matrix]:
        saw = topic.by_image[rows] == 1
        z, spread = np.empty(len(rows)), np.empty(len(rows))
        for its, fitted in ((saw, corrected), (~saw, alone)):
            if its.any():
                z[its], spread[its] = fitted.predict(rows[its])
        return z, spread

    return predict


# How far judges err together on reviewed pairs, and how many independent judges they are worth.


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """What every judge gave of one reviewed finding, and the reviews."""

    given: Mapping[str, Matrix]
    """Judge -> its probability of every image; NaN where it did not answer."""
    reviewed: Reviewed


def _responses(part: Estimate, topics: Sequence[Topic]) -> list[Responses]:
    """Give what every judge answered about each reviewed finding of a part."""
    given = {"record": part.record.p_present} if (part.record.answered > 0).any() else {}
    given |= {judge.name: judge.p_present for judge in part.judges}
    columns = [part.pairs.column(topic.finding) for topic in topics]
    return [
        Responses(given={judge: p[:, column] for judge, p in given.items()}, reviewed=topic.reviewed)
        for topic, column in zip(topics, columns, strict=True)
    ]


def dependence(findings: Sequence[Responses]) -> dict[str, Any]:
    """Correlate the judges' errors, pooled over findings: in all, and within images with the finding and without."""
    names = sorted({name for response in findings for name in response.given})
    wrong, there = _errors(findings, names)
    if len(names) < 2 or wrong.shape[1] < ENOUGH:
        return {}
    # Everyone errs more on images with the finding, which alone makes errors correlate: so both truths stand apart too.
    parts = {"all": np.ones(wrong.shape[1], dtype=bool), "present": there, "absent": ~there}
    figures: dict[str, Any] = {"judges": names, "pairs": int(wrong.shape[1])}
    for part, chosen in parts.items():
        correlation = _correlation(wrong[:, chosen])
        figures[part] = {"correlation": np.round(correlation, 4).tolist(), "effective": _effective(correlation)}
    return figures


def _errors(findings: Sequence[Responses], names: Sequence[str]) -> tuple[Matrix, Bools]:
    """Call and compare, finding by finding, on the pairs that all judges answered: one row per judge."""
    wrong, there = [], []
    for response in findings:
        if set(response.given) != set(names):
            continue
        given = np.stack([response.given[name][response.reviewed.rows] for name in names])
        answered = ~np.isnan(given).any(axis=0)
        truth = response.reviewed.present[answered] > 0.5
        count = int(truth.sum())
        if not 0 < count < len(truth):
            continue
        # A judge's probability is raw, so 0.5 means little: each calls as many present as the experts do.
        cut = np.sort(given[:, answered], axis=1)[:, -count]
        wrong.append((given[:, answered] >= cut[:, None]) != truth)
        there.append(truth)
    if not wrong:
        return np.zeros((len(names), 0)), np.zeros(0, dtype=bool)
    return np.concatenate(wrong, axis=1).astype(float), np.concatenate(there)


def _correlation(wrong: Matrix) -> Matrix:
    """Correlate rows; a judge without an error, or with nothing else, correlates with nobody."""
    centred = wrong - wrong.mean(axis=1, keepdims=True) if wrong.shape[1] else wrong
    size = np.sqrt((centred**2).sum(axis=1))
    scale = np.outer(size, size)
    together = np.divide(centred @ centred.T, scale, out=np.zeros(scale.shape), where=scale > 0)
    np.fill_diagonal(together, 1.0)
    return together


def _effective(correlation: Matrix) -> float:
    """Kish: M judges whose errors correlate by r are worth M / (1 + (M - 1) r)."""
    count = len(correlation)
    mean = float(correlation[~np.eye(count, dtype=bool)].mean())
    return round(count / (1 + (count - 1) * max(mean, 0.0)), 3)
