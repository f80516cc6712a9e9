"""The chances of counts: how many wrong claims a random read of some of them finds.

Reading n claims of N without reading one twice makes the count hypergeometric, whoever the patients are: the draw is
random, so nothing need be supposed about the claims. Where n is small beside N it is binomial.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
