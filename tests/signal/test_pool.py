"""The pool: an average that is right on average, whoever answered."""

from dataclasses import dataclass

import numpy as np
import pytest

from bpals.signal.dealt import PARTS, Dealt
from bpals.signal.pairs import sigmoid
from bpals.signal.pool import Recorded, pool

pytestmark = pytest.mark.quick

FILMS = 4000


@pytest.fixture
def films():
    """Four thousand films with a logit that tells their claims, dealt over two folds."""
    draw = np.random.default_rng(0)
    dealt = Dealt.of(draw.integers(0, PARTS, FILMS), draw.integers(0, 2, FILMS))
    z = draw.normal(-1, 1.5, FILMS)
    return z, (draw.random(FILMS) < sigmoid(z)).astype(float), dealt


def says(z, sure=0.1):
    """A witness that says so to everybody."""
    return Recorded(z=z, sure=np.full(len(z), sure))


def test_a_witness_alone_that_is_right_is_left_as_it_is(films):
    """But for a small shift; its weight is 1 and its spread its own."""
    z, state, dealt = films
    done = pool([says(np.full(FILMS, np.nan)), says(z)], state, dealt)
    assert done.done.all()
    assert done.weights == pytest.approx([0, 1])
    assert np.abs(done.z - z).max() < 0.3
    assert done.spread == pytest.approx(0.1)


def test_the_weights_are_the_variances(films):
    """A witness whose logits vary twice as far weighs four times as much; one that never varies nothing."""
    z, state, dealt = films
    done = pool([says(z), says(z / 2), says(np.full(FILMS, 3.0))], state, dealt)
    assert done.weights == pytest.approx([0.8, 0.2, 0])


def test_the_pool_is_right_on_average_for_each_set_of_witnesses(films):
    """Where one is silent the others are shifted on their own."""
    z, state, dealt = films
    silent = np.where(np.arange(FILMS) % 2 == 0, np.nan, z + 2)
    done = pool([says(z - 1), says(silent)], state, dealt)
    for half in (0, 1):
        its = np.arange(FILMS) % 2 == half
        assert sigmoid(done.z[its]).mean() == pytest.approx(state[its].mean(), abs=0.02)


def test_witnesses_that_differ_are_less_sure(films):
    """Of a film on which they are far apart."""
    z, state, dealt = films
    other = z.copy()
    other[:100] += 4
    done = pool([says(z), says(other)], state, dealt)
    assert done.spread[:100].min() > done.spread[100:].max()


def test_no_claim_of_a_part_reaches_the_part_s_own_answers(films):
    """To the last bit; nor does a claim of another fold."""
    z, state, dealt = films
    witnesses = [says(z), says(z[::-1].copy())]
    before = pool(witnesses, state, dealt)
    own, others = dealt.pieces[2][0], dealt.pieces[1][0]
    turned = state.copy()
    turned[own] = 1 - turned[own]
    after = pool(witnesses, turned, dealt)
    assert (after.z[own] == before.z[own]).all()
    assert (after.z[others] != before.z[others]).all()
    for of_part in dealt.pieces:
        assert (after.z[of_part[1]] == before.z[of_part[1]]).all()


@dataclass(frozen=True)
class Mute:
    """A witness that never answers."""

    films: int

    def answer(self, _part):
        """Say nothing."""
        return np.full(self.films, np.nan)

    def spread(self, _part, piece):
        """Say nothing of nothing."""
        return np.zeros(piece.stop - piece.start)


def test_a_witness_that_never_answers_is_as_if_it_were_not_there(films):
    """To the last bit; and where nobody answers there is no answer."""
    z, state, dealt = films
    there, beside = pool([says(z)], state, dealt), pool([says(z), Mute(FILMS)], state, dealt)
    assert (there.z == beside.z).all()
    assert (there.spread == beside.spread).all()
    assert not pool([Mute(FILMS)], state, dealt).done.any()


def test_a_whisper_is_not_heard(films):
    """A witness with less than a twentieth of the weight moves nothing: the record stands, and nothing was pooled."""
    z, state, dealt = films
    whisper = np.random.default_rng(1).normal(0, 0.1, FILMS)
    done = pool([says(z), says(whisper)], state, dealt)
    assert not done.done.any()
    assert done.weights == pytest.approx([0, 0])


@pytest.fixture
def three(films):
    """A record and two image judges, of which the last repeats the claims loudly."""
    z, state, dealt = films
    draw = np.random.default_rng(3)
    honest, echo = z + draw.normal(0, 1, FILMS), 4 * (2 * state - 1) + draw.normal(0, 1, FILMS)
    return [says(z), says(honest), says(echo)], state, dealt


def test_a_witness_that_was_told_weighs_half_of_what_the_others_do_at_most(three):
    """However far its logits vary; unaware of it, the pool would hear nobody else."""
    witnesses, state, dealt = three
    plain = pool(witnesses, state, dealt)
    aware = pool(witnesses, state, dealt, np.array([False, False, True]))
    assert plain.weights[2] > 0.5
    assert aware.weights[2] == pytest.approx(aware.weights[:2].max() / 2, rel=0.05)
    assert aware.weights.sum() == pytest.approx(1)
    assert aware.said[2].std() == pytest.approx(aware.said[:2].std(axis=1).max(), rel=0.05)


def test_a_witness_that_was_told_and_hardly_varies_weighs_half(films):
    """Its logits are as they were."""
    z, state, dealt = films
    plain = pool([says(z), says(z / 2)], state, dealt)
    aware = pool([says(z), says(z / 2)], state, dealt, np.array([False, True]))
    assert plain.weights == pytest.approx([4 / 5, 1 / 5])
    assert aware.weights == pytest.approx([8 / 9, 1 / 9])
    assert aware.said[1] == pytest.approx(z / 2)


def test_a_witness_that_was_told_and_is_alone_is_all_there_is(films):
    """There is nothing to measure it by."""
    z, state, dealt = films
    silent = says(np.full(FILMS, np.nan))
    alone = pool([silent, says(z)], state, dealt)
    told = pool([silent, says(z)], state, dealt, np.array([False, True]))
    assert told.weights == pytest.approx([0, 1])
    assert told.z == pytest.approx(alone.z, abs=1e-9)


def test_where_nobody_was_told_not_a_bit_changes(three):
    """Saying so of nobody is saying nothing."""
    witnesses, state, dealt = three
    one, other = pool(witnesses, state, dealt), pool(witnesses, state, dealt, np.zeros(3, dtype=bool))
    assert np.array_equal(one.z, other.z)
    assert np.array_equal(one.weights, other.weights)


def test_what_each_witness_says_is_kept_apart(films):
    """Film by film, in the order of the films; NaN where it is silent."""
    z, state, dealt = films
    silent = np.where(np.arange(FILMS) % 2 == 0, np.nan, z + 2)
    done = pool([says(z), says(silent)], state, dealt)
    assert done.said[0] == pytest.approx(z)
    assert np.array_equal(done.said[1], silent, equal_nan=True)
