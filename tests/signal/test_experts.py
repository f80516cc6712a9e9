"""Image judges beside the record: what reviews teach of their weights, and what they must not reach."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from bpals.findings import Group
from bpals.numeric import sigmoid
from bpals.signal import calibrate
from bpals.signal.calibrate import OTHERS_ERRORS, Context
from bpals.signal.experts import JudgeLogits, choose_with_judges
from bpals.signal.hierarchical import PartialPooling, Reviewed, Topic
from bpals.signal.layout import Estimate
from bpals.signal.prior import Inputs, bounded, fold_of_patient

FILMS, REVIEWED = 2000, 1200


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """A record judge, an image judge that saw half of the films, their pool, and reviews."""

    topic: Topic
    record: Topic
    context: Context
    z: np.ndarray
    """The image judge's logits."""
    there: np.ndarray
    """What is on the films."""
    fold: np.ndarray

    def pooling(self, topic):
        """The partly pooled model of one finding."""
        inputs = Inputs(
            subjects=("F",),
            start=lambda _place, rows, _without: topic.judged[rows],
            claims=topic.claim[:, None],
            findings=("F",),
            others=topic.judged[:, None],
            no_finding=np.zeros(FILMS),
            typical=(0.0, 0.0),
        )
        return PartialPooling(inputs=inputs, reviewed={"F": topic.reviewed})

    def choose(self, topic=None, reviewed=None):
        """The chooser among pool and judges, perhaps with other reviews."""
        topic, record = (
            each if reviewed is None else dataclasses.replace(each, reviewed=reviewed)
            for each in (topic or self.topic, self.record)
        )
        pooled, alone = (calibrate.chooser(each, self.context, self.pooling(each)) for each in (topic, record))
        own = self.z[:, None]
        return topic, choose_with_judges(
            topic, pooled, JudgeLogits(record=alone, own=own, others=np.repeat(own, 2, axis=1))
        )

    def fitted(self, reviewed=None):
        """Calibrate, judges beside the record."""
        topic, choose = self.choose(reviewed=reviewed)
        return calibrate.calibrate(topic, choose, topic.reviewed.rows, self.fold)


@pytest.fixture(scope="module")
def world():
    """Make a world in which the image judge is worth `worth`, and the pool believes both the same."""

    def world(worth, *, reviewed=REVIEWED, seed=0):
        draw = np.random.default_rng(seed)
        r, z = draw.normal(-1, 1.2, FILMS), draw.normal(0, 1.5, FILMS)
        seen = (draw.random(FILMS) < 0.5).astype(float)
        there = draw.random(FILMS) < sigmoid(r + worth * z * seen)
        said = np.where(draw.random(FILMS) < 0.25, ~there, there).astype(float)
        who = pl.Series([f"p{film // 2}" for film in range(FILMS)])
        rows, fold = np.arange(reviewed), fold_of_patient(who)
        reviews = Reviewed(rows=rows, present=there[rows].astype(float), weight=np.ones(reviewed), fold=fold[rows])
        pooled = np.where(seen == 1, (r + z) / 2, r)
        context = Context(
            no_finding=np.zeros((FILMS, 1)), view=np.zeros((FILMS, 1)), logits=pooled[:, None],
            states=said[:, None], evidence=np.zeros((FILMS, 0)),
        )  # fmt: skip
        topic = Topic(finding="F", judged=pooled, summed=pooled, claim=said, by_image=seen, reviewed=reviews)
        record = dataclasses.replace(topic, judged=r, summed=r, by_image=np.zeros(FILMS))
        return World(topic=topic, record=record, context=context, z=z, there=there, fold=fold)

    return world


def of_kind(weights, *names):
    """What designs of this kind weigh together."""
    return sum(weight for design, weight in weights.items() if design.startswith(names))


@pytest.mark.parametrize(("worth", "design"), [(0.0, "record, record"), (2.0, "record, beside")])
def test_reviews_teach_how_far_a_judge_may_be_believed(world, worth, design):
    """Where the pool believes both judges the same and one is worth nothing, or twice as much, reviews set it right."""
    here = world(worth)
    choose = calibrate.chooser(here.topic, here.context, here.pooling(here.topic))
    pooled = calibrate.calibrate(here.topic, choose, here.topic.reviewed.rows, here.fold)
    done = here.fitted()
    fresh = (here.topic.by_image == 1) & (np.arange(FILMS) >= REVIEWED)
    lost = [-np.log(np.where(here.there, p, 1 - p)[fresh]).mean() for p in (done.p_present, pooled.p_present)]
    assert of_kind(done.weights, design) > 0.5, done.weights
    assert lost[0] < lost[1] - 0.01, lost


