"""Dependence: who calls alike, and who is wrong together."""

import numpy as np
import pytest

from bpals.score.intervals import Resamples, Resampling
from bpals.score.pairwise import MEAN, called, dependence
from world import made_judges

DRAWS = Resamples.of(np.arange(300), Resampling(draws=300))


def row_of(truth, a, b):
    """The row of one finding."""
    return dependence([made_judges.pairs(a, b, truth)], "labels", DRAWS)[0]


@pytest.fixture
def world():
    """600 films, a third with the finding; the two judges share half of their noise."""
    return made_judges.world()


def test_a_judge_and_its_copy_are_one_witness(world):
    """Error correlation 1, worth one judge; two that err apart are worth nearly two."""
    truth, a, _ = world
    copy = row_of(truth, a, a)
    assert copy["error_correlation"] == pytest.approx(1)
    assert copy["kappa"] == pytest.approx(1)
    assert copy["effective_judges"] == pytest.approx(1)
    other = row_of(truth, a, np.random.default_rng(5).random(600))
    assert other["error_correlation"] < 0.25
    assert other["effective_judges"] > 1.6


def test_shared_noise_shows_as_correlated_errors_with_an_interval(world):
    """Half of the noise is shared: clearly above 0, clearly below 1."""
    row = row_of(*world)
    assert 0 < row["error_correlation_low"] < row["error_correlation"] < row["error_correlation_high"] < 1
    for figure in ("kappa", "agreement"):
        assert row[f"{figure}_low"] < row[figure] < row[f"{figure}_high"]


def test_the_figures_are_those_of_the_textbook(world):
    """Agreement, Cohen's kappa and the correlation of errors, worked out the long way."""
    truth, a, b = world
    row = row_of(truth, a, b)
    one, other = (called(p, truth.sum()) for p in (a, b))
    alike = (one == other).mean()
    chance = one.mean() * other.mean() + (1 - one.mean()) * (1 - other.mean())
    assert row["agreement"] == pytest.approx(alike)
    assert row["kappa"] == pytest.approx((alike - chance) / (1 - chance))
    assert row["error_correlation"] == pytest.approx(np.corrcoef(one != truth, other != truth)[0, 1])


def test_several_findings_have_a_mean_whose_draws_are_shared(world):
    """The same finding twice has the interval of one."""
    truth, a, b = world
    several = [made_judges.pairs(a, b, truth, finding=name) for name in ("Effusion", "Edema")]
    rows = dependence(several, "labels", DRAWS)
    assert rows[-1]["finding"] == MEAN
    assert rows[-1]["findings"] == 2
    for end in ("", "_low", "_high"):
        assert rows[-1][f"error_correlation{end}"] == pytest.approx(rows[0][f"error_correlation{end}"])


def test_without_a_pair_there_is_no_figure_and_the_mean_leaves_it_out(world):
    """Null, not 0: a finding that B did not answer."""
    truth, a, b = world
    several = [made_judges.pairs(a, b, truth), made_judges.pairs(a, [None] * 600, truth, finding="Edema")]
    first, empty, mean = dependence(several, "labels", DRAWS)
    assert (empty["n"], empty["agreement"], empty["error_correlation_low"], empty["effective_judges"]) == (
        0,
        *[None] * 3,
    )
    assert mean["error_correlation"] == first["error_correlation"]
    assert mean["findings"] == 1
    assert dependence([], "labels", DRAWS) == []


def test_two_judges_without_an_error_have_no_correlation_of_errors():
    """They call alike, and nothing can be said of errors."""
    truth = np.arange(100) < 30
    row = row_of(truth, truth * 0.9, truth * 0.8)
    assert (row["agreement"], row["error_correlation"], row["effective_judges"]) == (1.0, None, None)


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (3, 3), (5, 6), (7, 7)])
def test_a_judge_calls_as_many_as_there_are(count, expected):
    """The highest first; a tie at the edge is called whole."""
    assert called(np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.1]), count).sum() == expected
