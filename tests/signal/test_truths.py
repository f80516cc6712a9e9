"""Truths: adjudicated labels stand over reads, and each review counts as it was drawn."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from bpals.signal.truths import HEAVIEST, Truths, _weight
from bpals.testing import tiny_dataset
from bpals.types import REVIEWS, TRUTH, Reference, Reviews


@pytest.fixture(scope="module")
def dataset():
    """Twenty patients with one to four films."""
    return tiny_dataset(patients=20)


def reads(rows):
    """Single reads: film, finding, reader, verdict, chance."""
    return Reviews(table=pl.DataFrame(rows, schema=REVIEWS, orient="row"))


def labels(rows):
    """Adjudicated labels: film, finding, present."""
    return Reference(kind="table", truth=pl.DataFrame([(*row, None) for row in rows], schema=TRUTH, orient="row"))


def gathered(dataset, reference=None, reviews=None):
    """Both together; every film is claimed to have everything."""
    return Truths.of(dataset, reference, reviews, lambda _: np.ones(dataset.images.height))


def test_an_adjudicated_label_stands_over_single_reads(dataset):
    """Of its own pair; the reads of other pairs, and of other findings of the film, are settled."""
    one, other = dataset.images["image_id"][:2]
    said = reads([(one, "Mass", "ann", "present", 0.5), (other, "Mass", "ann", "present", 0.5),
                  (one, "Nodule", "ann", "absent", 0.5)])  # fmt: skip
    table = gathered(dataset, labels([(one, "Mass", False)]), said).table
    found = {(row["image_id"], row["finding"]): (row["present"], row["inclusion"]) for row in table.to_dicts()}
    assert len(found) == table.height == 3
    assert found[one, "Mass"] == (0.0, None)
    assert 0.5 < found[other, "Mass"][0] < 1
    assert found[other, "Mass"][1] == 0.5
    assert 0 < found[one, "Nodule"][0] < 0.5


def test_what_is_said_of_other_films_is_passed_over(dataset):
    """Labels and reads, and the readers are those of this dataset's films."""
    film = dataset.images["image_id"][3]
    said = reads([("elsewhere", "Mass", "ben", "present", None), (film, "Mass", "ann", "present", None)])
    truths = gathered(dataset, labels([("elsewhere", "Mass", True)]), said)
    assert truths.table["image_id"].to_list() == [film]
    assert truths.table["row"].to_list() == [3]
    assert set(truths.readers["Mass"]) == {"ann"}


def test_nobody_said_anything(dataset):
    """No pair, no patient, nothing to learn."""
    truths = gathered(dataset)
    assert truths.table.is_empty()
    assert truths.patients == 0
    height = dataset.images.height
    assert truths.about("Mass", np.ones(height, dtype=bool), np.zeros(height, dtype=np.int64)) is None


def test_patients_are_counted_and_a_film_of_nobody_is_one(dataset):
    """Not films."""
    films = dataset.images.filter(pl.col("patient_id") == "p0003")["image_id"]
    assert len(films) == 4
    assert gathered(dataset, labels([(film, "Mass", True) for film in films])).patients == 1
    bare = dataclasses.replace(dataset, images=dataset.images.with_columns(patient_id=pl.lit(None, pl.String)))
    assert gathered(bare, labels([(film, "Mass", True) for film in films])).patients == 4


def test_only_films_that_a_judge_answered_are_learned_from(dataset):
    """And only where both verdicts are there."""
    names = dataset.images["image_id"][:6]
    truths = gathered(dataset, labels([(film, "Mass", place % 2 == 0) for place, film in enumerate(names)]))
    fold = np.arange(dataset.images.height)
    answered = np.ones(dataset.images.height, dtype=bool)
    answered[2] = False
    reviewed = truths.about("Mass", answered, fold)
    assert reviewed.rows.tolist() == [0, 1, 3, 4, 5]
    assert reviewed.present.tolist() == [1, 0, 0, 1, 0]
    assert reviewed.fold.tolist() == [0, 1, 3, 4, 5]
    assert reviewed.weight.tolist() == [1] * 5
    answered[[0, 4]] = False
    assert truths.about("Mass", answered, fold) is None


def test_a_review_counts_as_many_pairs_as_had_its_chance():
    """In units of the mean review; unknown chances count one."""
    weights = _weight(pl.Series([0.1, 0.1, 0.05, 0.05]))
    assert weights == pytest.approx(np.array([10, 10, 20, 20]) / 15)
    assert weights.mean() == pytest.approx(1)
    assert _weight(pl.Series([None, None], dtype=pl.Float64)).tolist() == [1, 1]
    assert _weight(pl.Series([0.2, None, 0.2])).tolist() == [1, 1, 1]


def test_one_rare_draw_must_not_decide():
    """A review counts ten times the mean one at most."""
    weights = _weight(pl.Series([1.0] * 99 + [1e-4]))
    assert weights.max() == HEAVIEST


def test_without_some_patients_the_reads_are_settled_by_the_others_alone(dataset):
    """What left-out patients taught about a reader is forgotten; adjudicated labels stand."""
    names = dataset.images["image_id"][:40]
    draw = np.random.default_rng(0)
    shows = draw.random((40, 1)) < 0.5
    words = np.where(shows ^ (draw.random((40, 2)) < 0.15), "present", "absent")
    said = [(film, "Mass", reader, words[row, place], None) for row, film in enumerate(names)
            for place, reader in enumerate(("ann", "ben"))][:-4]  # fmt: skip
    fold, answered = np.arange(dataset.images.height) % 5, np.ones(dataset.images.height, dtype=bool)
    label = labels([(names[-1], "Mass", True)])
    reviewed = gathered(dataset, label, reads(said)).about("Mass", answered, fold)
    left = reviewed.without(frozenset({3}))
    alone = [row for row in said if names.to_list().index(row[0]) % 5 != 3]
    same = gathered(dataset, label, reads(alone)).about("Mass", answered, fold).without(frozenset({3}))
    assert left.rows.tolist() == same.rows.tolist()
    assert (left.present == same.present).all()
    assert (left.present != reviewed.present[reviewed.fold != 3]).any()
    assert (reviewed.without(frozenset()).present == reviewed.present).all()
    adjudicated = reviewed.without(frozenset({0}))
    assert adjudicated.present[adjudicated.rows == 39].tolist() == [1.0]
