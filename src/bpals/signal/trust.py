"""The first signal: from claims and judgments, and expert labels where there are any, to trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from bpals.errors import UsageError
from bpals.findings import Group
from bpals.numeric import patients, reports_of_films
from bpals.registry import SignalKind
from bpals.signal import calibrate
from bpals.signal.blocks import in_blocks
from bpals.signal.combine import Combined, combine
from bpals.signal.dependence import dependence
from bpals.signal.families import Families
from bpals.signal.hardness import Conditions, Lesson, learn
from bpals.signal.learn import School
from bpals.signal.lessons import (
    Evidence,
    besides,
    context_of,
    fit_part,
    follow,
    heard_of,
    rarer_view,
    refitted,
    said_in,
    spoken_of,
    topics_of,
    used_pairs,
    wrong_claims,
)
from bpals.signal.omissions import omissions
from bpals.signal.pairs import Matrix, Pairs, lay_out, logit, sigmoid, with_groups
from bpals.signal.rows import JUDGES_METHOD, METHOD, Part, write
from bpals.signal.truths import Truths
from bpals.signal.voices import Panel
from bpals.text import several
from bpals.types import SKILL, Dataset, Reference, Reviews

FEWEST_PATIENTS = 10
"""Fewer reviewed patients cannot be cross-fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """The signal and what it rests on."""

    table: pl.DataFrame
    groups: pl.DataFrame | None = None
    calibration: pl.DataFrame | None = None
    """The pairs that were used, with the fold that left them out."""
    findings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each calibrated finding or group: how it was fitted."""
    rules: Sequence[Mapping[str, Any]] = ()
    skill: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SKILL))
    """How well each judge tells, where a panel was given: findings, then groups."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Judge -> its effective weight: its share of the judges' absolute standardised weights, mean over findings."""
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Judge -> finding -> that share."""
    families: Families | None = None
    """Which image judges are one witness, and how far they say the same."""
    dependence: Mapping[str, Any] = field(default_factory=dict)
    """How far the judges err together on reviewed pairs."""
    shifts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Finding -> what a random sample added to the logits of its claimed presences, and of its claimed absences."""
    untaught: Mapping[str, int] = field(default_factory=dict)
    """Reviewed findings of which nothing was learned -> how many of their claims the reviews contradict, without the
    fifth of the patients that has the most: too few."""
    readers: Mapping[str, Mapping[str, Matrix]] = field(default_factory=dict)
    """Finding -> reader -> P(verdict | truth), where single reads were settled."""
    hardness: Mapping[str, Any] = field(default_factory=dict)
    """What single reads taught about where readers split, or why they taught nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """What was asked of the judges beside the record's answers about the findings."""

    evidence: Evidence | None
    group_judgments: pl.DataFrame | None
    panel: Panel | None
    reviews: Reviews | None
    random_sample: Reference | None
    reports: pl.DataFrame
    """Which report each film belongs to (`reports_of_films`)."""


def estimate(  # noqa: PLR0913  what a signal may rest on, each by its name
    dataset: Dataset,
    judgments: pl.DataFrame,
    reference: Reference | None = None,
    *,
    evidence: Evidence | None = None,
    group_judgments: pl.DataFrame | None = None,
    panel: Panel | None = None,
    reviews: Reviews | None = None,
    random_sample: Reference | None = None,
) -> Signal:
    """Say how far to trust each claim; with a reference, fitted on it and cross-fitted by patient.

    `judgments` are the record judge's. `panel` are the image judges, which correct it where they have a signal.
    `evidence` and `group_judgments` serve the fit: what a judge saw of each film, and what it says of the groups.
    `reviews` are single reads: they teach as far as their readers may be believed, and where they split they teach
    which pairs are hard. `random_sample` are labels of films drawn at random, which say how common errors are there.
    """
    pairs = lay_out(dataset.images, dataset.claims, judgments, dataset.vocabulary)
    heard = _Heard(
        evidence=evidence,
        group_judgments=group_judgments,
        panel=panel,
        reviews=reviews,
        random_sample=random_sample,
        reports=reports_of_films(dataset.images),
    )
    part, made = _judged(pairs, panel, dataset, heard.reports, apart=reference is not None or reviews is not None)
    if reference is not None or reviews is not None:
        taught = _taught(part, made, dataset, reference, heard)
        if taught is not None:
            return taught
    lesson = _where_hard([part], dataset, heard)
    part = replace(part, hard=lesson.findings)
    table, rules = write(part, dataset.images, heard.reports, panel, wrong=None)
    return replace(made, table=table, rules=rules, hardness=lesson.told)


