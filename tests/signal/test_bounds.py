"""Tests of signal.bounds."""

import runpy

import numpy as np
import pytest
from scipy import stats

import shape
from bpals.signal.bounds import Strata, binomial, clopper_pearson, hypergeometric, interval, of_reading
from bpals.signal.strata import allocate

# The chances of counts, against scipy.


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


# The interval of a rate covers and is narrow; the long form of this is benchmarks/rate_coverage.py.

BENCH = runpy.run_path(str(shape.ROOT / "benchmarks" / "rate_coverage.py"))
SHARP, PATIENTS, SMALL, RARE, BLIND, *_ = BENCH["WORLDS"]
NIH = [5606, 10651, 95863]


@pytest.mark.parametrize(
    ("world", "rate", "reads", "widest"),
    [
        (SHARP, 0.002, 50, 1.0),
        (SHARP, 0.02, 300, 0.95),
        (SHARP, 0.15, 50, 1.0),
        (PATIENTS, 0.05, 100, 1.0),
        (SMALL, 0.05, 50, 1.0),
        (RARE, 0.02, 50, 1.05),
        (BLIND, 0.1, 50, 1.1),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_interval_covers_and_is_not_wider_than_clopper_and_pearson(world, rate, reads, widest):
    """500 repetitions: the coverage is not below .94 by more than three standard errors of 500 repetitions."""
    covered, width = BENCH["cell"](world, rate, reads, 500, 1)
    assert covered >= 0.94 - 3 * np.sqrt(0.94 * 0.06 / 500)
    assert width <= widest


def test_the_check_of_coverage_can_fail():
    """An interval that takes a stratum without errors to have no variance is found out by the same dice."""
    made = BENCH["make"](SHARP, 0.01, np.random.default_rng(1))
    counts = allocate(made.size, made.suspicion, 100)
    drawn = np.random.default_rng(2).hypergeometric(made.wrong, made.size - made.wrong, counts, size=(500, 3))
    weights, share = made.size / made.size.sum(), drawn / counts
    deviation = np.sqrt((weights**2 * share * (1 - share) / counts).sum(axis=1))
    assert (abs(share @ weights - made.rate) <= 1.96 * deviation).mean() < 0.85


def test_reading_everything_leaves_no_doubt():
    """All strata read whole: the rate is known."""
    told = interval(Strata.of([20, 100, 7], [20, 100, 7], [6, 12, 0]))
    assert told.rate == told.low == told.high == pytest.approx(18 / 127)


def test_the_interval_narrows_to_nothing_as_a_dataset_is_read():
    """The finite dataset is minded: 95 of 100 claims read leave little room."""
    widths = [
        interval(Strata.of([40, 60], [n // 5 * 2, n // 5 * 3], [n // 10, 0])).width for n in (20, 50, 80, 95, 100)
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[-2] < 0.06
    assert widths[-1] == 0


def test_the_interval_never_contradicts_what_was_seen():
    """Three errors among 100 claims are at least 3 %, and 37 right claims leave at most 63 %."""
    told = interval(Strata.of([50, 50], [20, 20], [3, 0]))
    assert 0.03 <= told.low <= told.rate <= told.high <= 0.63


def test_one_stratum_is_about_clopper_and_pearson():
    """Without strata the interval is near the exact one for a simple random sample."""
    told = interval(Strata.of([112_120], [300], [30]))
    low, high = clopper_pearson(30, 300)
    assert told.rate == pytest.approx(0.1)
    assert (told.low, told.high) == pytest.approx((low, high), abs=0.004)


def test_a_stratum_that_nobody_read_may_be_all_wrong():
    """Its whole weight stands between the two ends."""
    some = interval(Strata.of(NIH, [0, 150, 650], [0, 12, 3]))
    rest = interval(Strata.of(NIH[1:], [150, 650], [12, 3]))
    unread = NIH[0] / sum(NIH)
    assert some.high == pytest.approx(rest.high * (1 - unread) + unread, abs=1e-3)
    assert some.low == pytest.approx(rest.low * (1 - unread), abs=1e-3)
    assert interval(Strata.of([10], [0], [0])).rate is None


def test_more_errors_make_a_higher_interval():
    """Both ends rise with what is found."""
    told = [interval(Strata.of(NIH, [60, 60, 180], [x, 2, 0])) for x in (0, 5, 20, 60)]
    assert [t.low for t in told] == sorted(t.low for t in told)
    assert [t.high for t in told] == sorted(t.high for t in told)


def test_many_strata_are_pooled():
    """14 findings of three strata: about as wide as theory says, and around the estimate."""
    size, read, wrong = (np.tile(column, 14) for column in (NIH, [25, 25, 50], [8, 2, 1]))
    told = interval(Strata.of(size, read, wrong))
    weights, share = size / size.sum(), wrong / read
    deviation = np.sqrt((weights**2 * share * (1 - share) / read).sum())
    assert told.low < told.rate < told.high
    assert told.width == pytest.approx(3.92 * deviation, rel=0.1)


def test_a_lower_level_is_narrower():
    """80 % lies within 95 %."""
    counts = Strata.of(NIH, [60, 60, 180], [15, 4, 2])
    wide, narrow = interval(counts), interval(counts, 0.8)
    assert wide.low < narrow.low < narrow.high < wide.high
