"""The signal, from labels and answers to trust: lay_out -> pool -> calibrate -> flag -> explain.

docs/method.md has the formulas in the same order. Each stage is a function from the result of the one before:

    lay_out    layout.py        labels and answers as matrices
    pool       pool.py          many judges, one probability: logit p = c + sum over groups of judges (w z)
    calibrate  experts.py       expert labels, if there are any: logit P(present) = o + x (beta + delta)
    flag       flags.py         trust = p or 1 - p, its interval, and which labels are likely wrong
    explain    reasons.py       why, in sentences; rows.py writes one row per label

z is the logit of one group of correlated judges and w its weight; c shifts the pool to be right on average. o is the
pooled logit, x the pair's features, such as that logit, the label and the view; beta are the coefficients that all
findings share, and delta is how far those of one finding differ from them.
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
    """The pairs that were used, with their held-out fold."""
    findings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each calibrated finding or group: how it was fitted."""
    rules: Sequence[Mapping[str, Any]] = ()
    skill: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SKILL))
    """How well each judge discriminates, if it was measured: findings, then groups."""
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
    """Reviewed findings that were not fitted, because too few of their labels are contradicted -> that count, without
    the fifth of the patients that has the most."""
    readers: Mapping[str, Mapping[str, Matrix]] = field(default_factory=dict)
    """Finding -> reader -> P(verdict | truth), if individual reads were resolved."""
    hardness: Mapping[str, Any] = field(default_factory=dict)
    """What individual reads say about where readers split, or why they say nothing."""


def estimate(
    laid: LaidOut,
    reference: Reference | None = None,
    *,
    skill: pl.DataFrame | None = None,
    reviews: Reviews | None = None,
    random_sample: Reference | None = None,
    features: npt.NDArray[np.floating[Any]] | None = None,
) -> Signal:
    """Return how far to trust each label; with expert labels, fitted on them and cross-fitted by patient.

    `skill` (SKILL) says where each image judge has a signal: measured before, for every level of `laid`. `reference`
    are adjudicated labels, `reviews` single reads, `random_sample` labels of images drawn at random, which say how
    common errors are there. `features` are what the metadata judge sees of each image: a fit may use them too.
    """
    fit = reference is not None or reviews is not None
    # The logits of each group of judges need a second pool: only a fit on expert labels uses them.
    pooled, signal = _pool(laid.findings.with_used(skill), laid, skill, per_group=fit)
    if not fit:
        return _written(signal, laid, pooled)
    # Here, because an audit without expert labels needs no fit, and so does not load one.
    from bpals.signal import experts

    groups = None if laid.groups is None else _pool(laid.groups.with_used(skill), laid, skill)[0]
    given = experts.Experts(reference=reference, reviews=reviews, random_sample=random_sample, features=features)
    calibration = experts.calibrate_levels(laid, pooled, groups, given)
    signal = replace(signal, hardness=calibration.hardness)
    if calibration.truths is None:
        return _written(signal, laid, calibration.findings)
    truth = calibration.truths.table
    wrong = [
        None if each is None else experts.wrong_claims(each, truth)
        for each in (calibration.findings, calibration.groups)
    ]
    signal = replace(
        signal,
        calibration=calibration.used,
        findings=calibration.fits,
        readers=calibration.truths.readers,
        untaught=calibration.untaught,
        shifts=calibration.shifts,
        dependence=calibration.dependence,
    )
    if calibration.groups is not None and skill is not None:
        signal = replace(signal, skill=skill)
    return _written(signal, laid, calibration.findings, calibration.groups, wrong)


def _pool(
    level: Level, laid: LaidOut, skill: pl.DataFrame | None, *, per_group: bool = False
) -> tuple[Estimate, Signal]:
    """Pool the judges of a level, with their weights; the metadata judge alone is kept as it is."""
    record = level.record
    none_true = np.zeros(record.states.shape, dtype=bool)
    pooled = Estimate(
        pairs=record,
        record=record,
        judges=(),
        moved=none_true,
        p_present=record.p_present,
        spread=record.spread,
        fitted=none_true,
        reviewed=none_true,
    )
    signal = Signal(table=pl.DataFrame())
    if skill is not None:
        own = skill.filter(pl.col("finding").is_in(list(record.findings)))
        shares = {"record": dict.fromkeys(record.findings, 1.0)} if (record.answered > 0).any() else {}
        signal = replace(signal, skill=own, shares=shares, weights=dict.fromkeys(shares, 1.0))
    if not level.judges:
        return pooled, signal
    # Here, because an audit without image judges has nothing to pool.
    from bpals.signal.pool import pool_judges

    combined = pool_judges(level, laid, per_group=per_group)
    heads, votes = combined.judge_groups.heads, combined.judge_groups.votes
    pooled = replace(
        pooled,
        pairs=combined.pairs,
        judges=tuple(replace(judge, head=heads[judge.name], vote=votes[judge.name]) for judge in level.judges),
        moved=combined.moved,
        p_present=combined.pairs.p_present,
        spread=combined.pairs.spread,
        per_group=combined.per_group,
    )
    return pooled, replace(
        signal, weights=combined.effective, shares=combined.shares, judge_groups=combined.judge_groups
    )


def _written(
    signal: Signal,
    laid: LaidOut,
    findings: Estimate,
    groups: Estimate | None = None,
    wrong: Sequence[Mapping[str, Read] | None] = (None, None),
) -> Signal:
    """Flag, explain and write the findings, and the groups if experts label any."""
    flagged = flag(findings, wrong[0])
    signal = replace(signal, table=write(findings, flagged, laid), rules=flagged.rules)
    if groups is None:
        return signal
    of_groups = flag(groups, wrong[1])
    return replace(signal, groups=write(groups, of_groups, laid), rules=[*flagged.rules, *of_groups.rules])


SIGNAL = SignalKind(
    name=JUDGES_METHOD,
    summary=f"the metadata judge corrected by the image judges; where no image judge answers it writes {METHOD}",
    estimate=estimate,
    page="method.md",
)
