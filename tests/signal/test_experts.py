"""Image judges beside the record: what reviews teach of their weights, and what they must not reach."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from bpals.numeric import sigmoid
from bpals.signal import calibrate
from bpals.signal.calibrate import OTHERS_ERRORS, Context, fold_of_patient
from bpals.signal.experts import Beside, chooser
from bpals.signal.hierarchical import Reviewed, School, Topic

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

    def choose(self, topic=None, reviewed=None):
        """The chooser among pool and judges, perhaps with other reviews."""
        topic, record = (
            each if reviewed is None else dataclasses.replace(each, reviewed=reviewed)
            for each in (topic or self.topic, self.record)
        )
        pooled, alone = (
            calibrate.chooser(each, self.context, School(topics=[each], common=self.context.common))
            for each in (topic, record)
        )
        own = self.z[:, None]
        return topic, chooser(topic, pooled, Beside(record=alone, own=own, others=np.repeat(own, 2, axis=1)))

    def fitted(self, reviewed=None):
        """Calibrate, judges beside the record."""
        return calibrate.calibrate(*self.choose(reviewed=reviewed))


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
        rows = np.arange(reviewed)
        reviews = Reviewed(
            rows=rows, present=there[rows].astype(float), weight=np.ones(reviewed), fold=fold_of_patient(who)[rows]
        )
        pooled = np.where(seen == 1, (r + z) / 2, r)
        context = Context(
            no_finding=np.zeros((FILMS, 1)), view=np.zeros((FILMS, 1)), logits=pooled[:, None],
            states=said[:, None], evidence=np.zeros((FILMS, 0)),
        )  # fmt: skip
        topic = Topic(finding="F", judged=pooled, summed=pooled, said=said, seen=seen, reviewed=reviews)
        record = dataclasses.replace(topic, judged=r, summed=r, seen=np.zeros(FILMS))
        return World(topic=topic, record=record, context=context, z=z, there=there)

    return world


@pytest.mark.parametrize(("worth", "design"), [(0.0, "record"), (2.0, "beside")])
def test_reviews_teach_how_far_a_judge_may_be_believed(world, worth, design):
    """Where the pool believes both judges the same and one is worth nothing, or twice as much, reviews set it right."""
    here = world(worth)
    school = School(topics=[here.topic], common=here.context.common)
    pooled = calibrate.calibrate(here.topic, calibrate.chooser(here.topic, here.context, school))
    done = here.fitted()
    fresh = (here.topic.seen == 1) & (np.arange(FILMS) >= REVIEWED)
    lost = [-np.log(np.where(here.there, p, 1 - p)[fresh]).mean() for p in (done.p_present, pooled.p_present)]
    assert done.design.split(", ")[1] == design
    assert lost[0] < lost[1] - 0.01, lost


def test_films_that_no_image_judge_saw_keep_the_answer_of_the_record(world):
    """To the last bit, before both directions of a claim are looked at apart."""
    here = world(2.0)
    _, choose = here.choose()
    school = School(topics=[here.record], common=here.context.common)
    chosen, alone = (each(frozenset()) for each in (choose, calibrate.chooser(here.record, here.context, school)))
    assert "beside" in chosen.design
    unseen = np.flatnonzero(here.topic.seen == 0)
    assert np.array_equal(chosen.predict(unseen)[0], alone.predict(unseen)[0])
    seen = np.flatnonzero(here.topic.seen == 1)
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


def test_below_forty_errors_on_films_that_were_seen_the_pool_stands(world):
    """What is reviewed elsewhere does not count."""
    here = world(2.0)
    few = here.topic.reviewed
    wrong = (here.topic.said[few.rows] != few.present) & (here.topic.seen[few.rows] == 1)
    places = np.flatnonzero(wrong)[: OTHERS_ERRORS - 1]
    kept = np.isin(np.arange(len(few.rows)), places) | ~wrong
    topic, choose = here.choose(reviewed=few.only(kept))
    assert (wrong & kept).sum() == OTHERS_ERRORS - 1 < topic.errors()
    assert choose(frozenset()).design in {"judges", "shared", "own", "members", "other findings", "wide"}
