"""Behaviour: how a judge answers, whatever is so."""

import numpy as np
import pytest

from bpals.score.intervals import Resamples, Resampling
from bpals.score.pairwise import BEHAVIOUR_FIGURES, MEAN, Side, behaviour, of_another_patient
from world import made_judges

DRAWS = Resamples.of(np.arange(300), Resampling(draws=300))


def rows_of(p, findings=("Effusion",), **given):
    """How a judge of one finding answers: its rows."""
    offsets = given.pop("offsets", None)
    side = Side.of("eye", made_judges.answers(p, **given), offsets)
    return behaviour(side, findings, made_judges.films(len(p)), DRAWS, np.random.default_rng(1))


def test_a_judge_that_never_looks_depends_on_no_film():
    """The same answer to every film moves by nothing when another patient's film takes its place."""
    row, _ = rows_of([0.7] * 200)
    assert (row["yes_rate"], row["depends"], row["reliance"]) == (1.0, 0.0, 0.0)


def test_a_judge_that_looks_depends_on_the_film():
    """Answers that differ from film to film move when the film is another's."""
    _, a, _ = made_judges.world()
    row, _ = rows_of(a)
    assert row["depends_low"] > 0.9
    assert row["yes_rate_low"] < row["yes_rate"] < row["yes_rate_high"]


def test_coherence_is_measured_from_the_answer_without_a_film():
    """A judge that says yes to both questions is incoherent, unless it says yes to both without looking, too."""
    given = {"p": [0.5] * 100, "present": [2.0] * 100, "absent": [2.0] * 100}
    yes_to_both, _ = rows_of(**given, offsets={"Effusion": (0.0, 0.0)})
    leaning, _ = rows_of(**given, offsets={"Effusion": (1.0, 3.0)})
    assert (yes_to_both["coherent"], yes_to_both["acquiescence"]) == (0, 2)
    assert leaning["coherent"] == 1
    assert (yes_to_both["p_without_film"], leaning["p_without_film"]) == pytest.approx((0.5, 1 / (1 + np.e)))


def test_without_both_polarities_or_a_mass_nothing_is_said_of_them():
    """A classifier has no second question: null, not zero."""
    _, a, _ = made_judges.world()
    for row in rows_of(a):
        assert [row[name] for name in ("coherent", "acquiescence", "low_mass", "coherent_low")] == [None] * 4


def test_a_mass_below_nine_tenths_is_counted():
    """A quarter of the answers wanted to be another word."""
    row, _ = rows_of([0.4] * 200, mass=[0.5] * 50 + [0.95] * 150)
    assert row["low_mass"] == 0.25
    assert row["low_mass_low"] < 0.25 < row["low_mass_high"]


def test_outcomes_are_counted_and_only_answers_are_measured():
    """Ten refusals of 100: asked, answered and refused, and a yes-rate of the 90."""
    row, _ = rows_of([None] * 10 + [0.9] * 45 + [0.1] * 45)
    assert (row["asked"], row["answered"], row["refused"], row["failed"]) == (100, 90, 10, 0)
    assert row["yes_rate"] == 0.5


def test_a_finding_without_an_answer_has_no_figure_and_is_not_in_the_mean():
    """Asked and refused, or never asked: null."""
    rows = rows_of([0.9] * 60 + [0.1] * 140, findings=("Effusion", "Hernia"))
    answered, silent, mean = rows
    assert (silent["asked"], silent["answered"], silent["p_without_film"]) == (0, 0, None)
    assert [silent[name] for name in BEHAVIOUR_FIGURES] == [None] * len(BEHAVIOUR_FIGURES)
    assert mean["finding"] == MEAN
    assert mean["yes_rate"] == answered["yes_rate"] == 0.3
    refused, _ = rows_of([None] * 20)
    assert (refused["asked"], refused["refused"], refused["yes_rate"]) == (20, 20, None)


def test_another_patient_is_another_patient():
    """No film is compared with one of its own patient; a patient with most of the films has some without another."""
    patient = np.repeat(np.arange(40), 3)
    taken = of_another_patient(patient.astype(float), patient, np.random.default_rng(0))
    assert (taken != patient).all()
    assert not np.isnan(taken).any()
    lopsided = np.array([0] * 8 + [1, 2])
    taken = of_another_patient(lopsided.astype(float), lopsided, np.random.default_rng(0))
    assert np.isnan(taken).any()
    assert (taken[~np.isnan(taken)] != lopsided[~np.isnan(taken)]).all()
    assert np.isnan(of_another_patient(np.ones(5), np.zeros(5, dtype=int), np.random.default_rng(0))).all()
