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
from bpals.numeric import PAIR, Matrix, logit, majority, patients, sigmoid
from bpals.signal import certificates, hardness
from bpals.signal.calibrate import (
    OTHERS_ERRORS,
    Choose,
    Context,
    Design,
    Fitted,
    Prediction,
    calibrate,
    chooser,
    losses,
    mixed,
    weigh_designs,
    weights,
)
from bpals.signal.certificates import Drawn, Read
from bpals.signal.flags import EVEN, WRONG_AMONG_TRUSTED, Certify, Rule, rule_by_calibration, splitting
from bpals.signal.hierarchical import PartialPooling, Reviewed, Topic, refit, shifts
from bpals.signal.layout import Bools, Estimate, Ints, LaidOut, Pairs, plain_estimate, with_groups
from bpals.signal.prior import (
    FOLDS,
    FORMAT,
    NOBODY,
    VERSION,
    ExpertCalibration,
    Inputs,
    LevelFit,
    Prior,
    Rows,
    SubjectFit,
    bounded,
    circumstances,
    content_hash,
    fold_of_patient,
    inputs_of,
    laid_inputs,
    lone_images,
    patient_hash,
    read_by,
    united,
)
from bpals.signal.truth import Truths
from bpals.text import several
from bpals.types import Reference, Reviews

ALONE = "record"
"""The design that uses no image judge."""
DIGITS = 5
"""Digits of a figure in a calibration file."""
ENOUGH = 50
"""Reviewed pairs that all judges answered; fewer give no figure of how they err together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """What experts say: adjudicated labels, single reads, labels of a random sample, and a fit on others elsewhere."""

    reference: Reference | None = None
    reviews: Reviews | None = None
    random_sample: Reference | None = None
    features: npt.NDArray[np.floating[Any]] | None = None
    """What the metadata judge sees of each image: a row per image."""
    prior: ExpertCalibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The estimates after the fit, and what was fitted."""

    findings: Estimate
    groups: Estimate | None = None
    truths: Truths
    fits: Mapping[str, Mapping[str, Any]]
    """For each finding or group that was read here: how it was fitted."""
    shifts: Mapping[str, tuple[float, float]]
    used: pl.DataFrame | None = None
    """The pairs that were used, with the fold that left them out."""
    dependence: Mapping[str, Any]
    hardness: Mapping[str, Any]


def calibrate_levels(laid: LaidOut, part: Estimate, groups: Estimate | None, experts: Experts) -> Calibration:
    """Fit findings and groups on what experts say, cross-fitted by patient; a group bounds its members."""
    parts = [part] if groups is None else [part, groups]
    reference, reviews = experts.reference, experts.reviews
    truths = Truths.of(laid.dataset, reference, reviews, _claims_in(parts))
    # Where nobody read anything here there is nothing to cross-fit.
    fold = np.zeros(laid.dataset.images.height, dtype=np.int64)
    if not truths.table.is_empty() or experts.random_sample is not None:
        fold = fold_of_patient(patients(laid.dataset.images))
    if reference is not None and truths.table.is_empty():
        raise UsageError(
            f"--calibrate {reference.kind}: none of its images is in this dataset. Give the expert labels of this "
            "dataset, or audit without --calibrate"
        )
    context = _context(laid, part, experts.features)
    summed = [part.pairs.p_present]
    if groups is not None:
        summed.append(with_groups(part.pairs, laid.named).p_present)
    topics = [_topics(its, members, truths, fold) for its, members in zip(parts, summed, strict=True)]
    poolings = poolings_of(parts, topics, laid, experts)
    logits = judge_logits(parts, laid, context, truths, fold, experts)
    sample = Truths.of(laid.dataset, experts.random_sample, None, _claims_in(parts[:1]))
    crossed = _images_of_the_read(truths, laid.dataset.images)
    fits: dict[str, dict[str, Any]] = {}
    shifted: dict[str, tuple[float, float]] = {}
    for place, its in enumerate(parts):
        by_finding = {
            topic.finding: _choice(topic, context, poolings[place], logits.get(topic.finding))
            for topic in topics[place]
        }
        # Where no judge answered about what was read, nothing is known. A group that nobody read follows its members.
        known = experts.prior is not None or any(topics)
        fitted, more = (
            _fit(its, topics[place], by_finding, crossed, fold, experts, poolings[place]) if known else (its, {})
        )
        parts[place], moved = _refitted(fitted, sample, fold)
        fits, shifted = fits | more, shifted | moved
    hard = _hardness(laid, parts, experts, fold)
    responses = [response for its, some in zip(parts, topics, strict=True) for response in _responses(its, some)]
    if groups is not None:
        parts[0], groups = bounded(parts[0], replace(parts[1], hard=hard.findings), laid.named)
    if not fits and reference is not None:
        raise UsageError(
            f"--calibrate {reference.kind}: nothing can be fitted on it: no judge answered about a finding of which it "
            "holds labels. Give other expert labels, or audit without --calibrate"
        )
    used = pl.concat([_used_pairs(truths, fits, fold), _used_pairs(sample, shifted, fold)])
    return Calibration(
        findings=replace(parts[0], hard=hard.findings),
        groups=groups,
        truths=truths,
        fits=fits,
        shifts=shifted,
        used=used.unique(["image_id", "finding"], keep="first", maintain_order=True) if fits or shifted else None,
        dependence=dependence(responses),
        hardness=hard.summary,
    )


