"""Learn-then-Test: how far a set of claims may be widened while a binomial test still shows how few of it are bad."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bpals.signal.bounds import binomial, clopper_pearson
from bpals.text import several

# A certificate: what is promised of a set of claims, for whom, on how many reviews; or what it would take.

Promise = Literal["precision", "trusted", "trusted_above", "misses", "discoveries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A promise about the claims of one finding and direction on one side of a cut; each has its own doubt."""

    promise: Promise
    """`precision`: of the claims up to the cut at least `level` are wrong. `trusted`, `trusted_above`: from the cut on
    at most `level` are. `misses`: at most `level` of the wrong claims lie above the cut. `discoveries`: of the list of
    claims up to the cut at most `level` are right."""
    level: float
    doubt: float | None
    """The chance that the reviews were so unlucky that the promise is broken; None: it holds on average."""
    cut: float | None
    """The trust that divides; None: nothing is certified."""
    reviewed: int
    """Reviewed claims that the promise rests on: one a patient, each with the same chance to be among them."""
    wrong: int
    """How many of those are wrong."""
    more: int | None
    """About how many more reviews it takes; 0 if certified, None if more of what was seen would not do it, or if fewer
    claims are left."""
    population: str
    """Which claims it is a promise about."""
    words: str

    @property
    def certified(self) -> bool:
        """Whether the promise is made."""
        return self.cut is not None


# Reviewed claims of one finding and direction, and how they were drawn: what every guarantee rests on.
#
# A guarantee carries over from the reviewed to the other claims if both were drawn alike. Claims that were chosen because
# they looked suspect are thinned until each had the same chance to be kept: a claim drawn with chance c stays with chance
# m / c, where m is the smallest c of those in question. Films of a patient are alike, so then one claim a patient stays.
# What is left is a uniform sample of the claims whose chance was at least m, and every textbook test holds on it.

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

