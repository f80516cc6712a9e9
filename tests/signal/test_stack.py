"""The stack: how members of one family are weighed against one another, and who did not answer."""

import itertools

import numpy as np
import pytest

from bpals.signal.pairs import logit
from bpals.signal.stack import stack

PARTS = 3


def thirds(films):
    """Three parts of the patients, one after the other."""
    ends = [films * number // PARTS for number in range(PARTS + 1)]
    return [slice(*each) for each in itertools.pairwise(ends)]


@pytest.fixture
def family():
    """Members that see the claimed state through noise: how far apart each sees it, and how alike their noise is."""

    def family(apart, *, together=0.0, films=6000, share=0.3, seed=0):
        draw = np.random.default_rng(seed)
        state = (draw.random(films) < share).astype(float)
        common, own = draw.normal(size=(films, 1)), draw.normal(size=(films, len(apart)))
        evidence = state[:, None] * np.array(apart) + np.sqrt(together) * common + np.sqrt(1 - together) * own
        return evidence - evidence.mean(axis=0), state, thirds(films)

    return family


def log_loss(z, state):
    """How well logits tell the claims."""
    return (np.logaddexp(0, z) - state * z).mean()


def test_a_single_member_is_its_own_logistic_regression(family):
    """Two normal distributions d apart: the logit is a line of slope d."""
    evidence, state, parts = family([1.5])
    done = stack(evidence, state, parts)
    rate = state.mean()
    exact = logit(np.array(rate)) + 1.5 * (evidence[:, 0] + 1.5 * rate) - 1.5**2 / 2
    kept = np.abs(evidence[:, 0]) < 3
    assert done.answer(0)[kept] == pytest.approx(exact[kept], abs=0.4)


def test_a_better_member_weighs_more_and_a_blind_one_nothing(family):
    """By what each adds where errors are independent: their distances."""
    weights = stack(*family([1.0, 2.0, 0.0])).weights.mean(axis=0)
    assert weights[1] / weights[0] == pytest.approx(2 * np.sqrt(1 + 0.21 * 4) / np.sqrt(1 + 0.21), rel=0.1)
    assert weights[2] < 0.1 * weights[0]


def test_members_that_err_together_share_one_weight(family):
    """Four alike are hardly better than one, and the family's answer is not made four times as sure."""
    one = stack(*family([1.5]))
    four = stack(*family([1.5] * 4, together=0.95))
    many = stack(*family([1.5] * 4))
    assert four.answer(0).std() == pytest.approx(one.answer(0).std(), rel=0.15)
    assert many.answer(0).std() > 1.5 * one.answer(0).std()


def test_an_exact_copy_inside_a_family_is_no_obstacle(family):
    """The weights are shared and the answer is the same."""
    evidence, state, parts = family([1.5])
    once = stack(evidence, state, parts)
    twice = stack(np.repeat(evidence, 2, axis=1), state, parts)
    assert twice.answer(1) == pytest.approx(once.answer(1), abs=1e-4)
    assert twice.weights[:, 0] == pytest.approx(twice.weights[:, 1], rel=1e-6)


def test_who_did_not_answer_is_left_out_film_by_film(family):
    """On its films the others speak as they would alone, nearly; a film of nobody has no answer."""
    evidence, state, parts = family([1.5, 1.5])
    alone = stack(evidence[:, :1].copy(), state, parts)
    evidence[:3000, 1] = np.nan
    evidence[:10] = np.nan
    done = stack(evidence, state, parts)
    assert done.answered.sum() == 5990
    assert np.isnan(done.answer(0)[:10]).all()
    one, both = slice(10, 3000), slice(3000, 6000)
    assert log_loss(done.answer(0)[one], state[one]) < log_loss(alone.answer(0)[one], state[one]) + 0.01
    assert log_loss(done.answer(0)[both], state[both]) < log_loss(alone.answer(0)[both], state[both]) - 0.03


@pytest.mark.parametrize("share", [0.3, 0.01])
def test_a_member_that_never_answers_is_as_if_it_were_not_there(family, share):
    """Also where presences are few and the members are held near equal weights."""
    evidence, state, parts = family([1.5, 1.0], share=share, films=2000)
    there = stack(evidence, state, parts)
    beside = stack(np.column_stack([evidence, np.full(2000, np.nan)]), state, parts)
    for number in range(PARTS):
        assert beside.answer(number) == pytest.approx(there.answer(number), abs=1e-9)
    assert (beside.weights[:, 2] == 0).all()


def test_few_presences_cannot_set_one_member_against_another(family):
    """With eight claimed presences the weights are near equal; with thousands they are the members' own."""
    evidence, state, parts = family([1.0, 1.6], together=0.6, films=20_000)
    few = np.flatnonzero(state == 1)[12:]
    kept = np.setdiff1d(np.arange(20_000), few)
    many = stack(evidence, state, parts).weights.mean(axis=0)
    rare = stack(evidence[kept], state[kept], thirds(len(kept))).weights.mean(axis=0)
    assert many[1] > 3 * many[0]
    assert 0.5 < rare[0] / rare[1] < 1.5


def test_no_claim_of_a_part_reaches_the_part_s_answer(family):
    """To the last bit, answers, weights and spread; the other parts' answers move."""
    evidence, state, parts = family([1.5, 1.0], films=600)
    before = stack(evidence, state, parts)
    turned = state.copy()
    turned[parts[1]] = 1 - turned[parts[1]]
    after = stack(evidence, turned, parts)
    assert (after.answer(1)[parts[1]] == before.answer(1)[parts[1]]).all()
    assert (after.spread(1, parts[1]) == before.spread(1, parts[1])).all()
    assert (after.weights[1] == before.weights[1]).all()
    assert (after.answer(0) != before.answer(0)).all()


@pytest.mark.parametrize("said", [0.0, 1.0, 0.5])
def test_claims_of_one_kind_teach_nothing(family, said):
    """No answer, no weight, no warning."""
    evidence, state, parts = family([1.5, 1.0], films=300)
    done = stack(evidence, np.full_like(state, said), parts)
    assert np.isnan(done.answer(0)).all()
    assert (done.weights == 0).all()
    assert (done.spread(0, slice(0, 300)) == 0).all()


def test_a_part_is_answered_only_if_the_others_have_both_kinds(family):
    """A presence of one's own is not enough."""
    evidence, _, parts = family([1.5], films=300)
    state = np.zeros(300)
    state[parts[2]] = 1
    done = stack(evidence, state, parts)
    assert np.isnan(done.answer(2)).all()
    assert np.isfinite(done.answer(0)).all()


def test_a_strange_film_counts_as_a_far_one(family):
    """A hundred deviations away is four."""
    evidence, state, parts = family([1.5])
    plain = stack(evidence, state, parts).answer(0)
    evidence[0] = 100.0
    strange = stack(evidence, state, parts).answer(0)
    assert strange[0] <= plain.max() + 0.5
