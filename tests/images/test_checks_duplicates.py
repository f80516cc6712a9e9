"""Near-duplicates: found among all films, exactly, and only where two films are one exposure."""

import io

import numpy as np
import pytest
from PIL import Image

from bpals.images.checks import AT_ONCE, SAME, find_twins
from world import phantoms


def thumbnail(image):
    """A film at 32 x 32, as a pass makes it."""
    shown = image.convert("L").resize((224, 224), Image.Resampling.LANCZOS)
    return np.asarray(shown.resize((32, 32), Image.Resampling.BOX))


def reencoded(image):
    """The film at 90 % of its size, as a JPEG."""
    smaller = image.resize((round(image.width * 0.9), round(image.height * 0.9)), Image.Resampling.LANCZOS)
    return Image.open(io.BytesIO(phantoms.written(smaller, "JPEG", quality=85)))


@pytest.fixture(scope="module")
def films():
    """Drawn films of 60 patients."""
    return [phantoms.phantom(seed) for seed in range(60)]


def twins(images, usable=None):
    """Who is whose near-duplicate."""
    made = np.stack([thumbnail(image) for image in images])
    found = find_twins(made, np.ones(len(images), dtype=bool) if usable is None else np.array(usable))
    return {place: other for place, other in enumerate(found.other.tolist()) if other >= 0}


def test_a_film_under_two_names_is_found(films):
    """Re-encoded at 90 % of its size; the others are not one another."""
    assert twins([*films, reencoded(films[7])]) == {7: 60, 60: 7}
    assert twins(films) == {}


def test_brightness_and_contrast_do_not_hide_it(films):
    """Another window on the same exposure."""
    assert twins([*films, films[3].point([20 + grey // 2 for grey in range(256)])]) == {3: 60, 60: 3}


def test_of_three_alike_each_names_the_most_like_it(films):
    """The copy of a copy is nearer to the copy."""
    copy = reencoded(films[5])
    found = twins([*films, copy, copy])
    assert found[60] == 61
    assert found[61] == 60
    assert found[5] in (60, 61)


def test_a_film_that_may_not_be_used_is_nobodys_twin(films):
    """Blank ones are all alike."""
    blank = Image.new("L", (64, 64), 7)
    assert twins([*films, blank, blank]) == {}
    assert twins([*films, films[0]], usable=[True] * 60 + [False]) == {}
    assert twins([films[0]]) == {}


def test_no_pair_is_missed():
    """Against every pair in full, with so many films that they are compared in several pieces."""
    draw = np.random.default_rng(0)
    base = draw.uniform(60, 200, (4500, 8, 8)).repeat(4, axis=1).repeat(4, axis=2)
    near = base[:500] + draw.uniform(0.5, 4, (500, 1, 1)) * draw.normal(0, 1, (500, 32, 32))
    made = np.clip(np.concatenate([base, near]), 0, 255).astype(np.uint8)
    assert len(made) ** 2 > AT_ONCE
    flat = made.reshape(len(made), -1).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    alike = flat @ flat.T
    np.fill_diagonal(alike, -1)
    most = alike.max(axis=1)
    found = find_twins(made, np.ones(len(made), dtype=bool))
    sure = np.abs(most - SAME) > 1e-5
    assert 100 < (most >= SAME).sum() < 900
    assert np.array_equal((found.other >= 0)[sure], (most >= SAME)[sure])
    has = found.other >= 0
    assert np.allclose(found.correlation[has], most[has], atol=1e-5)
