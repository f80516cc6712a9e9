"""Calibration: what it recovers, how gently it starts, how richer designs take over, and what it may not see."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from bpals.numeric import logit, sigmoid
from bpals.signal import calibrate
from bpals.signal.calibrate import Context, Design, designs, weights
from bpals.signal.hierarchical import PartialPooling, Reviewed, Topic
from bpals.signal.prior import FOLDS, Inputs, fold_of_patient

FINDINGS = ("F0", "F1", "F2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """Images, a judge, and reviews of the first finding whose truth follows from a rule that the test plants."""

    topic: Topic
    context: Context
    inputs: Inputs
    fold: np.ndarray
    truth: np.ndarray

    def fit(self, *, crossed=True):
        """Calibrate the finding; the images that were read are held out."""
        pooling = PartialPooling(inputs=self.inputs, reviewed={"F0": self.topic.reviewed})
        choose = calibrate.chooser(self.topic, self.context, pooling)
        read = np.sort(self.topic.reviewed.rows)
        return calibrate.calibrate(self.topic, choose, read if crossed else read[:0], self.fold)

    def reviewed_as(self, **changed):
        """The same with other reviews."""
        reviewed = dataclasses.replace(self.topic.reviewed, **changed)
        return dataclasses.replace(self, topic=dataclasses.replace(self.topic, reviewed=reviewed))

    def flip(self, *places):
        """The same with some verdicts turned round."""
        present = self.topic.reviewed.present.copy()
        present[list(places)] = 1 - present[list(places)]
        return self.reviewed_as(present=present)

    def first(self, count):
        """The same with only so many reviews."""
        names = ("rows", "present", "weight", "fold")
        return self.reviewed_as(**{name: getattr(self.topic.reviewed, name)[:count] for name in names})


@pytest.fixture(scope="module")
def world():
    """Make one. The rule takes the judge's logits, a column per finding, and the label; it gives the true logit."""

    def world(reviewed, rule, *, images=None, seed=0, patients=None):
        draw = np.random.default_rng(seed)
        images = images or reviewed
        z = draw.normal(-0.5, 1.5, (images, 3))
        claims = (draw.random((images, 3)) < 0.4).astype(float)
        truth = sigmoid(rule(z, claims[:, 0]))
        fold = fold_of_patient(pl.Series([f"p{row % (patients or images)}" for row in range(images)]))
        rows, no_finding = np.arange(reviewed), (claims.sum(axis=1) == 0).astype(float)
        context = Context(
            no_finding=no_finding[:, None],
            view=(draw.random((images, 1)) < 0.4).astype(float),
            logits=z.copy(),
            states=claims,
            evidence=np.zeros((images, 0)),
        )
        judged = z[:, 0].copy()
        topic = Topic(
            finding="F0",
            judged=judged,
            summed=judged.copy(),
            claim=claims[:, 0],
            by_image=np.zeros(images),
            reviewed=Reviewed(
                rows=rows,
                present=(draw.random(reviewed) < truth[rows]).astype(float),
                weight=np.ones(reviewed),
                fold=fold[rows],
            ),
        )
        every = np.concatenate([judged[:, None], z[:, 1:]], axis=1)
        inputs = Inputs(
            subjects=FINDINGS,
            start=lambda place, some, _without: judged[some] if place == 0 else every[some, place],
            claims=claims,
            findings=FINDINGS,
            others=z - z.mean(axis=0),
            no_finding=no_finding,
            typical=(-0.5, -0.5),
        )
        return World(topic=topic, context=context, inputs=inputs, fold=fold, truth=truth)

    return world


def honest(z, _claim):
    """The judge is right."""
    return z[:, 0]


def with_claim(z, claim):
    """The label knows something that the judge does not."""
    return z[:, 0] - 1 + 2.5 * claim


def tangled(z, claim):
    """A rule that needs the logit of another finding, one way for presences and the other for absences."""
    return z[:, 0] + 1.5 * z[:, 1] * (2 * claim - 1) + claim - 0.5


