"""Sentences: each pair's list holds what the kinds say of it, in their order."""

import numpy as np
import polars as pl
import pytest

from bpals.signal.sentences import BLOCK, Sentences, listed


def kinds_of(shape, seed=0):
    """Three kinds: one that always speaks, one that seldom does, one that is silent."""
    draw = np.random.default_rng(seed)
    always = Sentences(words=[None, "a: one", "a: two"], which=draw.integers(1, 3, shape))
    seldom = Sentences(words=[None, "b: here"], which=draw.random(shape) < 0.2)
    return [seldom, Sentences(words=[None, "never"], which=np.zeros(shape, dtype=int)), always]


@pytest.mark.parametrize("films", [0, 1, 50, BLOCK // 2 + 1])
def test_each_claim_gets_its_sentences_in_the_order_of_the_kinds(films):
    """Film by film and finding by finding, claims only, across the blocks in which they are gathered."""
    kinds = kinds_of((films, 3))
    claimed = np.random.default_rng(1).random((films, 3)) < 0.8
    made = listed(kinds, claimed)
    assert (made.name, made.dtype) == ("reasons", pl.List(pl.String))
    expected = [
        [kind.words[int(kind.which[row, column])] for kind in kinds if kind.which[row, column]]
        for row, column in zip(*np.nonzero(claimed), strict=True)
    ]
    assert made.to_list() == expected


def test_a_claim_of_which_nothing_is_said_has_an_empty_list():
    """It is not null, and it does not take its neighbour's."""
    kinds = kinds_of((40, 2))[:1]
    made = listed(kinds, np.ones((40, 2), dtype=bool))
    assert made.null_count() == 0
    assert made.to_list() == [["b: here"] if said else [] for said in kinds[0].which.ravel()]
    assert listed([], np.ones((2, 2), dtype=bool)).to_list() == [[]] * 4
