"""Lessons: what experts said of the dataset's pairs, laid out for learning, and what was learned, laid back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.findings import Group
from bpals.signal import beside, calibrate, refit
from bpals.signal.beside import Beside
from bpals.signal.dependence import Heard
from bpals.signal.drawn import Read
from bpals.signal.learn import School, Topic
from bpals.signal.pairs import SMALLEST, Matrix, Pairs, logit, sigmoid, with_groups
from bpals.signal.rows import Part, Wrong
from bpals.signal.truths import Truths
from bpals.signal.voices import Ints
from bpals.text import several
from bpals.types import Dataset, Reference, Reviews

Evidence = npt.NDArray[np.floating[Any]]
"""The features of the films, from the record judge: a row a film."""


def spoken_of(dataset: Dataset, reference: Reference | None, reviews: Reviews | None) -> list[Group]:
    """Name the groups that experts speak of and whose members are all audited."""
    said = [] if reference is None else reference.groups_within(dataset.vocabulary)
    read = [] if reviews is None else reviews.groups_within(dataset.vocabulary)
    named = set() if reference is None else set(reference.truth["finding"].unique())
    named |= set() if reviews is None else set(reviews.table["finding"].unique())
    return [group for group in dict.fromkeys([*said, *read]) if group.name in named]


def said_in(parts: Sequence[Part]) -> Callable[[str], Matrix]:
    """Give the claims about a finding or a group, wherever it is."""
    said = {name: part.pairs.states[:, place] for part in parts for place, name in enumerate(part.pairs.findings)}
    nobody = np.full(parts[0].pairs.states.shape[0], np.nan)
    return lambda finding: said.get(finding, nobody)


def topics_of(part: Part, summed: Matrix, truths: Truths, fold: npt.NDArray[np.int64]) -> list[Topic]:
    """Gather what is to be learned about each finding of a part; `summed` is what their members' answers add up to."""
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
                    said=np.nan_to_num(part.pairs.states[:, column], nan=0.5),
                    seen=part.moved[:, column].astype(float),
                    reviewed=reviewed,
                )
            )
    return topics


def besides(
    parts: Sequence[Part], groups: Sequence[Group], context: calibrate.Context, truths: Truths, fold: Ints
) -> dict[str, Beside]:
    """Lay out, for each reviewed finding and group, what image judges say beside the record judge.

    There is nothing to lay out where the record judge did not answer wherever somebody did.
    """
    plain = parts[0]
    if not plain.apart or not _same_films(parts):
        return {}
    told = [plain.record, *([with_groups(plain.record, groups)] if parts[1:] else [])]
    topics = [
        topic
        for part, summed in zip(parts, told, strict=True)
        for topic in topics_of(
            replace(part, pairs=part.record, moved=np.zeros_like(part.moved)), summed.p_present, truths, fold
        )
    ]
    alone = replace(context, logits=logit(np.nan_to_num(plain.record.p_present, nan=0.5)))
    school = School(topics=topics, common=context.common)
    own = {
        name: np.stack([z[:, place] for z in plain.apart], axis=1) for place, name in enumerate(plain.pairs.findings)
    }
    own |= {group.name: _of_group(plain, group) for group in groups}
    others = _filled(np.concatenate(plain.apart, axis=1))
    return {
        topic.finding: Beside(
            record=calibrate.chooser(topic, alone, school), own=_filled(own[topic.finding]), others=others
        )
        for topic in topics
    }


def _same_films(parts: Sequence[Part]) -> bool:
    return all(bool((np.isnan(part.record.p_present) == np.isnan(part.pairs.p_present)).all()) for part in parts)


def _of_group(part: Part, group: Group) -> Matrix:
    """Let each family speak of a group: min(1, sum of its members'); of a member that it is silent on, the record."""
    members = [part.pairs.column(name) for name in group.members]
    record, said = part.record.p_present[:, members], []
    for z in part.apart:
        silent = np.isnan(z[:, members])
        summed = np.where(silent, record, sigmoid(z[:, members])).sum(axis=1)
        said.append(np.where(silent.all(axis=1), np.nan, logit(summed)))
    return np.stack(said, axis=1)


