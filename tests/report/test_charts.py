"""The charts."""

import re

import pytest
from markupsafe import Markup

from bpals.report import charts
from bpals.report.cases import Film, Strip
from bpals.report.charts import Scale, box, element, number, percent, picture, words
from bpals.report.scorecard_page import Series, curves
from bpals.report.wording import FLAGS
from world.words import mentions

FLAG_COUNTS = dict.fromkeys(FLAGS, 0) | {"likely_mislabelled": 5, "suspect": 10, "hard": 15, "trusted": 70}


def strip_of(*says, at=0, earlier=0, later=0):
    """A strip of films with P(present) of one half."""
    films = tuple(Film(says=word, p_present=None if word is None else 0.5, order=i) for i, word in enumerate(says))
    return Strip(films=films, at=at, earlier=earlier, later=later)


def widths(chart, tone):
    """The widths in percent of the boxes of a tone."""
    return [float(w) for w in re.findall(rf'width="([\d.]+)%" height="[\d.]+" class="{tone}"', chart)]


ALL = {
    "flag_bar": charts.flag_bar(FLAG_COUNTS, what="Presences"),
    "meter": charts.meter(0.2, 0.5, 0.7, title="Trust", tone="tone-present"),
    "bar": charts.bar(0.3, title="A share", tone="tone-present"),
    "histogram": charts.histogram([1, 2], [3, 4], title="Trust"),
    "whisker": charts.whisker(0.2, 0.1, 0.3, top=1, title="A share", tone="tone-absent"),
    "axis": charts.axis(charts.scale([0.1])),
    "hundred": charts.hundred(7, title="Trust", tone="tone-present"),
    "timeline": charts.timeline(strip_of("present", "absent"), title="A patient"),
    "curves": curves(
        [Series(name="bpals", tone="method-bpals", points=((0, 0), (1, 1)))],
        x=Scale(top=1, labels=((0, "0"), (1, "1"))),
        y=Scale(top=1, labels=((0, "0"), (1, "1"))),
        title="Found",
    ),
}


@pytest.mark.parametrize("name", ALL)
def test_every_chart_is_an_image_with_a_title(name):
    """Nobody is left out who cannot see it."""
    assert re.search(r'<svg role="img"[^>]*><title>[^<]+</title>', ALL[name])


@pytest.mark.parametrize("name", ALL)
def test_no_chart_brings_its_own_colours(name):
    """Colours are classes, so that light, dark and print can each paint them."""
    assert not re.search(r'(fill|stroke)="|#[0-9a-f]{3}', ALL[name])


def test_the_flag_bar_shows_each_flag_at_its_share():
    """Five of a hundred are five percent of the width, and a flag nobody got is not drawn."""
    chart = charts.flag_bar(FLAG_COUNTS, what="Presences")
    drawn = {flag: widths(chart, f"tone-{flag}") for flag in FLAGS}
    assert drawn == {flag: [count] if count else [] for flag, count in FLAG_COUNTS.items()}


def test_the_flag_bar_tells_its_numbers_in_words():
    """The description holds what the eye sees."""
    words = charts.flag_bar(FLAG_COUNTS, what="Presences")
    assert "likely mislabelled 5 (5.0" in words
    assert "unjudged 0" in words
    # Without reads the chart does not mention readers.
    assert "rejected" not in words
    assert "rejected 3" in charts.flag_bar(FLAG_COUNTS | {"rejected": 3}, what="Presences")


def test_the_flag_bar_of_nothing_is_an_empty_track():
    """No claims, no division by zero."""
    assert charts.flag_bar(dict.fromkeys(FLAGS, 0), what="Presences").count("<rect") == 1


def test_a_meter_without_a_value_has_no_mark():
    """A finding that is never claimed has no median."""
    assert "<circle" not in charts.meter(None, None, None, title="Trust", tone="tone-present")


def test_a_rare_bar_of_a_histogram_can_still_be_seen():
    """One claim beside a million is a pixel tall, and none is not drawn."""
    chart = charts.histogram([1_000_000, 1, 0], [0, 0, 0], title="Trust")
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="tone-present"', chart)]
    assert heights == [46, 1]


def test_presences_go_up_and_absences_down():
    """The two sides of a histogram meet at the axis."""
    chart = charts.histogram([4], [4], title="Trust")
    up, down = (float(y) for y in re.findall(r'y="([\d.]+)" width="[\d.]+%" height="46" class="tone', chart))
    assert (up, down) == (4, 50)


def test_a_whisker_never_leaves_its_scale():
    """An interval beyond the end is cut at the end."""
    chart = charts.whisker(0.2, 0.0, 0.9, top=0.5, title="A share", tone="tone-present")
    assert 'x1="0%"' in chart
    assert 'x2="100%"' in chart


@pytest.mark.parametrize("highest", [0.0, 0.004, 0.03, 0.2, 0.6, 1.0])
def test_a_scale_is_round_and_holds_all_values(highest):
    """The end is one of a few round shares, none of them below the highest value."""
    made = charts.scale([0.0, highest])
    assert made.top in charts.ROUND_ENDS
    assert made.top >= highest
    assert [at for at, _ in made.labels] == [0, made.top / 2, made.top]


