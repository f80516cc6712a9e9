"""Stage 2, pool: the metadata judge and the groups of correlated image judges become one probability.

    logit p = c + sum over groups (w z),    w in proportion to the variance of z, summing to 1

The metadata judge is a group of its own. A group that can hardly tell varies hardly, so it weighs little. The weights
sum to 1 because every judge here was fitted to the dataset's labels, and those cannot teach how far several of them
together may be believed; expert labels can. The shift c makes the pool right on average about labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import polars as pl

from bpals.numeric import Matrix, logit, patients, sigmoid
from bpals.signal.correlated import PARTS, Cells, Grid, JudgeGroups, group_judges, joined, stack
from bpals.signal.layout import Bools, Ints, JudgeAnswers, LaidOut, Level, Pairs, by_finding, in_blocks

PULL = 1.0
"""How firmly the shift of a pool is held near 0."""
LEAST_WEIGHT = 0.05
"""The share of the weight below which a group is not used."""
TRAINED_WEIGHT = 0.5
"""What a group weighs that was trained on the labels, beside one that was not and whose logits vary as far."""
MISSING_SHARE = 0.5
"""The part of the gaps in timelines that counts as missing labels: chosen on validation images (LOG.md)."""
CAREFUL = 10.0
"""Gaps without a miss that are added, so that few gaps say little."""

Some = Bools | slice
EVERY = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """Judges, combined."""

    pairs: Pairs
    """As one judge: the combined probability, its spread, and how many judges answered."""
    moved: Bools
    """Pairs whose probability an image judge took part in."""
    shares: Mapping[str, Mapping[str, float]]
    """Judge -> finding -> its share of the weight, where anybody is used."""
    judge_groups: JudgeGroups
    per_group: tuple[Matrix, ...] = ()
    """Where asked for, what each group says on average: its logit of every pair; NaN where it is not used."""

    @property
    def effective(self) -> dict[str, float]:
        """Each judge's effective weight: the mean of its shares."""
        return {judge: float(np.mean(list(its.values()))) if its else 0.0 for judge, its in self.shares.items()}


