"""Calibration: what it recovers, how gently it starts, and that no review reaches its own trust."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest

import shape
from bpals.signal import calibrate
from bpals.signal.calibrate import Context, Reviewed, designs, fold_of_patient
from bpals.signal.pairs import logit, sigmoid
from bpals.signal.ridge import newton

FINDING = "F0"


@pytest.fixture
def world(matrices):
    """Make films, a judge and reviews whose truth follows from a rule that the test plants.

    The rule takes the judge's logits (a column each of three findings) and the claim, and gives the true logit.
    """

    def world(reviewed, rule, *, films=None, seed=0, patients=None):
        draw = np.random.default_rng(seed)
        films = films or reviewed
        z = draw.normal(-0.5, 1.5, (films, 3))
        claim = (draw.random((films, 3)) < 0.4).astype(float)
        pairs = matrices(claim, sigmoid(z))
        truth = sigmoid(rule(z, claim[:, 0]))
        rows = np.arange(reviewed)
        who = pl.Series([f"p{row % (patients or films)}" for row in range(films)])
        context = Context(
            no_finding=(claim.sum(axis=1) == 0).astype(float)[:, None],
            view=(draw.random((films, 1)) < 0.4).astype(float),
            logits=logit(pairs.p_present),
            states=claim,
            evidence=np.zeros((films, 0)),
        )
        present = draw.random(reviewed) < truth[rows]
        return pairs, context, Reviewed(rows=rows, present=present, fold=fold_of_patient(who)[rows]), truth

    return world


def honest(z, _claim):
    """The judge is right."""
    return z[:, 0]


def with_claim(z, claim):
    """The claim knows something that the judge does not."""
    return z[:, 0] - 1 + 2.5 * claim


def fit(pairs, context, reviewed):
    """Calibrate the first finding."""
    return calibrate.calibrate(pairs, FINDING, context, reviewed)


def flip(reviewed, *places):
    """The reviews with some verdicts turned round."""
    present = reviewed.present.copy()
    present[list(places)] = ~present[list(places)]
    return dataclasses.replace(reviewed, present=present)


@pytest.mark.parametrize("shift", [-2.0, 0.0, 1.5])
def test_a_judge_that_is_too_high_or_too_low_is_set_right(world, shift):
    """A planted shift of the logit comes back from 1,500 reviews, on films that nobody reviewed too."""
    pairs, context, reviewed, truth = world(1500, lambda z, _: z[:, 0] + shift, films=2500)
    done = fit(pairs, context, reviewed)
    assert np.abs(done.p_present - truth).mean() < 0.03
    assert np.abs(done.p_present - truth)[1500:].mean() < 0.03


def test_a_planted_weight_of_the_claim_comes_back(world):
    """Where the dataset's own claim is worth something beside the judge, it is used."""
    pairs, context, reviewed, truth = world(1500, with_claim)
    done = fit(pairs, context, reviewed)
    assert done.design.startswith("judge, claim")
    assert np.abs(done.p_present - truth).mean() < 0.04
    assert np.abs(pairs.p_present[:, 0] - truth).mean() > 0.1


@pytest.mark.parametrize(("reviews", "most"), [(10, 0.12), (30, 0.08)])
def test_few_reviews_leave_an_honest_judge_nearly_alone(world, reviews, most):
    """On average over twenty draws, the probability moves by a few hundredths."""
    moves = []
    for seed in range(20):
        pairs, context, reviewed, _ = world(reviews, honest, films=500, seed=seed)
        moves.append(np.abs(fit(pairs, context, reviewed).p_present - pairs.p_present[:, 0]).mean())
    assert np.mean(moves) < most


def test_the_spread_shrinks_with_the_reviews(world):
    """And what nobody has reviewed is less certain than what the reviews are like."""
    few, many = (fit(*world(count, honest, films=2000)[:3]) for count in (40, 1600))
    assert many.spread.mean() < few.spread.mean() / 3
    assert few.spread.mean() > 0.1


def test_the_interval_holds_the_planted_truth(world):
    """Where the truth is a shift of the judge, the 95 % interval of the fit holds it in most of thirty draws."""
    held = []
    for seed in range(30):
        pairs, context, reviewed, truth = world(40, lambda z, _: z[:, 0] + 0.7, films=80, seed=seed)
        done = fit(pairs, context, reviewed)
        missed = np.abs(logit(done.p_present[40:]) - logit(truth[40:]))
        held.append((missed <= 1.96 * done.spread[40:]).mean())
    assert np.mean(held) > 0.85


