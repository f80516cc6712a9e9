"""Clustered figures: the scorecard's own numbers, and intervals as wide as a bootstrap over patients."""

import numpy as np
import pytest

from bpals.metrics import Curve, Reliability, brier
from bpals.score.intervals import Difference, Placed, Resamples, Resampling, interval


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
    assert Placed.mean([placed, placed]).error == pytest.approx(placed.error)
    others = Placed.auroc(scores, present, who + 10_000)
    assert Placed.mean([placed, others]).error == pytest.approx(placed.error / np.sqrt(2), rel=0.01)


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
    placed = getattr(Placed, figure)(p, present, who)
    assert placed.value == pytest.approx(float(FIGURES[figure](p, present)[0]))
    assert placed.parts.sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_has_the_spread_of_a_bootstrap_over_patients(figure):
    """The standard error, and that of a paired difference, are those of 1,000 draws; where a bin is right, wider."""
    near = 0.2 if figure == "ece" else 0.1
    (p, q), present, who = probabilities()
    weights = np.vstack(list(Resamples.of(who, Resampling(draws=1000)).weights()))
    first, second = (FIGURES[figure](each, present, weights) for each in (p, q))
    a, b = (getattr(Placed, figure)(each, present, who) for each in (p, q))
    assert a.error == pytest.approx(first.std(), rel=near)
    found = Difference.of(a, b)
    assert (found.high - found.low) / 2 / 1.96 == pytest.approx((first - second).std(), rel=near)


def test_a_part_is_what_the_figure_moves_by_as_a_film_weighs_more():
    """Average precision, by taking the derivative the long way."""
    (p, _), present, _ = probabilities()
    p, present = p[:60], present[:60]
    parts = Placed.average_precision(p, present, np.arange(60)).parts
    weights = np.ones((60, 60)) + 1e-6 * np.eye(60)
    moved = (Curve.of(p, present, weights).average_precision() - Curve.of(p, present).average_precision()) / 1e-6
    assert parts == pytest.approx(moved, abs=1e-6)


def test_a_perfect_judge_has_an_interval_that_can_be_written_down():
    """An AUROC of 1 and an average precision of 1 are no overflow."""
    p, present = np.linspace(0, 1, 40), np.arange(40) >= 20
    for figure in (Placed.auroc, Placed.average_precision, Placed.brier, Placed.ece):
        low, high = figure(p, present, np.arange(40)).interval
        assert 0 <= low <= high <= 1
