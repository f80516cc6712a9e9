"""Stage 4, flag: how far each label is trusted, and which labels the evidence is clearly against.

Without expert labels a trust says how well a label fits what the judges say, so flags are shares of each finding's
presences and absences. With them a trust is a probability of being right: one half divides, and flags carry
certificates. Where readers or judges would split over a label of low trust, it is `hard`, and `likely_mislabelled` is
certified among the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import NORMAL_95, Matrix, logit, sigmoid
from bpals.signal.layout import Bools, Counts, Estimate, JudgeAnswers, by_finding, in_blocks

if TYPE_CHECKING:
    from bpals.signal.certificates import Certificate, Drawn, Read

LIKELY_SHARE: Mapping[str, float] = {"present": 0.10, "absent": 0.005}
LOW_SHARE: Mapping[str, float] = {"present": 0.30, "absent": 0.025}
EVEN = 0.5
"""Above it the evidence stands with the label, however many other labels it stands with more firmly."""
MORE_WRONG = 0.5
"""The precision that is tried where a higher one cannot be shown: of these labels more are wrong than right."""
LOW_TRUST = 0.8
"""With expert labels, a label over which readers would split is hard below it: one in five may be wrong ..."""
CLEAR = 0.1
"""... unless its trust is below this: then the evidence is against it, whoever splits."""
MINORITY = 0.333
"""Judges split where the smaller side is at least a third of them."""
DECIMALS = 6

NAMES = ("likely_mislabelled", "suspect", "hard", "trusted", "unjudged")
LIKELY, SUSPECT, HARD, TRUSTED, UNJUDGED = range(len(NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flagged:
    """Every label's trust and flag, and how the judges stand to it: one row per image, one column per finding."""

    p_present: Matrix
    trust: Matrix
    """NaN where the label is uncertain or silent, or nobody answered."""
    low: Matrix
    high: Matrix
    """Its 95 % interval."""
    agreement: Matrix
    asked: Counts
    flag: npt.NDArray[np.int8]
    rules: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one finding's labels in one direction were flagged, in numbers and in words."""

    finding: str
    says: str
    likely_below: float | None
    """Labels whose trust is at most this are likely mislabelled; None: none is."""
    low_below: float | None
    """Labels whose trust is below this are suspect or hard; None: none is."""
    hard_between: tuple[float, float]
    """Labels with a trust from the first up to below the second are hard if readers or judges would split over them."""
    certified: bool
    words: str
    certificates: tuple[Certificate, ...] = ()
    """With expert labels: what is promised of its flags, each promise with a doubt of its own."""


def flag(estimate: Estimate, reviewed: Mapping[str, Read] | None = None) -> Flagged:
    """Flag every label, finding by finding and direction by direction; `reviewed` are those that experts read."""
    reads = reviewed or {}
    p_present, trust, low, high = _trusts(estimate)
    agreement, asked = judge_agreement(estimate), judges_asked(estimate)
    flags = np.full(agreement.shape, UNJUDGED, dtype=np.int8)
    matrices = [by_finding(each) for each in (estimate.pairs.states, trust, high, agreement)]
    count = by_finding(asked)

    def flag_finding(column: int) -> list[Rule]:
        finding, rules = estimate.pairs.findings[column], []
        states, its_trust, its_high, alike = (matrix[:, column] for matrix in matrices)
        hard = estimate.hard.get(finding)
        split = hard.split if hard is not None else judges_split(alike, count[:, column])
        for says, state in (("present", 1), ("absent", 0)):
            here = (states == state) & ~np.isnan(its_trust)
            if finding in reads:
                rows, drawn = reads[finding].among(here, its_trust, split)
                unread = here.copy()
                unread[rows] = False
                rule = rule_by_review(finding, says, drawn, its_trust[unread])
            elif finding in estimate.notes:
                rule = rule_by_group(finding, says)
            else:
                rule = rule_by_share(finding, says, its_trust[here])
            flags[:, column][here] = apply(rule, its_trust[here], its_high[here], split[here])
            rules.append(rule)
        return rules

    with ThreadPoolExecutor(pl.thread_pool_size()) as hands:
        made = list(hands.map(flag_finding, range(len(estimate.pairs.findings))))
    return Flagged(
        p_present=p_present,
        trust=trust,
        low=low,
        high=high,
        agreement=agreement,
        asked=asked,
        flag=flags,
        rules=[asdict(rule) for rules in made for rule in rules],
    )


