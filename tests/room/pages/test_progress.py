"""The progress page: what it shows says what it rests on, at any width."""

import copy

import pytest

from world import browsers
from world.browsers import until
from world.words import mentions

READY = "document.querySelectorAll('#numbers section').length >= 4"
OVERPRINTED = """() => {
  const parts = [...document.querySelectorAll('.chart text, .legend li')];
  const boxes = parts.map(e => ({ name: e.textContent, box: e.getBoundingClientRect() }));
  const beside = (one, other) => one.right <= other.left || other.right <= one.left;
  const below = (one, other) => one.bottom <= other.top || other.bottom <= one.top;
  return boxes.flatMap(({ name, box }, at) =>
    boxes.slice(at + 1).filter(o => !beside(box, o.box) && !below(box, o.box)).map(o => [name, o.name]));
}"""
CHART = "document.querySelector('.chart')"
SCALE = f"{CHART}.getBoundingClientRect().width / {CHART}.viewBox.baseVal.width"
RATE = {"rate": 0.04, "low": 0.02, "high": 0.08, "sample": 280, "films": 20, "enough": True}
COUNTED = {"claims": 120, "pairs": 40, "settled": 38, "confirmed": 4, "open": 2, "present": 3, "absent": 1}
FIGURES = ("agreement", "positive", "negative", "fleiss", "ac1", "alpha")
AGREED = {name: value for figure in FIGURES for name, value in
          ((figure, 0.9), (f"{figure}_low", 0.8), (f"{figure}_high", 1.0))}  # fmt: skip
ONCE = {"first": "ada", "n": 14, "patients": 1, "enough": False, "agreement": 0.93, "kappa": None}
TOLD = {
    "counts": {"readings": 40, "repeats": 1, "reads": 560, "pairs": 540, "films": 40, "readers": 2, "imported": 0},
    "errors": [
        {"finding": "Effusion", **COUNTED, **RATE, "films": 2, "enough": False},
        {"finding": "Mass", **COUNTED, **RATE, "films": 20},
        {"finding": "all findings", **COUNTED, **RATE},
    ],
    "agreement": [{"finding": "Mass", "n": 20, "patients": 20, "enough": True, **AGREED}],
    "within": [ONCE],
    "against": [],
    "least": {"films": 10, "width": 0.5, "patients": 10},
    "needed": {"rule": None, "target": None, "widest": None, "finding": None, "more_readings": None},
    "series": [
        {"reads": n, "found": n // 25, "pairs": n, "random": n / 25, "random_low": n / 50, "random_high": n / 12}
        for n in range(1, 101)
    ],
    "stopping": {"rule": None, "reached": False, "words": "no stopping rule: read as long as you like"},
    "lessons": [
        {"at": "2026-11-16T10:00:00+00:00", "version": "sha256:0123456789abcdef", "readings": 50, "reads": 700,
         "pairs": 680, "changed": {"flag": 12, "trust": 112},
         "findings": {"Pleural_Thickening": {"trust": 112, "flag": 12}}},
    ],
    "learner": {"every": 50, "waiting": 1, "lessons": 1, "running": False, "last": None, "failure": None},
}  # fmt: skip


@pytest.fixture
def page(hall, enter):
    """The page of these numbers at a width, as whoever settles sees it."""

    def opened(width=1280, **more):
        told = copy.deepcopy(TOLD) | more
        room = hall(browsers.case_films(1), progress=lambda: told)
        size = {"width": width, "height": 860}
        window = enter(room, "judge", "adjudicator", page="/progress", viewport=size)
        until(window, READY)
        return window

    return opened


@pytest.mark.parametrize("width", [390, 1280])
def test_no_words_of_the_chart_lie_over_others(page, width):
    """Also where both curves end at one height; its letters are as large as they are on the page."""
    window = page(width)
    assert window.evaluate(OVERPRINTED) == []
    assert window.evaluate(SCALE) == pytest.approx(1, abs=0.01)
    assert window.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    window.set_viewport_size({"width": 700, "height": 860})
    until(window, f"Math.abs({SCALE} - 1) < 0.01 && {CHART}.viewBox.baseVal.width > 600")


def test_the_chart_and_the_table_tell_one_rate(page):
    """The caption's interval is that of the last line."""
    window = page()
    last = window.inner_text("#numbers section:nth-of-type(2) tbody tr:last-child")
    caption = window.inner_text("figcaption")
    assert "4.0 %" in last
    assert "2.0 % to 8.0 %" in last
    assert "4.0 % (2.0 % to 8.0 %)" in caption


def test_what_rests_on_too_little_says_so_instead_of_a_figure(page):
    """Two films at random, one repeat: the rule stands beside them, and others keep their figures."""
    window = page()
    text = window.inner_text("#numbers")
    assert "too few reads yet (2)" in text
    assert "too few reads yet (20)" not in text
    assert mentions(text, "from 10 such", "50 points")
    assert "too few repeats (1)" in text
    assert "0.93" not in text
    assert mentions(text, "fewer than 10 patients")


def test_positive_and_negative_agreement_have_columns(page):
    """Beside kappa, AC1 and alpha, each with its interval."""
    window = page()
    heads = window.locator("#numbers section:nth-of-type(3) table").first.locator("thead th").all_inner_texts()
    assert heads == ["Finding", "Pairs", "Share agreed", "positive", "negative", "kappa", "AC1", "alpha"]
    cells = window.locator("#numbers section:nth-of-type(3) table").first.locator("tbody td").all_inner_texts()
    assert [cell.split() for cell in cells[1:]] == [["0.90", "0.80", "to", "1.00"]] * 6


def test_without_a_rule_nothing_more_is_asked_for(page):
    """Under one the page says which, and how many more readings it takes."""
    assert "more reading" not in page().inner_text("#numbers")
    words = (
        "stop when every error rate is known to within 0.05; the widest interval is 0.250: about 2,500 more readings"
    )
    window = page(stopping={"rule": "width", "reached": False, "words": words})
    assert words[1:] in window.inner_text("#numbers")


def test_each_lesson_says_what_it_taught(page):
    """One lesson is no plural; it has its readings, findings, flags, hour and version."""
    text = page().inner_text("#numbers section:last-of-type")
    assert mentions(text, "1 lesson so far", "1 reading waits")
    for words in ("50", "700", "Pleural Thickening (112 trusts, 12 flags)", "0123456789ab", "2026"):
        assert words in text
