"""Refitting: a known shift comes back from a small random sample, and the sample is answered by its others."""

import numpy as np
import pytest

from bpals.signal.learn import Reviewed
from bpals.signal.pairs import sigmoid
from bpals.signal.refit import BOTH, EACH, refit, shifts


@pytest.fixture
def sampled():
    """Films whose true logit is shifted by so much, for presences and for absences, and a random sample of them."""

    def sampled(presence, absence, *, films=3000, count=200, seed=0):
        draw = np.random.default_rng(seed)
        z, said = draw.normal(-1, 1.5, films), (draw.random(films) < 0.4).astype(float)
        truth = sigmoid(z + np.where(said == 1, presence, absence))
        rows = draw.choice(films, count, replace=False)
        sample = Reviewed(
            rows=rows,
            present=(draw.random(count) < truth[rows]).astype(float),
            weight=np.ones(count),
            fold=rows % 5,
        )
        return z, said, sample, truth

    return sampled


def test_a_known_shift_comes_back(sampled):
    """From 200 films, on average over twenty samples, but for the hold; and from many films to a tenth."""
    found = np.mean([shifts(*sampled(1.2, 1.2, seed=seed)[:3]) for seed in range(20)], axis=0)
    assert found == pytest.approx([1.2, 1.2], abs=0.2)
    many = shifts(*sampled(-0.8, -0.8, films=60_000, count=40_000)[:3])
    assert many == pytest.approx([-0.8, -0.8], abs=0.1)


def test_the_directions_have_a_little_of_their_own(sampled):
    """Opposite shifts are found with many films, and held together with few."""
    few = np.mean([shifts(*sampled(0.6, -0.6, seed=seed)[:3]) for seed in range(20)], axis=0)
    many = shifts(*sampled(0.6, -0.6, films=60_000, count=40_000)[:3])
    assert many == pytest.approx([0.6, -0.6], abs=0.1)
    assert few[0] - few[1] < 1.1
    assert few[0] > 0.1 > -0.1 > few[1]
    assert EACH < BOTH


def test_a_sample_of_nobody_moves_nothing(sampled):
    """To the last bit."""
    z, said, sample, _ = sampled(1.0, 1.0)
    assert (refit(z, said, sample.without(frozenset(range(5)))) == z).all()


def test_films_without_a_definite_claim_move_by_the_mean(sampled):
    """Between what presences and absences do."""
    z, said, sample, _ = sampled(1.0, 1.0)
    said[:10] = 0.5
    outside = np.setdiff1d(np.arange(3000), sample.rows)
    presence, absence = shifts(z, said, sample)
    moved = (refit(z, said, sample) - z)[outside]
    claimed = said[outside]
    assert moved[claimed == 1] == pytest.approx(presence)
    assert moved[claimed == 0] == pytest.approx(absence)
    assert moved[claimed == 0.5] == pytest.approx((presence + absence) / 2)


def test_the_films_of_the_sample_are_cross_fitted(sampled):
    """Flip one verdict: the logits of its own patients' fold are the same to the last bit, all others move."""
    z, said, sample, _ = sampled(1.0, 0.5)
    before = refit(z, said, sample)
    for place in (0, 57, 133):
        present = sample.present.copy()
        present[place] = 1 - present[place]
        after = refit(z, said, Reviewed(rows=sample.rows, present=present, weight=sample.weight, fold=sample.fold))
        own = sample.rows[sample.fold == sample.fold[place]]
        assert (after[own] == before[own]).all()
        assert (np.delete(after, own) != np.delete(before, own)).all()


def test_where_nothing_shifted_the_refit_costs_little(sampled):
    """The mean probability moves by hundredths, and where something did it comes nearer."""
    still, shifted = [], []
    for seed in range(20):
        z, said, sample, truth = sampled(0.0, 0.0, seed=seed)
        still.append(np.abs(sigmoid(refit(z, said, sample)) - truth).mean())
        z, said, sample, truth = sampled(1.0, 1.0, seed=seed)
        shifted.append(np.abs(sigmoid(refit(z, said, sample)) - truth).mean() / np.abs(sigmoid(z) - truth).mean())
    assert np.mean(still) < 0.03
    assert np.mean(shifted) < 0.3