def _trusts(estimate: Estimate) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Turn P(present) into trust: p where presence is labelled, 1 - p where absence is; with its 95 % interval."""
    p_present, trust, trust_low, trust_high = (np.empty(estimate.p_present.shape) for _ in range(4))

    def turn(rows: slice) -> None:
        states, p = estimate.pairs.states[rows], np.round(estimate.p_present[rows], DECIMALS)
        z, reach = logit(p), NORMAL_95 * estimate.spread[rows]
        ends = (np.round(sigmoid(side), DECIMALS) for side in (z - reach, z + reach))
        low, high = (pick(p, end) for pick, end in zip((np.minimum, np.maximum), ends, strict=True))
        present, absent = states == 1, states == 0
        p_present[rows] = p
        trust[rows] = np.where(present, p, np.where(absent, 1 - p, np.nan))
        trust_low[rows] = np.where(present, low, np.where(absent, 1 - high, np.nan))
        trust_high[rows] = np.where(present, high, np.where(absent, 1 - low, np.nan))

    in_blocks(len(trust), turn)
    return p_present, trust, trust_low, trust_high


def judges_asked(estimate: Estimate) -> Counts:
    """Count the judges with a signal that answered."""
    count = (~np.isnan(estimate.record.p_present)).astype(np.int16)
    for judge in estimate.judges:
        count += judge.answered & judge.used
    return count


def judge_agreement(estimate: Estimate) -> Matrix:
    """Give the share of those judges that stand on the label's side; a group of correlated judges has one vote."""
    states = estimate.record.states
    groups: dict[str, list[JudgeAnswers]] = {}
    for judge in estimate.judges:
        groups.setdefault(judge.head or judge.name, []).append(judge)
    everyone = np.ones(states.shape[1], dtype=bool)
    ballots = [[_Ballot(given=estimate.record.p_present, usual=estimate.record.usual, used=everyone, vote=1.0)]]
    ballots += [
        [_Ballot(given=its.p_present, usual=its.usual, used=its.used, vote=its.vote) for its in group]
        for group in groups.values()
    ]
    share = np.full(states.shape, np.nan)

    def count(rows: slice) -> None:
        here = states[rows]
        present, stands, votes = here == 1, np.zeros(here.shape), np.zeros(here.shape, dtype=np.int16)
        for group in ballots:
            its, voted = _group_vote(group, rows, present)
            stands += its
            votes += voted
        np.divide(stands, votes, out=share[rows], where=(votes > 0) & (present | (here == 0)))

    in_blocks(len(states), count)
    # Thirds and fifths of a vote do not add up to a whole to the last bit.
    return np.asarray(np.round(share, DECIMALS, out=share))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ballot:
    """What one judge gives, and how it counts inside its group."""

    given: Matrix
    usual: Matrix
    used: Bools
    vote: float

    def cast(self, rows: slice, present: Bools) -> tuple[Bools, Bools]:
        """Say of some images where the judge stands with the label, and where it answered."""
        given = self.given[rows]
        # A comparison with NaN is false, so who did not answer stands nowhere.
        stands = np.where(present, given >= self.usual, given <= self.usual)
        return stands & self.used, ~np.isnan(given) & self.used


def _group_vote(group: Sequence[_Ballot], rows: slice, present: Bools) -> tuple[Matrix | Bools, Bools]:
    """Say how much of a group's one vote stands with each label, and where it has one."""
    if len(group) == 1:
        return group[0].cast(rows, present)
    its, whole = np.zeros(present.shape), np.zeros(present.shape)
    for ballot in group:
        stands, answered = ballot.cast(rows, present)
        its += stands * ballot.vote
        whole += answered * ballot.vote
    return np.divide(its, whole, out=its, where=whole > 0), whole > 0


def judges_split(agreement: Matrix, asked: Counts) -> Matrix:
    """Say where judges stand on both sides of a label: 1, 0, NaN where fewer than two of them answered."""
    both = (agreement >= MINORITY) & (agreement <= 1 - MINORITY)
    return np.where((asked > 1) & ~np.isnan(agreement), both.astype(float), np.nan)