def _judged(
    pairs: Pairs, panel: Panel | None, dataset: Dataset, reports: pl.DataFrame, *, apart: bool = False
) -> tuple[Part, Signal]:
    """Take the judges at their word: the record's, corrected by the panel's; and say what each of them is worth."""
    nobody = np.zeros(pairs.states.shape, dtype=bool)
    part = Part(
        pairs=pairs,
        record=pairs,
        voices=(),
        moved=nobody,
        p_present=pairs.p_present,
        spread=pairs.spread,
        fitted=nobody,
        reviewed=nobody,
        notes={},
    )
    made = Signal(table=pl.DataFrame())
    if panel is None:
        return part, made
    voices, skill = panel.heed(pairs)
    done = combine(pairs, voices, patients(dataset.images), panel.fold, apart=apart)
    missed = omissions(pairs.states, reports, panel.fold)
    p_present = _raised(done, _heard_share(done.shares, pairs.findings), missed)
    heads, votes = done.families.heads, done.families.votes
    part = replace(
        part,
        pairs=replace(done.pairs, p_present=p_present),
        voices=tuple(replace(voice, family=heads[voice.judge], vote=votes[voice.judge]) for voice in voices),
        moved=done.moved,
        p_present=p_present,
        spread=done.pairs.spread,
        apart=done.apart,
    )
    return part, replace(made, skill=skill, weights=done.effective, shares=done.shares, families=done.families)


def _raised(done: Combined, heard: Matrix, missed: Matrix) -> Matrix:
    """Raise the probabilities in which image judges took part by what the labeller leaves out."""
    p_present = np.empty(missed.shape)

    def raise_(films: slice) -> None:
        p = done.pairs.p_present[films]
        p_present[films] = np.where(done.moved[films], sigmoid(logit(p) + heard * missed[films]), p)

    in_blocks(len(p_present), raise_)
    return p_present


def _heard_share(shares: Mapping[str, Mapping[str, float]], findings: Sequence[str]) -> Matrix:
    """Say how far image judges are heard on each finding: wholly from half of the weight on."""
    record = [shares.get("record", {}).get(finding, 0.0) for finding in findings]
    # In eighths, so that no single claim can tip it.
    return np.asarray(np.round(8 * np.clip(2 * (1 - np.array(record)), 0, 1)) / 8)


