"""Intervals that treat the images of one patient as one cluster."""

import numpy as np
import pytest

from bpals.errors import UsageError
from bpals.metrics import Curve, Reliability, brier
from bpals.score import intervals
from bpals.score.intervals import Difference, Resamples, Resampling, average_precision, interval
from bpals.score.skill import Placed


def films(patients=300, seed=1, skill=1.0):
    """Scores of films that belong together: one to six a patient, who share a part of their score and their truth."""
    draw = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), draw.integers(1, 7, patients))
    sick = draw.random(patients)[who] < 0.3
    present = np.where(draw.random(len(who)) < 0.8, sick, draw.random(len(who)) < 0.3)
    shared = draw.normal(size=patients)[who]
    return [shared + draw.normal(size=len(who)) + k * skill * present for k in (1.0, 0.5)], present, who


def bootstrap(scores, present, who, draws=2000):
    """The AUROC of each draw of patients."""
    weights = Resamples.of(who, Resampling(draws=draws)).weights()
    return np.concatenate([Curve.of(scores, present, part).auroc() for part in weights])


def test_the_auroc_is_the_scorecards_own():
    """Point estimate and Curve agree to the last digits, ties included."""
    (scores, _), present, who = films()
    rounded = np.round(scores, 1)
    assert Placed.auroc(rounded, present, who).value == pytest.approx(float(Curve.of(rounded, present).auroc()[0]))


def test_the_interval_is_that_of_a_bootstrap_over_patients():
    """Within a tenth of its width; without the patients it would be far too narrow."""
    (scores, _), present, who = films()
    placed = Placed.auroc(scores, present, who)
    low, high = interval(bootstrap(scores, present, who))
    assert placed.interval == pytest.approx((low, high), abs=0.1 * (high - low))
    alone = Placed.auroc(scores, present, np.arange(len(scores)))
    assert alone.error < 0.85 * placed.error


def test_a_difference_is_paired():
    """Two judges that share their noise differ by more than their own intervals would allow."""
    (better, worse), present, who = films()
    found = Difference.of(Placed.auroc(better, present, who), Placed.auroc(worse, present, who))
    draws = bootstrap(better, present, who) - bootstrap(worse, present, who)
    low, high = interval(draws)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))
    assert found.p_value < 0.001


def test_a_judge_beside_itself_does_not_differ():
    """No difference, no width, no significance."""
    (scores, _), present, who = films()
    placed = Placed.auroc(scores, present, who)
    assert Difference.of(placed, placed) == Difference(value=0.0, low=0.0, high=0.0, p_value=1.0)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Of 300 samples of patients about 95 % of the intervals hold the AUROC of the population."""
    (scores, _), present, who = films(patients=20000, seed=9)
    truth = Placed.auroc(scores, present, who).value
    covered = 0
    for seed in range(300):
        (scores, _), present, who = films(patients=250, seed=100 + seed)
        low, high = Placed.auroc(scores, present, who).interval
        covered += low <= truth <= high
    assert 0.91 <= covered / 300 <= 0.985


def test_a_mean_over_findings_keeps_patients_together():
    """The same finding twice has the interval of one, not one that is narrower by the square root of two."""
    (scores, _), present, who = films()
    placed = Placed.auroc(scores, present, who)
    assert intervals.mean([placed, placed]).error == pytest.approx(placed.error)
    others = Placed.auroc(scores, present, who + 10_000)
    assert intervals.mean([placed, others]).error == pytest.approx(placed.error / np.sqrt(2), rel=0.01)


FIGURES = {
    "average_precision": lambda p, present, weights=None: Curve.of(p, present, weights).average_precision(),
    "brier": brier,
    "ece": lambda p, present, weights=None: Reliability.of(p, present, weights).ece(),
}


def probabilities(seed=1):
    """Probabilities of two judges that lie well away from what is so, rounded so that some are tied."""
    scores, present, who = films(patients=600, seed=seed)
    return [np.round(1 / (1 + np.exp(-(score - 1))), 2) for score in scores], present, who


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_the_scorecards_own(figure):
    """Ties included; a patient's parts add up to nothing."""
    (p, _), present, who = probabilities()
    placed = getattr(intervals, figure)(p, present, who)
    assert placed.value == pytest.approx(float(FIGURES[figure](p, present)[0]))
    assert placed.parts.sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_has_the_spread_of_a_bootstrap_over_patients(figure):
    """The standard error, and that of a paired difference, are those of 1,000 draws; where a bin is right, wider."""
    near = 0.2 if figure == "ece" else 0.1
    (p, q), present, who = probabilities()
    weights = np.vstack(list(Resamples.of(who, Resampling(draws=1000)).weights()))
    first, second = (FIGURES[figure](each, present, weights) for each in (p, q))
    a, b = (getattr(intervals, figure)(each, present, who) for each in (p, q))
    assert a.error == pytest.approx(first.std(), rel=near)
    found = Difference.of(a, b)
    assert (found.high - found.low) / 2 / 1.96 == pytest.approx((first - second).std(), rel=near)


