"""Stage 4, flag: how far each label is trusted, and what that means.

With expert knowledge (an expert calibration, or expert labels here) a trust is a probability of being right, with an
interval, and flags follow from it: no share of the labels is set beforehand. `trusted` and `likely_mislabelled` also
have certificates where enough was read here. Without any expert knowledge nobody knows how many labels are wrong:
labels are ranked, and none is `trusted`, `suspect` or `likely_mislabelled`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import NORMAL_95, Matrix, logit, sigmoid
from bpals.signal.layout import Bools, Counts, Estimate, JudgeAnswers, by_finding, in_blocks

if TYPE_CHECKING:
    from bpals.signal.certificates import Certificate

WRONG_AMONG_TRUSTED: Mapping[str, float] = {"present": 0.20, "absent": 0.05}
"""A label is `trusted` where its chance to be wrong is at most this, and so the share of wrong ones among them ..."""
WIDEST = 2.5
"""... and where the pessimistic end of its interval is at most this many times as much."""
LIKELY_BELOW = 0.2
"""A label is `likely_mislabelled` where its trust is at most this, and its whole interval is below one half."""
EVEN = 0.5
"""Above it the evidence stands with the label, however many other labels it stands with more firmly."""
OPEN = 0.7
"""A label of low trust is hard where its interval reaches above this: it may well be right. Else it is suspect."""
UNKNOWN = 2.0
"""A trust whose logit has a larger deviation than this says nothing yet: the label stays unverified."""
LOW_TRUST = 0.8
"""With expert labels, a label over which readers would split is hard below it: one in five may be wrong ..."""
CLEAR = 0.1
"""... unless its trust is below this: then the evidence is against it, whoever splits."""
MINORITY = 0.333
"""Judges split where the smaller side is at least a third of them."""
DECIMALS = 6
SLACK = 1e-9
"""Numbers that are equal but for their last bits count as equal."""

NAMES = ("likely_mislabelled", "suspect", "hard", "unverified", "trusted", "unjudged")
LIKELY, SUSPECT, HARD, UNVERIFIED, TRUSTED, UNJUDGED = range(len(NAMES))


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
class Stated:
    """What the trusts say of the labels with one flag: how many, and which share of them is wrong."""

    labels: int
    wrong: float
    low: float
    high: float
    """The mean of the labels' own intervals: as if all of them were off in the same way, so wider than need be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one finding's labels in one direction were flagged, in numbers and in words."""

    finding: str
    says: str
    basis: Literal["none", "calibrated", "certified"]
    """What stands behind it: no expert knowledge, a calibrated trust, or a certificate as well."""
    words: str
    trusted_from: float | None = None
    """Labels whose trust is at least this are trusted, if their interval is narrow enough; None: none is."""
    certified_from: float | None = None
    """From this trust on a certificate says so, whatever the interval."""
    likely_below: float | None = None
    """Labels whose trust is at most this are likely mislabelled, if their interval is below one half; None: none is."""
    certified_below: float | None = None
    """Up to this trust a certificate says so, whatever the interval."""
    certificates: tuple[Certificate, ...] = ()
    """With expert labels: what is promised of its flags, each promise with a doubt of its own."""
    stated: Mapping[str, Stated] = field(default_factory=dict)
    """Flag -> what the trusts say of the labels that carry it."""


Certify = Callable[[str, str, Bools, Matrix, Matrix], Rule | None]
"""From a finding, what its labels say, which images carry such a label, trusts, and where readers split, to the rule
that expert labels certify; None where nobody read the finding."""


def flag(estimate: Estimate, certify: Certify | None = None) -> Flagged:
    """Flag every label, finding by finding and direction by direction; `certify` is by what experts read here."""
    p_present, trust, low, high = _trusts(estimate)
    agreement, asked = judge_agreement(estimate), judges_asked(estimate)
    flags = np.full(agreement.shape, UNJUDGED, dtype=np.int8)
    matrices = [by_finding(each) for each in (estimate.pairs.states, trust, low, high, agreement)]
    count = by_finding(asked)

    def flag_finding(column: int) -> list[Rule]:
        finding, rules = estimate.pairs.findings[column], []
        states, its_trust, its_low, its_high, alike = (matrix[:, column] for matrix in matrices)
        hard = estimate.hard.get(finding)
        split = hard.split if hard is not None else judges_split(alike, count[:, column])
        for says, state in (("present", 1), ("absent", 0)):
            here = (states == state) & ~np.isnan(its_trust)
            rule = None if certify is None else certify(finding, says, here, its_trust, split)
            if rule is None:
                known = finding in estimate.notes
                rule = rule_by_calibration(finding, says) if known else rule_without_experts(finding, says)
            ends = its_low[here], its_high[here]
            chosen = apply(rule, its_trust[here], ends, split[here])
            flags[:, column][here] = chosen
            rules.append(
                rule if rule.basis == "none" else replace(rule, stated=stated_shares(chosen, its_trust[here], ends))
            )
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


def rule_without_experts(finding: str, says: str) -> Rule:
    """Rank only: no expert was asked, so nobody knows how many labels are wrong."""
    return Rule(
        finding=finding,
        says=says,
        basis="none",
        words="no expert knowledge: labels are ranked, and none is called trusted, suspect or mislabelled",
    )


def rule_by_calibration(finding: str, says: str) -> Rule:
    """Flag by the calibrated trust and its interval."""
    wrong = WRONG_AMONG_TRUSTED[says]
    return Rule(
        finding=finding,
        says=says,
        basis="calibrated",
        trusted_from=1 - wrong,
        likely_below=LIKELY_BELOW,
        words=(
            f"by calibrated trust: trusted from {1 - wrong:.2f} on with the interval above {1 - WIDEST * wrong:.3g}, "
            f"likely_mislabelled up to {LIKELY_BELOW} with the interval below {EVEN}"
        ),
    )


def stated_shares(flags: npt.NDArray[np.int8], trust: Matrix, ends: tuple[Matrix, Matrix]) -> dict[str, Stated]:
    """Say of every flag how many labels carry it, and which share of them is wrong by their trusts."""
    stated = {}
    for number, name in enumerate(NAMES[:UNJUDGED]):
        its = flags == number
        if its.any():
            low, high = (float(1 - end[its].mean()) for end in reversed(ends))
            share = float(1 - trust[its].mean())
            stated[name] = Stated(labels=int(its.sum()), wrong=round(share, 4), low=round(low, 4), high=round(high, 4))
    return stated


def splitting(trust: Matrix, split: Matrix) -> Bools:
    """Say which labels have low trust because nobody can tell."""
    return np.asarray((split == 1) & (trust >= CLEAR) & (trust < LOW_TRUST))


def apply(rule: Rule, trust: Matrix, ends: tuple[Matrix, Matrix], split: Matrix | None = None) -> npt.NDArray[np.int8]:
    """Flag labels of one finding and direction; `ends` are those of each trust's interval.

    `split` is 1 where readers would split over the label and 0 where not: low trust is `hard` there. Where nobody knows
    (NaN), it is hard if its interval reaches above .7.
    """
    known = np.full(trust.shape, np.nan) if split is None else split
    low, high = ends
    flags = np.full(trust.shape, UNVERIFIED, dtype=np.int8)
    if rule.basis == "none":
        flags[known == 1] = HARD
        flags[np.isnan(trust)] = UNJUDGED
        return flags
    flags[trust < EVEN] = SUSPECT
    flags[(trust < EVEN) & (high > OPEN) & np.isnan(known)] = HARD
    if rule.likely_below is not None:
        flags[(trust <= rule.likely_below) & (high <= EVEN)] = LIKELY
    if rule.trusted_from is not None:
        flags[(trust >= rule.trusted_from) & (low >= 1 - WIDEST * (1 - rule.trusted_from) - SLACK)] = TRUSTED
    flags[too_wide(low, high)] = UNVERIFIED
    # A certificate rests on labels that were read, whatever their intervals.
    if rule.certified_below is not None:
        flags[trust <= rule.certified_below] = LIKELY
    if rule.certified_from is not None:
        flags[trust >= rule.certified_from] = TRUSTED
    flags[splitting(trust, known)] = HARD
    flags[np.isnan(trust)] = UNJUDGED
    return flags


def too_wide(low: Matrix, high: Matrix) -> Bools:
    """Say which intervals are so wide that nobody knows: of findings or images that were never read."""
    return np.asarray(logit(high) - logit(low) > 2 * NORMAL_95 * UNKNOWN)
