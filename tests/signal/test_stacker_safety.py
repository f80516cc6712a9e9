"""Reviews do not harm on made-up datasets like NIH's: the benchmark in short."""

import functools
import runpy

import numpy as np
import pytest

import shape

BENCHMARK = runpy.run_path(str(shape.ROOT / "benchmarks" / "stacker_safety.py"))
REPETITIONS = 5
FILMS = 2000


@functools.cache
def found(reviews, **kind):
    """The gain in error AP and in log-loss."""
    return BENCHMARK["study"](BENCHMARK["Case"](reviews, films=FILMS, **kind), REPETITIONS, seed=1)


def test_without_a_review_nothing_moves():
    """Not one trust, to the last bit."""
    assert found(0) == ((0, 0), (0, 0))


def test_a_handful_of_reviews_does_not_harm():
    """Learning begins with the first of them, and little moves."""
    for mean, error in found(30):
        assert mean + 3 * error >= 0
        assert mean > -0.02


@pytest.mark.parametrize(("reviews", "clean"), [(1000, False), (500, True)], ids=["noisy", "clean"])
def test_reviews_do_not_harm_by_more_than_noise(reviews, clean):
    """Neither the order of the claims nor the probability, on patients of whom nothing was reviewed."""
    for mean, error in found(reviews, three=True, clean=clean):
        assert mean + 3 * error >= 0
        assert mean > -0.02


def test_many_reviews_help():
    """The log-loss falls by hundredths, far beyond noise: the study is not one of a stacker that does nothing."""
    (_, _), (mean, error) = found(1000, three=True, clean=False)
    assert mean > 0.03
    assert mean > 3 * error


def test_the_study_would_see_harm():
    """Reviews whose verdicts are turned round are found unsafe."""
    case = BENCHMARK["Case"](1000, films=FILMS, three=True)
    rng = np.random.default_rng(3)
    gains = []
    for _ in range(3):
        world = BENCHMARK["make"](case, rng)
        before = BENCHMARK["_trust"](world, None)
        reviews = BENCHMARK["review"](case, world, before, rng)
        turned = {"present": "absent", "absent": "present", "uncertain": "uncertain"}
        table = reviews.table.with_columns(
            verdict=reviews.table["verdict"].cast(str).replace_strict(turned).cast(reviews.table["verdict"].dtype)
        )
        after = BENCHMARK["_trust"](world, BENCHMARK["Reviews"](table=table))
        place = BENCHMARK["THREE"][0]
        wrong = (world.claimed != world.shows)[world.kept_back, place]
        told = [BENCHMARK["_log_loss"](trust[world.kept_back, place], wrong) for trust in (before, after)]
        gains.append(told[0] - told[1])
    assert BENCHMARK["unsafe"]((np.mean(gains), np.std(gains, ddof=1) / np.sqrt(3)))