def test_a_part_is_what_the_figure_moves_by_as_a_film_weighs_more():
    """Average precision, by taking the derivative the long way."""
    (p, _), present, _ = probabilities()
    p, present = p[:60], present[:60]
    parts = average_precision(p, present, np.arange(60)).parts
    weights = np.ones((60, 60)) + 1e-6 * np.eye(60)
    moved = (Curve.of(p, present, weights).average_precision() - Curve.of(p, present).average_precision()) / 1e-6
    assert parts == pytest.approx(moved, abs=1e-6)


def test_a_perfect_judge_has_an_interval_that_can_be_written_down():
    """An AUROC of 1 and an average precision of 1 are no overflow."""
    p, present = np.linspace(0, 1, 40), np.arange(40) >= 20
    for figure in (Placed.auroc, average_precision, intervals.brier, intervals.ece):
        low, high = figure(p, present, np.arange(40)).interval
        assert 0 <= low <= high <= 1


def test_the_films_of_a_patient_are_drawn_together():
    """Whoever is drawn twice brings each film twice."""
    patients = np.array([5, 5, 9, 5, 2])
    (weights,) = Resamples.of(patients, Resampling(draws=50, seed=1)).weights()
    assert weights.shape == (50, 5)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 0] == weights[:, 3]).all()
    assert (weights[:, [0, 2, 4]].sum(axis=1) == 3).all()


def test_the_same_seed_draws_the_same_patients():
    """A scorecard can be repeated; another seed gives other draws."""
    patients = np.arange(40)
    one, two, other = (Resamples.of(patients, Resampling(draws=9, seed=s)).counts for s in (3, 3, 4))
    assert (one == two).all()
    assert (one != other).any()


def test_a_part_of_the_pairs_keeps_its_draws():
    """So that differences between findings, and between methods, are paired."""
    resamples = Resamples.of(np.array([1, 2, 3, 1]), Resampling(draws=20, seed=0))
    (whole,), (part,) = resamples.weights(), resamples.take(np.array([True, False, False, True])).weights()
    assert (whole[:, [0, 3]] == part).all()


def test_the_interval_covers_the_mean_of_patients():
    """Of 200 samples of 40 patients with three alike films each, about 95 % have the true mean inside."""
    rng = np.random.default_rng(8)
    covered = 0
    for sample in range(200):
        value = np.repeat(rng.normal(size=40), 3)
        resamples = Resamples.of(np.repeat(np.arange(40), 3), Resampling(draws=300, seed=sample))
        means = np.concatenate([(w @ value) / w.sum(axis=1) for w in resamples.weights()])
        low, high = interval(means)
        covered += low <= 0 <= high
    assert 178 <= covered <= 199


def test_replicates_that_are_not_defined_are_left_out():
    """A draw without errors says nothing; no defined draw means no interval."""
    assert interval(np.array([np.nan, 1.0, 1.0])) == (1.0, 1.0)
    assert interval(np.array([np.nan])) == (None, None)


@pytest.mark.parametrize(("setting", "next_step"), [({"draws": 0}, "--bootstrap 1000"), ({"seed": -1}, "--seed 0")])
def test_a_resampling_that_cannot_be_is_refused(setting, next_step):
    """With what to type instead."""
    with pytest.raises(UsageError, match=next_step):
        Resampling(**setting)


def test_a_bootstrap_of_sums_is_one_product():
    """Adding up by patient first gives what weighing each pair gives; the first row is without a draw."""
    rng = np.random.default_rng(3)
    patients, value = rng.integers(0, 30, 200), rng.normal(size=200)
    resamples = Resamples.of(np.arange(30), Resampling(draws=40, seed=2))
    totals = resamples.totals(resamples.add_up(patients, [value, value > 0]))
    weights = resamples.counts[:, patients].astype(float)
    assert totals.shape == (41, 2)
    assert totals[0] == pytest.approx([value.sum(), (value > 0).sum()])
    assert totals[1:, 0] == pytest.approx(weights @ value)
    assert totals[1:, 1] == pytest.approx(weights @ (value > 0))


def test_patients_without_a_pair_add_nothing():
    """Draws over all patients serve a finding that few of them were read for."""
    resamples = Resamples.of(np.arange(30), Resampling(draws=5))
    sums = resamples.add_up(np.array([4, 4]), [np.array([1.0, 2.0])])
    assert (resamples.totals(sums)[1:, 0] == 3 * resamples.counts[:, 4]).all()
    assert (resamples.totals(np.zeros((30, 2))) == 0).all()
