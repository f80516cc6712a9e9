"""The signal, from labels and answers to trust: lay_out -> pool -> calibrate -> flag -> explain.

docs/method.md has the formulas in the same order. Each stage is a function from the result of the one before:

    lay_out    layout.py        labels and answers as matrices
    pool       pool.py          many judges, one probability: logit p = c + sum over groups of judges (w z)
    calibrate  prior.py         a fit on expert labels elsewhere, if there is one: logit P(present) = o + x m
               experts.py       expert labels, if there are any: logit P(present) = o + x (m + beta + delta)
    flag       flags.py         trust = p or 1 - p, its interval, and which labels are likely wrong
    explain    reasons.py       why, in sentences; rows.py writes one row per label

z is the logit of one group of correlated judges and w its weight; c shifts the pool to be right on average. o is the
pooled logit, x the pair's features, such as that logit, the label and the view; m are the coefficients that were fitted
elsewhere, beta what expert labels here add for all findings, and delta how far one finding differs from that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import Matrix
from bpals.registry import SignalKind
from bpals.signal.flags import Certify, Flagged, flag
from bpals.signal.layout import Estimate, LaidOut, Level, Pairs, plain_estimate
from bpals.signal.prior import ExpertCalibration, calibrated
from bpals.signal.rows import JUDGES_METHOD, METHOD, write
from bpals.types import SKILL, Reference, Reviews

if TYPE_CHECKING:
    from bpals.signal.correlated import JudgeGroups
    from bpals.signal.truth import Verdicts


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
    prior: ExpertCalibration | None = None,
) -> Signal:
    """Return how far to trust each label; with expert labels, fitted on them and cross-fitted by patient.

    `skill` (SKILL) says where each image judge has a signal: measured before, for every level of `laid`. `reference`
    are adjudicated labels, `reviews` single reads, `random_sample` labels of images drawn at random, which say how
    common errors are there. `features` are what the metadata judge sees of each image: a fit may use them too. `prior`
    is a fit on expert labels elsewhere.
    """
    # Reads that were all withdrawn, or that are all uncertain, teach nothing, and change no number.
    fit = reference is not None or (reviews is not None and _votes(reviews))
    told = _verdicts(reference, reviews, random_sample)
    # The logits of each group of judges need a second pool: only a fit on expert labels uses them.
    pooled, signal = _pool(laid.findings.with_used(skill), laid, skill, per_group=fit)
    if not fit and prior is None:
        return _written(signal, laid, pooled, told=told)
    groups = None if laid.groups is None else _pool(laid.groups.with_used(skill), laid, skill)[0]
    if groups is not None and skill is not None:
        signal = replace(signal, skill=skill)
    if told is None and prior is not None:
        return _written(signal, laid, *calibrated(laid, pooled, groups, prior))
    # Here, because an audit without expert labels needs no fit, and so does not load one.
    from bpals.signal import experts

    given = experts.Experts(
        reference=reference,
        reviews=reviews,
        random_sample=random_sample,
        features=features,
        prior=prior,
    )
    calibration = experts.calibrate_levels(laid, pooled, groups, given)
    truth = calibration.truths.table
    certify = [
        None if each is None else experts.certifier(each, truth) for each in (calibration.findings, calibration.groups)
    ]
    signal = replace(
        signal,
        calibration=calibration.used,
        findings=calibration.fits,
        readers=calibration.truths.readers,
        shifts=calibration.shifts,
        dependence=calibration.dependence,
        hardness=calibration.hardness,
    )
    return _written(signal, laid, calibration.findings, calibration.groups, certify, told=told)


def _votes(reviews: Reviews) -> bool:
    """Say whether anybody calls a label present or absent."""
    voted = reviews.table["verdict"].cast(pl.String).is_in(["present", "absent"]).any()
    return bool(voted) or not reviews.settled.is_empty()


def _pool(
    level: Level, laid: LaidOut, skill: pl.DataFrame | None, *, per_group: bool = False
) -> tuple[Estimate, Signal]:
    """Pool the judges of a level, with their weights; the metadata judge alone is kept as it is."""
    record, pooled = level.record, plain_estimate(level)
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
    certify: Sequence[Certify | None] = (None, None),
    *,
    told: Callable[[Pairs], Verdicts] | None = None,
) -> Signal:
    """Flag, explain and write the findings, and the groups if experts label any; `told` is what people settled."""

    def table(level: Estimate, flagged: Flagged) -> pl.DataFrame:
        return write(level, flagged, laid, None if told is None else told(level.pairs))

    flagged = flag(findings, certify[0])
    signal = replace(signal, table=table(findings, flagged), rules=flagged.rules)
    if groups is None:
        return signal
    of_groups = flag(groups, certify[1])
    return replace(signal, groups=table(groups, of_groups), rules=[*flagged.rules, *of_groups.rules])


def _verdicts(
    reference: Reference | None, reviews: Reviews | None, random_sample: Reference | None
) -> Callable[[Pairs], Verdicts] | None:
    """Lay out for a level what people settled, whether or not a fit can use it; None where nobody read."""
    if reference is None and reviews is None and random_sample is None:
        return None
    # Here, because an audit without expert labels has nothing to settle, and so does not load it.
    from bpals.signal.truth import Verdicts, verdicts_of

    table = verdicts_of(reference, reviews, random_sample)
    return lambda pairs: Verdicts.of(table, pairs)


SIGNAL = SignalKind(
    name=JUDGES_METHOD,
    summary=f"the metadata judge corrected by the image judges; where no image judge answers it writes {METHOD}",
    estimate=estimate,
    page="method.md",
)
