"""Rows become films: names, ages, dates and orders are read, and what cannot be is refused or counted."""

import re

import pytest

from world.mappings import COLUMNS, HEADER
from world.words import mentions

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("row", ["a.png,p,1,61,M,PA,0,0", "a.png,p,1,62,M,PA,1,0"])
def test_a_repeated_image_that_differs_is_refused(refusal, row):
    """In a label or in anything else that is read."""
    line = refusal(HEADER + f"a.png,p,1,61,M,PA,1,0\nb.png,p,2,61,M,PA,1,0\n{row}\n", COLUMNS)
    assert re.search(r"line 4 .*'a\.png' .*line 2\.", line)


def test_a_row_that_is_repeated_as_it_is_counts_once(load, notices):
    """It says nothing new."""
    row = "a.png,p,1,61,M,PA,1,0\n"
    dataset = load(HEADER + row + row + "b.png,p,2,61,M,PA,1,1\n" + row, COLUMNS)
    assert dataset.images.height == 2
    assert notices(dataset) == {"repeated_rows": 2}


def test_blank_rows_are_left_out(load, notices):
    """Spreadsheets leave rows of commas behind."""
    dataset = load(HEADER + "a.png,p,1,61,M,PA,1,1\n,,,,,,,\n\n , ,,,,,,\n", COLUMNS)
    assert dataset.images.height == 1
    assert notices(dataset) == {"blank_rows": 2}


@pytest.mark.parametrize("image", ["", "nan"])
def test_a_row_without_an_image_is_refused(refusal, image):
    """A claim must be about something."""
    assert "t.csv line 3 has no image id" in refusal(HEADER + f"a,p,1,61,M,PA,1,0\n{image},p,2,61,M,PA,1,0\n", COLUMNS)


@pytest.mark.parametrize("cell", ["=HYPERLINK(A1)", "@SUM(A1)", "+1", '"a\nb"'])
def test_a_formula_or_a_line_break_in_a_name_is_refused(refusal, cell):
    """It is damage here, and a danger to whoever opens an export."""
    assert "line 3: the image is " in refusal(HEADER + f"a,p,1,61,M,PA,1,0\n{cell},p,2,61,M,PA,1,0\n", COLUMNS)


@pytest.mark.parametrize(
    ("age", "years"),
    [("58", 58), ("058Y", 58), ("006M", 0.5), ("0", 0), ("120", 120), ("412", None), ("-3", None), ("old", None)],
)
def test_ages_are_years_or_unknown(load, age, years, notices):
    """DICOM's units are read; an age that cannot be is counted."""
    dataset = load(HEADER + f"a,p,1,61,M,PA,1,0\nb,p2,1,{age},M,PA,1,1\n", COLUMNS)
    assert dataset.images["age"][1] == years
    assert notices(dataset) == ({"age_impossible": 1} if years is None else {})


def test_a_size_that_cannot_be_is_unknown(load, notices):
    """No film is 0 pixels wide."""
    text = "file,w,Mass,Edema\na,2048,1,0\nb,0,0,1\nc,wide,0,0\n"
    mapping = '[columns]\nimage = "file"\nwidth = "w"\n' + COLUMNS[COLUMNS.index("\n[labels]") :]
    dataset = load(text, mapping)
    assert dataset.images["width_px"].to_list() == [2048, None, None]
    assert notices(dataset) == {"size_unreadable": 2}


def test_a_column_in_which_no_age_can_be_read_is_refused(refusal):
    """The mapping then names the wrong column."""
    line = refusal(HEADER + "a,p,1,M,M,PA,1,0\nb,p,2,F,M,PA,1,0\n", COLUMNS)
    assert mentions(line, "line 2", "age", "'M'")


