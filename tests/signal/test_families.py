"""Families: who is kin of whom, and how many votes they have."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.signal.families import KIN, SAMPLE, families
from bpals.signal.pairs import sigmoid
from bpals.signal.voices import Voice


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
    one, other = alike(0.7, films=3 * SAMPLE)
    found = families([voice("a", one), voice("b", other)])
    assert found.correlation[0, 1] == pytest.approx(0.7, abs=0.02)
    assert members(found) == {("a", "b")}
