"""Presences and absences apart: curves that reviews allow, and that stand only where they help."""

import dataclasses

import numpy as np
import pytest

from bpals.signal.directions import FEW, MANY, Directions, Seen, directions
from bpals.signal.pairs import sigmoid
from bpals.signal.vennabers import VennAbers


def seen(count, rule, seed=0):
    """Reviewed claims of one direction whose true logit follows from a rule."""
    draw = np.random.default_rng(seed)
    z = draw.normal(0, 2, count)
    present = (draw.random(count) < sigmoid(rule(z))).astype(float)
    return Seen(z=z, present=present, weight=np.ones(count), fold=np.arange(count) % 5)


def too_sure(z):
    """The judge's logits are twice what they should be, and one too high."""
    return z / 2 - 1


def right(z):
    """They are right."""
    return z


AT = np.linspace(-3, 3, 13)


@pytest.mark.parametrize(("count", "most"), [(FEW - 1, 0.12), (MANY, 0.08), (MANY + 1000, 0.07)])
def test_a_planted_curve_comes_back(count, most):
    """By stretching, by Venn-Abers and by isotonic regression; nearer than the logit was."""
    errors = []
    for seed in range(5):
        bent = directions({1: seen(count, too_sure, seed)}).apply(AT, np.ones(13))
        errors.append(np.abs(sigmoid(bent) - sigmoid(too_sure(AT))).mean())
    assert np.mean(errors) < most
    assert np.abs(sigmoid(AT) - sigmoid(too_sure(AT))).mean() > 0.15


@pytest.mark.parametrize("count", [300, 2000])
def test_a_curve_that_is_not_better_is_not_used(count):
    """Logits that are right stay as they are, in most draws to the last bit."""
    bent = [directions({1: seen(count, right, seed)}).apply(AT, np.ones(13)) for seed in range(8)]
    assert sum((each == AT).all() for each in bent) >= 6


def test_few_reviews_move_little():
    """Ten reviews of a judge that is right: the logit stays within about one."""
    moved = [directions({1: seen(10, right, seed)}).apply(AT, np.ones(13)) - AT for seed in range(20)]
    assert np.abs(moved).mean() < 1


def test_the_two_directions_do_not_know_of_each_other():
    """What presences teach does not move an absence; a claim of neither kind keeps its own."""
    bent = directions({1: seen(500, too_sure), 0: seen(500, right, seed=3)})
    said = np.tile([1.0, 0.0, 0.5], 5)[:13]
    z = bent.apply(AT, said)
    assert (z[said != 1] == AT[said != 1]).all()
    assert (z[said == 1] != AT[said == 1]).all()


@pytest.mark.parametrize("count", [60, 400, 1500])
def test_order_is_kept(count):
    """A greater logit never becomes a smaller one, within what was reviewed and beyond it."""
    at = np.linspace(-20, 20, 400)
    bent = directions({1: seen(count, too_sure)}).apply(at, np.ones(400))
    assert (np.diff(bent) >= -1e-12).all()
    assert bent[-1] > bent[-20]
    assert bent[0] < bent[20]


def test_the_spread_of_a_stretch_holds_the_truth_and_shrinks():
    """In most places of most draws, two spreads hold the planted logit; more reviews, less spread."""
    held, wide = [], []
    for seed in range(20):
        done = directions({1: seen(FEW - 1, too_sure, seed)})
        spread = done.spread(AT, np.ones(13))
        held.append((np.abs(done.apply(AT, np.ones(13)) - too_sure(AT)) <= 2 * spread).mean())
        wide.append(spread.mean())
    assert np.mean(held) > 0.85
    assert np.mean(wide) < directions({1: seen(FEW // 4, too_sure)}).spread(AT, np.ones(13)).mean()


def test_the_spread_of_many_is_how_far_venn_abers_lies_apart():
    """Where nothing is claimed there is none."""
    many = seen(400, too_sure)
    spread = directions({1: many}).spread(AT, np.where(np.arange(13) < 9, 1.0, 0.5))
    assert spread[:9] == pytest.approx(VennAbers.of(many.z, many.present).spread(AT)[:9])
    assert (spread[9:] == 0).all()


def test_verdicts_of_one_kind_teach_nothing():
    """The direction is left alone, and nothing is said of how sure it is."""
    lonely = dataclasses.replace(seen(300, right), present=np.zeros(300))
    done = directions({1: lonely, 0: lonely.take(np.zeros(300, dtype=bool))})
    assert done == Directions(curves={}, unsure={})
    assert (done.apply(AT, np.ones(13)) == AT).all()
    assert (done.spread(AT, np.ones(13)) == 0).all()


def test_a_judge_that_always_says_the_same_is_set_to_the_share():
    """One logit for all: the curve has one place, no warning."""
    flat = dataclasses.replace(seen(300, lambda z: z * 0 + 1), z=np.full(300, -2.0))
    done = directions({1: flat}).apply(np.array([-2.0]), np.ones(1))
    assert sigmoid(done)[0] == pytest.approx(flat.present.mean(), abs=0.02)
