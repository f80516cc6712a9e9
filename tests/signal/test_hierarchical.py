"""Tests of signal.hierarchical."""

import numpy as np
import pytest

from bpals.numeric import sigmoid
from bpals.signal.hierarchical import BOTH, EACH, Common, Reviewed, School, Topic, refit, shifts

# What all findings share: nothing without reviews, little with few, and a rare finding borrows from the others.

NOBODY = frozenset()


@pytest.fixture
def topic():
    """A finding whose true logit is the judges' times `stretch`, plus `shift`, and how many of its films were read."""

    def topic(reviewed, *, finding="A", stretch=1.0, shift=0.0, films=2000, seed=0):
        draw = np.random.default_rng(seed)
        z = draw.normal(-1, 1.5, films)
        rows = np.arange(reviewed)
        truth = sigmoid(stretch * z + shift)
        return Topic(
            finding=finding,
            judged=z,
            summed=z,
            said=(draw.random(films) < 0.4).astype(float),
            seen=np.zeros(films),
            reviewed=Reviewed(
                rows=rows,
                present=(draw.random(reviewed) < truth[rows]).astype(float),
                weight=np.ones(reviewed),
                fold=rows % 5,
            ),
        )

    return topic


def school(*topics):
    """The findings, with nothing else known of the films."""
    return School(topics=topics, common=Common(columns=np.zeros((len(topics[0].judged), 2))))


def test_without_reviews_the_judges_answer_stands(topic):
    """To the last bit, and with no spread of its own."""
    asked = topic(0, shift=1.0)
    z, spread = school(asked).correct(asked, np.arange(2000), NOBODY)
    assert (z == asked.judged).all()
    assert (spread == 0).all()
    left_out = topic(100)
    alone = frozenset(range(5))
    assert (school(left_out).correct(left_out, np.arange(50), alone)[0] == left_out.judged[:50]).all()


def test_few_reviews_move_it_little_and_many_set_it_right(topic):
    """A judge that is one too high and half too sure."""
    rows = np.arange(1500, 2000)
    misses = []
    for count in (5, 1500):
        asked = topic(count, stretch=0.5, shift=-1)
        z, _ = school(asked).correct(asked, rows, NOBODY)
        misses.append(np.abs(sigmoid(z) - sigmoid(0.5 * asked.judged[rows] - 1)).mean())
        if count == 5:
            assert np.abs(z - asked.judged[rows]).mean() < 1
    assert misses[1] < 0.03
    assert misses[1] < misses[0] / 2


def test_a_rare_finding_borrows_what_the_others_share(topic):
    """With ten reviews of its own it is nearer to the truth beside two others that err alike than alone."""
    rows = np.arange(1000, 2000)
    alone, beside = [], []
    for seed in range(5):
        rare = topic(10, finding="rare", stretch=0.5, shift=-1, seed=seed)
        others = [topic(500, finding=name, stretch=0.5, shift=-1, seed=seed + 50 + len(name)) for name in ("B", "CC")]
        truth = sigmoid(0.5 * rare.judged[rows] - 1)
        alone.append(np.abs(sigmoid(school(rare).correct(rare, rows, NOBODY)[0]) - truth).mean())
        beside.append(np.abs(sigmoid(school(rare, *others).correct(rare, rows, NOBODY)[0]) - truth).mean())
    assert np.mean(beside) < 0.7 * np.mean(alone)
    assert np.mean(beside) < 0.08


def test_a_finding_with_many_reviews_keeps_its_own(topic):
    """Others that err the other way do not drag it along."""
    own = topic(1500, shift=1.0)
    others = [topic(1500, finding=name, shift=-1.0, seed=len(name)) for name in ("B", "CC")]
    rows = np.arange(1500, 2000)
    z, _ = school(own, *others).correct(own, rows, NOBODY)
    assert (z - own.judged[rows]).mean() == pytest.approx(1.0, abs=0.25)


def test_the_spread_shrinks_with_reviews_and_grows_away_from_them(topic):
    """It is the standard deviation of the corrected logit: the truth lies within two of it in most draws."""
    spreads, held = [], []
    for count in (20, 200, 1500):
        asked = topic(count, shift=0.5)
        spreads.append(school(asked).correct(asked, np.arange(1500, 2000), NOBODY)[1].mean())
    assert spreads == sorted(spreads, reverse=True)
    for seed in range(15):
        asked = topic(200, shift=0.5, seed=seed)
        z, spread = school(asked).correct(asked, np.arange(1500, 2000), NOBODY)
        held.append((np.abs(z - asked.judged[1500:] - 0.5) <= 1.96 * spread).mean())
    assert np.mean(held) > 0.85
    asked.judged[-1] = 12.0
    z, spread = school(asked).correct(asked, np.arange(1900, 2000), NOBODY)
    assert spread[-1] > 2 * np.median(spread)


def test_what_is_left_out_is_left_out_of_every_finding(topic):
    """Flip verdicts of a fold, in this finding and in another: what is learned without it is the same to the bit."""
    one, other = topic(200), topic(200, finding="B", seed=1)
    rows = np.arange(300)
    before = school(one, other).correct(one, rows, frozenset({3}))
    for each in (one, other):
        its = each.reviewed.fold == 3
        each.reviewed.present[its] = 1 - each.reviewed.present[its]
    after = school(one, other).correct(one, rows, frozenset({3}))
    assert (after[0] == before[0]).all()
    assert (after[1] == before[1]).all()
    assert (school(one, other).correct(one, rows, frozenset({2}))[0] != before[0]).any()