def _images_of_the_read(truths: Truths, images: pl.DataFrame) -> Ints:
    """Give all images of the patients whose images were read: no review of a patient touches a trust of theirs."""
    who = patients(images)
    read = who.gather(truths.table["row"]).unique()
    return np.flatnonzero(who.is_in(read.implode()).to_numpy())


def fit_calibration(laid: LaidOut, reference: Reference) -> ExpertCalibration | None:
    """Fit a calibration on expert labels, to be used elsewhere: once on all, and once without each fold of patients.

    Its name and what it says about itself are left to the caller. None: none of the labels is about this dataset.
    """
    parts = [plain_estimate(level) for level in laid.levels]
    truths = Truths.of(laid.dataset, reference, None, _claims_in(parts))
    images = laid.dataset.images
    names = patients(images)
    fold = fold_of_patient(names)
    topics = [_topics(part, part.pairs.p_present, truths, fold) for part in parts]
    if not any(topics):
        return None
    poolings = poolings_of(parts, topics, laid, Experts(reference=reference))
    inputs, read = poolings[0].inputs, truths.table["row"].unique().to_numpy().astype(np.int64)
    levels = [_level_fit(pooling, topics, images) for pooling in poolings]
    known = {name: (float(values.mean()), float(values.std())) for name, values in circumstances(laid).items()}
    logits = logit(parts[0].pairs.p_present)
    return ExpertCalibration(
        name="",
        dataset=laid.dataset.name,
        vocabulary=laid.dataset.vocabulary.findings,
        images=images.height,
        groups=laid.named,
        typical=inputs.typical,
        usual=dict(zip(inputs.findings, np.nanmean(logits, axis=0).tolist(), strict=True)),
        circumstances=known,
        patients=frozenset(patient_hash(name) for name in names.gather(read).unique().to_list()),
        findings=levels[0],
        of_groups=levels[1] if laid.named else LevelFit(columns=(), subjects={}),
        about={},
    )


def _level_fit(pooling: PartialPooling, topics: Sequence[Sequence[Topic]], images: pl.DataFrame) -> LevelFit:
    """Gather the coefficients of one level: those of all patients, and those without each fold."""
    fits = [pooling.fit(without) for without in (NOBODY, *(frozenset({fold}) for fold in range(FOLDS)))]
    read = {topic.finding: topic for some in topics for topic in some}
    subjects, alone = {}, lone_images(images)
    for place, name in enumerate(pooling.inputs.subjects):
        topic = read.get(name)
        rows = np.zeros(0, dtype=np.int64) if topic is None else topic.reviewed.rows
        present = rows if topic is None else rows[topic.claim[rows] == 1]
        seen = images["view"].gather(rows).cast(pl.String).fill_null("").value_counts().rows()
        subjects[name] = SubjectFit(
            means=np.stack([fit.mean[place] for fit in fits]),
            covariance=fits[0].covariance[place],
            labels=len(rows),
            errors=0 if topic is None else topic.errors(),
            presences=len(present),
            alone=int(alone[present].sum()),
            views=dict(sorted(seen)),
        )
    return LevelFit(columns=pooling.inputs.columns, subjects=subjects)


