"""Miss control: how far one must read, and how many errors must be known to say so."""

import numpy as np
import pytest

from bpals.signal.drawn import Drawn
from bpals.signal.misses import control_misses
from world.words import mentions


def control(trust, wrong, missed=0.1, **more):
    """A certificate of misses."""
    return control_misses(Drawn(trust=np.asarray(trust, float), wrong=np.asarray(wrong, bool), **more), missed=missed)


@pytest.mark.parametrize(("errors", "certified"), [(8, False), (9, True)])
def test_it_takes_one_over_the_level_minus_one_errors(errors, certified):
    """For a tenth of the errors to be missed nine must be known: then one reads up to the last of them."""
    given = control(np.linspace(0.1, 0.9, errors), np.ones(errors))
    assert given.certified is certified
    assert given.cut == (pytest.approx(0.9) if certified else None)


def test_with_many_errors_a_tenth_may_be_left_out():
    """Of 99 errors (9 + 1) / 100 is a tenth: nine are left out, not ten."""
    assert control(np.arange(99) / 100, np.ones(99)).cut == pytest.approx(0.89)
    assert control(np.arange(98) / 100, np.ones(98)).cut == pytest.approx(0.89)


def test_errors_that_tie_with_the_cut_are_read():
    """So a tie never counts as left out."""
    assert control(np.full(50, 0.3), np.ones(50)).cut == pytest.approx(0.3)


def test_a_refusal_says_how_many_errors_and_reviews_it_takes():
    """Four errors in a hundred reviews: five more, which at that rate is about 112 reviews."""
    refused = control(np.linspace(0, 1, 100), np.arange(100) < 4)
    assert refused.more == 113
    assert mentions(refused.words, "10%", "9", "4", "113 more")


def test_without_a_review_it_is_refused():
    """And the words still say what it takes."""
    refused = control([], [])
    assert not refused.certified
    assert mentions(refused.words, "9", "there are 0")


def test_errors_of_a_patient_count_once():
    """Twelve errors of three patients are three."""
    refused = control(np.linspace(0, 1, 12), np.ones(12), patient=np.arange(12) % 3)
    assert (refused.certified, refused.wrong) == (False, 3)


def test_targeted_errors_count_by_their_chance():
    """Ten errors drawn ten times as often as the least are worth one; with the least among them they are two."""
    trust = np.linspace(0.1, 0.5, 10)
    assert control(trust, np.ones(10), inclusion=np.full(10, 0.5)).certified
    likely = control(np.append(trust, 0.9), np.ones(11), inclusion=np.append(np.full(10, 0.5), 0.05))
    assert not likely.certified


def test_the_share_left_out_is_at_most_the_level_on_average():
    """Targeted at low trust, where errors are, the reviews miss what lies above; the weights make up for it."""
    draw = np.random.default_rng(3)
    even, chosen, careless = [], [], []
    for _ in range(600):
        trust = draw.beta(2, 3, size=2000)
        inclusion = np.where(trust < 0.4, 0.1, 0.02)
        read = draw.random(2000) < inclusion
        given = control(trust[read], np.ones(read.sum()), inclusion=inclusion[read])
        chosen.append((trust > given.cut).mean())
        careless.append((trust > control(trust[read], np.ones(read.sum())).cut).mean())
        plain = draw.random(2000) < 0.02
        even.append((trust > control(trust[plain], np.ones(plain.sum())).cut).mean())
    assert np.mean(even) <= 0.1 + 3 * np.std(even) / np.sqrt(600)
    assert np.mean(chosen) <= 0.1 + 3 * np.std(chosen) / np.sqrt(600)
    assert np.mean(careless) > 0.15
