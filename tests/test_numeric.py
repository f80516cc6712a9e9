"""Order, timelines, ridge regression and the majority, as several rooms use them."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.linear_model import LogisticRegression

from bpals.numeric import majority, newton, order, patients, reports_of_films, sigmoid
from bpals.types import IMAGES

# The order of numbers is that of numpy's stable argsort, place by place.


@pytest.fixture(scope="module")
def draw():
    """Seeded."""
    return np.random.default_rng(0)


@given(arrays(np.float64, st.integers(0, 60), elements=st.floats(allow_nan=False)))
@settings(max_examples=200, deadline=None)
def test_any_numbers_are_put_in_their_order(values):
    """Infinities, both zeros and numbers too large or too small for 32 bits among them."""
    assert (order(values) == np.argsort(values, kind="stable")).all()


@pytest.mark.parametrize("decimals", [1, 6, 7, 8, 17])
def test_equals_keep_their_places_and_near_ones_are_told_apart(draw, decimals):
    """Fifty thousand numbers, some of which differ only beyond what 32 bits can hold."""
    values = draw.normal(size=50_000).round(decimals)
    values[::7] = values[3] + draw.integers(0, 5, len(values[::7])) * 1e-12
    assert (order(values) == np.argsort(values, kind="stable")).all()


# Reports in order: which films share one, which comes first, and who the patient is.


def make_images(*rows):
    """Films from (image_id, patient_id, study_id, follow_up)."""
    columns = ("image_id", "patient_id", "study_id", "follow_up")
    films = [dict(zip(columns, row, strict=True)) for row in rows]
    return pl.DataFrame(films, schema=IMAGES)


def places(*rows):
    """Report, rank and size of each film, as (report, rank, size)."""
    return reports_of_films(make_images(*rows)).select("report", "rank", "size").rows()


def test_a_film_is_a_report_where_no_study_is_named():
    """Numbered patient by patient, in the order of follow-up, whatever the order of the rows."""
    assert places(("a2", "A", None, 2), ("b1", "B", None, 1), ("a1", "A", None, 1)) == [(1, 1, 2), (2, 0, 1), (0, 0, 2)]


def test_films_of_one_study_share_a_report():
    """A frontal and a lateral film of one day have one report, and so one place in the order."""
    rows = places(("front", "A", "s1", 0), ("lateral", "A", "s1", 0), ("later", "A", "s2", 9))
    assert rows == [(0, 0, 2), (0, 0, 2), (1, 1, 2)]


def test_a_study_s_name_belongs_to_its_patient():
    """Every patient may have a study1."""
    assert places(("a", "A", "study1", 0), ("b", "B", "study1", 0)) == [(0, 0, 1), (1, 0, 1)]


def test_a_study_stands_where_its_first_film_stands():
    """Films of one study may have different numbers; the earliest counts."""
    films = make_images(("x", "A", "s2", 5), ("y", "A", "s1", 7), ("z", "A", "s1", 3))
    placed = reports_of_films(films)
    assert placed["rank"].to_list() == [1, 0, 0]
    assert placed["follow_up"].to_list() == [5, 3, 3]


def test_films_without_an_order_keep_that_of_the_rows_and_come_last():
    """A tie is broken by the row, and what has no number is not put first."""
    rows = places(("c", "A", None, None), ("a", "A", None, 4), ("b", "A", None, 4), ("d", "A", None, None))
    assert [rank for _, rank, _ in rows] == [2, 0, 1, 3]


def test_a_film_without_a_patient_is_a_patient_of_its_own():
    """Two such films are two patients, even if a study's name is on both."""
    films = make_images(("a", None, "s1", 0), ("b", None, "s1", 1), ("c", "C", None, 0))
    assert patients(films).to_list() == ["film:a", "film:b", "C"]
    assert reports_of_films(films)["size"].to_list() == [1, 1, 1]


def test_the_neighbours_of_a_report_are_one_number_away():
    """Reports of one patient are numbered without a gap, in time."""
    rows = [(f"{patient}{time}", patient, None, time) for time in (3, 1, 2) for patient in "BCA"]
    placed = reports_of_films(make_images(*rows)).sort("report")
    assert placed["report"].to_list() == list(range(9))
    assert placed["rank"].to_list() == [0, 1, 2] * 3
    assert placed["follow_up"].to_list() == [1, 2, 3] * 3
    assert placed["patient"].to_list() == ["A"] * 3 + ["B"] * 3 + ["C"] * 3


def test_no_film_has_no_report():
    """An empty table stays empty, with the same columns."""
    placed = reports_of_films(make_images())
    assert placed.is_empty()
    assert placed.columns == ["patient", "report", "rank", "size", "follow_up"]