def as_dict(fitted: ExpertCalibration) -> dict[str, Any]:
    """Write a calibration out as its file has it, the hash last."""
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "name": fitted.name,
        "dataset": fitted.dataset,
        "vocabulary": list(fitted.vocabulary),
        "images": fitted.images,
        **fitted.about,
        "groups": {group.name: list(group.members) for group in fitted.groups},
        "typical": [_short(value) for value in fitted.typical],
        "usual": {name: _short(value) for name, value in fitted.usual.items()},
        "circumstances": {name: [_short(one) for one in pair] for name, pair in fitted.circumstances.items()},
        "patients": sorted(fitted.patients),
        "findings": _level_as_dict(fitted.findings),
        "of_groups": _level_as_dict(fitted.of_groups),
    }
    return whole | {"sha256": content_hash(whole)}


def _short(value: float) -> float:
    return float(f"{float(value):.{DIGITS}g}")


def _level_as_dict(level: LevelFit) -> dict[str, Any]:
    lower = np.tril_indices(len(level.columns))
    return {
        "columns": list(level.columns),
        "subjects": {
            name: {
                "labels": fit.labels,
                "errors": fit.errors,
                "presences": fit.presences,
                "alone": fit.alone,
                "views": dict(fit.views),
                "means": [[_short(one) for one in row] for row in fit.means],
                "covariance": [_short(one) for one in fit.covariance[lower]],
            }
            for name, fit in level.subjects.items()
        },
    }


def majority_of(reviews: Reviews) -> pl.DataFrame:
    """Settle single reads as TRUTH: what was adjudicated, else the majority of at least two; ties are left out."""
    voted = majority(reviews.table).filter(~pl.col("tied") & (pl.col("yes") + pl.col("no") >= 2))
    settled = reviews.settled.select(*PAIR, present=pl.col("settled") > 0.5)
    both = pl.concat([settled, voted.select(*PAIR, "present")]).unique(PAIR, keep="first", maintain_order=True)
    return both.with_columns(split=pl.lit(None, dtype=pl.String))


def poolings_of(
    parts: Sequence[Estimate], topics: Sequence[Sequence[Topic]], laid: LaidOut, experts: Experts
) -> list[PartialPooling]:
    """Set the partly pooled model up: of the findings, and of groups on top of what it makes of their members."""
    named, prior = laid.named if parts[1:] else (), experts.prior
    reviewed = {topic.finding: topic.reviewed for some in topics for topic in some}

    def read(levels: Sequence[Pairs]) -> Inputs:
        return _inputs(levels, named) if prior is None else read_by(prior, levels, named)

    models = inputs_of(parts, laid, read, {} if prior is None else prior.circumstances)
    first = PartialPooling(
        inputs=models[0][0],
        elsewhere=models[0][1],
        reviewed=reviewed,
        families=[(group.name, *group.members) for group in named],
        prior=None if prior is None else Prior.of(prior, prior.findings, laid.dataset.images),
    )
    if not named:
        return [first]

    def united_members(place: int, rows: Rows, without: frozenset[int]) -> Matrix:
        corrected = [first.correct(name, rows, without)[0] for name in named[place].members]
        return united(sigmoid(np.stack(corrected, axis=1)), parts[1].pairs.p_present[rows, place])

    own, elsewhere = (replace(its, start=united_members) for its in models[1])
    second = PartialPooling(
        inputs=own,
        elsewhere=elsewhere if models[1][0] is not models[1][1] else own,
        reviewed={name: its for name, its in reviewed.items() if name in own.subjects},
        prior=None if prior is None or first.prior is None else replace(first.prior, level=prior.of_groups),
    )
    return [first, second]


def _inputs(levels: Sequence[Pairs], named: Sequence[Group]) -> Inputs:
    """Lay out what the partly pooled model knows of every image, less what is usual in this dataset."""
    logits = logit(levels[0].p_present)
    usual = np.nansum(logits, axis=0) / np.maximum((~np.isnan(logits)).sum(axis=0), 1)
    return laid_inputs(levels, named, _typical(logits, levels[0].states), usual)


def _typical(logits: Matrix, states: Matrix) -> tuple[float, float]:
    """Give the mean logit of labelled presences, and of absences."""
    means = []
    for state in (1, 0):
        its = logits[(states == state) & ~np.isnan(logits)]
        means.append(float(its.mean()) if len(its) else 0.0)
    return means[0], means[1]


