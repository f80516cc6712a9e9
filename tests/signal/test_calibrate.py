"""Calibration: what it recovers, how gently it starts, and that no review reaches its own trust."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest

import shape
from bpals.signal import calibrate
from bpals.signal.calibrate import Context, designs, fold_of_patient
from bpals.signal.learn import Reviewed, School, Topic
from bpals.signal.pairs import logit, sigmoid

FINDING = "F0"


@pytest.fixture
def world():
    """Make films, a judge and reviews whose truth follows from a rule that the test plants.

    The rule takes the judge's logits (a column each of three findings) and the claim, and gives the true logit.
    """

    def world(reviewed, rule, *, films=None, seed=0, patients=None):
        draw = np.random.default_rng(seed)
        films = films or reviewed
        z = draw.normal(-0.5, 1.5, (films, 3))
        claim = (draw.random((films, 3)) < 0.4).astype(float)
        truth = sigmoid(rule(z, claim[:, 0]))
        rows = np.arange(reviewed)
        who = pl.Series([f"p{row % (patients or films)}" for row in range(films)])
        context = Context(
            no_finding=(claim.sum(axis=1) == 0).astype(float)[:, None],
            view=(draw.random((films, 1)) < 0.4).astype(float),
            logits=z.copy(),
            states=claim,
            evidence=np.zeros((films, 0)),
        )
        topic = Topic(
            finding=FINDING,
            judged=z[:, 0].copy(),
            summed=z[:, 0].copy(),
            said=claim[:, 0],
            seen=np.zeros(films),
            reviewed=Reviewed(
                rows=rows,
                present=(draw.random(reviewed) < truth[rows]).astype(float),
                weight=np.ones(reviewed),
                fold=fold_of_patient(who)[rows],
            ),
        )
        return topic, context, truth

    return world


def honest(z, _claim):
    """The judge is right."""
    return z[:, 0]


def with_claim(z, claim):
    """The claim knows something that the judge does not."""
    return z[:, 0] - 1 + 2.5 * claim


def fit(topic, context):
    """Calibrate the finding, alone."""
    school = School(topics=[topic], common=context.common)
    return calibrate.calibrate(topic, calibrate.chooser(topic, context, school))


def reviewed_as(topic, **changed):
    """The finding with other reviews."""
    return dataclasses.replace(topic, reviewed=dataclasses.replace(topic.reviewed, **changed))


def flip(topic, *places):
    """The finding with some verdicts turned round."""
    present = topic.reviewed.present.copy()
    present[list(places)] = 1 - present[list(places)]
    return reviewed_as(topic, present=present)


@pytest.mark.parametrize("shift", [-2.0, 0.0, 1.5])
def test_a_judge_that_is_too_high_or_too_low_is_set_right(world, shift):
    """A planted shift of the logit comes back from 1,000 reviews, on films that nobody reviewed too."""
    topic, context, truth = world(1000, lambda z, _: z[:, 0] + shift, films=1500)
    done = fit(topic, context)
    assert np.abs(done.p_present - truth).mean() < 0.03
    assert np.abs(done.p_present - truth)[1000:].mean() < 0.03


def test_a_planted_weight_of_the_claim_comes_back(world):
    """Where the dataset's own claim is worth something beside the judge, it is used."""
    topic, context, truth = world(1000, with_claim)
    done = fit(topic, context)
    assert np.abs(done.p_present - truth).mean() < 0.04
    assert np.abs(sigmoid(topic.judged) - truth).mean() > 0.1


@pytest.mark.parametrize(("reviews", "most"), [(10, 0.12), (60, 0.08)])
def test_few_reviews_leave_an_honest_judge_nearly_alone(world, reviews, most):
    """On average over twenty draws, the probability moves by a few hundredths."""
    moves = []
    for seed in range(20):
        topic, context, _ = world(reviews, honest, films=300, seed=seed)
        moves.append(np.abs(fit(topic, context).p_present - sigmoid(topic.judged)).mean())
    assert np.mean(moves) < most


def test_the_spread_shrinks_with_the_reviews(world):
    """And what nobody has reviewed is less certain than what the reviews are like."""
    few, many = (fit(*world(count, honest, films=2000)[:2]) for count in (40, 1600))
    assert many.spread.mean() < few.spread.mean() / 2
    assert few.spread.mean() > 0.1


def test_the_interval_holds_the_planted_truth(world):
    """Where the truth is a shift of the judge, the 95 % interval of the fit holds it in most of thirty draws."""
    held = []
    for seed in range(30):
        topic, context, truth = world(80, lambda z, _: z[:, 0] + 0.7, films=160, seed=seed)
        done = fit(topic, context)
        missed = np.abs(logit(done.p_present[80:]) - logit(truth[80:]))
        held.append((missed <= 1.96 * done.spread[80:]).mean())
    assert np.mean(held) > 0.85


