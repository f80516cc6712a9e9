"""The figures of a scorecard, against scikit-learn and against sums done by hand."""

import numpy as np
import pytest

from bpals.metrics import Curve, Reliability, brier, mass_bins

pytestmark = pytest.mark.quick

sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is in the extra bpals[peers]")


def drawn(seed, n=300, levels=12):
    """Suspicions with many ties, errors that follow them, and four sets of weights."""
    rng = np.random.default_rng(seed)
    suspicion = rng.integers(0, levels, n) / levels
    error = rng.random(n) < suspicion * 0.6 + 0.05
    return suspicion, error, rng.integers(0, 4, (4, n)).astype(float)


@pytest.mark.parametrize("seed", range(5))
def test_the_auroc_is_that_of_scikit_learn(seed):
    """Ties and weights included, draw by draw."""
    suspicion, error, weights = drawn(seed)
    expected = [sklearn_metrics.roc_auc_score(error, suspicion, sample_weight=w) for w in weights]
    assert Curve.of(suspicion, error, weights).auroc() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_the_average_precision_is_that_of_scikit_learn(seed):
    """A group of ties is one threshold, so the order inside it cannot flatter."""
    suspicion, error, weights = drawn(seed)
    expected = [sklearn_metrics.average_precision_score(error, suspicion, sample_weight=w) for w in weights]
    assert Curve.of(suspicion, error, weights).average_precision() == pytest.approx(expected)


def test_a_weight_of_two_is_the_pair_twice():
    """Weights are counts of a bootstrap: nothing else than repeating the pair."""
    suspicion, error, weights = drawn(7)
    again = np.repeat(np.arange(len(error)), weights[0].astype(int))
    weighted, repeated = Curve.of(suspicion, error, weights[:1]), Curve.of(suspicion[again], error[again])
    assert weighted.auroc() == pytest.approx(repeated.auroc())
    assert weighted.average_precision() == pytest.approx(repeated.average_precision())
    assert weighted.found(0.1) == pytest.approx(repeated.found(0.1))


def test_errors_found_are_counted_from_the_most_suspect():
    """Reviewing 2 of 10 pairs finds the first and the second: one error of three."""
    suspicion = np.linspace(1, 0, 10)
    error = np.isin(np.arange(10), [0, 2, 9])
    curve = Curve.of(suspicion, error)
    assert curve.found(0.1)[0] == pytest.approx(1 / 3)
    assert curve.found(0.2)[0] == pytest.approx(1 / 3)
    assert curve.found(0.3)[0] == pytest.approx(2 / 3)
    assert curve.found(1.0)[0] == pytest.approx(1)


def test_inside_a_tie_the_review_finds_what_chance_would():
    """Four pairs tie at the top with two errors: reviewing one of them finds half an error."""
    suspicion = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    error = np.array([1, 0, 1, 0, 0, 1, 0, 0, 0, 0], bool)
    curve = Curve.of(suspicion, error)
    assert curve.caught(1.0)[0] == pytest.approx(0.5)
    assert curve.caught(4.0)[0] == pytest.approx(2.0)
    assert curve.caught(7.0)[0] == pytest.approx(2.5)
    assert curve.caught(99.0)[0] == pytest.approx(3.0)


def test_the_order_of_the_pairs_does_not_matter():
    """The same pairs shuffled give the same figures, ties or not."""
    suspicion, error, _ = drawn(3)
    shuffled = np.random.default_rng(0).permutation(len(error))
    one, two = Curve.of(suspicion, error), Curve.of(suspicion[shuffled], error[shuffled])
    assert one.auroc() == pytest.approx(two.auroc())
    assert one.average_precision() == pytest.approx(two.average_precision())
    assert one.found(0.05) == pytest.approx(two.found(0.05))


def test_without_errors_no_figure_is_defined():
    """A draw without a single error gives NaN, which the tables turn into null."""
    curve = Curve.of([0.3, 0.2], [False, True], [[1.0, 0.0], [1.0, 1.0]])
    assert np.isnan(curve.auroc()).tolist() == [True, False]
    assert np.isnan(curve.average_precision()).tolist() == [True, False]
    assert np.isnan(curve.found(0.1)).tolist() == [True, False]


def test_bins_hold_equal_mass_and_keep_ties_together():
    """A hundred different trusts make ten bins of ten; a constant makes one."""
    assert np.bincount(mass_bins(np.arange(100) / 100)).tolist() == [10] * 10
    assert set(mass_bins(np.full(50, 0.7))) == {0}
    tied = np.array([0.1] * 60 + [0.9] * 40)
    assert np.bincount(mass_bins(tied)).tolist() == [60, 40]


def test_the_calibration_error_is_the_mean_gap_of_the_bins():
    """Sixty pairs promised .1 and right half the time, forty promised .9 and always right."""
    trust = np.array([0.1] * 60 + [0.9] * 40)
    right = np.array([True, False] * 30 + [True] * 40)
    curve = Reliability.of(trust, right)
    assert curve.trust[0] == pytest.approx([0.1, 0.9])
    assert curve.right[0] == pytest.approx([0.5, 1.0])
    assert curve.ece()[0] == pytest.approx(0.6 * 0.4 + 0.4 * 0.1)


def test_the_brier_score_is_that_of_scikit_learn():
    """The mean squared distance, weighted."""
    trust, right, weights = drawn(11)
    expected = [sklearn_metrics.brier_score_loss(right, trust, sample_weight=w) for w in weights]
    assert brier(trust, right, weights) == pytest.approx(expected)