def _filled(logits: Matrix) -> Matrix:
    """Let who is silent on a film say what is usual for it."""
    known = ~np.isnan(logits)
    usual = np.nansum(logits, axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.asarray(np.where(known, logits, usual))


def context_of(pairs: Pairs, dataset: Dataset, evidence: Evidence | None) -> calibrate.Context:
    """Gather what the designs may use."""
    said = np.nan_to_num(pairs.states)
    return calibrate.Context(
        no_finding=(said.sum(axis=1) == 0).astype(float)[:, None],
        view=rarer_view(dataset.images)[:, None],
        logits=logit(np.nan_to_num(pairs.p_present, nan=0.5)),
        states=said,
        evidence=np.zeros((len(said), 0)) if evidence is None else evidence.astype(float),
    )


def rarer_view(images: pl.DataFrame) -> Matrix:
    """Mark the films of the second most frequent view."""
    views = images["view"].drop_nulls().value_counts().sort(["count", "view"], descending=[True, False])
    rarer = views["view"].to_list()[1:2]
    return images["view"].is_in(rarer).fill_null(value=False).to_numpy().astype(float)


def fit_part(
    part: Part,
    topics: Sequence[Topic],
    context: calibrate.Context,
    school: School,
    seen: Mapping[str, Beside],
    kind: str,
) -> tuple[Part, dict[str, dict[str, Any]]]:
    """Calibrate each finding that experts spoke of."""
    p_present, spread = part.p_present.copy(), part.spread.copy()
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    notes, fits = dict(part.notes), {}
    for topic in topics:
        if not calibrate.teaches(topic):
            continue
        finding, column = topic.finding, part.pairs.column(topic.finding)
        choose = calibrate.chooser(topic, context, school)
        if finding in seen:
            choose = beside.chooser(topic, choose, seen[finding])
        done = calibrate.calibrate(topic, choose)
        p_present[:, column] = done.p_present
        spread[:, column] = np.hypot(done.spread, part.pairs.spread[:, column])
        fitted[:, column], reviewed[topic.reviewed.rows, column] = ~np.isnan(done.p_present), True
        notes[finding] = f"calibrated: fitted on {several(done.n, 'expert label')} of {finding} ({kind})"
        fits[finding] = {"n": done.n, "errors": done.errors, "design": done.design, "penalty": done.penalty}
    return replace(part, p_present=p_present, spread=spread, fitted=fitted, reviewed=reviewed, notes=notes), fits


def refitted(
    part: Part, sample: Truths, fold: npt.NDArray[np.int64], fits: Collection[str]
) -> tuple[Part, dict[str, tuple[float, float]]]:
    """Shift each fitted finding that a random sample speaks of to how common it is among the audited films."""
    p_present, fitted, reviewed = part.p_present.copy(), part.fitted.copy(), part.reviewed.copy()
    told = {}
    for column, finding in enumerate(part.pairs.findings):
        p, said = p_present[:, column], part.pairs.states[:, column]
        seen = sample.about(finding, ~np.isnan(p), fold) if finding in fits else None
        if seen is not None:
            told[finding] = refit.shifts(logit(p), said, seen)
            p_present[:, column] = np.where(np.isnan(p), np.nan, sigmoid(refit.refit(logit(p), said, seen)))
            fitted[:, column], reviewed[seen.rows, column] = ~np.isnan(p), True
    return replace(part, p_present=p_present, fitted=fitted, reviewed=reviewed), told


def used_pairs(truths: Truths, fits: Collection[str], fold: npt.NDArray[np.int64]) -> pl.DataFrame:
    """List the pairs that a fit rests on, with the fold that left them out."""
    used = truths.table.filter(pl.col("finding").is_in(list(fits)))
    return used.select(
        "image_id",
        "finding",
        present=pl.col("present") > 0.5,
        fold=pl.Series(fold[used["row"].to_numpy()], dtype=pl.Int32),
    )


def follow(part: Part, groups: Part, named: Sequence[Group], fits: Mapping[str, Any]) -> Part:
    """Give the members of a calibrated group their parts of its probability."""
    p_present, spread, notes = part.p_present.copy(), part.spread.copy(), dict(part.notes)
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    for column, group in enumerate(named):
        if group.name not in fits:
            continue
        members = [part.pairs.column(name) for name in group.members]
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


def _shares(p_present: Matrix, claimed: npt.NDArray[np.bool_]) -> Matrix:
    """Divide a group among its members as the judges divide it; a claimed member has all of it.

    The experts said whether the group is there, not which member: in that, the dataset's word is taken. It may claim
    two, and they are not rivals: experts find a group more often where more of its members are claimed.
    """
    known = np.nan_to_num(p_present)
    total = np.maximum(known.sum(axis=1, keepdims=True), 1e-12)
    return np.where(claimed, 1.0, known / total)


def _unsure(share: Matrix, whole: Matrix, of_share: Matrix, of_whole: Matrix) -> Matrix:
    """Give the deviation of the logit of share x whole from those of the two: where the whole is sure, the share's."""
    both = np.hypot((1 - share) * of_share, (1 - whole) * of_whole)
    return np.asarray(both / np.maximum(1 - share * whole, SMALLEST))


def wrong_claims(part: Part, truth: pl.DataFrame) -> Wrong:
    """List, for each calibrated finding, the films that were reviewed and whether their claim is wrong."""
    listed = {}
    for column, finding in enumerate(part.pairs.findings):
        its = truth.filter(pl.col("finding") == finding)
        if finding not in part.notes or its.is_empty():
            continue
        said = part.pairs.states[its["row"].to_numpy(), column]
        its = its.with_columns(said=pl.Series(said)).filter(pl.col("said").is_in([0.0, 1.0])).sort("row")
        known = its["inclusion"].is_not_null().all()
        who = its.select(pl.coalesce("patient_id", "image_id").rank("dense")).to_series()
        listed[finding] = Read(
            films=its["row"].to_numpy().astype(np.int64),
            wrong=(its["said"] != (its["present"] > 0.5).cast(pl.Float64)).to_numpy(),
            patient=who.to_numpy().astype(np.int64),
            inclusion=its["inclusion"].to_numpy() if known else None,
        )
    return listed


def heard_of(part: Part, topics: Sequence[Topic]) -> list[Heard]:
    """Give what every judge said of each reviewed finding of a part."""
    given = {"record": part.record.p_present} if (part.record.answered > 0).any() else {}
    given |= {voice.judge: voice.p_present for voice in part.voices}
    places = {topic.finding: part.pairs.column(topic.finding) for topic in topics}
    return [
        Heard(
            given={judge: p[:, places[topic.finding]] for judge, p in given.items()},
            reviewed=topic.reviewed,
        )
        for topic in topics
    ]
