"""Films on the screen: what a coarse file says of itself, presets from narrow to wide, a patient with many films."""

import pytest

from world import browsers
from world.browsers import until
from world.words import mentions

FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
CANVAS = "document.querySelector('.pane.current cxr-canvas')"
NOTE = ".pane.current .coarse"
MANY = 50
LINE = """() => { const line = document.querySelector('#strip .scroll'); const at = line.getBoundingClientRect();
  const boxes = [...line.querySelectorAll('button')].map(each => each.getBoundingClientRect());
  const open = [...line.querySelectorAll('[aria-pressed=true]')].map(each => each.getBoundingClientRect());
  return { count: boxes.length, lines: new Set(boxes.map(each => Math.round(each.top))).size,
    seen: open.map(each => each.left >= at.left - 1 && each.right <= at.right + 1) }; }"""


def patient(films):
    """A case whose patient has so many films, this one the last."""
    drawn = [browsers.png(browsers.chest(width=64, height=64, seed=seed)) for seed in range(9)]
    older = {f"old{number:02}-before": drawn[number % 9] for number in range(films - 1)}
    return browsers.case_films(1, width=64, height=64) | older, {"00000000_000.png": list(older)}


@pytest.fixture
def window(hall, enter):
    """A film of 256 pixels on a screen of 1280 x 800."""
    opened = enter(hall(browsers.case_films(1)), viewport={"width": 1280, "height": 800})
    until(opened, FILM)
    return opened


def test_a_small_film_says_that_it_is_shown_larger_than_it_is(window):
    """Its own size and the zoom, above 150 % only: at one to one there is nothing to say."""
    until(window, f"!document.querySelector('{NOTE}').hidden")
    zoom = round(100 * window.evaluate(f"{CANVAS}.view.scale"))
    assert zoom > 150
    assert mentions(window.inner_text(NOTE), "256 \u00d7 256 px", f"{zoom} %", "fine detail")
    window.keyboard.press("9")
    until(window, f"document.querySelector('{NOTE}').hidden")


def test_presets_go_from_narrow_to_wide_and_the_help_names_them(window):
    """No preset is narrower than the one before; a film opens with its own window, which is the fourth."""
    assert window.input_value("#preset") == "4"
    own = window.evaluate(f"{CANVAS}.window")
    widths = []
    for key in "12345":
        window.keyboard.press(key)
        widths.append(window.evaluate(f"{CANVAS}.window"))
        assert window.input_value("#preset") == key
    assert widths == sorted(widths)
    assert widths[3] == own
    low, high = window.evaluate(f"{CANVAS}.film.extremes()")
    level, width = window.evaluate(f"[{CANVAS}.level, {CANVAS}.window]")
    assert level - width / 2 <= low < high <= level + width / 2
    window.keyboard.press("?")
    for key, name in zip("12345", ("narrow", "lungs", "mediastinum", "film's own", "wide"), strict=True):
        assert name in window.inner_text(f"#help [data-key='{key}'] td")


def test_fifty_films_of_a_patient_stay_in_one_line(hall, enter):
    """The line scrolls, the film keeps its place, and the open films' buttons are in view; on a phone too."""
    heights = {}
    for films in (2, MANY):
        contents, earlier = patient(films)
        room = hall(contents, earlier=earlier)
        for width, height in ((1280, 800), (390, 844)):
            window = enter(room, viewport={"width": width, "height": height})
            until(window, FILM)
            place = window.locator("#panes").bounding_box()
            heights.setdefault(width, set()).add((place["y"], place["height"]))
            line = window.evaluate(LINE)
            assert (line["count"], line["lines"], line["seen"]) == (films, 1, [True])
    window.keyboard.press("[")
    until(window, "document.querySelectorAll('#strip [aria-pressed=true]').length === 2")
    assert window.evaluate(LINE)["seen"][0]
    assert all(len(places) == 1 for places in heights.values())