# What it finds.


@pytest.mark.parametrize("rule", [honest, with_claim, lambda z, _: z[:, 0] - 2, lambda z, _: z[:, 0] + 1.5])
def test_a_planted_rule_comes_back(world, rule):
    """From 1,000 reviews, on images that nobody reviewed too."""
    here = world(1000, rule, images=1500)
    missed = np.abs(here.fit().p_present - here.truth)
    assert missed.mean() < 0.04
    assert missed[1000:].mean() < 0.04


@pytest.mark.parametrize(("reviews", "most"), [(5, 0.1), (25, 0.1), (100, 0.07)])
def test_few_reviews_leave_an_honest_judge_nearly_alone(world, reviews, most):
    """On average over ten draws, the probability moves by a few hundredths; it begins with the first labels."""
    moves = []
    for seed in range(10):
        here = world(reviews, honest, images=300, seed=seed)
        moves.append(np.abs(here.fit().p_present - sigmoid(here.topic.judged)).mean())
    assert 0 < np.mean(moves) < most


def test_the_interval_holds_the_planted_truth_and_shrinks(world):
    """Where the truth is a shift of the judge, 1.96 deviations hold it in most of twenty draws."""
    held = []
    for seed in range(20):
        here = world(80, lambda z, _: z[:, 0] + 0.7, images=160, seed=seed)
        done = here.fit()
        held.append((np.abs(logit(done.p_present[80:]) - logit(here.truth[80:])) <= 1.96 * done.spread[80:]).mean())
    assert np.mean(held) > 0.9
    few, many = (world(count, honest, images=2000).fit().spread.mean() for count in (40, 1600))
    assert 0.1 < many * 2 < few


def test_reviews_that_stand_for_more_pairs_count_more_and_their_order_does_not(world):
    """Reviews that were drawn rarely pull the fit to what they say; a shuffle changes nothing but the last bits."""
    here = world(250, honest, images=300)
    reviewed, done = here.topic.reviewed, here.fit()
    pulled = here.reviewed_as(weight=np.where(reviewed.present == 1, 4.0, 0.25)).fit()
    assert pulled.p_present.mean() > done.p_present.mean() + 0.1
    order = np.random.default_rng(1).permutation(250)
    turned = here.reviewed_as(
        **{name: getattr(reviewed, name)[order] for name in ("rows", "present", "weight", "fold")}
    )
    again = turned.fit()
    assert again.weights == pytest.approx(dict(done.weights), abs=1e-6)
    assert again.p_present == pytest.approx(done.p_present, abs=1e-6)
    assert again.spread == pytest.approx(done.spread, abs=1e-6)


@pytest.mark.parametrize(("presences", "patients"), [(0, None), (30, None), (12, 1)])
def test_verdicts_of_one_kind_and_one_patient_are_fitted_too(world, presences, patients):
    """All the same word, or all of one patient: finite, with an interval, and not run away to 0 or 1."""
    here = world(30, honest, images=60, patients=patients)
    done = here.reviewed_as(present=(np.arange(30) < presences).astype(float)).fit()
    assert np.isfinite(done.p_present).all()
    assert np.isfinite(done.spread).all()
    assert (done.spread[30:] > 0.2).all()
    assert 0.01 < np.median(done.p_present) < 0.99


def test_an_image_that_nobody_judged_stays_unjudged(world):
    """NaN in, NaN out, in every design."""
    here = world(1000, with_claim, images=1100)
    here.topic.judged[1050:] = here.topic.summed[1050:] = np.nan
    done = here.fit()
    assert np.isnan(done.p_present[1050:]).all()
    assert np.isfinite(done.p_present[:1050]).all()


