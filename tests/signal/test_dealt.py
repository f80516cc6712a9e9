"""Films dealt by part and fold: every film in one piece, whatever the folds are called."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.signal.dealt import PARTS, Dealt, joined


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