class PoolMember(Protocol):
    """The metadata judge, or a group of correlated judges, about one finding."""

    def answer(self, part: int) -> Matrix:
        """Give every image's logit as a part of the patients may see it; NaN where there is none."""

    def spread(self, part: int, piece: slice) -> Matrix:
        """Give the standard deviation of some images' logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The metadata judge as a member: it is cross-fitted already, so every part sees the same answer."""

    z: Matrix
    sure: Matrix

    def answer(self, part: int) -> Matrix:  # noqa: ARG002
        """Give every image's logit."""
        return self.z

    def spread(self, part: int, piece: slice) -> Matrix:  # noqa: ARG002
        """Give its standard deviation."""
        return self.sure[piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """What the members say together of one finding: a number per image."""

    done: Bools
    """Whether there is an answer."""
    z: Matrix
    spread: Matrix
    weights: Matrix
    """A number per member: its mean weight."""
    apart: Matrix
    """One row per member: its own logit of each image; NaN where it did not answer or was not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What all members say of one finding, on the images that an image judge answered."""

    used: Mapping[int, Sequence[JudgeAnswers]]
    """Groups by their number, without the judges that have no signal."""
    images: Ints
    pooled: Pooled
    weights: Sequence[Matrix]
    """By group: its members' weights, a row per part."""


def pool_judges(level: Level, laid: LaidOut, *, per_group: bool = False) -> Combined:
    """Pool the judges of a level, and raise what image judges moved by what the labeller leaves out."""
    fold = laid.panel.fold if laid.panel is not None else np.zeros(laid.dataset.images.height, dtype=np.int64)
    done = combine(level.record, level.judges, patients(laid.dataset.images), fold, per_group=per_group)
    missed = omissions(level.record.states, laid.reports, fold)
    record = [done.shares.get("record", {}).get(finding, 0.0) for finding in level.record.findings]
    # Wholly from half of the weight on; in eighths, so that no single label can tip it.
    image_share = np.asarray(np.round(8 * np.clip(2 * (1 - np.array(record)), 0, 1)) / 8)
    p_present = np.empty(missed.shape)

    def raise_(rows: slice) -> None:
        p = done.pairs.p_present[rows]
        p_present[rows] = np.where(done.moved[rows], sigmoid(logit(p) + image_share * missed[rows]), p)

    in_blocks(len(p_present), raise_)
    return replace(done, pairs=replace(done.pairs, p_present=p_present))


def combine(
    pairs: Pairs, judges: Sequence[JudgeAnswers], patients: pl.Series, fold: Ints, *, per_group: bool = False
) -> Combined:
    """Pool the metadata judge's answers with those of the image judges that are used.

    With `per_group` it also returns the logit of each group, its members weighing alike. Where no image judge is used
    or answered, the metadata judge's own probability stands to the last bit.
    """
    p_present, spread, answered = pairs.p_present.copy(), pairs.spread.copy(), pairs.answered.copy()
    for judge in judges:
        answered += judge.answered
    moved = np.zeros(pairs.states.shape, dtype=bool)
    groups = group_judges(judges)
    recorded = (pairs.answered > 0).any()
    shares: dict[str, dict[str, float]] = {"record": {}} if recorded else {}
    alone = {"record": 1.0} if recorded else {}
    shares |= {judge.name: {} for judge in judges}
    cells = Cells.of(_part_of_patient(patients), fold)
    laid = replace(
        pairs,
        states=by_finding(pairs.states),
        p_present=by_finding(pairs.p_present),
        spread=by_finding(pairs.spread),
    )
    columns = range(len(pairs.findings))
    with ThreadPoolExecutor(pl.thread_pool_size()) as hands:
        made = list(hands.map(lambda column: _answer(laid, column, groups, cells), columns))
        alike = made
        if per_group and any(len(group) > 1 for group in groups.members):
            alike = list(hands.map(lambda column: _answer(laid, column, groups, cells, alike=True), columns))
    for column, (finding, answer) in enumerate(zip(pairs.findings, made, strict=True)):
        its = alone
        if answer is not None:
            pooled = answer.pooled
            rows = answer.images[pooled.done]
            p_present[:, column][rows] = sigmoid(pooled.z[pooled.done])
            spread[:, column][rows], moved[:, column][rows] = pooled.spread[pooled.done], True
            its = _shares(answer, groups) or alone
        for judge_name, noted in shares.items() if its else ():
            noted[finding] = its.get(judge_name, 0.0)
    return Combined(
        pairs=replace(pairs, p_present=p_present, spread=spread, answered=answered),
        moved=moved,
        shares=shares,
        judge_groups=groups,
        per_group=_per_group(pairs, groups, alike) if per_group else (),
    )


def _per_group(pairs: Pairs, groups: JudgeGroups, made: Sequence[_Answer | None]) -> tuple[Matrix, ...]:
    """Lay out what each group says of every pair."""
    laid = tuple(np.full(pairs.states.shape, np.nan) for _ in groups.members)
    for column, answer in enumerate(made):
        if answer is not None:
            for number, z in zip(answer.used, answer.pooled.apart[1:], strict=True):
                laid[number][answer.images, column] = z
    return laid


def _answer(pairs: Pairs, column: int, groups: JudgeGroups, cells: Cells, *, alike: bool = False) -> _Answer | None:
    """Pool the members' answers about one finding; None where no image judge is used.

    With `alike` a group speaks by the mean of its members, and not as labels weigh them.
    """
    having = [[judge for judge in group if judge.used[column]] for group in groups.members]
    used = {number: group for number, group in enumerate(having) if group}
    if not used:
        return None
    evidence = [np.stack([judge.evidence[:, column] for judge in group], axis=1) for group in used.values()]
    if alike:
        evidence = [_mean(each)[:, None] for each in evidence]
    here = cells.only(~np.logical_and.reduce([np.isnan(each).all(axis=1) for each in evidence]))
    rows = here.images
    state = pairs.states[:, column][rows]
    stacks = [stack(each.take(rows, axis=0), state, here.parts) for each in evidence]
    record = Recorded(z=logit(pairs.p_present[:, column][rows]), sure=pairs.spread[:, column][rows])
    trained = np.array([False, *(group[0].trained for group in used.values())])
    pooled = pool([record, *stacks], state, here, trained)
    return _Answer(used=used, images=rows, pooled=pooled, weights=[each.weights for each in stacks])


def _mean(evidence: Matrix) -> Matrix:
    """Average the members that answered an image; NaN where none did."""
    count = (~np.isnan(evidence)).sum(axis=1)
    return np.where(count > 0, np.nansum(evidence, axis=1) / np.maximum(count, 1), np.nan)


def _shares(answer: _Answer, groups: JudgeGroups) -> dict[str, float]:
    """Divide each group's weight among its members as the stack weighs them, and a member's among its names."""
    weights = answer.pooled.weights
    if weights.sum() == 0:
        return {}
    shares = {"record": float(weights[0])}
    for group, each, whole in zip(answer.used.values(), answer.weights, weights[1:], strict=True):
        own = each.mean(axis=0)
        for judge, part in zip(group, own / max(float(own.sum()), 1e-12), strict=True):
            names = groups.names[judge.name]
            shares |= dict.fromkeys(names, float(whole * part) / len(names))
    return shares


def _part_of_patient(patients: pl.Series) -> Ints:
    """Give each image a part by a hash of its patient alone."""
    names = patients.unique(maintain_order=True).to_list()
    parts = [int.from_bytes(hashlib.sha256(b"combine:" + name.encode()).digest()[:4]) % PARTS for name in names]
    return patients.replace_strict(names, parts, return_dtype=pl.Int64).to_numpy()


def pool(members: Sequence[PoolMember], state: Matrix, cells: Cells, trained: Bools | None = None) -> Pooled:
    """Average the members of each image, weighed as their logits vary; where they differ, the average is less sure.

    The first member is the metadata judge; where no other is used, there is nothing to pool. `trained` says of each
    member whether it was trained on the labels of these images.
    """
    told = np.zeros(len(members), dtype=bool) if trained is None else trained
    done, shares = np.zeros(len(state), dtype=bool), []
    z, spread = np.zeros(len(state)), np.zeros(len(state))
    apart = np.full((len(members), len(state)), np.nan)
    image = np.arange(len(members)) > 0
    logits, claimed = np.empty(apart.shape), np.stack([(state == 0) | (state == 1), state == 1])
    pieces = cells.pieces
    # Cross-fitted twice over: an answer rests on the other parts of the patients, and of those on the images of the
    # metadata judge's same fold, whose answers in turn rest on none of that fold's labels. So no label reaches itself.
    for part, whole in enumerate(cells.parts):
        np.stack([member.answer(part) for member in members], out=logits)
        spreads = np.stack([member.spread(part, whole) for member in members])
        for fold, own in enumerate(pieces[part]):
            others = [pieces[other][fold] for other in range(PARTS) if other != part]
            theirs, claims = joined(logits, others), joined(claimed, others)
            mine, theirs, varying = _believed(logits[:, own], theirs, told)
            if own.start == own.stop or not varying[1:].any():
                continue
            shares.append(varying / varying.sum())
            apart[:, own] = mine
            sure = spreads[:, own.start - whole.start : own.stop - whole.start]
            for who, here, there in _alike(mine, theirs):
                weight = varying[who] / max(float(varying[who].sum()), 1e-12)
                given = mine[who][:, here]
                mean = weight @ given
                z[own][here] = mean + _shift(weight @ theirs[who][:, there], *claims[:, there])
                spread[own][here] = np.sqrt(weight**2 @ (sure[who][:, here] ** 2 + (given - mean) ** 2))
                done[own][here] = np.where(image, varying, 0.0)[who].any()
    weights = np.mean(shares, axis=0) if shares else np.zeros(len(members))
    return Pooled(done=done, z=z, spread=spread, weights=weights, apart=apart)


def _believed(mine: Matrix, theirs: Matrix, trained: Bools) -> tuple[Matrix, Matrix, Matrix]:
    """Give the logits as far as they are believed, and what each member weighs."""
    varying = _variance(theirs)
    if trained.any():
        # How well such a member tells these labels measures its memory: it is believed to vary no more than the most
        # telling of the others, and weighs half.
        most = float(varying[~trained].max(initial=0.0))
        # Where nobody else varies there is no other measure.
        wide = trained & (varying > most) & (most > 0)
        narrow = np.sqrt(np.where(wide, most / np.maximum(varying, 1e-12), 1.0))[:, None]
        middle = np.nan_to_num(np.nansum(theirs, axis=1) / np.maximum((~np.isnan(theirs)).sum(axis=1), 1))[:, None]
        mine, theirs = (middle + narrow * (each - middle) for each in (mine, theirs))
        varying = varying * narrow[:, 0] ** 2 * np.where(trained, TRAINED_WEIGHT, 1.0)
    # Who would have next to no weight has none: it tells nothing, and must move nothing.
    return mine, theirs, np.where(varying < LEAST_WEIGHT * varying.sum(), 0.0, varying)


def _variance(z: Matrix) -> Matrix:
    """The variance of each member's logits: what it weighs."""
    known = ~np.isnan(z)
    if known.all() and z.size:
        return np.asarray(z.var(axis=1))
    count = np.maximum(known.sum(axis=1), 1)
    apart = z - (np.nansum(z, axis=1) / count)[:, None]
    return np.asarray(np.nansum(apart**2, axis=1) / count)


def _alike(mine: Matrix, theirs: Matrix) -> Iterator[tuple[Some, Some, Some]]:
    """Go through the sets of members that answered one's images: who, on which of them, on which of the others."""
    answered, elsewhere = ~np.isnan(mine), ~np.isnan(theirs)
    if answered.all() and elsewhere.all():
        yield EVERY, EVERY, EVERY
        return
    bits = 1 << np.arange(len(mine))
    here, there = bits @ answered, bits @ elsewhere
    for pattern in np.unique(here):
        if pattern:
            yield (pattern & bits) > 0, here == pattern, there == pattern


def _shift(mean: Matrix, definite: Bools, present: Bools) -> float:
    """Find what makes a pool right on average about definite labels."""
    if not definite.any():
        return 0.0
    some = EVERY if definite.all() else definite
    return Grid.of(mean[some], present[some]).shift(PULL)


def omissions(states: Matrix, reports: pl.DataFrame, fold: Ints) -> Matrix:
    """Give what to add to each image's logits for labels that are left out, from timelines of the other folds.

    Between two reports of a patient that name a finding, the one in the middle names it in only some: of Nodule in
    55 %, of Pneumothorax in 79 % of NIH's. `reports` are those of the images (`reports_of_films`).
    """
    # Some of these gaps are real, some are missing labels, and judges fitted to the labels leave them out too. So
    # the odds are divided by half of the share, on the scale of logits. Without timelines there is no such evidence.
    report, rank, size = (reports[name].to_numpy() for name in ("report", "rank", "size"))
    # One image that names the finding is enough for its report; an uncertain or silent one is neither.
    order = np.argsort(report, kind="stable")
    starts = np.flatnonzero(np.diff(report[order], prepend=-1))
    named = np.logical_or.reduceat((states == 1)[order], starts, axis=0)
    first = order[starts]
    inner = np.flatnonzero((rank[first] > 0) & (rank[first] < size[first] - 1))
    between = named[inner - 1] & named[inner + 1]
    repeated = between & named[inner]
    whose = fold[first][inner]
    shift = np.zeros(states.shape)
    for number in np.unique(fold):
        others = whose != number
        gaps, hits = between[others].sum(axis=0), repeated[others].sum(axis=0)
        share = (hits + CAREFUL) / (gaps + CAREFUL)
        shift[fold == number] = -MISSING_SHARE * np.log(share)
    return shift