@pytest.mark.parametrize("reviews", [120, 200])
def test_flipping_a_review_does_not_change_the_trust_of_its_own_pair(world, reviews):
    """Bit-equal, probability and spread: neither the fit nor the choice of a design saw the review."""
    topic, context, _ = world(reviews, with_claim, films=reviews + 20, seed=reviews)
    done = fit(topic, context)
    for place in range(0, reviews, reviews // 3):
        again = fit(flip(topic, place), context)
        row = topic.reviewed.rows[place]
        assert again.p_present[row] == done.p_present[row]
        assert again.spread[row] == done.spread[row]
        assert (again.p_present != done.p_present).sum() > reviews / 2


def with_errors(topic, count):
    """The finding with just so many reviewed errors, and where they are."""
    wrong = np.flatnonzero(topic.said[topic.reviewed.rows] != topic.reviewed.present)
    return flip(topic, *wrong[count:]), wrong[:count]


def test_a_review_at_the_edge_of_a_design_does_not_choose_its_own(world):
    """With just as many errors as a design needs, one flip takes the design away, but not from its own trust."""
    topic, context, _ = world(100, lambda z, _: 3 * z[:, 1], seed=3)
    topic, wrong = with_errors(topic, calibrate.OTHERS_ERRORS)
    done = fit(topic, context)
    assert done.errors == calibrate.OTHERS_ERRORS
    assert done.design == "other findings"
    for place in wrong[:3]:
        again = fit(flip(topic, place), context)
        assert again.design != "other findings"
        assert again.p_present[place] == done.p_present[place]
        assert again.spread[place] == done.spread[place]


def test_a_finding_is_fitted_whole_or_not_at_all(world):
    """The errors must be enough whichever patients are left out: not half of the films on a scale of their own."""
    topic, _, _ = world(100, with_claim, seed=3)
    folds = np.unique(topic.reviewed.fold)
    for count in range(calibrate.ENOUGH_ERRORS - 2, calibrate.ENOUGH_ERRORS + 12):
        some, _ = with_errors(topic, count)
        least = min(some.errors(frozenset({int(fold)})) for fold in folds)
        assert calibrate.teaches(some) == (least >= calibrate.ENOUGH_ERRORS)
    assert calibrate.teaches(some)
    one_patient = reviewed_as(some, fold=np.where(some.reviewed.present != some.said[some.reviewed.rows], 0, 1))
    assert not calibrate.teaches(one_patient)


def test_no_review_of_the_patient_reaches_the_patient(world):
    """All films of a patient are held out together: flipping every review of one changes none of its trusts."""
    topic, context, _ = world(120, with_claim, patients=30)
    done = fit(topic, context)
    for patient in (0, 7, 19):
        its = np.flatnonzero(topic.reviewed.rows % 30 == patient)
        assert len(its) == 4
        again = fit(flip(topic, *its), context)
        assert (again.p_present[its] == done.p_present[its]).all()


def test_a_fold_depends_on_the_patient_alone():
    """Neither on the others nor on their order."""
    few, many = pl.Series(["a", "b", "a"]), pl.Series([f"p{number}" for number in range(200)] + ["b", "a"])
    a, b, again = fold_of_patient(few)
    assert a == again
    assert fold_of_patient(many)[-2:].tolist() == [b, a]
    assert np.bincount(fold_of_patient(many), minlength=calibrate.FOLDS).min() > 20
    assert len(fold_of_patient(pl.Series([], dtype=pl.String))) == 0


def test_the_order_of_the_reviews_does_not_matter(world):
    """To rounding: the same probabilities and spreads."""
    topic, context, _ = world(300, with_claim, films=400)
    order = np.random.default_rng(1).permutation(300)
    names = ("rows", "present", "weight", "fold")
    turned = reviewed_as(topic, **{name: getattr(topic.reviewed, name)[order] for name in names})
    done, again = fit(topic, context), fit(turned, context)
    assert again.design == done.design
    assert again.p_present == pytest.approx(done.p_present, abs=1e-6)
    assert again.spread == pytest.approx(done.spread, abs=1e-6)


def test_a_review_that_stands_for_more_pairs_counts_more(world):
    """Reviews that were drawn rarely pull the fit to what they say."""
    topic, context, _ = world(250, honest, films=300)
    heavy = np.where(topic.reviewed.present == 1, 4.0, 0.25)
    done, pulled = fit(topic, context), fit(reviewed_as(topic, weight=heavy), context)
    assert pulled.p_present.mean() > done.p_present.mean() + 0.1


def tangled(z, claim):
    """A rule that needs the logit of another finding, one way for presences and the other for absences."""
    return z[:, 0] + 1.5 * z[:, 1] * (2 * claim - 1) + claim - 0.5


def test_the_design_grows_with_the_data(world):
    """A rule that needs all logits is not tried on few errors, and is found with many."""
    chosen = [fit(*world(count, tangled)[:2]).design for count in (20, 1500)]
    assert chosen == ["judges", "wide"]


def test_a_wider_design_must_pay(world):
    """An honest judge is nearly left its own answer, and never gets the wide design, though there are errors enough."""
    moves = []
    for seed in range(4):
        topic, context, _ = world(500, honest, films=600, seed=seed)
        done = fit(topic, context)
        assert done.errors > calibrate.WIDE_ERRORS
        assert done.design != "wide"
        moves.append(np.abs(done.p_present - sigmoid(topic.judged)).mean())
    assert np.mean(moves) < 0.03


def test_the_designs_correct_what_they_say(world):
    """The judges' own answer, what all findings share, their own again, the members' sum, twice, and nothing."""
    topic, context, _ = world(30, honest)
    topic = dataclasses.replace(topic, summed=topic.judged + 1)
    school = School(topics=[topic], common=context.common)
    rows = topic.reviewed.rows
    listed = designs(topic, context, school)
    assert [design.name for design in listed] == ["judges", "shared", "own", "members", "other findings", "wide"]
    judges, shared, own, members, others, wide = (design.start(rows, calibrate.NOBODY)[0] for design in listed)
    assert (judges == topic.judged[rows]).all()
    assert (own == topic.judged[rows]).all()
    assert (shared == school.correct(topic, rows, calibrate.NOBODY)[0]).all()
    assert (members == topic.summed[rows]).all()
    assert (others == topic.summed[rows]).all()
    assert (wide == 0).all()
    widths = [0 if design.columns is None else design.columns(rows).shape[1] for design in listed]
    assert widths == [0, 0, 4, 4, 7, 13]


def test_verdicts_of_one_kind_teach_nothing(world):
    """One reviewed presence, without which only absences are left; and reviews of one fold, without which none is."""
    topic, _, _ = world(50, honest)
    assert not calibrate.teaches(reviewed_as(topic, present=(np.arange(50) == 8).astype(float)))
    assert not calibrate.teaches(reviewed_as(topic, fold=np.zeros(50, dtype=np.int64)))


def test_a_film_that_nobody_judged_stays_unjudged(world):
    """NaN in, NaN out, no warning, in every design."""
    topic, context, _ = world(1000, with_claim, films=1100)
    topic.judged[1050:] = topic.summed[1050:] = np.nan
    done = fit(topic, context)
    assert np.isnan(done.p_present[1050:]).all()
    assert np.isfinite(done.p_present[:1050]).all()


def test_a_column_that_never_varies_in_the_reviews_does_no_harm(world):
    """A judge that gives every reviewed film the same odd number, and others another, is not blown up."""
    topic, context, _ = world(300, honest, films=400)
    topic.judged[:300] = topic.summed[:300] = logit(np.array(0.1))
    topic.judged[300:] = topic.summed[300:] = logit(np.array(0.9))
    context.logits[:, 0] = topic.judged
    done = fit(topic, context)
    rate = topic.reviewed.present.mean()
    assert done.p_present[:300] == pytest.approx(np.full(300, rate), abs=0.2)
    assert ((done.p_present[300:] > 0.3) & (done.p_present[300:] < 1 - 1e-4)).all()


def test_the_docs_list_the_designs(world):
    """docs/signal.md has a row for each, with the errors that it needs, and the penalties in words."""
    topic, context, _ = world(30, honest)
    page = (shape.ROOT / "docs" / "signal.md").read_text(encoding="utf-8")
    section = page.split("## Calibration")[1].split("\n## ")[0]
    listed = designs(topic, context, School(topics=[topic], common=context.common))
    names = "|".join(design.name for design in listed)
    rows = re.findall(rf"^\| ({names}) \| .+ \| (\d+)[^\d\n]*(?:, below (\d+))? \|$", section, re.MULTILINE)
    assert rows == [
        (
            design.name,
            str(max(design.errors, calibrate.ENOUGH_ERRORS)),
            "" if design.fewer == float("inf") else str(design.fewer),
        )
        for design in listed
    ]
    *most, last = (f"{penalty:g}" for penalty in calibrate.PENALTIES)
    assert f"({', '.join(most)} or {last})" in section
