"""Tests of signal.correlated."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.numeric import logit, newton, sigmoid
from bpals.signal import correlated
from bpals.signal.correlated import KIN, PARTS, Dealt, Grid, families, joined, stack
from bpals.signal.layout import Voice

# Films dealt by part and fold: every film in one piece, whatever the folds are called.


@given(films=st.integers(0, 60), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_every_film_is_in_the_piece_of_its_part_and_fold(films, seed):
    """Once, also where a fold or a part has no film, and where only some films are wanted."""
    draw = np.random.default_rng(seed)
    part, fold = draw.integers(0, PARTS, films), draw.choice([-3, 7, 8], films)
    wanted = draw.random(films) < 0.6
    names = np.unique(fold)
    for dealt, kept in ((Dealt.of(part, fold), np.full(films, fill_value=True)),
                        (Dealt.of(part, fold).only(wanted), wanted)):  # fmt: skip
        assert sorted(dealt.films) == np.flatnonzero(kept).tolist()
        for number, of_part in enumerate(dealt.pieces):
            for name, piece in zip(names, of_part, strict=True):
                its = np.flatnonzero(kept & (part == number) & (fold == name))
                assert sorted(dealt.films[piece]) == its.tolist()


def test_pieces_are_joined_in_their_order():
    """Of a row, and of the columns of a matrix."""
    pieces = [slice(3, 5), slice(0, 2)]
    assert joined(np.arange(6), pieces).tolist() == [3, 4, 0, 1]
    assert joined(np.arange(12).reshape(2, 6), pieces).tolist() == [[3, 4, 0, 1], [9, 10, 6, 7]]


# The grid: fits on counts are the fits on films, to what the grid's places are apart.


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


# The stack: how members of one family are weighed against one another, and who did not answer.

PARTS_OF_STACK = 3


def thirds(films):
    """Three parts of the patients, one after the other."""
    ends = [films * number // PARTS_OF_STACK for number in range(PARTS_OF_STACK + 1)]
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
    for number in range(PARTS_OF_STACK):
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


# Families: who is kin of whom, and how many votes they have.


def voice(judge, evidence, kin="", *, told=False):
    """A judge that says so."""
    return Voice(judge=judge, p_present=sigmoid(evidence), evidence=evidence, kin=kin, told=told)


def standard(values):
    """Mean 0 and deviation 1, a column at a time."""
    return (values - values.mean(axis=0)) / values.std(axis=0)


def alike(correlation, seed=0, films=4000):
    """Evidence of two judges with just that correlation."""
    draw = np.random.default_rng(seed)
    one, rest = standard(draw.normal(size=(films, 1))), draw.normal(size=(films, 1))
    rest = standard(rest - one * (one * rest).mean())
    return one, correlation * one + np.sqrt(1 - correlation**2) * rest


def members(found):
    """The names in each family."""
    return {tuple(voice.judge for voice in family) for family in found.members}


@pytest.mark.parametrize(("correlation", "kin"), [(KIN + 0.01, True), (KIN - 0.01, False), (-0.9, False)])
def test_judges_that_say_nearly_the_same_are_kin(correlation, kin):
    """From a correlation of .6 on; the opposite is not the same."""
    one, other = alike(correlation)
    found = families([voice("a", one), voice("b", other)])
    assert found.correlation[0, 1] == pytest.approx(correlation, abs=1e-6)
    assert members(found) == ({("a", "b")} if kin else {("a",), ("b",)})
    assert found.heads == {"a": "a", "b": "a" if kin else "b"}
    assert found.votes == {"a": 1, "b": 1}


def test_kin_of_kin_are_kin():
    """Two that hardly agree are one family through a third, whichever comes first."""
    draw = np.random.default_rng(1)
    one, other = standard(draw.normal(size=(2, 3000, 1))[0]), standard(draw.normal(size=(3000, 1)))
    between = standard(one + other)
    assert members(families([voice("a", one), voice("b", between), voice("c", other)])) == {("a", "b", "c")}
    assert members(families([voice("b", one), voice("c", between), voice("a", other)])) == {("a", "b", "c")}


def test_judges_of_one_model_are_kin_whatever_they_say():
    """And a model that nobody named is no kinship."""
    one, other = alike(0.1)
    assert members(families([voice("a", one, "net@1"), voice("b", other, "net@1")])) == {("a", "b")}
    assert members(families([voice("a", one, "net@1"), voice("b", other, "net@2")])) == {("a",), ("b",)}
    assert members(families([voice("a", one), voice("b", other)])) == {("a",), ("b",)}


def test_the_same_evidence_under_a_second_name_is_heard_once():
    """The first name speaks, all names share its vote, and it is worth one judge."""
    one, other = alike(0.2)
    found = families([voice("c", other), voice("b", one.copy()), voice("a", one)])
    assert members(found) == {("a",), ("c",)}
    assert found.names == {"a": ("a", "b"), "c": ("c",)}
    assert found.votes == {"a": 0.5, "b": 0.5, "c": 1.0}
    assert found.heads == {"a": "a", "b": "a", "c": "c"}
    assert families([voice("a", one), voice("b", one)]).effective == pytest.approx(1)


def test_who_was_told_the_labels_is_no_kin_of_who_was_not():
    """However alike they speak, and of one model too; those that were told are kin of one another."""
    one, other = alike(0.9)
    assert members(families([voice("a", one, told=True), voice("b", other)])) == {("a",), ("b",)}
    assert members(families([voice("a", one, "net@1", told=True), voice("b", other, "net@1")])) == {("a",), ("b",)}
    assert members(families([voice("a", one, told=True), voice("b", other, told=True)])) == {("a", "b")}


def test_of_two_names_for_the_same_answers_one_that_admits_it_was_told_is_enough():
    """Whichever name comes first."""
    one, _ = alike(0.9)
    for first in (True, False):
        found = families([voice("a", one, told=first), voice("b", one.copy(), told=not first)])
        assert [[each.told for each in family] for family in found.members] == [[True]]
        assert found.names == {"a": ("a", "b")}


def test_a_twin_is_found_where_too_few_pairs_are_answered_to_correlate():
    """Of kinship nothing can be said there, but the same is the same; what nobody answered too."""
    draw = np.random.default_rng(2)
    one, other = np.full((2, 500, 1), np.nan)
    one[:9, 0] = draw.normal(size=9)
    other[:9, 0] = one[:9, 0] + 0.01
    found = families([voice("a", one), voice("b", one.copy()), voice("c", other)])
    assert np.isnan(found.correlation[0, 2])
    assert members(found) == {("a",), ("c",)}
    assert members(families([voice("a", other * np.nan), voice("b", other * np.nan)])) == {("a",)}


def test_kinship_is_measured_on_what_both_answered():
    """On the other films a judge's kin may be silent."""
    one, other = alike(0.9)
    other[1000:] = np.nan
    assert members(families([voice("a", one), voice("b", other)])) == {("a", "b")}


