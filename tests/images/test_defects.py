"""Inverted, turned and cropped films are found by what copies of other patients' films look like."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bpals.images.defects import COPIES, WORKS, Detected, Sample, detect
from bpals.images.stream import square
from world import phantoms

FILMS, SAMPLED = 130, 110
FOLD = np.arange(FILMS) % 5
WRONG = {3: "turned_90", 120: "turned_180", 121: "inverted", 122: "cropped", 123: "turned_270"}
"""Films that are altered themselves: one of the sample, and others."""


@pytest.fixture(scope="module")
def looked():
    """The features of drawn films, some of them altered, and of the copies of the first ones."""
    extractor = phantoms.open_extractor()
    films = [phantoms.phantom(seed) for seed in range(FILMS)]
    films = [COPIES[WRONG[place]](film) if place in WRONG else film for place, film in enumerate(films)]
    features = np.stack([extractor(square(film, 48)) for film in films])
    copies = [[extractor(square(alter(film), 48)) for alter in COPIES.values()] for film in films[:SAMPLED]]
    return features, Sample(places=np.arange(SAMPLED), copies=np.array(copies, dtype=np.float32))


class Stored:
    """Features in memory."""

    def __init__(self, features):
        """Keep them."""
        self.features, self.width = features, features.shape[1]

    def rows(self, start, stop):
        """Some films."""
        return self.features[start:stop]


@pytest.fixture(scope="module")
def found(looked):
    """What the checks say of them."""
    features, sample = looked
    with threadpool_limits(1):
        return detect(Stored(features), FOLD, sample)


def test_each_altered_film_is_found_and_no_other(found):
    """By its own check, and by no other check."""
    fired = {check: np.flatnonzero(said.score > 0).tolist() for check, said in found.checks.items()}
    assert fired == {"inverted": [121], "turned": [3, 120, 123], "cropped": [122]}


def test_the_degrees_are_those_by_which_it_was_turned(found):
    """Anticlockwise."""
    assert found.degrees[[3, 120, 123]].tolist() == [90, 180, 270]


def test_a_wrong_film_of_the_sample_teaches_nothing(found):
    """Its copies would be upright films that are called turned: it is left out, and found."""
    assert found.left_out == 1
    assert found.checks["turned"].alarms == 1
    assert found.checks["turned"].found == found.checks["turned"].copies == 3 * (SAMPLED - 1)


def test_a_films_own_copies_do_not_move_its_score(looked, found):
    """Another patient's do: the film is judged by lines that never saw its patient."""
    features, sample = looked
    copies = sample.copies.copy()
    copies[FOLD[:SAMPLED] == 4] = np.random.default_rng(0).permutation(copies[FOLD[:SAMPLED] == 4], axis=1)
    with threadpool_limits(1):
        again = detect(Stored(features), FOLD, Sample(places=sample.places, copies=copies))
    before, after = (each.checks["inverted"].score for each in (found, again))
    apart = np.abs(before - after)
    # The cut, which moves with all films, is the same number for each.
    assert np.ptp((before - after)[FOLD == 4]) < 1e-4
    assert np.ptp((before - after)[FOLD != 4]) > 1e-2
    assert np.isfinite(apart).all()


def test_a_check_that_cannot_tell_is_not_heard():
    """Found on fewer than four of five copies, it says nothing."""
    said = {"score": np.zeros(3, np.float32), "copies": 100, "alarms": 1, "films": 100}
    assert not Detected(found=int(100 * WORKS) - 1, **said).works
    assert Detected(found=int(100 * WORKS), **said).works


def test_where_copies_look_like_films_one_film_in_a_hundred_is_flagged():
    """Noise for features: the check says so by finding few copies, and flags few films."""
    draw = np.random.default_rng(1)
    features = draw.normal(size=(300, 60)).astype(np.float32)
    sample = Sample(places=np.arange(200), copies=draw.normal(size=(200, len(COPIES), 60)).astype(np.float32))
    with threadpool_limits(1):
        blind = detect(Stored(features), np.arange(300) % 5, sample)
    for said in blind.checks.values():
        assert not said.works
        assert (said.score > 0).mean() < 0.05
    assert blind.left_out == 0
