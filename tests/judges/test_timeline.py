"""The record as matrices: what each film's evidence holds, and what must not be in it."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.judges.record import DECAYS, MOST_VIEWS, NO_OTHER, _views, fold_of, read_record, state_matrix
from bpals.testing import tiny_dataset
from bpals.types import SAYS


def evidence(dataset, claims=None):
    """The features of every film."""
    said = dataset.claims if claims is None else claims
    return read_record(dataset.images, said, dataset.vocabulary).evidence


def shuffled_words(claims, film, seed):
    """The claims with other words for one film, each changed."""
    turn = 1 + np.random.default_rng(seed).integers(0, 2, claims.height)
    other = pl.Series(SAYS.categories).gather((claims["says"].to_physical().to_numpy() + turn) % 3).cast(SAYS)
    return claims.with_columns(says=pl.when(pl.col("image_id") == film).then(other).otherwise("says"))


def with_studies(dataset, films=2):
    """Let several films of a patient share a study."""
    study = pl.col("patient_id") + "/" + (pl.col("follow_up") // films).cast(pl.String)
    return dataclasses.replace(dataset, images=dataset.images.with_columns(study_id=study))


def test_states_keep_silence_and_uncertainty():
    """1 present, 0 absent, one half uncertain, NaN silent: nothing is turned into absence."""
    dataset = tiny_dataset(patients=30, uncertain=0.2, silent=0.2)
    states = state_matrix(dataset.images, dataset.claims, dataset.vocabulary)
    counts = dict(dataset.claims["says"].value_counts().iter_rows())
    assert (states == 1).sum() == counts["present"]
    assert (states == 0).sum() == counts["absent"]
    assert (states == 0.5).sum() == counts["uncertain"]
    assert np.isnan(states).sum() == dataset.images.height * 3 - dataset.claims.height
    film, finding, says = dataset.claims.row(7)
    row = dataset.images["image_id"].to_list().index(film)
    column = dataset.vocabulary.findings.index(finding)
    assert states[row, column] == {"present": 1, "absent": 0, "uncertain": 0.5}[says]


def test_a_fold_depends_on_the_patient_alone():
    """Neither the other patients nor the order of the films move a patient into another fold."""
    some = np.array(["p1", "p2", "p1", "film:x.png"])
    many = np.array([f"p{number}" for number in range(500)] + ["film:x.png"])
    among_few = dict(zip(some, fold_of(some, 5), strict=True))
    among_many = dict(zip(many, fold_of(many, 5), strict=True))
    assert among_few == {name: among_many[name] for name in among_few}
    assert fold_of(some[::-1], 5).tolist() == fold_of(some, 5)[::-1].tolist()
    assert np.bincount(fold_of(many, 5), minlength=5).min() > 60


@given(seed=st.integers(0, 10_000), film=st.integers(0, 29), studies=st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_claim_of_the_film_is_in_its_evidence(seed, film, studies):
    """So its No Finding, a count of its labels and their sum are not either; and a study's films share one report."""
    dataset = tiny_dataset(seed=seed % 7)
    dataset = with_studies(dataset) if studies else dataset
    name = dataset.images["image_id"][film]
    before, after = evidence(dataset), evidence(dataset, shuffled_words(dataset.claims, name, seed))
    same = (before == after).all(axis=1)
    mates = dataset.images["image_id"] == name
    if studies:
        mates = dataset.images["study_id"] == dataset.images["study_id"][film]
    assert same[mates.to_numpy()].all()
    family = (dataset.images["patient_id"] == dataset.images["patient_id"][film]) & ~mates
    assert not same[family.to_numpy()].any()
    assert same[(dataset.images["patient_id"] != dataset.images["patient_id"][film]).to_numpy()].all()


def test_a_claim_of_another_film_is_evidence():
    """The test above is not blind: one flip on a film changes the evidence of the patient's others."""
    dataset = tiny_dataset()
    film = dataset.images.filter(pl.col("follow_up") == 2)["image_id"][0]
    after = evidence(dataset, shuffled_words(dataset.claims, film, 0))
    assert ((evidence(dataset) != after).any(axis=1)).sum() == 2