SEED = 1
"""Which of a patient's claims stands for it, and which of the targeted ones stay, is drawn by lot, and always alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The films on which experts read one finding, a place in each array a film."""

    images: Ints
    wrong: Bools
    """Whether what they settled on is not what is claimed."""
    patient: Ints
    inclusion: Floats | None = None
    """The chance with which each was drawn to be read; None where it is not known of all."""

    def among(self, here: Bools, trust: Floats, split: Floats) -> tuple[Ints, Drawn]:
        """Give the films that make a claim, `here`, and what was read of them."""
        kept = here[self.images]
        rows = self.images[kept]
        return rows, Drawn(
            trust=trust[rows],
            wrong=self.wrong[kept],
            patient=self.patient[kept],
            inclusion=None if self.inclusion is None else self.inclusion[kept],
            split=split[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Reviewed claims, a place in each array a claim."""

    trust: Floats
    """Made without the claim's own review."""
    wrong: Bools
    patient: Ints | None = None
    """None: each claim is of another patient."""
    inclusion: Floats | None = None
    """The chance with which each was drawn to be read; None: nobody knows, so they stand for claims like themselves."""
    split: Floats | None = None
    """1 where readers would probably split over it, 0 where not, NaN where nobody knows."""

    def __len__(self) -> int:
        return len(self.trust)

    @property
    def every(self) -> Bools:
        """All of them, as a choice among them."""
        return np.ones(len(self), dtype=bool)

    @property
    def patients(self) -> int:
        """How many patients were reviewed."""
        return len(self) if self.patient is None else len(np.unique(self.patient))

    def take(self, places: Bools | Ints) -> Drawn:
        """Keep some of the claims."""
        return Drawn(
            trust=self.trust[places],
            wrong=self.wrong[places],
            patient=None if self.patient is None else self.patient[places],
            inclusion=None if self.inclusion is None else self.inclusion[places],
            split=None if self.split is None else self.split[places],
        )

    def fair(self, among: Bools, least: float | None = None) -> Bools:
        """Choose claims, of those in question, that are of different patients and had the same chance to be chosen."""
        lots = np.random.default_rng(SEED).random(len(self))
        kept = among
        if self.inclusion is not None and among.any():
            # A lot times the chance is even below the smallest chance, whatever the chance was: it can serve again.
            lots = lots * self.inclusion
            kept = among & (lots <= (self.inclusion[among].min() if least is None else least))
        if self.patient is None:
            return kept
        places = np.flatnonzero(kept)
        places = places[np.argsort(lots[places], kind="stable")]
        _, first = np.unique(self.patient[places], return_index=True)
        chosen = np.zeros(len(self), dtype=bool)
        chosen[places[first]] = True
        return chosen

    def population(self, among: Bools) -> str:
        """Say which claims the reviewed ones in question stand for."""
        if self.inclusion is None:
            return "claims on films like those that were read, one a patient"
        if not among.any():
            return "none: nothing was read there"
        least = self.inclusion[among].min()
        return f"claims that had a chance of at least {least:.2g} to be read, one a patient"


# Conformal risk control of misses: how far up claims must be read so that few of the wrong ones are left out.
#
# On the reviewed claims that are wrong, a cut leaves out those with more trust. A wrong claim that was not reviewed is as
# likely to lie at any place among them, so the expected share that is left out is at most (left out + 1) / (wrong + 1).

MISSED = 0.1
"""The share of the wrong claims that may be left out, on average."""


def control_misses(drawn: Drawn, *, missed: float = MISSED) -> Certificate:
    """Find the lowest trust up to which claims must be read so that at most `missed` of the wrong ones are left out."""
    least = None if drawn.inclusion is None or not len(drawn) else float(drawn.inclusion.min())
    trust = np.sort(drawn.trust[drawn.fair(drawn.wrong, least)])
    known, needed = len(trust), math.ceil(1 / missed - 1 - 1e-9)
    left_out = math.floor(missed * (known + 1) + 1e-9) - 1
    cut = float(trust[known - 1 - left_out]) if left_out >= 0 else None
    fair = drawn.fair(drawn.every)
    more = 0
    if cut is not None:
        words = f"reading up to trust {cut:.2f} leaves out at most {missed:.0%} of the errors on average: {known} known"
    else:
        rate = (known + 0.5) / (int(fair.sum()) + 1)
        more = math.ceil((needed - known) / rate)
        words = (
            f"misses of {missed:.0%} take {needed} reviewed errors, and there are {known}: "
            f"about {more:,} more reviews at the share of errors seen"
        )
    return Certificate(
        promise="misses",
        level=missed,
        doubt=None,
        cut=cut,
        reviewed=int(fair.sum()),
        wrong=known,
        more=more,
        population=drawn.population(drawn.every),
        words=words,
    )


# Conformal selection (Jin and Candes): a list of claims of which, on average, at most a share is right after all.
#
# Each candidate is held against the reviewed claims that are right: its p-value is the share of all reviewed claims that
# are right and no more trusted than it, with itself counted in. Benjamini and Hochberg's rule makes the list.

FALSE_SHARE = 0.2
"""The share of a list that may be right after all, on average."""


def p_values(drawn: Drawn, candidates: Floats) -> Floats:
    """Give each candidate's p-value against the reviewed claims; `candidates` are trusts."""
    right = np.sort(drawn.trust[~drawn.wrong])
    return np.asarray((1 + np.searchsorted(right, candidates, side="right")) / (len(drawn) + 1))


def control_discoveries(drawn: Drawn, candidates: Floats, *, false_share: float = FALSE_SHARE) -> Certificate:
    """List the unreviewed claims with the lowest trust so that on average at most `false_share` of them are right."""
    kept = drawn.take(drawn.fair(drawn.every))
    p = np.sort(p_values(kept, candidates))
    passing = np.flatnonzero(p <= false_share * np.arange(1, len(p) + 1) / max(1, len(p)))
    listed = int(passing[-1]) + 1 if len(passing) else 0
    cut = float(np.sort(candidates)[listed - 1]) if listed else None
    more = 0 if listed else _more(kept, candidates, false_share)
    if listed:
        those = several(listed, "claim is", "claims are")
        words = f"{those} listed, of which on average at most {false_share:.0%} are right after all"
    elif more is None:
        words = (
            f"no list is certified at {false_share:.0%}: no claim has less trust than every reviewed one that is right"
        )
    else:
        words = (
            f"no list is certified at {false_share:.0%} by {len(kept)} reviewed patients: it takes about {more:,} more"
        )
    return Certificate(
        promise="discoveries",
        level=false_share,
        doubt=None,
        cut=cut,
        reviewed=len(kept),
        wrong=int(kept.wrong.sum()),
        more=more,
        population=drawn.population(drawn.every),
        words=words,
    )


def _more(drawn: Drawn, candidates: Floats, false_share: float) -> int | None:
    """Say how many more reviews would list the candidates with less trust than all reviewed claims that are right."""
    right = drawn.trust[~drawn.wrong]
    ahead = int((candidates < right.min()).sum()) if len(right) else len(candidates)
    return math.ceil(len(candidates) / (false_share * ahead)) - 1 - len(drawn) if ahead else None


# Learn-then-Test: how far a set of claims may be widened while a binomial test still shows how few of it are bad.
#
# Sets are walked from strict to loose: the claims up to the n-th reviewed one, for numbers n that are fixed beforehand;
# with fewer reviews than the strictest set takes all are one set, for how many there are says nothing of their errors.
# The walk stops at the first set that is not shown, and the last that was is used. So each is tested with the whole
# doubt, and looking at many costs nothing. Where claims with less trust are wrong at least as often, a set with too many
# bad claims is certified with a chance of at most the doubt. Where they are not, the same holds of claims with the trusts
# that were reviewed.

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