def test_a_patient_in_two_orders_is_counted(load, notices):
    """One number for two films, or a number that goes up while the age goes down."""
    rows = "a,p,1,61,M,PA,1,0\nb,p,1,61,M,PA,1,1\nc,q,1,70,M,PA,1,0\nd,q,2,64,M,PA,1,0\ne,q,3,64,M,PA,1,0\n"
    dataset = load(HEADER + rows, COLUMNS)
    assert notices(dataset) == {"order_tied": 2, "order_against_age": 1}
    assert dataset.images["follow_up"].to_list() == [1, 1, 1, 2, 3]
    assert dataset.notices[1].message.endswith("first in t.csv line 5")


def test_films_of_one_study_are_in_no_two_orders(load, notices):
    """A frontal and a lateral view are taken at one time."""
    text = HEADER.replace("view", "study") + "a,p,1,61,M,s1,1,0\nb,p,1,61,M,s1,1,1\n"
    assert notices(load(text, COLUMNS.replace('view = "view"', 'study = "study"'))) == {}


def test_a_date_orders_the_films_by_days(load, notices):
    """Compact and ISO dates are read as they are, others with date_format; a birth year gives an age."""
    films = COLUMNS.replace('order = "visit"\nage = "age"', 'date = "visit"\nbirth = "age"')
    rows = "a,p,20100101,1950.0,M,PA,1,0\nb,p,2010-01-11,1950,M,PA,1,1\n"
    rows += "c,q,never,1950,M,PA,1,0\nd,q,20100101,1850,M,PA,1,0\n"
    dataset = load(HEADER + rows, films)
    assert dataset.images["follow_up"].to_list() == [14610, 14620, None, 14610]
    assert dataset.images["age"].to_list() == [60.0, 60.0, None, None]
    assert notices(dataset) == {"date_unreadable": 1, "age_impossible": 1}
    german = load(HEADER + "a,p,11.01.2010,1950,M,PA,1,1\n", 'date_format = "%d.%m.%Y"\n' + films)
    assert german.images["follow_up"].to_list() == [14620]


PATTERN = """
[columns]
image = "file"

[pattern]
column = "file"
regex = '(?P<patient>p\\d+)/s(?P<order>\\d+)'
"""


def test_a_pattern_finds_what_one_column_hides(load, notices):
    """Rows that do not match are counted, and their patient is unknown."""
    mapping = PATTERN + COLUMNS[COLUMNS.index("\n[labels]") :]
    dataset = load("file,Mass,Edema\np1/s2.png,1,0\np2/s1.png,0,1\nother.png,0,0\n", mapping)
    assert dataset.images.select("patient_id", "follow_up").rows() == [("p1", 2), ("p2", 1), (None, None)]
    assert notices(dataset) == {"pattern_unmatched": 1, "patient_missing": 1}


def test_a_pattern_that_matches_nothing_is_refused(refusal):
    """The expression is wrong, not the table."""
    mapping = PATTERN + COLUMNS[COLUMNS.index("\n[labels]") :]
    line = refusal("file,Mass,Edema\na.png,1,0\nb.png,0,1\n", mapping)
    assert re.search(r"line 2: 'a\.png' .*\[pattern\].*my\.toml", line)


def test_a_pattern_may_find_the_image_itself(load, refusal):
    """Then every row must match, because a film needs a name."""
    mapping = PATTERN.replace('[columns]\nimage = "file"\n', "").replace("(?P<order>", "(?P<image>")
    mapping += COLUMNS[COLUMNS.index("\n[labels]") :]
    dataset = load("file,Mass,Edema\np1/s2.png,1,0\np1/s3.png,0,1\n", mapping)
    assert dataset.images["image_id"].to_list() == ["2", "3"]
    assert "t.csv line 3: 'x'" in refusal("file,Mass,Edema\np1/s2.png,1,0\nx,0,1\n", mapping)


def test_the_first_of_several_columns_that_is_filled_counts(load):
    """A view may stand in either of two columns."""
    mapping = COLUMNS.replace('view = "view"', 'view = ["view", "side"]')
    text = HEADER.replace("view", "view,side") + "a,p,1,61,M,,Lateral,1,0\nb,p,2,61,M,PA,Frontal,0,1\n"
    assert load(text, mapping).images["view"].to_list() == ["Lateral", "PA"]
