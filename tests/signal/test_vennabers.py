"""Venn-Abers and isotonic regression, against brute force and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from bpals.signal.pairs import NORMAL_95, logit, sigmoid
from bpals.signal.vennabers import MOST_BINS, VennAbers, isotonic


def drawn(count, seed=0, *, ties=False, soft=False):
    """Scores and what was there."""
    draw = np.random.default_rng(seed)
    score = draw.normal(size=count) * 2
    score = np.round(score) if ties else score
    present = (draw.random(count) < sigmoid(score)).astype(float)
    return score, 0.1 + 0.7 * present if soft else present


@given(count=st.integers(1, 120), seed=st.integers(0, 500), ties=st.booleans(), soft=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_rising_curve_is_scikit_learn_s(count, seed, ties, soft):
    """With tied scores, and with truths known only in part."""
    score, present = drawn(count, seed, ties=ties, soft=soft)
    places, chance = isotonic(score, present)
    peer = IsotonicRegression().fit(score, present)
    assert (places == np.sort(score)).all()
    assert chance == pytest.approx(peer.predict(places), abs=1e-9)
    assert (np.diff(chance) >= 0).all()


@given(count=st.integers(1, 60), seed=st.integers(0, 500), ties=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_two_answers_are_those_of_two_refits(count, seed, ties):
    """At each score: isotonic regression with one more pair there, called absent, and called present."""
    score, present = drawn(count, seed, ties=ties)
    fitted = VennAbers.of(score, present)
    assert (fitted.centre == pytest.approx(np.unique(score))) if ties else len(fitted.centre) == count
    for place, at in enumerate(fitted.centre):
        for outcome, answer in ((0.0, fitted.low[place]), (1.0, fitted.high[place])):
            peer = IsotonicRegression().fit(np.append(score, at), np.append(present, outcome))
            assert answer == pytest.approx(peer.predict([at])[0], abs=1e-9)


@given(count=st.integers(1, 400), seed=st.integers(0, 500), ties=st.booleans(), soft=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_one_probability_lies_between_the_two(count, seed, ties, soft):
    """And both rise with the score."""
    fitted = VennAbers.of(*drawn(count, seed, ties=ties, soft=soft))
    assert (fitted.low <= fitted.p).all()
    assert (fitted.p <= fitted.high).all()
    assert (np.diff(fitted.low) >= -1e-12).all()
    assert (np.diff(fitted.high) >= -1e-12).all()
    assert len(fitted.centre) <= MOST_BINS


@given(seed=st.integers(0, 200), ties=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_pairs_does_not_matter(seed, ties):
    """Also where scores are equal, and where many are taken together."""
    score, present = drawn(300, seed, ties=ties)
    order = np.random.default_rng(seed).permutation(300)
    one, other = VennAbers.of(score, present), VennAbers.of(score[order], present[order])
    assert other.centre == pytest.approx(one.centre)
    assert other.p == pytest.approx(one.p)
    assert isotonic(score[order], present[order])[1] == pytest.approx(isotonic(score, present)[1])


def test_the_answers_come_nearer_with_more_pairs():
    """And the truth lies near them."""
    at = np.array([-1.0, 0.0, 1.0])
    spreads = [VennAbers.of(*drawn(count)).spread(at).mean() for count in (30, 300, 3000)]
    assert spreads == sorted(spreads, reverse=True)
    fitted = VennAbers.of(*drawn(3000))
    assert np.interp(at, fitted.centre, fitted.p) == pytest.approx(sigmoid(at), abs=0.1)


@given(count=st.integers(30, 400), seed=st.integers(0, 500))
@settings(max_examples=40, deadline=None)
def test_the_interval_is_about_as_wide_as_the_answers_lie_apart(count, seed):
    """Also where nothing came true and one of the answers is 0 or 1: it does not reach from end to end."""
    fitted = VennAbers.of(*drawn(count, seed))
    reach = NORMAL_95 * fitted.spread(fitted.centre)
    width = sigmoid(logit(fitted.p) + reach) - sigmoid(logit(fitted.p) - reach)
    apart = fitted.high - fitted.low
    assert (np.abs(width / apart - 1) < 0.2).all()
