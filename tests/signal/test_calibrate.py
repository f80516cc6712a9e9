"""Tests of signal.calibrate."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

import shape
from bpals.numeric import NORMAL_95, logit, sigmoid
from bpals.signal import calibrate
from bpals.signal.calibrate import (
    FEW,
    MANY,
    MOST_BINS,
    Context,
    Directions,
    Seen,
    VennAbers,
    designs,
    directions,
    fold_of_patient,
    isotonic,
)
from bpals.signal.hierarchical import Reviewed, SharedFit, Topic

# Venn-Abers and isotonic regression, against brute force and against scikit-learn.


def drawn(count, seed=0, *, ties=False, soft=False):
    """Scores and what was there."""
    draw = np.random.default_rng(seed)
    score = draw.normal(size=count) * 2
    score = np.round(score) if ties else score
    present = (draw.random(count) < sigmoid(score)).astype(float)
    return score, 0.1 + 0.7 * present if soft else present


@given(count=st.integers(1, 120), seed=st.integers(0, 500), ties=st.booleans(), soft=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_rising_curve_is_scikit_learn_s(count, seed, ties, soft):
    """With tied scores, and with truths known only in part."""
    score, present = drawn(count, seed, ties=ties, soft=soft)
    places, chance = isotonic(score, present)
    peer = IsotonicRegression().fit(score, present)
    assert (places == np.sort(score)).all()
    assert chance == pytest.approx(peer.predict(places), abs=1e-9)
    assert (np.diff(chance) >= 0).all()


@given(count=st.integers(1, 60), seed=st.integers(0, 500), ties=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_two_answers_are_those_of_two_refits(count, seed, ties):
    """At each score: isotonic regression with one more pair there, called absent, and called present."""
    score, present = drawn(count, seed, ties=ties)
    fitted = VennAbers.of(score, present)
    assert (fitted.centre == pytest.approx(np.unique(score))) if ties else len(fitted.centre) == count
    for place, at in enumerate(fitted.centre):
        for outcome, answer in ((0.0, fitted.low[place]), (1.0, fitted.high[place])):
            peer = IsotonicRegression().fit(np.append(score, at), np.append(present, outcome))
            assert answer == pytest.approx(peer.predict([at])[0], abs=1e-9)


@given(count=st.integers(1, 400), seed=st.integers(0, 500), ties=st.booleans(), soft=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_one_probability_lies_between_the_two(count, seed, ties, soft):
    """And both rise with the score."""
    fitted = VennAbers.of(*drawn(count, seed, ties=ties, soft=soft))
    assert (fitted.low <= fitted.p).all()
    assert (fitted.p <= fitted.high).all()
    assert (np.diff(fitted.low) >= -1e-12).all()
    assert (np.diff(fitted.high) >= -1e-12).all()
    assert len(fitted.centre) <= MOST_BINS


@given(seed=st.integers(0, 200), ties=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_pairs_does_not_matter(seed, ties):
    """Also where scores are equal, and where many are taken together."""
    score, present = drawn(300, seed, ties=ties)
    order = np.random.default_rng(seed).permutation(300)
    one, other = VennAbers.of(score, present), VennAbers.of(score[order], present[order])
    assert other.centre == pytest.approx(one.centre)
    assert other.p == pytest.approx(one.p)
    assert isotonic(score[order], present[order])[1] == pytest.approx(isotonic(score, present)[1])


def test_the_answers_come_nearer_with_more_pairs():
    """And the truth lies near them."""
    at = np.array([-1.0, 0.0, 1.0])
    spreads = [VennAbers.of(*drawn(count)).spread(at).mean() for count in (30, 300, 3000)]
    assert spreads == sorted(spreads, reverse=True)
    fitted = VennAbers.of(*drawn(3000))
    assert np.interp(at, fitted.centre, fitted.p) == pytest.approx(sigmoid(at), abs=0.1)


@given(count=st.integers(30, 400), seed=st.integers(0, 500))
@settings(max_examples=40, deadline=None)
def test_the_interval_is_about_as_wide_as_the_answers_lie_apart(count, seed):
    """Also where nothing came true and one of the answers is 0 or 1: it does not reach from end to end."""
    fitted = VennAbers.of(*drawn(count, seed))
    reach = NORMAL_95 * fitted.spread(fitted.centre)
    width = sigmoid(logit(fitted.p) + reach) - sigmoid(logit(fitted.p) - reach)
    apart = fitted.high - fitted.low
    assert (np.abs(width / apart - 1) < 0.2).all()


# Presences and absences apart: curves that reviews allow, and that stand only where they help.


def seen(count, rule, seed=0):
    """Reviewed claims of one direction whose true logit follows from a rule."""
    draw = np.random.default_rng(seed)
    z = draw.normal(0, 2, count)
    present = (draw.random(count) < sigmoid(rule(z))).astype(float)
    return Seen(z=z, present=present, weight=np.ones(count), fold=np.arange(count) % 5)


def too_sure(z):
    """The judge's logits are twice what they should be, and one too high."""
    return z / 2 - 1


def right(z):
    """They are right."""
    return z


AT = np.linspace(-3, 3, 13)


