"""U02: axe on every page, light and dark and at 200 %; nothing wider than the window, right to left, without motion."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from world import browsers
from world.browsers import until

FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
SECOND = "document.getElementById('sheet').dataset.phase === 'second'"
WIDER = """() => [...document.querySelectorAll('body *')]
  .filter(e => e.getBoundingClientRect().width > 0 && !e.closest('.scroll, svg, .unseen, .skip-link'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)
  .map(e => `${e.tagName}.${e.className}`)"""
ZOOMED = {"viewport": {"width": 640, "height": 430}, "device_scale_factor": 2}
"""A window of 1280 x 860 at 200 %."""
SIGHTS = {"light": {"color_scheme": "light"}, "dark": {"color_scheme": "dark"}, "200 %": ZOOMED}
PROGRESS = {
    "counts": {"readings": 40, "repeats": 2, "reads": 560, "pairs": 540, "films": 40, "readers": 2, "imported": 0},
    "pace": [{"reader": "ada", "readings": 40, "hours": 0.5, "per_hour": 80.0, "median_s": 21.5}],
    "errors": [
        {"finding": "Effusion", "claims": 13317, "pairs": 40, "settled": 38, "confirmed": 11, "open": 2, "present": 9,
         "absent": 2, "rate": 0.21, "low": 0.1, "high": 0.35, "sample": 20, "films": 20, "enough": True,
         "unread_share": 0.9},
    ],
    "agreement": [{"finding": "Effusion", "n": 20, "patients": 20, "enough": True, "agreement": 0.9,
                   "agreement_low": 0.8, "agreement_high": 1.0, "fleiss": 0.7, "ac1": 0.8, "alpha": None}],
    "within": [{"first": "ada", "second": "the same reader", "n": 14, "patients": 1, "enough": False}],
    "against": [{"first": "ada", "second": "consensus", "n": 20, "patients": 20, "enough": True, "agreement": 0.95,
                 "kappa": 0.8}],
    "least": {"films": 10, "width": 0.5, "patients": 10},
    "series": [{"reads": n, "found": n // 3, "pairs": n, "random": n / 9, "random_low": n / 12, "random_high": n / 6}
               for n in range(1, 41)],
    "stopping": {"rule": None, "reached": False, "words": "no stopping rule"},
    "learner": {"every": 50, "waiting": 3, "lessons": 1, "running": False, "last": None, "failure": "the disk is full"},
    "lessons": [{"at": "2026-11-16T10:00:00+00:00", "version": "sha256:0123456789abcdef", "readings": 50, "reads": 700,
                 "changed": {"flag": 3}, "findings": {"Effusion": {"trust": 0, "flag": 3}}}],
    "notices": ["2 reads of findings that are not audited"],
}  # fmt: skip


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """A room in which two readers disagree, with an adjudicator; opened once for all sights."""
    films = {"now.png": browsers.png(browsers.chest()), "old-before": browsers.png(browsers.chest(seed=1))}
    more = {"earlier": {"now.png": ["old-before"]}, "progress": lambda: PROGRESS}
    folder = tmp_path_factory.mktemp("team")
    with browsers.open_hall(folder, films, readers_per_case=2, adjudication="adjudicator", **more) as room:
        browsers.disagree(room, "now.png")
        yield room


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A room in which each film has one reader and one before it; every reader takes three."""
    cases = browsers.case_films(24, width=96, height=96)
    films = cases | {"old-before": browsers.png(browsers.chest(seed=1))}
    more = {"earlier": {name: ["old-before"] for name in cases}}
    with browsers.open_hall(tmp_path_factory.mktemp("alone"), films, **more) as room:
        yield room


def check(window, where):
    """Fail at a serious or critical finding of axe, or at something wider than the window."""
    found = Axe().run(window, options={"resultTypes": ["violations"]}).response["violations"]
    grave = [
        (where, each["id"], [node["target"] for node in each["nodes"]][:3])
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]
    assert grave == []
    assert window.evaluate(WIDER) == [], where
    assert window.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), where


@pytest.mark.parametrize("sight", SIGHTS)
def test_u02_axe_finds_nothing_serious_on_the_reading_page(alone, enter, sight):
    """U02: blind, with help open, revealed, with another film beside, with one's last readings open."""
    window = enter(alone, f"reader {sight}", **SIGHTS[sight])
    until(window, FILM)
    window.keyboard.press("[")
    window.keyboard.press("m")
    check(window, "blind")
    window.keyboard.press("?")
    check(window, "help")
    window.keyboard.press("Escape")
    window.keyboard.press("Enter")
    until(window, SECOND)
    window.keyboard.press("e")
    check(window, "revealed")
    window.click(".acts [data-does=past] >> visible=true")
    window.wait_for_selector("#past[open]")
    check(window, "last readings")


@pytest.mark.parametrize("sight", SIGHTS)
def test_u02_axe_finds_nothing_serious_on_the_other_pages(team, enter, sight):
    """U02: login, a used link, adjudication, progress, account, an error."""
    window = enter(team, "judge", "adjudicator", page="/adjudicate", allowed=("401", "404"), **SIGHTS[sight])
    until(window, FILM)
    check(window, "adjudicate")
    window.goto(f"{team.origin}/progress")
    window.wait_for_selector("svg.chart")
    check(window, "progress")
    window.goto(f"{team.origin}/account")
    window.wait_for_selector("#sessions table, #sessions li, #sessions *")
    check(window, "account")
    window.goto(f"{team.origin}/nowhere")
    check(window, "error")
    window.goto(f"{team.origin}/login")
    check(window, "login")
    window.goto(f"{team.origin}/enter#used")
    window.wait_for_selector("#again:not([hidden])")
    check(window, "enter")


def test_axe_would_find_something(alone, enter):
    """The rule above is not blind: a picture without a name and grey on grey are found."""
    window = enter(alone, "somebody")
    window.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=\"/static/icon.svg\">')")
    with pytest.raises(AssertionError, match="image-alt"):
        check(window, "spoilt")


def test_the_theme_is_chosen_and_kept(alone, enter):
    """Three states, written on the button; the page is painted accordingly, also after a reload."""
    window = enter(alone, "painter", color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = window.evaluate(ground)
    window.click("#theme")
    assert window.inner_text("#theme") == "Theme: dark"
    dark = window.evaluate(ground)
    window.reload()
    assert window.evaluate(ground) == dark != light
    window.click("#theme")
    assert (window.inner_text("#theme"), window.evaluate(ground)) == ("Theme: light", light)


def test_right_to_left_and_without_motion_nothing_breaks(alone, enter):
    """The page turned right to left still fits; films keep their sides; nothing moves by itself."""
    window = enter(alone, "reader from the right", reduced_motion="reduce")
    window.evaluate("document.documentElement.dir = 'rtl'")
    assert window.evaluate(WIDER) == []
    assert window.evaluate("getComputedStyle(document.getElementById('panes')).direction") == "ltr"
    assert window.evaluate("document.getAnimations().length") == 0
