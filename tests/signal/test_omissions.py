"""Labels that are missing: counted between two reports that have them, and never from a patient's own fold."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.numeric import reports_of_films
from bpals.signal.omissions import BELIEVED, CAREFUL, omissions
from bpals.types import IMAGES


def films(patients, *, studies=None, at=None):
    """Films of patients in the order of time."""
    known = {
        "image_id": [f"{row:04}.png" for row in range(len(patients))],
        "patient_id": patients,
        "study_id": studies or [None] * len(patients),
        "follow_up": at or list(range(len(patients))),
    }
    return pl.DataFrame(known, schema_overrides={"patient_id": pl.String, "study_id": pl.String}).with_columns(
        pl.lit(None, kind).alias(name) for name, kind in IMAGES.items() if name not in known
    )


def sandwiches(count, hits, folds=2):
    """Patients of three films: present, then `hits` times present and else absent, then present; half in each fold."""
    states = np.array([[1, float(number < hits), 1] for number in range(count)]).reshape(-1, 1)
    patients = np.repeat([f"p{number:04}" for number in range(count)], 3)
    return states, reports_of_films(films(patients.tolist())), np.repeat(np.arange(count) % folds, 3)


def test_a_known_share_of_gaps_comes_back():
    """Of 200 middles 120 have the label: each fold is raised by half the log of the other fold's share."""
    states, reports, fold = sandwiches(200, 120)
    shift = omissions(states, reports, fold)
    assert shift == pytest.approx(-BELIEVED * np.log((60 + CAREFUL) / (100 + CAREFUL)))


def test_few_gaps_say_little_and_none_nothing():
    """One miss in two gaps is not half of all labels."""
    assert 0 < omissions(*sandwiches(4, 2)).max() < 0.1
    assert (omissions(*sandwiches(200, 200)) == 0).all()
    empty = omissions(np.zeros((0, 3)), reports_of_films(films([])), np.zeros(0, dtype=np.int64))
    assert empty.shape == (0, 3)


@pytest.mark.parametrize("patients", [[None] * 30, [f"p{row}" for row in range(30)], ["a", "a"] * 15])
def test_a_dataset_without_timelines_has_no_such_evidence(patients):
    """Nobody's films, patients with one film, or all in one fold: no logit moves."""
    states = np.random.default_rng(0).integers(0, 2, (30, 4)).astype(float)
    fold = np.zeros(30, dtype=np.int64) if patients[0] == "a" else np.arange(30) % 3
    assert (omissions(states, reports_of_films(films(patients)), fold) == 0).all()


def test_films_of_one_study_are_one_report():
    """The loudest film speaks for it: a second film of the middle study that has the label is no gap."""
    studies = ["s1", "s2", "s2", "s3"] * 40
    patients = [f"p{row // 4}" for row in range(160)]
    states = np.tile([1.0, 0.0, 1.0, 1.0], 40)[:, None]
    at = [row % 4 for row in range(160)]
    fold = np.arange(160) // 4 % 2
    whole, single = (reports_of_films(films(patients, studies=named, at=at)) for named in (studies, None))
    assert (omissions(states, whole, fold) == 0).all()
    alone = omissions(states, single, fold)
    assert (alone > 0.1).all()


def test_an_open_or_silent_report_is_a_gap_but_no_side_of_one():
    """What is not said to be there is not there; what is open does not enclose anything."""
    states, reports, fold = sandwiches(100, 50)
    silent = np.where(states == 0, np.nan, states)
    assert omissions(silent, reports, fold) == pytest.approx(omissions(states, reports, fold))
    states[::3] = 0.5
    assert (omissions(states, reports, fold) == 0).all()


@given(place=st.integers(0, 299), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_flipping_a_claim_does_not_move_its_own_logit(place, seed):
    """Not one bit, of its whole fold; others' may."""
    draw = np.random.default_rng(seed)
    who = draw.integers(0, 60, 300)
    reports, fold = reports_of_films(films([f"p{number}" for number in who])), who % 3
    states = draw.integers(0, 2, (300, 2)).astype(float)
    before = omissions(states, reports, fold)
    states[place, 1] = 1 - states[place, 1]
    after = omissions(states, reports, fold)
    assert (after[fold == fold[place]] == before[fold == fold[place]]).all()
    assert (after[:, 0] == before[:, 0]).all()


@given(seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_films_does_not_matter(seed):
    """Where the dataset says when they were made."""
    draw = np.random.default_rng(seed)
    who = draw.integers(0, 30, 200)
    images, fold = films([f"p{number}" for number in who]), who % 3
    states = draw.integers(0, 2, (200, 2)).astype(float)
    order = draw.permutation(200)
    turned = omissions(states[order], reports_of_films(images[order]), fold[order])
    assert turned == pytest.approx(omissions(states, reports_of_films(images), fold)[order])
