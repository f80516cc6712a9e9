"""Whose fault it is when a judge fails before it ever answered."""

import pytest

from bpals.errors import JudgeError
from bpals.judges.canary import FILMS, Canary


def test_a_film_alone_is_held_until_the_judge_answers():
    """Then it is given back, to be written as failed, and nothing is held any more."""
    canary = Canary("mine", 10)
    canary.hold("a", "KeyError: 1")
    assert canary.release() == ["a"]
    assert canary.release() == []
    canary.check()


def test_several_films_are_the_judges_fault():
    """The last reason is named, and what to do."""
    canary = Canary("mine", 10)
    for film in range(FILMS - 1):
        canary.hold(film, "KeyError: 1")
    with pytest.raises(JudgeError, match=r"'mine'.* 3 .*KeyError: 2\."):
        canary.hold("last", "KeyError: 2")


def test_where_there_is_one_film_it_is_enough():
    """There is no other one to tell whose fault it is."""
    with pytest.raises(JudgeError, match=r"first film: KeyError"):
        Canary("mine", 1).hold("a", "KeyError")


def test_a_film_that_is_still_held_at_the_end_is_the_judges_fault():
    """Others were announced and could not be shown."""
    canary = Canary("mine", 3)
    canary.hold("a", "KeyError")
    with pytest.raises(JudgeError, match="fails on its first film"):
        canary.check()
