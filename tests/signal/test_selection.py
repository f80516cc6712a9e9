"""Conformal selection: p-values worked out by hand, and a list whose share of false discoveries is held."""

import numpy as np
import pytest

from bpals.signal.drawn import Drawn
from bpals.signal.selection import FALSE_SHARE, control_discoveries, p_values
from world.words import mentions


def drawn(trust, wrong, **more):
    """Reviewed claims."""
    return Drawn(trust=np.asarray(trust, float), wrong=np.asarray(wrong, bool), **more)


def test_a_p_value_counts_the_right_claims_that_are_no_more_trusted():
    """Of four reviewed claims those at .3 and .6 are right: (1 + 0) / 5, (1 + 1) / 5, (1 + 2) / 5; ties count."""
    some = drawn([0.1, 0.3, 0.5, 0.6], [True, False, True, False])
    assert p_values(some, np.array([0.2, 0.3, 0.4, 0.7])) == pytest.approx([0.2, 0.4, 0.4, 0.6])


def test_the_list_is_that_of_benjamini_and_hochberg():
    """Nine wrong reviewed claims below one right one: candidates below it have p = .1, others .2."""
    some = drawn(np.linspace(0.1, 0.9, 9), np.arange(9) < 8)
    given = control_discoveries(some, np.array([0.2, 0.3, 0.95, 0.97]))
    assert given.cut == pytest.approx(0.97)
    assert mentions(given.words, "4", "at most 20%")
    stricter = control_discoveries(some, np.array([0.2, 0.3, 0.95, 0.97]), false_share=0.1)
    assert stricter.cut is None


def test_a_refusal_says_how_many_more_reviews_it_takes():
    """Ten of a thousand candidates lie below every right claim: p = 1 / (n + 1) must come down to .2 x 10 / 1000."""
    some = drawn(np.linspace(0, 1, 50), np.arange(50) < 5)
    candidates = np.append(np.full(10, 0.01), np.full(990, 0.9))
    refused = control_discoveries(some, candidates)
    assert refused.more == 500 - 1 - 50
    assert "it takes about 449 more" in refused.words
    assert control_discoveries(drawn(np.linspace(0, 1, 50), np.zeros(50)), candidates + 0.1).more is None


@pytest.mark.parametrize("candidates", [[], [0.1]])
def test_without_reviews_nothing_is_listed(candidates):
    """One over one is no small p-value."""
    assert not control_discoveries(drawn([], []), np.array(candidates)).certified


def test_the_share_of_false_discoveries_is_held_on_average():
    """Reviews that were aimed at low trust count by their chance; taken as they come they would list too much."""
    draw = np.random.default_rng(4)
    thinned, careless = [], []
    for _ in range(500):
        trust = draw.random(3000)
        odd = (trust * 20).astype(int) % 2 == 0
        wrong = draw.random(3000) < np.where(odd, (1 - trust) ** 0.5, (1 - trust) ** 4)
        inclusion = np.where(odd, 0.4, 0.05)
        read = draw.random(3000) < inclusion
        for shares, chances in ((thinned, inclusion[read]), (careless, None)):
            given = control_discoveries(drawn(trust[read], wrong[read], inclusion=chances), trust[~read])
            listed = np.zeros(3000, bool) if given.cut is None else ~read & (trust <= given.cut)
            shares.append((~wrong[listed]).mean() if listed.any() else 0.0)
    assert np.mean(thinned) <= FALSE_SHARE + 3 * np.std(thinned) / np.sqrt(500)
    assert np.mean(careless) > FALSE_SHARE + 0.05
