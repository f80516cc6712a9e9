"""Learn-then-Test: how far a set of claims may be widened while a binomial test still shows how few of it are bad.

Sets are walked from strict to loose: the claims up to the n-th reviewed one, for numbers n that are fixed beforehand;
with fewer reviews than the strictest set takes all are one set, for how many there are says nothing of their errors.
The walk stops at the first set that is not shown, and the last that was is used. So each is tested with the whole
doubt, and looking at many costs nothing. Where claims with less trust are wrong at least as often, a set with too many
bad claims is certified with a chance of at most the doubt. Where they are not, the same holds of claims with the trusts
that were reviewed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bpals.signal.certificate import Certificate
from bpals.signal.chances import binomial, clopper_pearson
from bpals.signal.drawn import Bools, Drawn, Floats
from bpals.text import several

PRECISION = 0.8
"""At least this share of certified flags is right ..."""
DOUBT = 0.1
"""... unless we were unlucky, which happens at most this often."""
ERROR_SHARE = 0.05
"""At most this share of the claims from a certified cut on is wrong, with the same doubt."""
ROOM = 8.0
"""The strictest set has this many reviewed claims over the share of bad ones: half that share then passes the test.

With fewer reviews it has all of them."""
WIDER = 1.5
"""Each further set has this many times as many; so all are fixed before any review is seen."""
FAR = 10_000
"""A certificate that takes more reviews than this is out of reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be shown of a set: that at most a share of it is bad."""

    share: float
    doubt: float

    @property
    def first(self) -> int:
        """How many reviewed claims the strictest set has."""
        return math.ceil(ROOM / self.share - 1e-9)

    @property
    def fewest(self) -> int:
        """How many reviewed claims show it if none of them is bad."""
        return math.ceil(math.log(self.doubt) / math.log(1 - self.share) - 1e-9)

    def shown(self, n: int, bad: int) -> bool:
        """Say whether `bad` of n shows it."""
        return float(binomial(n, self.share)[: bad + 1].sum()) <= self.doubt

    def allowed(self, n: int) -> int:
        """Give the most bad claims of n that still show it; -1: not even none does."""
        return int((np.cumsum(binomial(n, self.share)) <= self.doubt).sum()) - 1

    def more(self, n: int, bad: int) -> int | None:
        """Say how many more reviews it takes if as many of them are bad as were; None: no number does."""
        seen = bad / n
        if seen >= self.share:
            return None
        few, enough = n, 2 * n
        while not self.shown(enough, math.ceil(enough * seen)):
            if enough > FAR:
                return None
            few, enough = enough, 2 * enough
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if self.shown(middle, math.ceil(middle * seen)) else (middle, enough)
        return enough - n


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """One set of a walk."""

    within: Bools
    """The reviewed claims in it."""
    last: int
    """The place of its loosest claim."""
    n: int
    """How many of them count: one a patient, each with the same chance."""
    bad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """How far a walk came."""

    shown: Tested | None = None
    """The loosest set that was shown."""
    failed: Tested | None = None
    """The set at which the walk ended; None where it ran out of reviews."""

    def more(self, target: Target) -> int | None:
        """Say how many more reviews the strictest set takes."""
        if self.shown is not None:
            return 0
        return target.first if self.failed is None else target.more(self.failed.n, self.failed.bad)


def certify_precision(drawn: Drawn, *, precision: float = PRECISION, doubt: float = DOUBT) -> Certificate:
    """Find how far up claims may be called mislabelled so that at least `precision` of them are wrong."""
    target = Target(share=1 - precision, doubt=doubt)
    walk = _walk(drawn, drawn.trust, ~drawn.wrong, target)
    tested = walk.shown or walk.failed
    n, errors = (0, 0) if tested is None else (tested.n, tested.n - tested.bad)
    if walk.shown:
        words = f"certified precision {precision:.0%}, doubt {doubt:.0%}: {errors} of {n} reviewed flags were errors"
    else:
        size = max(n, target.fewest) if n else target.first
        words = (
            f"nothing is certified at precision {precision:.0%} by {several(drawn.patients, 'reviewed patient')}: "
            f"of the {size} with the lowest trust at least {size - target.allowed(size)} must be errors"
            + (f", and {several(errors, 'is', 'are')}" if size == n else "")
        )
    return Certificate(
        promise="precision",
        level=precision,
        doubt=doubt,
        cut=None if walk.shown is None else float(drawn.trust[walk.shown.last]),
        reviewed=n,
        wrong=errors,
        more=walk.more(target),
        population=drawn.population(tested.within if tested else drawn.every),
        words=words,
    )


def certify_trusted(drawn: Drawn, *, errors: float = ERROR_SHARE, doubt: float = DOUBT) -> Certificate:
    """Find how far down claims may be trusted so that at most `errors` of them are wrong."""
    target = Target(share=errors, doubt=doubt)
    walk = _walk(drawn, -drawn.trust, drawn.wrong, target)
    tested = walk.shown or walk.failed
    n, wrong = (0, 0) if tested is None else (tested.n, tested.bad)
    cut = None if walk.shown is None else float(drawn.trust[walk.shown.last])
    if cut is not None:
        words = (
            f"certified error share {errors:.0%} from trust {cut:.2f} on, doubt {doubt:.0%}: {wrong} of {n} were wrong"
        )
    else:
        of = f"of the {n:,} most trusted {several(wrong, 'was', 'were')} wrong"
        takes = f"at most {target.allowed(n)} may be" if n >= target.fewest else f"it takes {target.fewest} with none"
        words = f"no trust is certified at an error share of {errors:.0%}: {of}, and {takes}"
    return Certificate(
        promise="trusted_above",
        level=errors,
        doubt=doubt,
        cut=cut,
        reviewed=n,
        wrong=wrong,
        more=walk.more(target),
        population=drawn.population(tested.within if tested else drawn.every),
        words=words,
    )


def bound_errors(drawn: Drawn, cut: float, *, doubt: float = DOUBT) -> Certificate:
    """Say what share of the claims from a cut on is wrong at most; no verdict may have chosen the cut."""
    within = drawn.trust >= cut
    fair = drawn.fair(within)
    n, wrong = int(fair.sum()), int(drawn.wrong[fair].sum())
    bound = clopper_pearson(wrong, n, 1 - 2 * doubt)[1] if wrong < n else 1.0
    told = f"{wrong} of {n} reviewed ones {'was' if wrong == 1 else 'were'}"
    if bound < 1:
        words = f"at most {math.ceil(1000 * bound) / 10:g}% of trusted claims are wrong, doubt {doubt:.0%}: {told}"
    else:
        words = f"nothing is certified of trusted claims: {told} wrong"
    return Certificate(
        promise="trusted",
        level=bound,
        doubt=doubt,
        cut=cut if bound < 1 else None,
        reviewed=n,
        wrong=wrong,
        more=0 if bound < 1 else 1,
        population=drawn.population(within),
        words=words,
    )


def _walk(drawn: Drawn, strictness: Floats, bad: Bools, target: Target) -> Walk:
    """Walk from strict to loose until a set is not shown, or the reviews run out."""
    first = max(1, min(target.first, int(drawn.fair(drawn.every).sum())))
    order = np.argsort(strictness, kind="stable")
    shown = None
    for count in _counts(first, len(drawn)):
        last = int(order[count - 1])
        within = strictness <= strictness[last]  # claims that tie are flagged together, so they are tested together
        fair = drawn.fair(within)
        tested = Tested(within=within, last=last, n=int(fair.sum()), bad=int(bad[fair].sum()))
        if tested.n < first:
            continue  # too few patients, or thinned too far: that says nothing of their errors
        if not target.shown(tested.n, tested.bad):
            return Walk(shown=shown, failed=tested)
        shown = tested
    return Walk(shown=shown)


def _counts(first: int, most: int) -> list[int]:
    """Give the sizes of the sets, each so many times the last; the loosest has all reviewed claims."""
    counts = [first]
    while counts[-1] < most:
        counts.append(min(math.ceil(counts[-1] * WIDER), most))
    return counts if first <= most else []
