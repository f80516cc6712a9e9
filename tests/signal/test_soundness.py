"""Soundness: what is no probability, and who says two things about one pair, is left out and counted."""

import polars as pl
import pytest

from bpals.signal.soundness import sound
from world.words import mentions


def table(*rows):
    """Rows `(film, outcome, probability)` about a mass."""
    columns = [(film, "Mass", outcome, p) for film, outcome, p in rows]
    return pl.DataFrame(columns, schema=["image_id", "finding", "outcome", "p_present"], orient="row")


def test_a_sound_table_is_left_alone():
    """Failures too: they are no answers, and nothing is wrong with them."""
    answers = table(("a", "answered", 0.0), ("b", "answered", 1.0), ("c", "failed", None), ("c", "refused", None))
    kept, notices = sound("eye", answers)
    assert kept.equals(answers)
    assert notices == []


@pytest.mark.parametrize("strange", [1.5, -0.01, float("nan"), float("inf"), None])
def test_what_is_no_probability_counts_as_not_answered(strange):
    """And is counted, with the first."""
    kept, (notice,) = sound("eye", table(("a", "answered", 0.5), ("b", "answered", strange)))
    assert kept["image_id"].to_list() == ["a"]
    assert (notice.code, notice.count) == ("no_probability", 1)
    assert mentions(notice.message, "eye:", "2 answers 1", f"b, Mass gives {strange}")


def test_two_different_answers_about_a_pair_count_as_none():
    """The same answer twice counts once; both are counted."""
    answers = table(
        ("a", "answered", 0.5), ("b", "answered", 0.2), ("a", "answered", 0.6), ("b", "answered", 0.2),
        ("c", "answered", 0.9), ("c", "failed", None),
    )  # fmt: skip
    kept, notices = sound("eye", answers)
    assert kept.select("image_id", "p_present").rows() == [("b", 0.2), ("c", 0.9)]
    assert {notice.code: notice.count for notice in notices} == {"answers_contradict": 1, "answers_again": 1}
    assert mentions(notices[0].message, "eye:", "1 pair", "two", "a, Mass")
