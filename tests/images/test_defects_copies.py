"""Altered copies: each is what its name says, and travels from a worker whole."""

import hashlib
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from bpals.images.collection import open_index
from bpals.images.defects import COPIES, Altering, Copies, copy_features
from bpals.images.stream import square
from bpals.types import Refusal
from world import phantoms

MARKED = np.zeros((40, 60), dtype=np.uint8)
MARKED[0, 0], MARKED[20, 30] = 200, 100


def copy(name):
    """The marked film, altered."""
    return np.asarray(COPIES[name](Image.fromarray(MARKED)))


def test_an_inverted_copy_is_white_where_the_film_is_black():
    """Twice inverted is the film itself."""
    assert np.array_equal(copy("inverted"), 255 - MARKED)


@pytest.mark.parametrize(("name", "times"), [("turned_90", 1), ("turned_180", 2), ("turned_270", 3)])
def test_a_turned_copy_is_turned_anticlockwise(name, times):
    """The degrees of the name, and the direction that the documents promise."""
    assert np.array_equal(copy(name), np.rot90(MARKED, times))


def test_a_cropped_copy_is_the_middle_of_the_film():
    """60 % of each side: the corner is gone, the middle is there."""
    assert copy("cropped").shape == (24, 36)
    assert copy("cropped").max() == 100


def test_a_shrunk_copy_has_the_pixels_of_a_crop_and_shows_all_of_the_film():
    """So that few pixels are no sign of a crop."""
    assert copy("shrunk").shape == copy("cropped").shape
    assert copy("shrunk")[0, 0] > 50


@pytest.mark.parametrize("workers", [0, 1])
def test_copies_are_looked_at_as_the_film_is(workers, tmp_path):
    """In this process and in a worker alike: a row of numbers for each copy, none for a film that is refused."""
    film = phantoms.phantom(0)
    (tmp_path / "sound.png").write_bytes(phantoms.written(film))
    (tmp_path / "torn.png").write_bytes(phantoms.written(film)[:300])
    index = open_index(tmp_path)
    with copy_features(index, index.found, phantoms.FEATURE_SPEC, workers=workers) as reading:
        made = dict(reading)
    extractor = phantoms.open_extractor()
    expected = [extractor(square(alter(film), 48)) for alter in COPIES.values()]
    sound = next(each for each in made.values() if isinstance(each, Copies))
    assert np.array_equal(sound.features, np.stack(expected))
    assert sound.sha256 == hashlib.sha256((tmp_path / "sound.png").read_bytes()).hexdigest()
    assert [each.code for each in made.values() if isinstance(each, Refusal)] == ["truncated"]


def test_a_reply_of_the_wrong_size_is_refused():
    """What no sound worker sends does not become numbers."""
    work = Altering(**asdict(phantoms.FEATURE_SPEC))
    with pytest.raises(ValueError, match="reshape"):
        work.unpack({"sha256": "x", "notes": []}, b"\0" * 4 * (len(COPIES) + 1))
