"""Codes become claims, and several readers become one claim."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpals.findings import Vocabulary
from bpals.sources import ABSENT, PRESENT, SILENT, UNCERTAIN, make_claims
from bpals.sources.columns import combine_readers

pytestmark = pytest.mark.quick

LETTERS = {"+": PRESENT, "-": ABSENT, "?": UNCERTAIN, ".": SILENT}


def combine(readers, rule):
    """Combine the readers of one film, each a letter: + present, - absent, ? uncertain, . silent."""
    codes = np.array([[LETTERS[letter]] for letter in readers], np.uint8)
    code = combine_readers(codes, np.zeros(len(readers), np.int64), rule=rule)[0, 0]
    return {code: letter for letter, code in LETTERS.items()}[code]


@pytest.mark.parametrize(
    ("readers", "majority", "some", "every"),
    [
        ("---", "-", "-", "-"),
        ("+--", "?", "+", "?"),
        ("++-", "+", "+", "?"),
        ("+++", "+", "+", "+"),
        ("+-", "?", "+", "?"),
        ("++--", "?", "+", "?"),
        ("?--", "?", "?", "?"),
        ("+?", "?", "+", "?"),
        ("++?", "+", "+", "?"),
        ("+..", "+", "+", "+"),
        ("-..", "-", "-", "-"),
        ("+-.", "?", "+", "?"),
        ("...", ".", ".", "."),
        ("+", "+", "+", "+"),
        ("-", "-", "-", "-"),
    ],
)
def test_several_readers_make_one_claim(readers, majority, some, every):
    """Present if more than half (one, all) of those who speak mark it, absent if none, else uncertain."""
    assert combine(readers, "majority") == majority
    assert combine(readers, "any") == some
    assert combine(readers, "all") == every


@given(readers=st.text(alphabet="+-?.", min_size=1, max_size=7), rule=st.sampled_from(["majority", "any", "all"]))
def test_the_order_of_the_readers_does_not_matter(readers, rule):
    """A claim is about a film, not about who came first."""
    assert combine(readers, rule) == combine("".join(sorted(readers)), rule)


def test_films_with_different_numbers_of_readers_are_kept_apart():
    """Each film is combined from its own readers."""
    codes = np.array([[PRESENT], [PRESENT], [ABSENT], [ABSENT], [PRESENT]], np.uint8)
    combined = combine_readers(codes, np.array([0, 0, 0, 1, 2]), rule="majority")
    assert combined[:, 0].tolist() == [PRESENT, ABSENT, PRESENT]


def test_claims_come_image_by_image_and_silence_is_no_row():
    """The order is that of the images and of the vocabulary."""
    vocabulary = Vocabulary(name="two", findings=("Mass", "Edema"))
    codes = np.array([[PRESENT, ABSENT], [SILENT, UNCERTAIN]], np.uint8)
    claims = make_claims(pl.Series(["b.png", "a.png"]), codes, vocabulary)
    assert claims.rows() == [
        ("b.png", "Mass", "present"),
        ("b.png", "Edema", "absent"),
        ("a.png", "Edema", "uncertain"),
    ]
    assert claims.schema["finding"] == vocabulary.enum
