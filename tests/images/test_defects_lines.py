"""The line through features: what it is fitted to, and that a patient's own films are not among it."""

import numpy as np

from bpals.images.defects import BLOCK, crossfitted, fit, gathered

DRAW = np.random.default_rng(0)
FILMS = DRAW.normal(size=(60, 200)).astype(np.float32) * np.linspace(1, 100, 200, dtype=np.float32)
FOLD = np.arange(60) % 5
TARGET = FILMS[:, :1] * 3 + 1


class Stored:
    """Features in memory, as a cache gives them."""

    width = FILMS.shape[1]

    def rows(self, start, stop):
        """Some films, in 16 bits."""
        return FILMS[start:stop].astype(np.float16)


def without(number, target=TARGET):
    """The line that does not know a fold."""
    return fit(FILMS[number != FOLD], target[number != FOLD], 0.01)


def test_a_line_finds_what_is_there():
    """Fitted to the films it knows, it says what they were told."""
    said = fit(FILMS, TARGET, 1e-6).score(FILMS)
    assert np.corrcoef(said[:, 0], TARGET[:, 0])[0, 1] > 0.999


def test_what_a_film_is_told_does_not_move_its_own_score():
    """Turn the targets of one fold round: the scores of its films stay, those of others move."""
    flipped = np.where((FOLD == 2)[:, None], -TARGET, TARGET)
    before = crossfitted(Stored(), FOLD, without)
    after = crossfitted(Stored(), FOLD, lambda number: without(number, flipped))
    assert np.array_equal(before[FOLD == 2], after[FOLD == 2])
    assert not np.allclose(before[FOLD != 2], after[FOLD != 2])


def test_features_are_read_in_blocks():
    """No more than a block at a time, and the films come in the order that was asked for."""
    films = np.arange(3 * BLOCK, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    asked = []

    class Many:
        width = 2

        def rows(self, start, stop):
            asked.append(stop - start)
            return films[start:stop]

    places = np.array([3 * BLOCK - 1, 5, BLOCK, BLOCK - 1, 0])
    assert np.array_equal(gathered(Many(), places, len(films)), films[places])
    assert asked == [BLOCK] * 3


def test_a_feature_that_never_varies_is_harmless():
    """No division by nothing."""
    films = np.concatenate([FILMS, np.ones((60, 1), np.float32)], axis=1)
    assert np.isfinite(fit(films, TARGET, 0.01).score(films)).all()