def test_films_that_no_image_judge_saw_keep_the_answer_of_the_record(world):
    """To the last bit, where the pool has lost all its weight."""
    here = world(2.0)
    _, choose = here.choose()
    record = calibrate.chooser(here.record, here.context, here.pooling(here.record))
    chosen, alone = (each(frozenset()) for each in (choose, record))
    assert of_kind(chosen.weights, "pool") == 0, chosen.weights
    unseen = np.flatnonzero(here.topic.by_image == 0)
    assert np.array_equal(chosen.predict(unseen)[0], alone.predict(unseen)[0])
    seen = np.flatnonzero(here.topic.by_image == 1)
    assert not np.array_equal(chosen.predict(seen)[0], alone.predict(seen)[0])


def test_no_review_reaches_the_answer_about_its_own_patient(world):
    """Turn the verdicts of a patient round: his probabilities are the same to the last bit, others' are not."""
    here = world(2.0)
    before = here.fitted()
    own = [4, 5]
    present = here.topic.reviewed.present.copy()
    present[own] = 1 - present[own]
    after = here.fitted(dataclasses.replace(here.topic.reviewed, present=present))
    assert np.array_equal(before.p_present[own], after.p_present[own])
    assert not np.array_equal(before.p_present, after.p_present)


@pytest.mark.parametrize(("errors", "most"), [(OTHERS_ERRORS, 0.0), (OTHERS_ERRORS + 4, 0.1), (2 * OTHERS_ERRORS, 1.0)])
def test_the_pool_gives_way_little_by_little(world, errors, most):
    """It stands up to forty errors on films that were seen, and loses no more than a fortieth with each one more."""
    here = world(2.0)
    few = here.topic.reviewed
    wrong = (here.topic.claim[few.rows] != few.present) & (here.topic.by_image[few.rows] == 1)
    places = np.flatnonzero(wrong)[:errors]
    kept = np.isin(np.arange(len(few.rows)), places) | ~wrong
    topic, choose = here.choose(reviewed=few.only(kept))
    assert (wrong & kept).sum() == errors < topic.errors()
    beside = of_kind(choose(frozenset()).weights, "record")
    assert beside <= most
    assert beside > 0.9 * most - 0.01


# A group bounds its members and leaves their order alone.


def estimate_of(matrices, p, spread, names):
    """A level as it comes from the fit."""
    pairs = matrices(np.zeros(np.shape(p)), p, spread, findings=names)
    nobody = np.zeros(pairs.p_present.shape, dtype=bool)
    return Estimate(
        pairs=pairs, record=pairs, judges=(), moved=nobody, p_present=pairs.p_present.copy(),
        spread=pairs.spread, fitted=~nobody, reviewed=nobody,
    )  # fmt: skip


def test_a_member_is_at_most_its_group_and_the_members_keep_their_order(matrices):
    """Where one is above they meet in between, nearer to the surer; elsewhere nothing changes, to the bit."""
    draw = np.random.default_rng(0)
    p, whole = draw.uniform(0.001, 0.999, (500, 3)), draw.uniform(0.001, 0.999, (500, 1))
    p[:5, 0], whole[5:10] = np.nan, np.nan
    named = [Group(name="G", members=("A", "B"))]
    for spread, of_group in ((0.3, 0.3), (0.05, 2.0), (2.0, 0.05)):
        part = estimate_of(matrices, p, spread, ("A", "B", "C"))
        groups = estimate_of(matrices, whole, of_group, ("G",))
        below, above = (each.p_present for each in bounded(part, groups, named))
        most, known = np.nanmax(below[:, :2], axis=1), ~np.isnan(whole[:, 0])
        assert (most[known] <= above[known, 0] + 1e-12).all()
        assert np.array_equal(np.isnan(below), np.isnan(p))
        assert np.array_equal(below[:, 2], p[:, 2])
        before = np.nanmax(p[:, :2], axis=1)
        over = known & (before > whole[:, 0])
        assert over.sum() > 100
        assert np.array_equal(below[~over], p[~over], equal_nan=True)
        assert np.array_equal(above[~over], whole[~over], equal_nan=True)
        both = over & ~np.isnan(p[:, 0])
        assert below[both, 0] / below[both, 1] == pytest.approx(p[both, 0] / p[both, 1])
        assert ((above[over, 0] > whole[over, 0]) & (above[over, 0] < before[over])).all()
        nearer = np.abs(above[over, 0] - whole[over, 0]) < np.abs(above[over, 0] - before[over])
        if spread != of_group:
            assert nearer.mean() == pytest.approx(float(of_group < spread), abs=0.02)
