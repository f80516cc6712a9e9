"""Blocks of films: every film is worked on once, and a failure is not lost in a thread."""

import numpy as np
import pytest

from bpals.signal.blocks import BLOCK, in_blocks


@pytest.mark.parametrize("films", [0, 1, BLOCK, 2 * BLOCK + 3])
def test_every_film_is_worked_on_once(films):
    """Whole blocks and a rest."""
    seen = np.zeros(films, dtype=int)

    def work(block):
        seen[block] += 1

    in_blocks(films, work)
    assert (seen == 1).all()


def test_what_goes_wrong_in_a_block_is_told():
    """A thread's error ends the work."""

    def work(_block):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_blocks(1, work)