def _taught(part: Part, made: Signal, dataset: Dataset, reference: Reference | None, heard: _Heard) -> Signal | None:
    """Fit findings and groups on what experts say; the members of a group follow it. None where reviews are too few."""
    groups = spoken_of(dataset, reference, heard.reviews)
    together, judged = _grouped(part, groups, dataset, heard) if groups else (None, made)
    truths = Truths.of(dataset, reference, heard.reviews, said_in([part, together] if together else [part]))
    if reference is not None:
        _refuse_too_few(truths, reference)
    elif truths.patients < FEWEST_PATIENTS:
        return None
    fold = calibrate.fold_of_patient(patients(dataset.images))
    context = context_of(part.pairs, dataset, heard.evidence)
    lessons = [topics_of(part, part.pairs.p_present, truths, fold)]
    if together is not None:
        lessons.append(topics_of(together, with_groups(part.pairs, groups).p_present, truths, fold))
    school = School(topics=[topic for topics in lessons for topic in topics], common=context.common)
    who = "reviews" if reference is None else reference.kind
    seen = besides([part, together] if together else [part], groups, context, truths, fold)
    part, fits = fit_part(part, lessons[0], context, school, seen, who)
    sample = Truths.of(dataset, heard.random_sample, None, said_in([part]))
    part, shifted = refitted(part, sample, fold, fits)
    rules: list[dict[str, Any]] = []
    lesson = Lesson() if together else _where_hard([part], dataset, heard)
    if together is not None:
        group_part, group_fits = fit_part(together, lessons[1], context, school, seen, who)
        group_part, more = refitted(group_part, sample, fold, group_fits)
        fits, shifted = fits | group_fits, shifted | more
        lesson = _where_hard([part, group_part], dataset, heard)
        group_part = replace(group_part, hard=lesson.findings)
        group_table, rules = write(
            group_part, dataset.images, heard.reports, heard.panel, wrong=wrong_claims(group_part, truths.table)
        )
        made = replace(made, groups=group_table, skill=pl.concat([made.skill, judged.skill]))
        part = follow(part, group_part, groups, fits)
    part = replace(part, hard=lesson.findings)
    untaught = {
        topic.finding: topic.least_errors for topics in lessons for topic in topics if topic.finding not in fits
    }
    if not fits and not untaught and reference is not None:
        raise UsageError(
            f"--calibrate {reference.kind}: nothing can be fitted on it: of no finding that was judged here does it "
            "hold presences and absences. Give other expert labels, or audit without --calibrate"
        )
    table, finding_rules = write(
        part, dataset.images, heard.reports, heard.panel, wrong=wrong_claims(part, truths.table)
    )
    used = pl.concat([used_pairs(truths, fits, fold), used_pairs(sample, shifted, fold)])
    return replace(
        made,
        table=table,
        calibration=used.unique(["image_id", "finding"], keep="first", maintain_order=True),
        findings=fits,
        rules=[*finding_rules, *rules],
        hardness=lesson.told,
        readers=truths.readers,
        untaught=untaught,
        shifts=shifted,
        dependence=dependence(heard_of(part, lessons[0]) + (heard_of(together, lessons[1]) if together else [])),
    )


def _grouped(part: Part, groups: Sequence[Group], dataset: Dataset, heard: _Heard) -> tuple[Part, Signal]:
    """Let the judges speak of groups as of findings."""
    record = with_groups(part.record, groups, heard.group_judgments)
    panel = None if heard.panel is None else heard.panel.of_groups(part.record, groups)
    return _judged(record, panel, dataset, heard.reports)


def _where_hard(parts: Sequence[Part], dataset: Dataset, heard: _Heard) -> Lesson:
    """Learn from single reads, where there are any, on which pairs readers would split."""
    if heard.reviews is None:
        return Lesson()
    named = {finding for part in parts for finding in part.pairs.findings}
    groups = heard.reviews.groups_within(dataset.vocabulary)
    if unheard := [group for group in groups if group.name not in named]:
        parts = [*parts, _grouped(parts[0], unheard, dataset, heard)[0]]
    films = Conditions(
        view=rarer_view(dataset.images),
        devices=np.zeros(dataset.images.height) if heard.panel is None else heard.panel.devices.present,
        crowd=(parts[0].pairs.states == 1).sum(axis=1).astype(float),
        fold=calibrate.fold_of_patient(patients(dataset.images)),
    )
    subjects = [subject for part in parts for subject in part.subjects]
    return learn(subjects, films, heard.reviews.table, dataset.images["image_id"]).followed_by(groups)


def _refuse_too_few(truths: Truths, reference: Reference) -> None:
    if truths.patients < FEWEST_PATIENTS:
        here = several(truths.patients, "is", "are")
        raise UsageError(
            f"--calibrate {reference.kind}: of its patients {here} in this dataset, and cross-fitting "
            f"by patient needs {FEWEST_PATIENTS}. Give more expert labels, or audit without --calibrate"
        )


SIGNAL = SignalKind(
    name=JUDGES_METHOD,
    summary=f"the metadata judge corrected by the image judges; where no image judge answers it writes {METHOD}",
    estimate=estimate,
    page="method.md",
)