def test_a_column_that_never_varies_in_the_reviews_does_no_harm(world):
    """A judge that gives every reviewed image the same odd number, and others another, is not blown up."""
    here = world(300, honest, images=400)
    here.topic.judged[:300] = here.topic.summed[:300] = here.context.logits[:300, 0] = logit(np.array(0.1))
    here.topic.judged[300:] = here.topic.summed[300:] = here.context.logits[300:, 0] = logit(np.array(0.9))
    done = here.fit()
    rate = here.topic.reviewed.present.mean()
    assert np.abs(done.p_present[:300] - rate).mean() < 0.12
    assert ((done.p_present[300:] > 0.3) & (done.p_present[300:] < 1 - 1e-4)).all()


# Designs: weighed by patients that they have not seen, without a step.


def test_the_designs_correct_what_they_say(world):
    """What all share, the judges' own answer, the members' sum, and nothing; each needs more errors than the last."""
    here = world(30, honest)
    topic = dataclasses.replace(here.topic, summed=here.topic.judged + 1)
    pooling = PartialPooling(inputs=here.inputs, reviewed={"F0": topic.reviewed})
    rows, listed = topic.reviewed.rows, designs(topic, here.context, pooling)
    assert [design.name for design in listed] == ["partly pooled", "own", "other findings", "wide"]
    pooled, own, others, wide = (design.start(rows, calibrate.NOBODY)[0] for design in listed)
    assert (pooled == pooling.correct("F0", rows, calibrate.NOBODY)[0]).all()
    assert (own == topic.judged[rows]).all()
    assert (others == topic.summed[rows]).all()
    assert (wide == 0).all()
    widths = [0 if design.columns is None else design.columns(rows).shape[1] for design in listed]
    assert widths == [0, 4, 7, 13]
    assert [design.errors for design in listed] == [0, calibrate.OWN_ERRORS, calibrate.OTHERS_ERRORS,
                                                    calibrate.WIDE_ERRORS]  # fmt: skip


def test_a_design_enters_little_by_little():
    """No weight up to its errors, all of it at twice as many, and never a step of more than one error's share."""
    design = Design(name="x", start=lambda rows, _: (rows, rows), errors=40)
    ramps = np.array([design.ramp(errors) for errors in range(120)])
    assert (ramps[:41] == 0).all()
    assert (ramps[80:] == 1).all()
    assert np.diff(ramps).max() <= 1 / 40 + 1e-12
    assert Design(name="x", start=lambda rows, _: (rows, rows)).ramp(0) == 1


def test_weights_follow_what_was_gained_on_unseen_patients():
    """The same losses keep the prior's shares; a gain within its own noise counts for little; a sure one takes all."""
    draw = np.random.default_rng(0)
    first, whole = draw.uniform(0.1, 1, 400), [1.0, 1.0]
    assert weights([1.0, 0.5], [first, first], whole) == pytest.approx([2 / 3, 1 / 3])
    noise = draw.normal(0, 0.3, 400)
    assert weights(whole, [first, first - noise + noise.mean()], whole)[1] < 0.2
    assert weights(whole, [first, first - 0.1], whole)[1] > 0.99
    assert weights(whole, [first, first + 0.1], whole).tolist() == [1.0, 0.0]
    gains = [weights(whole, [first, first - gain / 400], whole)[1] for gain in np.linspace(-30, 30, 601)]
    assert (np.diff(gains) >= 0).all()
    assert np.diff(gains).max() < 0.02


def test_a_ramp_bounds_the_weight_however_much_is_gained():
    """What a fit may not have yet goes to the others by their own weights."""
    first = np.full(400, 0.5)
    losses = [first, first - 0.05, first - 0.4]
    assert weights([1.0, 1.0, 1.0], losses, [1.0, 1.0, 0.1]) == pytest.approx([0, 0.9, 0.1], abs=2e-3)
    assert weights([1.0, 1.0, 1.0], losses, [1.0, 0.3, 0.1]) == pytest.approx([0.7, 0.2, 0.1], abs=2e-3)
    assert weights([1.0], [first], [1.0]).tolist() == [1.0]


