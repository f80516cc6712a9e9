"""The chances of counts, against scipy."""

import numpy as np
import pytest
from scipy import stats

from bpals.signal.chances import binomial, clopper_pearson, hypergeometric, of_reading


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (50, 0.002), (500, 0.03), (1000, 0.999), (7, 0.0), (7, 1.0)])
def test_binomial_chances_are_those_of_scipy(n, p):
    """Every count has its chance, also at shares of 0 and 1."""
    assert binomial(n, p) == pytest.approx(stats.binom(n, p).pmf(np.arange(n + 1)), abs=1e-12)


@pytest.mark.parametrize(("size", "wrong", "n"), [(30, 7, 10), (5606, 1500, 200), (100, 50, 99), (9, 0, 4), (9, 9, 4)])
def test_hypergeometric_chances_are_those_of_scipy(size, wrong, n):
    """Counts that cannot be have no chance, the others theirs."""
    assert hypergeometric(size, wrong, n) == pytest.approx(
        stats.hypergeom(size, wrong, n).pmf(np.arange(n + 1)), abs=1e-12
    )


@pytest.mark.parametrize(("size", "n", "p"), [(40, 20, 0.111), (40, 39, 0.5), (100_000, 300, 0.02), (5, 5, 0.5)])
def test_the_mean_count_is_the_share_of_what_is_read(size, n, p):
    """Also where the share is no whole number of claims."""
    chance = of_reading(size, n, p)
    assert chance.sum() == pytest.approx(1)
    assert chance @ np.arange(n + 1) == pytest.approx(n * p, rel=1e-9)


@pytest.mark.parametrize(("x", "n"), [(0, 50), (1, 50), (13, 300), (50, 50)])
def test_clopper_and_pearson_are_those_of_scipy(x, n):
    """The exact interval, ends included."""
    exact = stats.binomtest(x, n).proportion_ci(method="exact")
    assert clopper_pearson(x, n) == pytest.approx((exact.low, exact.high), abs=1e-9)