@pytest.mark.parametrize(("count", "most"), [(FEW - 1, 0.12), (MANY, 0.08), (MANY + 1000, 0.07)])
def test_a_planted_curve_comes_back(count, most):
    """By stretching, by Venn-Abers and by isotonic regression; nearer than the logit was."""
    errors = []
    for seed in range(5):
        bent = directions({1: seen(count, too_sure, seed)}).apply(AT, np.ones(13))
        errors.append(np.abs(sigmoid(bent) - sigmoid(too_sure(AT))).mean())
    assert np.mean(errors) < most
    assert np.abs(sigmoid(AT) - sigmoid(too_sure(AT))).mean() > 0.15


@pytest.mark.parametrize("count", [300, 2000])
def test_a_curve_that_is_not_better_is_not_used(count):
    """Logits that are right stay as they are, in most draws to the last bit."""
    bent = [directions({1: seen(count, right, seed)}).apply(AT, np.ones(13)) for seed in range(8)]
    assert sum((each == AT).all() for each in bent) >= 6


def test_few_reviews_move_little():
    """Ten reviews of a judge that is right: the logit stays within about one."""
    moved = [directions({1: seen(10, right, seed)}).apply(AT, np.ones(13)) - AT for seed in range(20)]
    assert np.abs(moved).mean() < 1


def test_the_two_directions_do_not_know_of_each_other():
    """What presences teach does not move an absence; a claim of neither kind keeps its own."""
    bent = directions({1: seen(500, too_sure), 0: seen(500, right, seed=3)})
    said = np.tile([1.0, 0.0, 0.5], 5)[:13]
    z = bent.apply(AT, said)
    assert (z[said != 1] == AT[said != 1]).all()
    assert (z[said == 1] != AT[said == 1]).all()


@pytest.mark.parametrize("count", [60, 400, 1500])
def test_order_is_kept(count):
    """A greater logit never becomes a smaller one, within what was reviewed and beyond it."""
    at = np.linspace(-20, 20, 400)
    bent = directions({1: seen(count, too_sure)}).apply(at, np.ones(400))
    assert (np.diff(bent) >= -1e-12).all()
    assert bent[-1] > bent[-20]
    assert bent[0] < bent[20]


def test_the_spread_of_a_stretch_holds_the_truth_and_shrinks():
    """In most places of most draws, two spreads hold the planted logit; more reviews, less spread."""
    held, wide = [], []
    for seed in range(20):
        done = directions({1: seen(FEW - 1, too_sure, seed)})
        spread = done.spread(AT, np.ones(13))
        held.append((np.abs(done.apply(AT, np.ones(13)) - too_sure(AT)) <= 2 * spread).mean())
        wide.append(spread.mean())
    assert np.mean(held) > 0.85
    assert np.mean(wide) < directions({1: seen(FEW // 4, too_sure)}).spread(AT, np.ones(13)).mean()


def test_the_spread_of_many_is_how_far_venn_abers_lies_apart():
    """Where nothing is claimed there is none."""
    many = seen(400, too_sure)
    spread = directions({1: many}).spread(AT, np.where(np.arange(13) < 9, 1.0, 0.5))
    assert spread[:9] == pytest.approx(VennAbers.of(many.z, many.present).spread(AT)[:9])
    assert (spread[9:] == 0).all()


def test_verdicts_of_one_kind_teach_nothing():
    """The direction is left alone, and nothing is said of how sure it is."""
    lonely = dataclasses.replace(seen(300, right), present=np.zeros(300))
    done = directions({1: lonely, 0: lonely.take(np.zeros(300, dtype=bool))})
    assert done == Directions(curves={}, unsure={})
    assert (done.apply(AT, np.ones(13)) == AT).all()
    assert (done.spread(AT, np.ones(13)) == 0).all()


def test_a_judge_that_always_says_the_same_is_set_to_the_share():
    """One logit for all: the curve has one place, no warning."""
    flat = dataclasses.replace(seen(300, lambda z: z * 0 + 1), z=np.full(300, -2.0))
    done = directions({1: flat}).apply(np.array([-2.0]), np.ones(1))
    assert sigmoid(done)[0] == pytest.approx(flat.present.mean(), abs=0.02)


# Calibration: what it recovers, how gently it starts, and that no review reaches its own trust.

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
            claim=claim[:, 0],
            by_image=np.zeros(films),
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
    school = SharedFit(topics=[topic], common=context.common)
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
    wrong = np.flatnonzero(topic.claim[topic.reviewed.rows] != topic.reviewed.present)
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
        assert calibrate.can_fit(some) == (least >= calibrate.ENOUGH_ERRORS)
    assert calibrate.can_fit(some)
    one_patient = reviewed_as(some, fold=np.where(some.reviewed.present != some.claim[some.reviewed.rows], 0, 1))
    assert not calibrate.can_fit(one_patient)


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
    school = SharedFit(topics=[topic], common=context.common)
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


def test_verdicts_of_one_kind_teach_nothing_of_calibrate(world):
    """One reviewed presence, without which only absences are left; and reviews of one fold, without which none is."""
    topic, _, _ = world(50, honest)
    assert not calibrate.can_fit(reviewed_as(topic, present=(np.arange(50) == 8).astype(float)))
    assert not calibrate.can_fit(reviewed_as(topic, fold=np.zeros(50, dtype=np.int64)))


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
    listed = designs(topic, context, SharedFit(topics=[topic], common=context.common))
    names = "|".join(design.name for design in listed)
    rows = re.findall(rf"^\|({names})\|.+\|(\d+)[^\d\n]*(?:, below (\d+))?\|$", section, re.MULTILINE)
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