# Ridge logistic regression: the minimum that others find too, and rows that count more.


def drawn(seed=0, rows=200, columns=4):
    """Inputs, a start and what was there."""
    draw = np.random.default_rng(seed)
    inputs, start = draw.normal(size=(rows, columns)), draw.normal(size=rows)
    return inputs, start, (draw.random(rows) < 0.3).astype(float)


@given(
    seed=st.integers(0, 1000), columns=st.integers(1, 5), soft=st.booleans(), scale=st.sampled_from([0.1, 1.0, 30.0])
)
@settings(max_examples=40, deadline=None)
def test_the_fit_is_the_minimum(seed, columns, soft, scale):
    """The derivative of loss and ridge is zero where Newton stops, also for truths known only in part."""
    inputs, start, present = drawn(seed, columns=columns)
    inputs, start = scale * inputs, scale * start
    present = 0.1 + 0.8 * present if soft else present
    ridge, weight = np.full(columns, 3.0), np.random.default_rng(seed).uniform(0, 5, 200)
    weights, curvature = newton(inputs, start, present, ridge, weight)
    p = sigmoid(inputs @ weights + start)
    slope = inputs.T @ (weight * (p - present)) + ridge * weights
    assert np.linalg.solve(curvature, slope) == pytest.approx(np.zeros(columns), abs=1e-4)


def test_it_is_the_fit_of_scikit_learn():
    """Without a start, and with the same penalty on every column."""
    inputs, _, present = drawn(rows=400)
    weights, _ = newton(inputs, np.zeros(400), present, np.full(4, 2.0))
    peer = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=1000).fit(inputs, present)
    assert weights == pytest.approx(peer.coef_[0], abs=1e-5)


def test_a_row_of_weight_three_is_three_rows():
    """And one of weight 0 is none."""
    inputs, start, present = drawn(rows=60)
    times = np.arange(60) % 4
    heavy, curvature = newton(inputs, start, present, np.ones(4), times.astype(float))
    again = [np.repeat(each, times, axis=0) for each in (inputs, start, present)]
    repeated, same = newton(*again, np.ones(4))
    assert heavy == pytest.approx(repeated, abs=1e-6)
    assert curvature == pytest.approx(same, rel=1e-4)


def test_half_a_presence_is_a_presence_and_an_absence_of_half_the_weight():
    """A truth that is known only so far counts so far for both."""
    inputs, start, _ = drawn(rows=80)
    soft, _ = newton(inputs, start, np.full(80, 0.3), np.ones(4))
    both = [np.concatenate([each, each]) for each in (inputs, start)]
    sides = np.repeat([1.0, 0.0], 80)
    split, _ = newton(*both, sides, np.ones(4), np.where(sides == 1, 0.3, 0.7))
    assert soft == pytest.approx(split, abs=1e-6)


def test_classes_that_are_wholly_apart_do_not_run_away():
    """The ridge holds what the data would send to infinity."""
    inputs = np.linspace(-3, 3, 50)[:, None]
    weights, _ = newton(inputs, np.zeros(50), (inputs[:, 0] > 0).astype(float), np.ones(1))
    assert 1 < weights[0] < 20


# The majority of single reads.


def reads(*rows):
    """Reviews of pairs: film, finding, verdict."""
    return pl.DataFrame(rows, schema=["image_id", "finding", "verdict"], orient="row")


def test_every_definite_read_has_one_vote():
    """A hedge and an unreadable film have none."""
    told = majority(
        reads(*[("a", "Mass", word) for word in ("present", "absent", "present", "uncertain", "unreadable")])
    )
    assert told.to_dicts() == [
        {"image_id": "a", "finding": "Mass", "present": True, "yes": 2, "no": 1, "hedged": 1, "unreadable": 1,
         "tied": False}
    ]  # fmt: skip


def test_a_tie_is_not_present():
    """Nor is a pair of which nobody was sure."""
    told = majority(reads(("a", "Mass", "present"), ("a", "Mass", "absent"), ("b", "Mass", "uncertain")))
    assert told.select("image_id", "present", "tied").rows() == [("a", False, True), ("b", False, True)]


def test_a_pair_is_a_film_and_a_finding():
    """Groups and findings that are not audited are findings like others, and the order is that of the reads."""
    told = majority(reads(("b", "Fracture", "present"), ("a", "Nodule or mass", "present"), ("b", "Mass", "absent")))
    assert told.select("image_id", "finding", "present").rows() == [
        ("b", "Fracture", True),
        ("a", "Nodule or mass", True),
        ("b", "Mass", False),
    ]
    assert majority(told.clear().with_columns(verdict=pl.lit(""))).is_empty()