def expected_history(dataset, film):
    """The summary of a patient's other reports, written down a second time, slowly: one report a film."""
    images = dataset.images.with_row_index("row")
    states = state_matrix(dataset.images, dataset.claims, dataset.vocabulary)
    rare = images["view"].value_counts().sort("count")["view"][0]
    said = np.nan_to_num(states)
    silent = np.isnan(states)[:, np.isnan(states).any(axis=0)]
    nothing = said.sum(axis=1, keepdims=True) == 0
    channels = np.concatenate([said, silent, nothing, (images["view"] == rare).to_numpy()[:, None]], axis=1)
    row = images.row(film, named=True)
    family = images.filter(pl.col("patient_id") == row["patient_id"]).sort("follow_up")
    place = family["follow_up"].to_list().index(row["follow_up"])
    rows = family["row"].to_list()
    columns = []
    for decay in DECAYS:
        for others in (rows[:place][::-1], rows[place + 1 :]):
            weights = np.array([decay ** (steps + 1) for steps in range(len(others))])
            mean = np.full(channels.shape[1], NO_OTHER)
            if others:
                mean = (channels[others] * weights[:, None]).sum(axis=0) / weights.sum()
            columns += [mean, [np.log1p(weights.sum())]]
    others = rows[:place] + rows[place + 1 :]
    columns.append(channels[others].mean(axis=0) if others else np.full(channels.shape[1], NO_OTHER))
    columns.append(np.log1p(channels[others].sum(axis=0)))
    return np.concatenate(columns)


def test_the_history_is_what_the_words_say():
    """Means of the reports before and after, nearer ones weighing more, and of all others, with their counts."""
    dataset = tiny_dataset(patients=12, longest=5, uncertain=0.1, silent=0.1, seed=2)
    features = evidence(dataset)
    for film in range(dataset.images.height):
        wanted = expected_history(dataset, film)
        assert features[film, : len(wanted)] == pytest.approx(wanted, abs=1e-5)


def test_the_order_of_the_rows_is_no_evidence():
    """A table in another order is the same record."""
    dataset = tiny_dataset(patients=20)
    turned = dataclasses.replace(dataset, images=dataset.images.reverse())
    assert evidence(turned)[::-1] == pytest.approx(evidence(dataset), abs=1e-6)


def test_a_study_s_films_count_as_one_report():
    """Two films of one report are one voice, not two; a patient with one study has no other report."""
    dataset = tiny_dataset(patients=8, longest=4)
    apart = read_record(dataset.images, dataset.claims, dataset.vocabulary)
    joined = read_record(with_studies(dataset).images, dataset.claims, dataset.vocabulary)
    films = dict(dataset.images["patient_id"].value_counts().iter_rows())
    sizes = [films[patient] for patient in dataset.images["patient_id"]]
    assert apart.others.tolist() == [size - 1 for size in sizes]
    assert joined.others.tolist() == [(size + 1) // 2 - 1 for size in sizes]


def test_a_film_without_a_patient_is_alone():
    """It has no other report, and a fold of its own."""
    dataset = tiny_dataset()
    images = dataset.images.with_columns(patient_id=pl.lit(None, pl.String))
    record = read_record(images, dataset.claims, dataset.vocabulary)
    assert (record.others == 0).all()
    assert len(np.unique(record.patients)) == images.height


def test_what_is_not_known_is_marked_and_not_invented():
    """An unknown age is the mean age with a mark beside it; nothing in the evidence is NaN."""
    dataset = tiny_dataset()
    images = dataset.images.with_columns(
        age=pl.when(pl.int_range(pl.len()) == 0).then(None).otherwise("age"),
        view=pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise("view"),
        sex=pl.lit(None, pl.String),
        follow_up=pl.lit(None, pl.Int64),
    )
    features = evidence(dataclasses.replace(dataset, images=images))
    assert np.isfinite(features).all()
    mean = images["age"].mean()
    assert (np.abs(features[0] - mean) < 1e-3).any()


def test_at_most_a_few_views_have_a_column():
    """A dataset with forty spellings of the view does not get forty columns."""
    dataset = tiny_dataset(patients=40)
    images = dataset.images.with_columns(view="v" + pl.int_range(pl.len()).cast(pl.String))
    assert _views(images).shape[1] == MOST_VIEWS - 1
    assert _views(images.with_columns(view=pl.lit(None, pl.String))).shape[1] == 0


@pytest.mark.parametrize("patients", [0, 1])
def test_an_empty_record_has_empty_matrices(patients):
    """No film, or one: no warning."""
    dataset = tiny_dataset(patients=patients)
    record = read_record(dataset.images, dataset.claims, dataset.vocabulary)
    assert record.states.shape == (patients, 3)
    assert record.evidence.shape[0] == len(record.patients) == len(record.others) == patients
