"""Reports in order: which films share one, which comes first, and who the patient is."""

import polars as pl

from bpals.numeric import patients, reports_of_films
from bpals.types import IMAGES


def make_images(*rows):
    """Films from (image_id, patient_id, study_id, follow_up)."""
    columns = ("image_id", "patient_id", "study_id", "follow_up")
    films = [dict(zip(columns, row, strict=True)) for row in rows]
    return pl.DataFrame(films, schema=IMAGES)


def order(*rows):
    """Report, rank and size of each film, as (report, rank, size)."""
    return reports_of_films(make_images(*rows)).select("report", "rank", "size").rows()


def test_a_film_is_a_report_where_no_study_is_named():
    """Numbered patient by patient, in the order of follow-up, whatever the order of the rows."""
    assert order(("a2", "A", None, 2), ("b1", "B", None, 1), ("a1", "A", None, 1)) == [(1, 1, 2), (2, 0, 1), (0, 0, 2)]


def test_films_of_one_study_share_a_report():
    """A frontal and a lateral film of one day have one report, and so one place in the order."""
    rows = order(("front", "A", "s1", 0), ("lateral", "A", "s1", 0), ("later", "A", "s2", 9))
    assert rows == [(0, 0, 2), (0, 0, 2), (1, 1, 2)]


def test_a_study_s_name_belongs_to_its_patient():
    """Every patient may have a study1."""
    assert order(("a", "A", "study1", 0), ("b", "B", "study1", 0)) == [(0, 0, 1), (1, 0, 1)]


def test_a_study_stands_where_its_first_film_stands():
    """Films of one study may have different numbers; the earliest counts."""
    films = make_images(("x", "A", "s2", 5), ("y", "A", "s1", 7), ("z", "A", "s1", 3))
    placed = reports_of_films(films)
    assert placed["rank"].to_list() == [1, 0, 0]
    assert placed["follow_up"].to_list() == [5, 3, 3]


def test_films_without_an_order_keep_that_of_the_rows_and_come_last():
    """A tie is broken by the row, and what has no number is not put first."""
    rows = order(("c", "A", None, None), ("a", "A", None, 4), ("b", "A", None, 4), ("d", "A", None, None))
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
