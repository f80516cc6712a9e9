"""Flags: which claims the evidence is clearly against, which are merely low or hard, which may be trusted.

Without reviews a trust says how well a claim fits the rest of the record, so flags are shares of each finding's
presences and absences. With reviews a trust is a probability of being right: one half divides, and `likely_mislabelled`
is certified by Learn-then-Test: fixed thresholds are walked from strict to loose until a binomial test no longer shows
the precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

LIKELY_SHARE: Mapping[str, float] = {"present": 0.10, "absent": 0.005}
LOW_SHARE: Mapping[str, float] = {"present": 0.30, "absent": 0.025}
EVEN = 0.5
"""Above it the evidence stands with the claim, however many other claims it stands with more firmly."""
PRECISION = 0.8
"""At least this share of certified flags is right ..."""
DOUBT = 0.1
"""... unless we were unlucky, which happens at most this often."""
FIRST_FLAGS = 40
"""The strictest threshold flags this many reviewed pairs: fewer could not tell a precision near 90 % from 80 %."""
WIDER = 1.5
"""Each further threshold flags this many times as many; so all are fixed before any review is seen."""

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
    certified: bool
    words: str


def rule_by_share(finding: str, says: str, trust: Matrix) -> Rule:
    """Set the cuts at fixed shares of the finding's claims in one direction."""
    likely, low = LIKELY_SHARE[says], LOW_SHARE[says]
    cut = _cut(trust, likely)
    return Rule(
        finding=finding,
        says=says,
        likely_below=None if cut is None else min(cut, EVEN),
        low_below=_cut(trust, low),
        certified=False,
        words=(
            f"no expert label was used: likely_mislabelled is at most the {likely:.1%} of claims with least trust, "
            f"none above {EVEN}; suspect and hard are the others among the lowest {low:.1%}"
        ),
    )


def _cut(trust: Matrix, share: float) -> float | None:
    """Find the trust that a share of the claims does not exceed; it falls below ties that would double the share."""
    if share * len(trust) < 1:
        return None
    ordered = np.sort(trust)
    place = int(share * (len(trust) - 1))
    below, upto = (int(np.searchsorted(ordered, ordered[place], side=side)) for side in ("left", "right"))
    if upto > 2 * (place + 1):
        place = below - 1
    return float(ordered[place]) if place >= 0 else None


def rule_by_review(finding: str, says: str, trust: Matrix, wrong: npt.NDArray[np.bool_]) -> Rule:
    """Certify a threshold on reviewed pairs, one a patient, with their cross-fitted trust."""
    order = np.argsort(trust, kind="stable")
    likely, words = None, _needs(len(trust))
    count = FIRST_FLAGS
    while count <= len(trust):
        cut = float(trust[order[count - 1]])
        flagged = int((trust <= cut).sum())  # claims that tie are flagged together, so they are tested together
        errors = int(wrong[order[:flagged]].sum())
        if _binomial_below(flagged, 1 - PRECISION, flagged - errors) > DOUBT:
            break
        likely = cut
        told = f"{errors} of {flagged} reviewed flags were errors"
        words = f"certified precision {PRECISION:.0%}, doubt {DOUBT:.0%}: {told}"
        count = math.ceil(count * WIDER)
    return Rule(
        finding=finding, says=says, likely_below=likely, low_below=0.5, certified=likely is not None, words=words
    )


def _needs(reviewed: int) -> str:
    """Say what a certificate takes."""
    allowed = max(k for k in range(FIRST_FLAGS) if _binomial_below(FIRST_FLAGS, 1 - PRECISION, k) <= DOUBT)
    return (
        f"nothing is certified at precision {PRECISION:.0%} by {reviewed} reviewed patients: "
        f"of the {FIRST_FLAGS} with the lowest trust at least {FIRST_FLAGS - allowed} must be errors"
    )


def apply(rule: Rule, trust: Matrix, high: Matrix) -> npt.NDArray[np.int8]:
    """Flag claims of one finding and direction; `hard` is low trust whose interval reaches above the cut."""
    flags = np.full(trust.shape, TRUSTED)
    if rule.low_below is not None:
        low = trust < rule.low_below if rule.low_below == 0.5 else trust <= rule.low_below
        flags = np.where(low, np.where(high > rule.low_below, HARD, SUSPECT), TRUSTED)
    if rule.likely_below is not None:
        flags = np.where(trust <= rule.likely_below, LIKELY, flags)
    return np.where(np.isnan(trust), UNJUDGED, flags).astype(np.int8)


def _binomial_below(n: int, p: float, k: int) -> float:
    """P(Bin(n, p) <= k), by logarithms: a binomial coefficient of a thousand is too large for a float."""
    ways = (math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(k + 1))
    return math.fsum(math.exp(way + i * math.log(p) + (n - i) * math.log1p(-p)) for i, way in enumerate(ways))
