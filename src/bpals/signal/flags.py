"""Flags: which claims the evidence is clearly against, which are merely low or hard, which may be trusted.

Without reviews a trust says how well a claim fits what the judges say, so flags are shares of each finding's
presences and absences. With reviews a trust is a probability of being right: one half divides, and flags carry
certificates. Where it is known that readers or judges would split over a claim of low trust, it is `hard`, and
`likely_mislabelled` is certified among the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bpals.signal.certificate import Certificate
from bpals.signal.drawn import Bools, Drawn
from bpals.signal.misses import control_misses
from bpals.signal.precision import bound_errors, certify_precision, certify_trusted
from bpals.signal.selection import control_discoveries

Matrix = npt.NDArray[np.float64]

LIKELY_SHARE: Mapping[str, float] = {"present": 0.10, "absent": 0.005}
LOW_SHARE: Mapping[str, float] = {"present": 0.30, "absent": 0.025}
EVEN = 0.5
"""Above it the evidence stands with the claim, however many other claims it stands with more firmly."""
MORE_WRONG = 0.5
"""The precision that is tried where a higher one cannot be shown: of these claims more are wrong than right."""
LOW_TRUST = 0.8
"""With reviews, a claim over which readers would split is hard below it: one in five of them may be wrong ..."""
CLEAR = 0.1
"""... unless its trust is below this: then the evidence is against it, whoever splits."""

NAMES = ("likely_mislabelled", "suspect", "hard", "trusted", "unjudged")
LIKELY, SUSPECT, HARD, TRUSTED, UNJUDGED = range(len(NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one finding's claims in one direction were flagged, in numbers and in words."""

    finding: str
    says: str
    likely_below: float | None
    """Claims whose trust is at most this are likely mislabelled; None: none is."""
    low_below: float | None
    """Claims whose trust is below this are suspect or hard; None: none is."""
    hard_between: tuple[float, float]
    """Claims with a trust from the first up to below the second are hard if readers or judges would split over them."""
    certified: bool
    words: str
    certificates: tuple[Certificate, ...] = ()
    """With reviews: what is promised of its flags, each promise with a doubt of its own."""


def rule_by_share(finding: str, says: str, trust: Matrix) -> Rule:
    """Set the cuts at fixed shares of the finding's claims in one direction."""
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
    """Find the trust that a share of the claims does not exceed; it falls below ties that would double the share."""
    if share * len(trust) < 1:
        return None
    place = int(share * (len(trust) - 1))
    cut = np.partition(trust, place)[place]
    if np.count_nonzero(trust <= cut) <= 2 * (place + 1):
        return float(cut)
    below = trust[trust < cut]
    return float(below.max()) if len(below) else None


def rule_by_review(finding: str, says: str, drawn: Drawn, unread: Matrix | None = None) -> Rule:
    """Certify the flags on reviewed claims with their cross-fitted trust; `unread` are the trusts of the others."""
    clear = drawn if drawn.split is None else drawn.take(~_splitting((CLEAR, LOW_TRUST), drawn.trust, drawn.split))
    likely = _precise(clear)
    certificates = list(likely)
    if len(drawn):
        certificates += [
            bound_errors(clear, EVEN),
            certify_trusted(clear.take(clear.trust >= EVEN)),
            control_misses(drawn),
        ]
    if unread is not None and drawn.inclusion is not None:  # else nobody knows whether the unread are like the read
        certificates.append(control_discoveries(drawn, unread))
    if unread is not None:
        certificates = [replace(each, more=None) if (each.more or 0) > len(unread) else each for each in certificates]
    return Rule(
        finding=finding,
        says=says,
        likely_below=likely[-1].cut,
        low_below=EVEN,
        hard_between=(CLEAR, LOW_TRUST),
        certified=likely[-1].certified,
        words=f"below trust {EVEN}: " + "; ".join(each.words for each in certificates[: len(likely) + 1]),
        certificates=tuple(certificates),
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


def _precise(clear: Drawn) -> list[Certificate]:
    """Certify a high precision, or where that cannot be shown, that more flags are wrong than right."""
    low = clear.take(clear.trust < EVEN)
    high = certify_precision(low)
    return [high] if high.certified or not len(clear) else [high, certify_precision(low, precision=MORE_WRONG)]


def _splitting(between: tuple[float, float], trust: Matrix, split: Matrix) -> Bools:
    """Say which claims have low trust because nobody can tell."""
    return np.asarray((split == 1) & (trust >= between[0]) & (trust < between[1]))


def apply(rule: Rule, trust: Matrix, high: Matrix, split: Matrix | None = None) -> npt.NDArray[np.int8]:
    """Flag claims of one finding and direction.

    `split` is 1 where readers would split over the claim and 0 where not: low trust is `hard` there. Where nobody knows
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