def test_the_rich_designs_take_over_with_the_data(world):
    """A rule that needs all logits: none of the wide design on few errors, most of it with many, and it must pay."""
    found = [world(count, tangled).fit().weights for count in (20, 1500)]
    assert found[0] == {"partly pooled": 1.0}
    assert found[1]["wide"] > 0.9
    for seed in range(3):
        here = world(500, honest, images=600, seed=seed)
        assert here.topic.errors() > calibrate.WIDE_ERRORS
        done = here.fit()
        assert done.weights.get("wide", 0.0) < 0.1
        assert sum(done.weights.values()) == pytest.approx(1)
        assert np.abs(done.p_present - sigmoid(here.topic.judged)).mean() < 0.06


def test_where_designs_differ_the_answer_is_less_sure():
    """The mixture's deviation has that of each, and how far they lie apart."""
    rows = np.arange(3)

    def fixed(z, spread):
        return lambda some: (np.full(len(some), z), np.full(len(some), spread))

    z, spread = calibrate.mixed([(0.5, fixed(0.0, 0.3)), (0.5, fixed(2.0, 0.3))])(rows)
    assert z == pytest.approx(np.ones(3))
    assert spread == pytest.approx(np.full(3, np.hypot(1.0, 0.3)))
    same, alike = calibrate.mixed([(0.4, fixed(1.0, 0.3)), (0.6, fixed(1.0, 0.3))])(rows)
    assert same == pytest.approx(np.ones(3))
    assert alike == pytest.approx(np.full(3, 0.3))


@pytest.mark.parametrize("seed", [0, 3])
def test_one_verdict_more_never_turns_a_finding_over(world, seed):
    """From 5 to 200 reviews, one by one: little moves of the whole, at most .2 of one image, also as designs enter."""
    here = world(200, tangled, images=300, seed=seed)
    steps, entered, before = [], {}, None
    for count in range(5, 201):
        done = here.first(count).fit(crossed=False)
        p = done.p_present[200:]
        if before is not None:
            steps.append(np.abs(p - before))
        before = p
        entered.setdefault(frozenset(done.weights), count)
    assert len(entered) > 1, "no design entered, so the sweep shows nothing of it"
    assert np.max(steps) < 0.2
    assert np.mean(steps, axis=1).max() < 0.08
    assert np.max(steps[45:]) < 0.15


# What a review must not reach.


@pytest.mark.parametrize("reviews", [20, 120, 200])
def test_flipping_a_review_does_not_change_the_trust_of_its_own_pair(world, reviews):
    """Bit-equal, probability and spread: neither a fit nor a weight saw the review."""
    here = world(reviews, with_claim, images=reviews + 20, seed=reviews)
    done = here.fit()
    for place in range(0, reviews, reviews // 3):
        again = here.flip(place).fit()
        assert again.p_present[place] == done.p_present[place]
        assert again.spread[place] == done.spread[place]
        assert (again.p_present != done.p_present).sum() > reviews / 2


def test_no_review_of_the_patient_reaches_the_patient(world):
    """All images of a patient are held out together: flipping every review of one changes none of its trusts."""
    here = world(120, with_claim, patients=30)
    done = here.fit()
    for patient in (0, 7, 19):
        its = np.flatnonzero(here.topic.reviewed.rows % 30 == patient)
        assert len(its) == 4
        again = here.flip(*its).fit()
        assert (again.p_present[its] == done.p_present[its]).all()


def test_a_fold_depends_on_the_patient_alone():
    """Neither on the others nor on their order."""
    few, many = pl.Series(["a", "b", "a"]), pl.Series([f"p{number}" for number in range(200)] + ["b", "a"])
    a, b, again = fold_of_patient(few)
    assert a == again
    assert fold_of_patient(many)[-2:].tolist() == [b, a]
    assert np.bincount(fold_of_patient(many), minlength=FOLDS).min() > 20
    assert len(fold_of_patient(pl.Series([], dtype=pl.String))) == 0
