"""Films that are drawn: what they are told to have, and nothing that depends on the day."""

import io

import numpy as np
import pytest
from PIL import Image

from bpals.findings import NIH
from bpals.images.phantom import FINDINGS, draw_phantom


def pixels(findings, **how):
    """The film as numbers from 0 to 1."""
    film = np.asarray(Image.open(io.BytesIO(draw_phantom(findings, **how))))
    return film / np.iinfo(film.dtype).max


def test_every_finding_of_nih_can_be_drawn():
    """The demo asks about all 14."""
    assert set(FINDINGS) == set(NIH.findings)


def test_the_same_seed_is_the_same_film_and_another_seed_another():
    """Nothing but the findings and the seed goes into it."""
    assert draw_phantom(["Mass"], seed=3, side_px=64) == draw_phantom(["Mass"], seed=3, side_px=64)
    assert draw_phantom(["Mass"], seed=3, side_px=64) != draw_phantom(["Mass"], seed=4, side_px=64)


@pytest.mark.parametrize("finding", sorted(FINDINGS))
def test_a_finding_can_be_seen(finding):
    """It changes some part of the film by more than the noise, and leaves most of the film alone."""
    change = np.abs(pixels([finding], seed=1, side_px=256) - pixels([], seed=1, side_px=256))
    smooth = np.asarray(Image.fromarray((change * 255).astype(np.uint8)).reduce(4)) / 255
    assert smooth.max() > 0.06
    assert np.median(smooth) < 0.03


def test_sixteen_bits_hold_more_greys_than_eight():
    """Such a film is there to try the window on."""
    assert len(np.unique(pixels([], seed=2, side_px=128, bits=16))) > 1000
    assert len(np.unique(pixels([], seed=2, side_px=128))) <= 256
