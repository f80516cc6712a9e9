"""The view that a film looks like, against the record; and films unlike all others."""

import numpy as np
import pytest

from bpals.images.checks import UNLIKE, measure_unlike, view_films

FILMS = 400
DRAW = np.random.default_rng(0)
VIEW = np.where(DRAW.random(FILMS) < 0.3, "AP", "PA")
FOLD = np.arange(FILMS) % 5


class Stored:
    """Features in memory."""

    def __init__(self, features):
        """Keep them."""
        self.features, self.width = features, features.shape[1]

    def rows(self, start, stop):
        """Some films."""
        return self.features[start:stop]


def features(view=VIEW, *, apart=3.0):
    """Films of two views that lie apart in a few of many directions."""
    noise = np.random.default_rng(1).normal(size=(len(view), 150))
    noise[:, :10] += apart * (view == "AP")[:, None]
    return noise.astype(np.float32)


def test_a_film_recorded_under_the_wrong_view_is_found():
    """Ten films whose record says the other view, and none of the rest."""
    recorded = VIEW.copy()
    wrong = np.flatnonzero(VIEW == "AP")[:10]
    recorded[wrong] = "PA"
    viewed = view_films(Stored(features()), recorded, FOLD)
    against = np.flatnonzero(viewed.against(recorded))
    assert set(against) <= set(wrong)
    assert len(against) >= 3  # more AP than half of the films recorded so
    assert viewed.auroc > 0.95
    assert viewed.recorded == FILMS
    assert (viewed.score[wrong] > 0.5).all()


def test_a_view_that_cannot_be_told_is_not_found_wrong_often():
    """Where the views look the same, the AUROC says so."""
    viewed = view_films(Stored(features(apart=0.0)), VIEW, FOLD)
    assert viewed is None or viewed.auroc < 0.65


def test_a_film_without_a_view_on_record_is_never_against_it():
    """A lateral, or nothing at all."""
    recorded = np.where(np.arange(FILMS) < 20, "", VIEW)
    viewed = view_films(Stored(features()), recorded, FOLD)
    assert not viewed.against(recorded)[:20].any()
    assert viewed.recorded == FILMS - 20


@pytest.mark.parametrize("recorded", [np.full(FILMS, "PA"), np.full(FILMS, "")])
def test_one_view_teaches_nothing(recorded):
    """Thirty films of each are needed."""
    assert view_films(Stored(features()), recorded, FOLD) is None


def test_a_film_unlike_all_others_stands_out():
    """It varies where they do not."""
    films = features()
    films[:, 20:] = films[:, :1] * np.linspace(0, 1, 130, dtype=np.float32) + 0.1 * films[:, 20:]
    films[7, 20:] += np.random.default_rng(2).normal(size=130) * 3
    unlike = measure_unlike(Stored(films), np.ones(FILMS, dtype=bool), FOLD)
    assert unlike.argmax() == 7
    assert unlike[7] > UNLIKE
    assert np.median(unlike) == pytest.approx(1, abs=0.02)


def test_too_few_films_share_nothing():
    """What is usual cannot be said of a hundred."""
    assert measure_unlike(Stored(features()[:100]), np.ones(100, dtype=bool), FOLD[:100]) is None
