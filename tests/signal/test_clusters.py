"""Pairs that come in clusters."""

import numpy as np
import polars as pl
import pytest

from bpals.signal.clusters import design_effect, widened


def test_pairs_that_err_alone_count_one_by_one():
    """Independent pairs of 500 films: the factor is near 1."""
    draw = np.random.default_rng(0)
    film = pl.Series(np.repeat(np.arange(500), 14))
    wrong = pl.Series(draw.random(7000) < 0.1)
    assert 1 <= design_effect(film, wrong) < 1.25


def test_a_film_that_is_wrong_as_a_whole_is_one_pair():
    """Where all 14 of a film err together the variance is 14 times as large."""
    draw = np.random.default_rng(0)
    film = pl.Series(np.repeat(np.arange(500), 14))
    wrong = pl.Series(np.repeat(draw.random(500) < 0.1, 14))
    assert design_effect(film, wrong) == pytest.approx(14, rel=0.05)


def test_without_an_error_a_film_says_no_more_than_one_pair():
    """Nothing can be seen of how errors go together, so the worst is taken; nothing read is no effect."""
    film = pl.Series(np.repeat(np.arange(20), 14))
    assert design_effect(film, pl.Series([False] * 280)) == 14
    assert design_effect(film.head(0), pl.Series([], dtype=pl.Boolean)) == 1
    assert design_effect(film.head(14), pl.Series([True, *[False] * 13])) == 14


@pytest.mark.parametrize("together", [0.0, 1.0])
def test_the_widened_interval_covers_where_errors_go_together(together):
    """200 samples of 60 films with 14 pairs each: the plain interval of the pairs misses often, the widened one not."""
    draw, rate, hits, plain = np.random.default_rng(1), 0.15, 0, 0
    for _ in range(200):
        whole = np.repeat(draw.random(60) < rate, 14)
        wrong = np.where(np.repeat(draw.random(60) < together, 14), whole, draw.random(840) < rate)
        share = wrong.mean()
        half = 1.96 * np.sqrt(share * (1 - share) / 840)
        effect = design_effect(pl.Series(np.repeat(np.arange(60), 14)), pl.Series(wrong))
        low, high = widened(share, share - half, share + half, effect)
        hits += low <= rate <= high
        plain += share - half <= rate <= share + half
    assert hits >= 180
    assert plain < 100 or not together
