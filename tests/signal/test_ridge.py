"""Ridge logistic regression: the minimum that others find too, and rows that count more."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from bpals.signal.pairs import sigmoid
from bpals.signal.ridge import newton


def drawn(seed=0, rows=200, columns=4):
    """Inputs, a start and what was there."""
    draw = np.random.default_rng(seed)
    inputs, start = draw.normal(size=(rows, columns)), draw.normal(size=rows)
    return inputs, start, (draw.random(rows) < 0.3).astype(float)


@given(
    seed=st.integers(0, 1000), columns=st.integers(1, 5), soft=st.booleans(), scale=st.sampled_from([0.1, 1.0, 30.0])
)
@settings(max_examples=40, deadline=None)
def test_the_fit_is_the_minimum(seed, columns, soft, scale):
    """The derivative of loss and ridge is zero where Newton stops, also for truths known only in part."""
    inputs, start, present = drawn(seed, columns=columns)
    inputs, start = scale * inputs, scale * start
    present = 0.1 + 0.8 * present if soft else present
    ridge, weight = np.full(columns, 3.0), np.random.default_rng(seed).uniform(0, 5, 200)
    weights, curvature = newton(inputs, start, present, ridge, weight)
    p = sigmoid(inputs @ weights + start)
    slope = inputs.T @ (weight * (p - present)) + ridge * weights
    assert np.linalg.solve(curvature, slope) == pytest.approx(np.zeros(columns), abs=1e-4)


def test_it_is_the_fit_of_scikit_learn():
    """Without a start, and with the same penalty on every column."""
    inputs, _, present = drawn(rows=400)
    weights, _ = newton(inputs, np.zeros(400), present, np.full(4, 2.0))
    peer = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=1000).fit(inputs, present)
    assert weights == pytest.approx(peer.coef_[0], abs=1e-5)


def test_a_row_of_weight_three_is_three_rows():
    """And one of weight 0 is none."""
    inputs, start, present = drawn(rows=60)
    times = np.arange(60) % 4
    heavy, curvature = newton(inputs, start, present, np.ones(4), times.astype(float))
    again = [np.repeat(each, times, axis=0) for each in (inputs, start, present)]
    repeated, same = newton(*again, np.ones(4))
    assert heavy == pytest.approx(repeated, abs=1e-6)
    assert curvature == pytest.approx(same, rel=1e-4)


def test_half_a_presence_is_a_presence_and_an_absence_of_half_the_weight():
    """A truth that is known only so far counts so far for both."""
    inputs, start, _ = drawn(rows=80)
    soft, _ = newton(inputs, start, np.full(80, 0.3), np.ones(4))
    both = [np.concatenate([each, each]) for each in (inputs, start)]
    sides = np.repeat([1.0, 0.0], 80)
    split, _ = newton(*both, sides, np.ones(4), np.where(sides == 1, 0.3, 0.7))
    assert soft == pytest.approx(split, abs=1e-6)


def test_classes_that_are_wholly_apart_do_not_run_away():
    """The ridge holds what the data would send to infinity."""
    inputs = np.linspace(-3, 3, 50)[:, None]
    weights, _ = newton(inputs, np.zeros(50), (inputs[:, 0] > 0).astype(float), np.ones(1))
    assert 1 < weights[0] < 20
