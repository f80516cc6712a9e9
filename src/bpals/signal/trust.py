"""The signal, from labels and answers to trust: lay_out -> pool -> calibrate -> flag -> explain.

The formulas stand in docs/method.md in the same order. Each stage is a function from the result of the one before:

    lay_out    layout.py        labels and answers as matrices
    pool       pool.py          many judges, one probability: logit p = c + sum over groups of judges (w z)
    calibrate  experts.py       expert labels, where there are any: logit P(present) = o + x (beta + delta)
    flag       flags.py         trust = p or 1 - p, its interval, and which labels are likely wrong
    explain    reasons.py       why, in sentences; rows.py writes one row per label
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import Matrix
from bpals.registry import SignalKind
from bpals.signal.flags import flag
from bpals.signal.layout import Estimate, LaidOut, Level
from bpals.signal.rows import JUDGES_METHOD, METHOD, write
from bpals.types import SKILL, Reference, Reviews

if TYPE_CHECKING:
    from bpals.signal.certificates import Read
    from bpals.signal.correlated import JudgeGroups


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
    """How well each judge tells, where it was measured: findings, then groups."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Judge -> its effective weight: its share of the judges' absolute standardised weights, mean over findings."""
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Judge -> finding -> that share."""
    judge_groups: JudgeGroups | None = None
    """Which image judges are correlated, and how far; None without image judges."""
    dependence: Mapping[str, Any] = field(default_factory=dict)
    """How far the judges err together on reviewed pairs."""
    shifts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Finding -> what a random sample added to the logits of its labelled presences, and of its absences."""
    untaught: Mapping[str, int] = field(default_factory=dict)
    """Reviewed findings that were not fitted -> how many of their labels the reviews contradict, without the fifth of
    the patients that has the most: too few."""
    readers: Mapping[str, Mapping[str, Matrix]] = field(default_factory=dict)
    """Finding -> reader -> P(verdict | truth), where single reads were settled."""
    hardness: Mapping[str, Any] = field(default_factory=dict)
    """What single reads say about where readers split, or why they say nothing."""


def estimate(
    laid: LaidOut,
    reference: Reference | None = None,
    *,
    skill: pl.DataFrame | None = None,
    reviews: Reviews | None = None,
    random_sample: Reference | None = None,
    features: npt.NDArray[np.floating[Any]] | None = None,
) -> Signal:
    """Say how far to trust each label; with expert labels, fitted on them and cross-fitted by patient.

    `skill` (SKILL) says where each image judge has a signal: measured before, for every level of `laid`. `reference`
    are adjudicated labels, `reviews` single reads, `random_sample` labels of images drawn at random, which say how
    common errors are there. `features` are what the metadata judge sees of each image: a fit may use them too.
    """
    fit = reference is not None or reviews is not None
    # What each group of judges says by itself is a second pool: only a fit on expert labels needs it.
    part, made = _pool(laid.findings.with_used(skill), laid, skill, apart=fit)
    if not fit:
        return _written(made, laid, part)
    # Here, because an audit without expert labels needs no fit, and so does not load one.
    from bpals.signal import experts

    groups = None if laid.groups is None else _pool(laid.groups.with_used(skill), laid, skill)[0]
    given = experts.Experts(reference=reference, reviews=reviews, random_sample=random_sample, features=features)
    done = experts.calibrate_levels(laid, part, groups, given)
    made = replace(made, hardness=done.hardness)
    if done.truths is None:
        return _written(made, laid, done.findings)
    truth = done.truths.table
    wrong = [None if its is None else experts.wrong_claims(its, truth) for its in (done.findings, done.groups)]
    made = replace(
        made,
        calibration=done.used,
        findings=done.fits,
        readers=done.truths.readers,
        untaught=done.untaught,
        shifts=done.shifts,
        dependence=done.dependence,
    )
    if done.groups is not None and skill is not None:
        made = replace(made, skill=skill)
    return _written(made, laid, done.findings, done.groups, wrong)


def _pool(level: Level, laid: LaidOut, skill: pl.DataFrame | None, *, apart: bool = False) -> tuple[Estimate, Signal]:
    """Pool the judges of a level, and say what each of them weighs; the metadata judge alone stands as it is."""
    record = level.record
    nobody = np.zeros(record.states.shape, dtype=bool)
    part = Estimate(
        pairs=record,
        record=record,
        judges=(),
        moved=nobody,
        p_present=record.p_present,
        spread=record.spread,
        fitted=nobody,
        reviewed=nobody,
    )
    made = Signal(table=pl.DataFrame())
    if skill is not None:
        own = skill.filter(pl.col("finding").is_in(list(record.findings)))
        shares = {"record": dict.fromkeys(record.findings, 1.0)} if (record.answered > 0).any() else {}
        made = replace(made, skill=own, shares=shares, weights=dict.fromkeys(shares, 1.0))
    if not level.judges:
        return part, made
    # Here, because an audit without image judges has nothing to pool.
    from bpals.signal.pool import pool_judges

    done = pool_judges(level, laid, apart=apart)
    heads, votes = done.judge_groups.heads, done.judge_groups.votes
    part = replace(
        part,
        pairs=done.pairs,
        judges=tuple(replace(its, head=heads[its.name], vote=votes[its.name]) for its in level.judges),
        moved=done.moved,
        p_present=done.pairs.p_present,
        spread=done.pairs.spread,
        apart=done.apart,
    )
    return part, replace(made, weights=done.effective, shares=done.shares, judge_groups=done.judge_groups)


def _written(
    made: Signal,
    laid: LaidOut,
    part: Estimate,
    groups: Estimate | None = None,
    wrong: Sequence[Mapping[str, Read] | None] = (None, None),
) -> Signal:
    """Flag, explain and write the findings, and the groups where experts speak of them."""
    flagged = flag(part, wrong[0])
    made = replace(made, table=write(part, flagged, laid), rules=flagged.rules)
    if groups is None:
        return made
    of_groups = flag(groups, wrong[1])
    return replace(made, groups=write(groups, of_groups, laid), rules=[*flagged.rules, *of_groups.rules])


SIGNAL = SignalKind(
    name=JUDGES_METHOD,
    summary=f"the metadata judge corrected by the image judges; where no image judge answers it writes {METHOD}",
    estimate=estimate,
    page="method.md",
)