@pytest.mark.parametrize("reviews", [12, 60, 160])
def test_flipping_a_review_does_not_change_the_trust_of_its_own_pair(world, reviews):
    """Bit-equal, probability and spread: neither the fit nor the choice of a design saw the review."""
    pairs, context, reviewed, _ = world(reviews, with_claim, films=reviews + 20, seed=reviews)
    done = fit(pairs, context, reviewed)
    for place in range(0, reviews, max(1, reviews // 6)):
        again = fit(pairs, context, flip(reviewed, place))
        row = reviewed.rows[place]
        assert again.p_present[row] == done.p_present[row]
        assert again.spread[row] == done.spread[row]
        assert (again.p_present != done.p_present).sum() > reviews / 2


def test_a_review_at_the_edge_of_a_design_does_not_choose_its_own(world):
    """With just as many errors as a design needs, one flip takes the design away, but not from its own trust."""
    pairs, context, reviewed, _ = world(400, with_claim, seed=3)
    wrong = np.flatnonzero(pairs.states[reviewed.rows, 0] != reviewed.present)
    while len(wrong) > calibrate.ENOUGH_ERRORS:
        reviewed = flip(reviewed, wrong[-1])
        wrong = wrong[:-1]
    done = fit(pairs, context, reviewed)
    assert done.errors == calibrate.ENOUGH_ERRORS
    assert done.design != "judge"
    for place in wrong[:4]:
        again = fit(pairs, context, flip(reviewed, place))
        assert again.design == "judge"
        assert again.p_present[place] == done.p_present[place]
        assert again.spread[place] == done.spread[place]


def test_no_review_of_the_patient_reaches_the_patient(world):
    """All films of a patient are held out together: flipping every review of one changes none of its trusts."""
    pairs, context, reviewed, _ = world(120, with_claim, patients=30)
    done = fit(pairs, context, reviewed)
    for patient in (0, 7, 19):
        its = np.flatnonzero(reviewed.rows % 30 == patient)
        assert len(its) == 4
        again = fit(pairs, context, flip(reviewed, *its))
        assert (again.p_present[its] == done.p_present[its]).all()


def test_a_fold_depends_on_the_patient_alone():
    """Neither on the others nor on their order."""
    few, many = pl.Series(["a", "b", "a"]), pl.Series([f"p{number}" for number in range(200)] + ["b", "a"])
    a, b, again = fold_of_patient(few)
    assert a == again
    assert fold_of_patient(many)[-2:].tolist() == [b, a]
    assert np.bincount(fold_of_patient(many), minlength=calibrate.FOLDS).min() > 20
    assert len(fold_of_patient(pl.Series([], dtype=pl.String))) == 0


def test_the_design_grows_with_the_data(world):
    """A rule that needs all logits is not tried on few errors, and is found with many."""

    def tangled(z, claim):
        return z[:, 0] + 1.5 * z[:, 1] * (2 * claim - 1) + claim - 0.5

    chosen = [fit(*world(count, tangled)[:3]).design for count in (20, 200, 1500)]
    assert chosen[0] == "judge"
    assert chosen[1].startswith("judge")
    assert chosen[2] == "wide"


def test_a_wider_design_must_pay(world):
    """An honest judge is mostly left its own answer, and never gets the wide design, though there are errors enough."""
    fits = [fit(*world(500, honest, seed=seed)[:3]) for seed in range(6)]
    assert min(done.errors for done in fits) > calibrate.WIDE_ERRORS
    assert sum(done.design == "judge" for done in fits) >= 4
    assert "wide" not in {done.design for done in fits}


def test_the_designs_say_how_wide_they_are(world):
    """The number of columns is the one that is made."""
    pairs, context, reviewed, _ = world(30, honest)
    for design in designs(pairs, FINDING, context):
        assert design.columns(reviewed.rows).shape == (30, design.width)


def test_others_that_teach_nothing_leave_the_judge_s_own_word(world):
    """One reviewed presence: the fit without it has seen absences only, so its own trust is the judge's, to the bit."""
    pairs, context, reviewed, _ = world(50, honest)
    lonely = dataclasses.replace(reviewed, present=np.arange(50) == 8)
    done = fit(pairs, context, lonely)
    assert done.p_present[8] == pairs.p_present[8, 0]
    together = dataclasses.replace(reviewed, fold=np.zeros(50, dtype=np.int64))
    assert (fit(pairs, context, together).p_present == pairs.p_present[:, 0]).all()


def test_a_film_that_nobody_judged_stays_unjudged(world):
    """NaN in, NaN out, no warning, in every design."""
    pairs, context, reviewed, _ = world(1500, with_claim, films=1600)
    pairs.p_present[1550:, 0] = np.nan
    done = fit(pairs, context, reviewed)
    assert np.isnan(done.p_present[1550:]).all()
    assert np.isfinite(done.p_present[:1550]).all()


def test_a_column_that_never_varies_in_the_reviews_does_no_harm(world):
    """A judge that gives every reviewed film the same odd number, and others another, is not blown up."""
    pairs, context, reviewed, _ = world(300, honest, films=400)
    pairs.p_present[:300, 0] = 0.1
    pairs.p_present[300:, 0] = 0.9
    done = fit(pairs, context, reviewed)
    rate = reviewed.present.mean()
    assert done.p_present[:300] == pytest.approx(np.full(300, rate), abs=0.2)
    assert ((done.p_present[300:] > 0.3) & (done.p_present[300:] < 1 - 1e-4)).all()


def test_the_fit_is_the_minimum():
    """The derivative of loss and ridge is zero where Newton stops."""
    draw = np.random.default_rng(0)
    inputs, start = draw.normal(size=(200, 4)), draw.normal(size=200)
    present, ridge = (draw.random(200) < 0.3).astype(float), np.array([1.0, 3.0, 3.0, 3.0])
    weights, _ = newton(inputs, start, present, ridge)
    slope = inputs.T @ (sigmoid(inputs @ weights + start) - present) + ridge * weights
    assert np.abs(slope).max() < 1e-4


def test_the_docs_list_the_designs(world):
    """docs/signal.md has a row for each, with the errors that it needs, and the penalties in words."""
    pairs, context, _, _ = world(30, honest)
    page = (shape.ROOT / "docs" / "signal.md").read_text(encoding="utf-8")
    section = page.split("## Calibration")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (judge[\w ,]*|wide) \| .+ \| [^\d\n]*(\d*)[^\d\n]* \|$", section, re.MULTILINE)
    assert rows == [(design.name, str(design.errors or "")) for design in designs(pairs, FINDING, context)]
    *most, last = (f"{penalty:g}" for penalty in calibrate.PENALTIES)
    assert f"({', '.join(most)} or {last})" in section