def _choice(topic: Topic, context: Context, pooling: PartialPooling, logits: JudgeLogits | None) -> Choose:
    choose = chooser(topic, context, pooling)
    return choose if logits is None else choose_with_judges(topic, choose, logits)


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
    choices: Mapping[str, Choose],
    crossed: Ints,
    fold: Ints,
    experts: Experts,
    pooling: PartialPooling,
) -> tuple[Estimate, dict[str, dict[str, Any]]]:
    """Calibrate each finding: those that were read here by their reads, the others by what all share."""
    p_present, spread = part.p_present.copy(), part.spread.copy()
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    prior, notes, fits = pooling.prior, dict(part.notes), {}
    read = {topic.finding: topic for topic in topics}
    who = "reviews" if experts.reference is None else experts.reference.kind
    for column, finding in enumerate(part.pairs.findings):
        p = part.pairs.p_present[:, column]
        if np.isnan(p).all():
            continue
        if finding in read:
            topic = read[finding]
            labels = len(topic.reviewed.rows)
            here = f"{several(labels, 'expert label')} of {finding} ({who})"
            notes[finding] = f"calibrated: fitted on {here}" if prior is None else f"{prior.note(finding)}, and {here}"
        else:
            topic = _unread(part, column)
            unread = f"calibrated: nobody read {finding} here; it follows what readers say of other findings"
            notes[finding] = unread if prior is None else prior.note(finding)
        done = calibrate(topic, choices.get(finding) or _pooled_only(finding, pooling), crossed, fold)
        answered = ~np.isnan(p)
        p_present[:, column] = np.where(answered, done.p_present, np.nan)
        spread[:, column] = np.hypot(done.spread, part.pairs.spread[:, column])
        fitted[:, column] = answered
        reviewed[crossed, column] = answered[crossed]
        if prior is not None:
            reviewed[:, column] |= prior.crossed & answered
        if finding in read:
            fits[finding] = {
                "n": labels,
                "errors": topic.errors(),
                "designs": {name: round(weight, 3) for name, weight in done.weights.items()},
            }
    by = [] if prior is None else [prior.calibration.name]
    by += ["experts"] if pooling.reviewed or not by else []
    part = replace(part, p_present=p_present, spread=spread, fitted=fitted, reviewed=reviewed, notes=notes)
    return replace(part, fitted_by="+".join(by)), fits


def _unread(part: Estimate, column: int) -> Topic:
    """Make a topic of a finding that nobody read."""
    none = np.zeros(0)
    return Topic(
        finding=part.pairs.findings[column],
        judged=part.pairs.p_present[:, column],
        summed=none,
        claim=none,
        by_image=none,
        reviewed=Reviewed(rows=none.astype(np.int64), present=none, weight=none, fold=none.astype(np.int64)),
    )


def _pooled_only(finding: str, pooling: PartialPooling) -> Choose:
    def choose(without: frozenset[int]) -> Fitted:
        return Fitted(
            weights={"partly pooled": 1.0},
            predict=lambda rows: pooling.correct(finding, rows, without),
            held_out=np.zeros(0),
        )

    return choose


def _refitted(part: Estimate, sample: Truths, fold: Ints) -> tuple[Estimate, dict[str, tuple[float, float]]]:
    """Shift each fitted finding that a random sample speaks of to how common it is among the audited images."""
    p_present, fitted, reviewed = part.p_present.copy(), part.fitted.copy(), part.reviewed.copy()
    shifted = {}
    for column, finding in enumerate(part.pairs.findings):
        p, claim = p_present[:, column], part.pairs.states[:, column]
        labels = sample.about(finding, ~np.isnan(p), fold)
        if labels is not None:
            shifted[finding] = shifts(logit(p), claim, labels)
            p_present[:, column] = np.where(np.isnan(p), np.nan, sigmoid(refit(logit(p), claim, labels)))
            fitted[:, column], reviewed[labels.rows, column] = ~np.isnan(p), True
    return replace(part, p_present=p_present, fitted=fitted, reviewed=reviewed), shifted


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


def certifier(part: Estimate, truth: pl.DataFrame) -> Certify:
    """Certify the flags of a part by what experts read of its labels."""
    reads = wrong_claims(part, truth)

    def certify(finding: str, says: str, here: Bools, trust: Matrix, split: Matrix) -> Rule | None:
        if finding not in reads:
            return None
        rows, drawn = reads[finding].among(here, trust, split)
        unread = here.copy()
        unread[rows] = False
        return rule_by_review(finding, says, drawn, trust[unread])

    return certify


