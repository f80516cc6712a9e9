"""How reviewed claims were drawn: one a patient, and each with the same chance."""

import numpy as np
import pytest

from bpals.signal.drawn import Drawn, Read


def drawn(count=1000, **more):
    """Claims with a trust each."""
    return Drawn(trust=np.linspace(0, 1, count), wrong=np.zeros(count, dtype=bool), **more)


def test_one_claim_a_patient_is_kept():
    """Which one is drawn by lot, the same on every run."""
    some = drawn(patient=np.arange(1000) % 100)
    kept = some.take(some.fair(some.every))
    assert len(kept) == len(np.unique(kept.patient)) == some.patients == 100
    assert np.array_equal(some.fair(some.every), some.fair(some.every))
    assert kept.trust.mean() == pytest.approx(0.5, abs=0.1)


def test_without_patients_every_claim_stands_for_itself():
    """Nobody is taken for somebody else."""
    assert drawn().fair(drawn().every).all()
    assert drawn().patients == 1000


def test_claims_that_were_drawn_more_often_are_kept_less_often():
    """Half were drawn with chance .8, half with .2: a quarter of the first half stays, and all of the second."""
    some = drawn(inclusion=np.where(np.arange(1000) < 500, 0.8, 0.2))
    fair = some.fair(some.every)
    assert fair[500:].all()
    assert fair[:500].mean() == pytest.approx(0.25, abs=0.06)


def test_within_a_patient_a_likely_claim_is_no_more_likely_to_stand_for_it():
    """Each of 500 patients has a claim drawn with chance .8 and one with .2: after thinning the second leads 4 to 1."""
    some = drawn(inclusion=np.where(np.arange(1000) % 2 == 0, 0.8, 0.2), patient=np.arange(1000) // 2)
    fair = some.fair(some.every)
    assert fair.sum() == 500
    # Of a patient's two, the first stays with chance 1/4, and is then chosen in half the cases.
    assert fair[::2].mean() == pytest.approx(1 / 8, abs=0.04)


def test_only_the_claims_in_question_set_the_chance():
    """Among the first half all were drawn alike, so none of them is lost, unless a smaller chance is named."""
    some = drawn(inclusion=np.where(np.arange(1000) < 500, 0.8, 0.2))
    first = np.arange(1000) < 500
    assert np.array_equal(some.fair(first), first)
    assert some.fair(first, 0.2)[:500].mean() == pytest.approx(0.25, abs=0.06)
    assert not some.fair(np.zeros(1000, dtype=bool)).any()


def test_where_nobody_knows_the_chances_all_are_kept():
    """They stand for claims like themselves, and the population says so."""
    some = drawn()
    assert "like those that were read" in some.population(some.every)


def test_the_population_is_who_could_have_been_drawn():
    """The smallest chance in question is named."""
    some = drawn(inclusion=np.where(np.arange(1000) < 500, 0.8, 0.2))
    assert "at least 0.2" in some.population(some.every)
    assert "at least 0.8" in some.population(np.arange(1000) < 500)
    assert some.population(np.zeros(1000, dtype=bool)).startswith("none")


def test_reads_of_a_finding_become_reviewed_claims_of_one_direction():
    """Films that claim something else are left out, and each keeps its patient, chance and split."""
    read = Read(
        films=np.array([1, 3, 4]),
        wrong=np.array([True, False, True]),
        patient=np.array([7, 8, 9]),
        inclusion=np.array([0.1, 0.2, 0.3]),
    )
    films, some = read.among(np.array([1, 1, 1, 0, 1], dtype=bool), np.arange(5) / 10, np.array([0, 1, 0, 0, np.nan]))
    assert films.tolist() == [1, 4]
    assert (some.trust.tolist(), some.wrong.tolist()) == ([0.1, 0.4], [True, True])
    assert (some.patient.tolist(), some.inclusion.tolist()) == ([7, 9], [0.1, 0.3])
    assert some.split[0] == 1
    assert np.isnan(some.split[1])
