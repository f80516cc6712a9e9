"""A number with its noun."""

from bpals.text import several


def test_a_number_is_written_with_its_noun():
    """One lesson, two lessons, no lessons."""
    assert [several(n, "lesson") for n in (0, 1, 2000)] == ["0 lessons", "1 lesson", "2,000 lessons"]


def test_the_verb_may_come_along():
    """One film is, two films are."""
    assert [several(n, "film is", "films are") for n in (1, 2)] == ["1 film is", "2 films are"]