def rule_by_share(finding: str, says: str, trust: Matrix) -> Rule:
    """Set the cuts at fixed shares of the finding's labels in one direction."""
    likely, low = LIKELY_SHARE[says], LOW_SHARE[says]
    cut, lowest = _cut(trust, likely), _cut(trust, low)
    return Rule(
        finding=finding,
        says=says,
        likely_below=None if cut is None else min(cut, EVEN),
        low_below=lowest,
        hard_between=(0.0, 0.0 if lowest is None else float(np.nextafter(lowest, 1.0))),
        certified=False,
        words=(
            f"no expert label was fitted: likely_mislabelled is at most the {likely:.1%} of claims with least trust, "
            f"none above {EVEN}; suspect and hard are the others among the lowest {low:.1%}"
        ),
    )


def _cut(trust: Matrix, share: float) -> float | None:
    """Find the trust that a share of the labels does not exceed; it falls below ties that would double the share."""
    if share * len(trust) < 1:
        return None
    place = int(share * (len(trust) - 1))
    cut = np.partition(trust, place)[place]
    if np.count_nonzero(trust <= cut) <= 2 * (place + 1):
        return float(cut)
    below = trust[trust < cut]
    return float(below.max()) if len(below) else None


def rule_by_review(finding: str, says: str, drawn: Drawn, unread: Matrix | None = None) -> Rule:
    """Certify the flags on reviewed labels with their cross-fitted trust; `unread` are the trusts of the others."""
    # Here, because an audit without expert labels needs no certificate, and so does not load them.
    from bpals.signal import certificates

    clear = drawn if drawn.split is None else drawn.take(~_splitting((CLEAR, LOW_TRUST), drawn.trust, drawn.split))
    low = clear.take(clear.trust < EVEN)
    likely = [certificates.certify_precision(low)]
    if len(clear) and not likely[0].certified:
        # Where a high precision cannot be shown: that more flags are wrong than right.
        likely.append(certificates.certify_precision(low, precision=MORE_WRONG))
    promised = list(likely)
    if len(drawn):
        promised += [
            certificates.bound_errors(clear, EVEN),
            certificates.certify_trusted(clear.take(clear.trust >= EVEN)),
            certificates.control_misses(drawn),
        ]
    if unread is not None and drawn.inclusion is not None:  # else nobody knows whether the unread are like the read
        promised.append(certificates.control_discoveries(drawn, unread))
    if unread is not None:
        promised = [replace(each, more=None) if (each.more or 0) > len(unread) else each for each in promised]
    return Rule(
        finding=finding,
        says=says,
        likely_below=likely[-1].cut,
        low_below=EVEN,
        hard_between=(CLEAR, LOW_TRUST),
        certified=likely[-1].certified,
        words=f"below trust {EVEN}: " + "; ".join(each.words for each in promised[: len(likely) + 1]),
        certificates=tuple(promised),
    )


def rule_by_group(finding: str, says: str) -> Rule:
    """Flag what its group's reviews leave below one half; nobody read the finding apart, so nothing is promised."""
    return Rule(
        finding=finding,
        says=says,
        likely_below=None,
        low_below=EVEN,
        hard_between=(CLEAR, LOW_TRUST),
        certified=False,
        words=f"below trust {EVEN}: experts read it as part of a group only, so nothing is certified of it by itself",
    )


def _splitting(between: tuple[float, float], trust: Matrix, split: Matrix) -> Bools:
    """Say which labels have low trust because nobody can tell."""
    return np.asarray((split == 1) & (trust >= between[0]) & (trust < between[1]))


def apply(rule: Rule, trust: Matrix, high: Matrix, split: Matrix | None = None) -> npt.NDArray[np.int8]:
    """Flag labels of one finding and direction.

    `split` is 1 where readers would split over the label and 0 where not: low trust is `hard` there. Where nobody knows
    (NaN), it is hard if its interval reaches above the cut.
    """
    known = np.full(trust.shape, np.nan) if split is None else split
    flags = np.full(trust.shape, TRUSTED, dtype=np.int8)
    if rule.low_below is not None:
        low = trust < rule.low_below if rule.low_below == EVEN else trust <= rule.low_below
        flags[low] = SUSPECT
        flags[low & (high > rule.low_below) & np.isnan(known)] = HARD
    if rule.likely_below is not None:
        flags[trust <= rule.likely_below] = LIKELY
    flags[_splitting(rule.hard_between, trust, known)] = HARD
    flags[np.isnan(trust)] = UNJUDGED
    return flags