def test_the_order_of_the_findings_does_not_matter(topic):
    """To rounding."""
    one, other = topic(200, shift=1.0), topic(100, finding="B", seed=1)
    rows = np.arange(300)
    first, second = (school(*each).correct(one, rows, NOBODY) for each in ((one, other), (other, one)))
    assert second[0] == pytest.approx(first[0], abs=1e-6)
    assert second[1] == pytest.approx(first[1], abs=1e-6)


def test_errors_are_claims_that_the_reviews_contradict():
    """A claim of neither kind is no error; a chance counts as the side on which it lies."""
    said = np.array([1.0, 1.0, 0.0, 0.0, 0.5])
    reviewed = Reviewed(
        rows=np.arange(5), present=np.array([0.9, 0.2, 0.7, 0.1, 1.0]), weight=np.ones(5), fold=np.arange(5)
    )
    asked = Topic(finding="A", judged=said, summed=said, said=said, seen=said, reviewed=reviewed)
    assert asked.errors() == 2
    assert asked.errors(frozenset({1})) == 1
    assert not reviewed.one_sided
    assert reviewed.without(frozenset({0, 2, 4})).one_sided


# Refitting: a known shift comes back from a small random sample, and the sample is answered by its others.


@pytest.fixture
def sampled():
    """Films whose true logit is shifted by so much, for presences and for absences, and a random sample of them."""

    def sampled(presence, absence, *, films=3000, count=200, seed=0):
        draw = np.random.default_rng(seed)
        z, said = draw.normal(-1, 1.5, films), (draw.random(films) < 0.4).astype(float)
        truth = sigmoid(z + np.where(said == 1, presence, absence))
        rows = draw.choice(films, count, replace=False)
        sample = Reviewed(
            rows=rows,
            present=(draw.random(count) < truth[rows]).astype(float),
            weight=np.ones(count),
            fold=rows % 5,
        )
        return z, said, sample, truth

    return sampled


def test_a_known_shift_comes_back(sampled):
    """From 200 films, on average over twenty samples, but for the hold; and from many films to a tenth."""
    found = np.mean([shifts(*sampled(1.2, 1.2, seed=seed)[:3]) for seed in range(20)], axis=0)
    assert found == pytest.approx([1.2, 1.2], abs=0.2)
    many = shifts(*sampled(-0.8, -0.8, films=60_000, count=40_000)[:3])
    assert many == pytest.approx([-0.8, -0.8], abs=0.1)


def test_the_directions_have_a_little_of_their_own(sampled):
    """Opposite shifts are found with many films, and held together with few."""
    few = np.mean([shifts(*sampled(0.6, -0.6, seed=seed)[:3]) for seed in range(20)], axis=0)
    many = shifts(*sampled(0.6, -0.6, films=60_000, count=40_000)[:3])
    assert many == pytest.approx([0.6, -0.6], abs=0.1)
    assert few[0] - few[1] < 1.1
    assert few[0] > 0.1 > -0.1 > few[1]
    assert EACH < BOTH


def test_a_sample_of_nobody_moves_nothing(sampled):
    """To the last bit."""
    z, said, sample, _ = sampled(1.0, 1.0)
    assert (refit(z, said, sample.without(frozenset(range(5)))) == z).all()


def test_films_without_a_definite_claim_move_by_the_mean(sampled):
    """Between what presences and absences do."""
    z, said, sample, _ = sampled(1.0, 1.0)
    said[:10] = 0.5
    outside = np.setdiff1d(np.arange(3000), sample.rows)
    presence, absence = shifts(z, said, sample)
    moved = (refit(z, said, sample) - z)[outside]
    claimed = said[outside]
    assert moved[claimed == 1] == pytest.approx(presence)
    assert moved[claimed == 0] == pytest.approx(absence)
    assert moved[claimed == 0.5] == pytest.approx((presence + absence) / 2)


def test_the_films_of_the_sample_are_cross_fitted(sampled):
    """Flip one verdict: the logits of its own patients' fold are the same to the last bit, all others move."""
    z, said, sample, _ = sampled(1.0, 0.5)
    before = refit(z, said, sample)
    for place in (0, 57, 133):
        present = sample.present.copy()
        present[place] = 1 - present[place]
        after = refit(z, said, Reviewed(rows=sample.rows, present=present, weight=sample.weight, fold=sample.fold))
        own = sample.rows[sample.fold == sample.fold[place]]
        assert (after[own] == before[own]).all()
        assert (np.delete(after, own) != np.delete(before, own)).all()


def test_where_nothing_shifted_the_refit_costs_little(sampled):
    """The mean probability moves by hundredths, and where something did it comes nearer."""
    still, shifted = [], []
    for seed in range(20):
        z, said, sample, truth = sampled(0.0, 0.0, seed=seed)
        still.append(np.abs(sigmoid(refit(z, said, sample)) - truth).mean())
        z, said, sample, truth = sampled(1.0, 1.0, seed=seed)
        shifted.append(np.abs(sigmoid(refit(z, said, sample)) - truth).mean() / np.abs(sigmoid(z) - truth).mean())
    assert np.mean(still) < 0.03
    assert np.mean(shifted) < 0.3