@given(order=st.permutations(range(4)), seed=st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_judges_does_not_matter(order, seed):
    """The same families, the same names, the same votes."""
    draw = np.random.default_rng(seed)
    mixed = standard(draw.normal(size=(400, 4)) @ draw.normal(size=(4, 4)))
    voices = [voice(f"j{place}", mixed[:, [place]]) for place in range(4)]
    found, again = families(voices), families([voices[place] for place in order])
    assert members(again) == members(found)
    assert again.votes == found.votes
    assert again.heads == found.heads
    assert again.effective == found.effective


@pytest.mark.parametrize("count", [2, 5])
def test_the_effective_number_is_kish_s(count):
    """The number over 1 + (number - 1) r: all different count each, all the same 1; a negative correlation is none."""
    draw = np.random.default_rng(3)
    common, own = draw.normal(size=(20_000, 1)), draw.normal(size=(20_000, count))
    evidence = standard(np.sqrt(0.5) * common + np.sqrt(0.5) * own)
    found = families([voice(f"j{place}", evidence[:, [place]]) for place in range(count)])
    assert found.effective == pytest.approx(count / (1 + (count - 1) * 0.5), rel=0.02)
    one, against = alike(-0.8)
    assert families([voice("a", one), voice("b", against)]).effective == 2
    assert families([]).effective == 0
    assert families([voice("a", one)]).effective == 1


def test_many_films_are_sampled_and_say_the_same():
    """Every so many films, evenly."""
    one, other = alike(0.7, films=3 * correlated.SAMPLE)
    found = families([voice("a", one), voice("b", other)])
    assert found.correlation[0, 1] == pytest.approx(0.7, abs=0.02)
    assert members(found) == {("a", "b")}
