"""The grid: fits on counts are the fits on films, to what the grid's places are apart."""

import numpy as np
import pytest

from bpals.signal.grid import Grid
from bpals.signal.pairs import sigmoid
from bpals.signal.ridge import newton


@pytest.fixture
def scored():
    """Five thousand scores, and what was there."""
    draw = np.random.default_rng(0)
    score = draw.normal(-1, 2, 5000)
    return score, draw.random(5000) < sigmoid(0.6 * score - 1)


def test_a_line_on_the_grid_is_nearly_the_exact_line(scored):
    """And so is its standard deviation."""
    score, present = scored
    line = Grid.of(score, present).line()
    rate = (present.sum() + 0.5) / (len(score) + 1)
    usual = np.log(rate / (1 - rate))
    inputs = np.stack([np.ones(5000), score], axis=1)
    exact, curvature = newton(inputs, usual + score, present.astype(float), np.array([0.1, 1.0]))
    assert line.intercept == pytest.approx(usual + exact[0], abs=1e-3)
    assert line.slope == pytest.approx(1 + exact[1], abs=1e-3)
    places = np.array([-4.0, 0.0, 3.0])
    wanted = [np.sqrt(np.array([1, at]) @ np.linalg.inv(curvature) @ np.array([1, at])) for at in places]
    assert line.spread(places) == pytest.approx(wanted, rel=0.01)
    assert line.slope == pytest.approx(0.6, abs=0.1)


def test_a_shift_on_the_grid_is_nearly_the_exact_shift(scored):
    """What makes logits right on average."""
    score, present = scored
    exact, _ = newton(np.ones((5000, 1)), score, present.astype(float), np.ones(1))
    assert Grid.of(score, present).shift(1.0) == pytest.approx(exact[0], abs=1e-3)


def test_scores_beyond_the_grid_count_as_its_end_and_keep_their_sum():
    """No film is lost."""
    grid = Grid.of(np.array([-500.0, 0.0, 700.0]), np.array([False, True, True]))
    assert grid.count.sum() == 3
    assert grid.hits.sum() == 2
    assert (grid.count * grid.centre).sum() == 200


def test_a_score_that_points_the_wrong_way_is_not_turned_round():
    """Its slope ends at 0: a judge that is against the claims is not heard, and not believed the other way round."""
    score = np.linspace(-3, 3, 400)
    assert Grid.of(score, score < 0).line().slope == 0