@pytest.mark.parametrize("hits", [0, 7, 100])
def test_a_hundred_dots_has_as_many_filled_as_said(hits):
    """The picture and the number agree."""
    chart = charts.hundred(hits, title="Trust", tone="tone-present")
    assert chart.count('class="tone-present"') == hits
    assert chart.count('class="empty"') == 100 - hits


def test_the_strip_marks_one_film():
    """The film in question is marked once, by a triangle and by its outline."""
    chart = charts.timeline(strip_of("absent", "present", "absent", at=1), title="A patient")
    assert chart.count("arrow") == 1
    assert len(re.findall(r'class="cell [\w-]+ asked"', chart)) == 1
    assert 'class="cell says-present asked"' in chart


def test_the_strip_draws_four_kinds_of_film_in_four_shapes():
    """Present is filled, absent is empty, uncertain is half filled, silent is a dash without a column."""
    chart = charts.timeline(strip_of("present", "absent", "uncertain", None), title="A patient")
    assert [chart.count(mark) for mark in ("says-present", "says-absent", "says-uncertain", "half", "silent")] == [
        1,
        1,
        1,
        1,
        2,
    ]  # fmt: skip  (the description says silent too)
    assert chart.count('class="column') == 3


def test_the_strip_says_in_words_what_it_draws():
    """The description goes through the films in order."""
    chart = charts.timeline(strip_of("absent", "present", None, at=1, earlier=4, later=2), title="A patient")
    assert mentions(chart, "6 of 9", "absent, present, silent")


def test_films_of_one_study_are_joined():
    """A frontal and a lateral film share one report; films without a study are joined with nothing."""
    studies = ["s1", "s1", "s2", None, None, "s3", "s3", "s3"]
    films = tuple(Film(says="absent", p_present=0.1, order=i, study=study) for i, study in enumerate(studies))
    strip = Strip(films=films, at=0, earlier=0, later=0)
    assert strip.studies == [(0, 1), (5, 7)]
    assert charts.timeline(strip, title="A patient").count('class="study"') == 2


def test_the_strip_of_one_film_is_narrow():
    """A single film is a square and not a banner."""
    assert f"max-width:{charts.CELL_PX}px" in charts.timeline(strip_of("present"), title="A patient")


def test_long_follow_up_numbers_do_not_run_into_each_other():
    """Days since 1970 on neighbouring films: only the film in question has its number."""
    films = tuple(Film(says="absent", p_present=0.1, order=16000 + i) for i in range(3))
    chart = charts.timeline(Strip(films=films, at=1, earlier=0, later=0), title="A patient")
    assert re.findall(r">(\d+)</text>", chart) == ["16001"]


def test_curves_end_where_their_points_end():
    """The first point is at the left, the last at the right end of the scale."""
    found = Series(name="bpals", tone="method-bpals", points=((0, 0), (0.1, 0.5), (0.2, 0.8)), intervals=((0, 0),) * 3)
    scale = Scale(top=0.2, labels=((0, "0"), (0.2, "20 %")))
    chart = curves([found], x=scale, y=Scale(top=1, labels=((0, "0"), (1, "100 %"))), title="Found", height=200)
    assert re.findall(r'circle cx="([\d.]+)%" cy="([\d.]+)"', chart) == [("0", "176"), ("50", "96"), ("100", "48")]
    assert chart.count("curve method-bpals") == 2


ATTACK = '"><script>alert(1)</script>'


def test_text_and_attributes_are_escaped():
    """A label cannot break out of an element or of an attribute."""
    made = element("text", ATTACK, class_=ATTACK)
    assert "<script>" not in made
    assert made.count('"') == 2


def test_markup_is_not_escaped_twice():
    """An element inside an element stays an element."""
    assert element("g", element("rect", x=1)) == Markup('<g><rect x="1"/></g>')


def test_an_attribute_that_is_none_is_left_out():
    """None means that there is no such attribute."""
    assert element("rect", x=None, y=2) == Markup('<rect y="2"/>')


def test_numbers_are_short():
    """A thousand rectangles are a matter of bytes."""
    assert [number(v) for v in (1.0, 0.5, 1 / 3, 100)] == ["1", "0.5", "0.33", "100"]
    assert percent(1 / 3) == "33.33%"


def test_a_picture_names_and_describes_itself():
    """A screen reader hears a title and a description, in that order, of something that is an image."""
    made = picture(box(0, 0, 1, 1, "t"), title="A title", desc="What it shows", height=9, kind="bar")
    assert 'role="img"' in made
    assert made.index("<title>A title</title>") < made.index("<desc>What it shows</desc>") < made.index("<rect")


def test_words_are_placed_by_share_of_the_width():
    """Text keeps its size because only its place scales."""
    assert 'x="50%"' in words("5", 0.5, 10)
