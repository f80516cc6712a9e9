"""Draws: which of them are the same, and which has all the films of another."""

from dataclasses import asdict

import pytest

from bpals.store.shards import Draw

NAMES = [f"{number:03}.png" for number in range(20)]


def test_a_draw_does_not_depend_on_where_or_in_which_order_films_lie():
    """Another folder lists the same films in another order."""
    turned = NAMES[::-1]
    assert Draw.of(NAMES, 5, 0) == Draw.of(turned, 5, 0)
    assert Draw.of(NAMES[:-1], 5, 0) != Draw.of(NAMES, 5, 0)


def test_where_all_are_drawn_seed_and_limit_are_of_no_account():
    """--limit-images 50 of 20 films is all of them, by any seed."""
    assert Draw.of(NAMES, None, 0) == Draw.of(NAMES, 50, 7) == Draw.of(NAMES, 20, 1)


def test_a_draw_is_read_as_it_was_written():
    """There and back, and none where a run of before did not write it."""
    draw = Draw.of(NAMES, 5, 3)
    assert Draw.read({"draw": asdict(draw)}) == draw
    assert Draw.read({"todo": 3}) is None


@pytest.mark.parametrize(
    ("larger", "smaller", "covers"),
    [
        ((NAMES, None, 0), (NAMES, 5, 3), True),
        ((NAMES, 5, 3), (NAMES, None, 0), False),
        ((NAMES, 6, 3), (NAMES, 5, 3), True),
        ((NAMES, 5, 3), (NAMES, 6, 3), False),
        ((NAMES, 6, 3), (NAMES, 5, 4), False),
        ((NAMES, None, 0), (NAMES[:9], None, 0), True),
        ((NAMES, None, 0), (NAMES[:9], 5, 0), True),
        ((NAMES[:9], None, 0), (NAMES, 5, 0), False),
        ((NAMES, 6, 0), (NAMES[:9], 5, 0), False),
        ((NAMES[:9], None, 0), (NAMES[1:10], None, 0), False),
    ],
)
def test_a_larger_draw_covers_a_smaller_one_of_the_same_films_and_seed(larger, smaller, covers):
    """A larger number adds to the films of a smaller; another seed draws others, and so do other films."""
    assert Draw.of(*larger).covers(Draw.of(*smaller)) is covers


def test_a_draw_is_said_in_a_phrase():
    """As many as were drawn, of how many, and one film is no plural."""
    assert Draw.of(NAMES, 5, 3).words() == "5 of 20 images, seed 3"
    assert Draw.of(NAMES[:1], None, 3).words() == "all of 1 image"
    assert "sha256 of their names" in Draw.of(NAMES, None, 3).words(named=True)
