"""An interval for the share of wrong claims, from random reads of each stratum: it covers, and is narrow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The chances of counts: how many wrong claims a random read of some of them finds.
#
# Reading n claims of N without reading one twice makes the count hypergeometric, whoever the patients are: the draw is
# random, so nothing need be supposed about the claims. Where n is small beside N it is binomial.

Floats = NDArray[np.float64]

FEW = 0.01
"""Share of a stratum below which reading without replacement is treated as with: wider, by half of it at most."""


def binomial(n: int, p: float) -> Floats:
    """Give P(0), ..., P(n) wrong among n reads of claims that are wrong with chance p."""
    if p <= 0.0 or p >= 1.0 or n == 0:
        return np.asarray(np.arange(n + 1) == (0 if p <= 0.0 else n), dtype=np.float64)
    x = np.arange(n)
    return _from_ratios((n - x) / (x + 1.0) * (p / (1 - p)))


def hypergeometric(size: int, wrong: int, n: int) -> Floats:
    """Give P(0), ..., P(n) wrong among n of `size` claims, `wrong` of which are."""
    least, most = max(0, n - (size - wrong)), min(n, wrong)
    x = np.arange(least, most)
    chance = np.zeros(n + 1)
    chance[least : most + 1] = _from_ratios((wrong - x) * (n - x) / ((x + 1.0) * (size - wrong - n + x + 1.0)))
    return chance


def _from_ratios(ratios: Floats) -> Floats:
    """Make chances that add up to 1 of the ratio of each to the one before."""
    logs = np.concatenate(([0.0], np.cumsum(np.log(ratios))))
    chance = np.exp(logs - logs.max())
    return np.asarray(chance / chance.sum())


def of_reading(size: int, n: int, p: float) -> Floats:
    """Give P(0), ..., P(n) wrong when n of `size` claims are read, a share p of which is wrong.

    Between two whole numbers of wrong claims the two neighbours are mixed, which keeps the mean and widens a little.
    """
    if n <= FEW * size:
        return binomial(n, p)
    below = min(int(size * p), size)
    share = size * p - below
    chance = hypergeometric(size, below, n)
    if share > 1e-9 and below < size:
        chance = (1 - share) * chance + share * hypergeometric(size, below + 1, n)
    return chance


def clopper_pearson(x: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Give the interval of Clopper and Pearson for x of n: it never covers less than the level."""
    tail = (1 - level) / 2
    low = 0.0 if x == 0 else _where(lambda p: float(binomial(n, p)[x:].sum()) < tail)
    high = 1.0 if x == n else _where(lambda p: float(binomial(n, p)[: x + 1].sum()) > tail)
    return low, high


def _where(left: Callable[[float], bool]) -> float:
    """Find by halving where a condition on p that holds on the left stops to hold."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) else (low, middle)
    return (low + high) / 2


# An interval for the share of wrong claims, from random reads of each stratum: it covers, and is narrow.
#
# A share t0 is kept if what was seen is not too rare under it. The strata's own shares are those most likely to give
# what was seen among all that add up to t0; under them the chance of the estimate is added up over all that could have
# been read. There is nothing in it about patients: reads are drawn pair by pair, so films of one patient bias nothing.
#
# W_h  weights   share of all claims that lie in stratum h
# x_h  wrong     n_h  read     N_h  size

Floats = NDArray[np.float64]

KEPT_BACK = 0.2
"""Share of 1 - level that the two tests do not spend: it pays for the strata's shares, which are estimated."""
KEPT_BACK_FROM = 10.0
"""Expected errors from which all of that is kept back; with fewer, steps of whole errors leave room enough."""
LOW_TAIL_FROM = 20.0
"""Expected errors from which the lower test gets half of what is spent; with fewer the upper one gets more."""
NEGLIGIBLE = 1e-11
CELLS = 4096
MANY_CELLS = 32768
"""Steps of the lattice on which chances are added up, for three strata and for many."""
FEW_STRATA = 6
STEPS = 40
CLOSE = 2e-3
"""How near an end is found, as a share of its distance from the estimate."""
TINIEST = 1e-13


