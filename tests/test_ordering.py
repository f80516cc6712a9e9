"""The order of numbers is that of numpy's stable argsort, place by place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bpals.numeric import order


@pytest.fixture(scope="module")
def draw():
    """Seeded."""
    return np.random.default_rng(0)


@given(arrays(np.float64, st.integers(0, 60), elements=st.floats(allow_nan=False)))
@settings(max_examples=200, deadline=None)
def test_any_numbers_are_put_in_their_order(values):
    """Infinities, both zeros and numbers too large or too small for 32 bits among them."""
    assert (order(values) == np.argsort(values, kind="stable")).all()


@pytest.mark.parametrize("decimals", [1, 6, 7, 8, 17])
def test_equals_keep_their_places_and_near_ones_are_told_apart(draw, decimals):
    """Fifty thousand numbers, some of which differ only beyond what 32 bits can hold."""
    values = draw.normal(size=50_000).round(decimals)
    values[::7] = values[3] + draw.integers(0, 5, len(values[::7])) * 1e-12
    assert (order(values) == np.argsort(values, kind="stable")).all()