def rule_by_review(finding: str, says: str, drawn: Drawn, unread: Matrix | None = None) -> Rule:
    """Certify the flags on reviewed labels with their cross-fitted trust; `unread` are the trusts of the others."""
    wrong = WRONG_AMONG_TRUSTED[says]
    clear = drawn if drawn.split is None else drawn.take(~splitting(drawn.trust, drawn.split))
    likely = certificates.certify_precision(clear.take(clear.trust < EVEN))
    promised, trusted = [likely], None
    if len(drawn):
        trusted = certificates.certify_trusted(clear.take(clear.trust >= EVEN), errors=wrong)
        promised += [certificates.bound_errors(clear, 1 - wrong), trusted, certificates.control_misses(drawn)]
    if unread is not None and drawn.inclusion is not None:  # else nobody knows whether the unread are like the read
        promised.append(certificates.control_discoveries(drawn, unread))
    if unread is not None:
        promised = [replace(each, more=None) if (each.more or 0) > len(unread) else each for each in promised]
    certified = likely.certified or (trusted is not None and trusted.certified)
    plain = rule_by_calibration(finding, says)
    return replace(
        plain,
        basis="certified" if certified else "calibrated",
        certified_from=None if trusted is None else trusted.cut,
        certified_below=likely.cut,
        words="; ".join([plain.words, *(each.words for each in promised[:3])]),
        certificates=tuple(promised),
    )


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
    parts: Sequence[Estimate], laid: LaidOut, context: Context, truths: Truths, fold: Ints, experts: Experts
) -> dict[str, JudgeLogits]:
    """Lay out, for each reviewed finding and group, what image judges say beside the metadata judge."""
    plain, groups = parts[0], laid.named
    # There is nothing to lay out where the metadata judge did not answer wherever somebody did.
    same = all(bool((np.isnan(its.record.p_present) == np.isnan(its.pairs.p_present)).all()) for its in parts)
    if not plain.per_group or not same:
        return {}
    alone = [replace(part, pairs=part.record, moved=np.zeros_like(part.moved)) for part in parts]
    summed = [plain.record, *([with_groups(plain.record, groups)] if parts[1:] else [])]
    topics = [_topics(part, its.p_present, truths, fold) for part, its in zip(alone, summed, strict=True)]
    poolings = poolings_of(alone, topics, laid, experts)
    by_record = replace(context, logits=logit(np.nan_to_num(plain.record.p_present, nan=0.5)))
    own = {
        name: np.stack([z[:, place] for z in plain.per_group], axis=1)
        for place, name in enumerate(plain.pairs.findings)
    }
    own |= {group.name: _of_group(plain, group) for group in groups}
    others = _filled(np.concatenate(plain.per_group, axis=1))
    return {
        topic.finding: JudgeLogits(
            record=chooser(topic, by_record, pooling), own=_filled(own[topic.finding]), others=others
        )
        for some, pooling in zip(topics, poolings, strict=True)
        for topic in some
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
    """Weigh the fit on the pool against the judges beside the record, by patients that neither has seen."""
    seen = replace(topic, reviewed=topic.reviewed.only(topic.by_image[topic.reviewed.rows] == 1))

    def choose(without: frozenset[int]) -> Fitted:
        first = pooled(without)
        # Few reviews can prefer either by chance: the pool stands, and gives way little by little.
        ramp = float(np.clip(seen.errors(without) / OTHERS_ERRORS - 1, 0, 1))
        if not ramp:
            return first
        alone = logits.record(without)
        rows = topic.reviewed.without(without).rows
        recall = _Recall.of(alone, rows, len(topic.judged))
        corrected = weigh_designs(_designs(topic, logits, recall), seen, without)
        saw = topic.by_image[rows] == 1
        held_out = alone.held_out.copy()
        held_out[saw] = corrected.held_out
        reviewed = seen.reviewed.without(without)
        ours, theirs = losses(held_out[saw], reviewed), losses(first.held_out[saw], reviewed)
        pool, beside = weights([1.0, 1.0], [theirs, ours], [1.0, ramp])
        if not beside:
            return first
        return Fitted(
            weights={f"pool, {name}": pool * its for name, its in first.weights.items() if pool}
            | {f"record, {name}": beside * its for name, its in corrected.weights.items()},
            predict=mixed([(pool, first.predict), (beside, _predict(topic, alone, corrected))])
            if pool
            else _predict(topic, alone, corrected),
            held_out=np.asarray(pool * first.held_out + beside * held_out),
        )

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
        Design(name="beside, other findings", start=start, columns=others),
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
