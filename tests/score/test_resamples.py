"""The bootstrap over patients."""

import numpy as np
import pytest

from bpals.errors import UsageError
from bpals.score.intervals import Resamples, Resampling, interval


def test_the_films_of_a_patient_are_drawn_together():
    """Whoever is drawn twice brings each film twice."""
    patients = np.array([5, 5, 9, 5, 2])
    (weights,) = Resamples.of(patients, Resampling(draws=50, seed=1)).weights()
    assert weights.shape == (50, 5)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 0] == weights[:, 3]).all()
    assert (weights[:, [0, 2, 4]].sum(axis=1) == 3).all()


def test_the_same_seed_draws_the_same_patients():
    """A scorecard can be repeated; another seed gives other draws."""
    patients = np.arange(40)
    one, two, other = (Resamples.of(patients, Resampling(draws=9, seed=s)).counts for s in (3, 3, 4))
    assert (one == two).all()
    assert (one != other).any()


def test_a_part_of_the_pairs_keeps_its_draws():
    """So that differences between findings, and between methods, are paired."""
    resamples = Resamples.of(np.array([1, 2, 3, 1]), Resampling(draws=20, seed=0))
    (whole,), (part,) = resamples.weights(), resamples.take(np.array([True, False, False, True])).weights()
    assert (whole[:, [0, 3]] == part).all()


def test_the_interval_covers_the_mean_of_patients():
    """Of 200 samples of 40 patients with three alike films each, about 95 % have the true mean inside."""
    rng = np.random.default_rng(8)
    covered = 0
    for sample in range(200):
        value = np.repeat(rng.normal(size=40), 3)
        resamples = Resamples.of(np.repeat(np.arange(40), 3), Resampling(draws=300, seed=sample))
        means = np.concatenate([(w @ value) / w.sum(axis=1) for w in resamples.weights()])
        low, high = interval(means)
        covered += low <= 0 <= high
    assert 178 <= covered <= 199


def test_replicates_that_are_not_defined_are_left_out():
    """A draw without errors says nothing; no defined draw means no interval."""
    assert interval(np.array([np.nan, 1.0, 1.0])) == (1.0, 1.0)
    assert interval(np.array([np.nan])) == (None, None)


@pytest.mark.parametrize(("setting", "next_step"), [({"draws": 0}, "--bootstrap 1000"), ({"seed": -1}, "--seed 0")])
def test_a_resampling_that_cannot_be_is_refused(setting, next_step):
    """With what to type instead."""
    with pytest.raises(UsageError, match=next_step):
        Resampling(**setting)


def test_a_bootstrap_of_sums_is_one_product():
    """Adding up by patient first gives what weighing each pair gives; the first row is without a draw."""
    rng = np.random.default_rng(3)
    patients, value = rng.integers(0, 30, 200), rng.normal(size=200)
    resamples = Resamples.of(np.arange(30), Resampling(draws=40, seed=2))
    totals = resamples.totals(resamples.add_up(patients, [value, value > 0]))
    weights = resamples.counts[:, patients].astype(float)
    assert totals.shape == (41, 2)
    assert totals[0] == pytest.approx([value.sum(), (value > 0).sum()])
    assert totals[1:, 0] == pytest.approx(weights @ value)
    assert totals[1:, 1] == pytest.approx(weights @ (value > 0))


def test_patients_without_a_pair_add_nothing():
    """Draws over all patients serve a finding that few of them were read for."""
    resamples = Resamples.of(np.arange(30), Resampling(draws=5))
    sums = resamples.add_up(np.array([4, 4]), [np.array([1.0, 2.0])])
    assert (resamples.totals(sums)[1:, 0] == 3 * resamples.counts[:, 4]).all()
    assert (resamples.totals(np.zeros((30, 2))) == 0).all()