@dataclass(frozen=True, slots=True)
class Strata:
    """What was read of each stratum."""

    size: NDArray[np.int64]
    """Claims in the stratum."""
    read: NDArray[np.int64]
    """How many of them were drawn at random and settled by a read."""
    wrong: NDArray[np.int64]

    @classmethod
    def of(cls, size: ArrayLike, read: ArrayLike, wrong: ArrayLike) -> Strata:
        """Take sizes, reads and errors, a number a stratum."""
        return cls(*(np.asarray(column, dtype=np.int64) for column in (size, read, wrong)))

    @property
    def weights(self) -> Floats:
        """The share of all claims that each stratum holds."""
        return np.asarray(self.size / max(1, self.size.sum()))

    def take(self, chosen: NDArray[np.bool_]) -> Strata:
        """Keep some strata; the weights are then those among themselves."""
        return Strata(self.size[chosen], self.read[chosen], self.wrong[chosen])


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimated share with its interval; the share is None where nothing was read."""

    rate: float | None
    low: float
    high: float

    @property
    def width(self) -> float:
        """High minus low."""
        return self.high - self.low


def interval(strata: Strata, level: float = 0.95) -> Interval:
    """Estimate the share of wrong claims over all strata, with an interval.

    A stratum that was read whole is known; one of which nothing was read may be all right or all wrong.
    """
    held = strata.take(strata.size > 0)
    weights, total = held.weights, held.size.sum()
    known, unread = held.read == held.size, (held.read == 0) & (held.size > 0)
    sure = float(held.wrong[known].sum() / max(1, total))
    unknown = float(weights[unread].sum())
    seen = held.read > 0
    shares = held.wrong[seen] / held.read[seen]
    rate = float(weights[seen] @ shares / weights[seen].sum()) if seen.any() else None
    part = ~known & ~unread
    if not part.any():
        return Interval(rate, sure, sure + unknown)
    test = _Test(held.take(part), weights[part], sure, int(held.read.sum()), 1 - level)
    return Interval(rate, test.low(), min(1.0, test.high() + unknown))


@dataclass(frozen=True, slots=True)
class _Test:
    """The test that is inverted, over the strata that were read in part."""

    strata: Strata
    weights: Floats
    sure: float
    reads: int
    miss: float
    """1 - level."""

    def shares(self, pull: float) -> Floats:
        """Give the likeliest shares under a pull on their sum: up where it is negative, down where positive.

        With q = pull W they solve q p^2 - (q + n) p + x = 0; n counts for more where a stratum is nearly read whole.
        """
        size, read, wrong = self.strata.size, self.strata.read, self.strata.wrong
        n = read * size / (size - read)
        x = wrong / read * n
        q = pull * self.weights
        root = np.sqrt(np.maximum((q + n) ** 2 - 4 * q * x, 0.0))
        above = np.where(q + n >= 0, 2 * x, q + n - root)
        below = np.where(q + n >= 0, q + n + root, 2 * q)
        p = np.divide(above, below, out=np.zeros_like(q), where=below != 0)
        return np.clip(p, wrong / size, 1 - (read - wrong) / size)

    def tails(self, shares: Floats) -> tuple[float, float]:
        """Give P(T <= t) and P(T >= t) for the estimate T under these shares, t being the one that was made."""
        chances = [of_reading(*row) for row in zip(self.strata.size, self.strata.read, shares, strict=True)]
        first = [int(np.argmax(chance > NEGLIGIBLE)) for chance in chances]
        last = [len(chance) - int(np.argmax(chance[::-1] > NEGLIGIBLE)) for chance in chances]
        unit = self.weights / self.strata.read
        cells = CELLS if len(unit) <= FEW_STRATA else MANY_CELLS
        span = float(sum(u * (b - a - 1) for u, a, b in zip(unit, first, last, strict=True)))
        step = max(span / (cells - 1 - len(unit)), 1e-15)
        lattice = [
            np.bincount(np.rint(np.arange(b - a) * (u / step)).astype(np.int64), weights=chance[a:b], minlength=cells)
            for chance, u, a, b in zip(chances, unit, first, last, strict=True)
        ]
        together = np.fft.irfft(np.prod(np.fft.rfft(lattice, axis=1), axis=0), n=cells)
        # Each stratum is rounded to a cell; half a cell each, or five standard deviations of their sum, is allowed for.
        slack = min(len(unit) / 2, 1.5 * np.sqrt(len(unit))) + 1e-6
        at = float(unit @ (self.strata.wrong - first)) / step
        upto, since = int(np.floor(at + slack)), int(np.ceil(at - slack))
        at_most = float(together[: max(0, upto + 1)].sum())
        at_least = float(together[max(0, since) :].sum())
        return at_most, at_least

    def low(self) -> float:
        """The smallest share that is kept."""
        return self._edge(upward=False)

    def high(self) -> float:
        """The largest share that is kept."""
        return self._edge(upward=True)

    def _edge(self, *, upward: bool) -> float:
        """Pull until a share is dropped, then close in on where that happens; the dropped side is given."""
        sign = -1.0 if upward else 1.0
        kept, margin = 0.0, self._margin(0.0, upward=upward)
        lost = self._first_pull()
        while (excess := self._margin(sign * lost, upward=upward)) > 0:
            if self._ends(sign * lost, upward=upward):
                return self._sum(sign * lost)
            kept, margin, lost = lost, excess, lost * 2
        for step in range(STEPS):
            end = self._sum(sign * lost)
            if abs(self._sum(sign * kept) - end) <= CLOSE * abs(end - self._sum(0.0)):
                break
            share = margin / (margin - excess) if step % 4 < 3 else 0.5
            middle = kept + (lost - kept) * min(max(share, 0.01), 0.99)
            found = self._margin(sign * middle, upward=upward)
            # The side that stays counts half from then on (Illinois), or it might stay for ever.
            if found > 0:
                kept, margin, excess = middle, found, excess / 2
            else:
                lost, excess, margin = middle, found, margin / 2
        return self._sum(sign * lost)

    def _first_pull(self) -> float:
        """Give the pull that moves the sum by two and a half standard errors or so."""
        read, wrong = self.strata.read, self.strata.wrong
        p = (wrong + 0.5) / (read + 1)
        return 2.5 / float(np.sqrt(np.sum(self.weights**2 * p * (1 - p) / read)))

    def _sum(self, pull: float) -> float:
        return self.sure + float(self.weights @ self.shares(pull))

    def _ends(self, pull: float, *, upward: bool) -> bool:
        """Say whether the shares have come to where reads forbid more; further pulling changes nothing."""
        size, read, wrong = self.strata.size, self.strata.read, self.strata.wrong
        most = 1 - (read - wrong) / size if upward else wrong / size
        return bool(np.allclose(self.shares(pull), most, rtol=0, atol=1e-7))

    def _margin(self, pull: float, *, upward: bool) -> float:
        """Say by how much the share under a pull is kept: the logarithm of its tail over what the tail must exceed."""
        at_most, at_least = self.tails(self.shares(pull))
        errors = self.reads * self._sum(pull)
        spent = self.miss * (1 - KEPT_BACK * min(1.0, errors / KEPT_BACK_FROM))
        for_low = spent / 2 * min(1.0, errors / LOW_TAIL_FROM)
        tail, needed = (at_most, spent - for_low) if upward else (at_least, for_low)
        return float(np.log(max(tail, TINIEST)) - np.log(max(needed, TINIEST)))
