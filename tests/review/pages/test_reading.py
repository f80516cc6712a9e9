"""Reading in a real browser: by keyboard alone, blind first, then the reveal, then the second verdict."""

import pytest

from world import browsers
from world.browsers import until
from world.words import mentions

BLIND = "document.getElementById('sheet').dataset.phase === 'blind' && !document.getElementById('written').hidden"
SECOND = "document.getElementById('sheet').dataset.phase === 'second'"
SAVED = "document.getElementById('sending').dataset.state === 'saved'"
FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
NOTHING = "!document.getElementById('nothing').hidden"
FETCHED = "performance.getEntriesByType('resource').filter(each => each.name.includes('/films/')).length"
CALM_MS = 650
"""A little longer than Enter is deaf after the reveal."""


def press(window, *keys):
    """Press keys one after another."""
    for key in keys:
        window.keyboard.press(key)


def sign(window, finding):
    """What the list says of a finding."""
    return window.inner_text(f"[data-finding={finding}] .sign")


def test_u01_a_whole_session_by_keyboard_alone(hall, enter):
    """U01: five cases, each read blind, locked, revealed and read again, with undo, note, quality, devices, skip."""
    room = hall(browsers.case_films(6))
    window = enter(room)
    for case in range(1, 6):
        until(window, BLIND)
        until(window, FILM)
        assert window.inner_text("#case").startswith(f"Case {case} of")
        assert window.evaluate("document.activeElement.tagName") == "CXR-CANVAS"
        press(window, "e", "e")
        assert "uncertain" in sign(window, "Effusion")
        press(window, "z")
        assert "present" in sign(window, "Effusion")
        press(window, "Shift+z", "z", ".", "m", "m", "m", "m", "m", "Shift+c", "q", "d")
        assert sign(window, "Mass") == ""
        assert "absent" in sign(window, "Cardiomegaly")
        press(window, "n")
        window.keyboard.type(f"note {case}")
        press(window, "Escape", "i", "+", "2")
        press(window, "Enter")
        until(window, SECOND)
        assert "Label present" in window.inner_text("[data-finding=Effusion] .known")
        press(window, "Shift+e")
        window.wait_for_timeout(CALM_MS)
        press(window, "Enter")
    until(window, BLIND)
    press(window, "s")
    until(window, NOTHING)
    kept = room.reviews()
    blind, second = kept.filter(phase="blind"), kept.filter(phase="second")
    assert len(blind) == len(second) == 5 * 14
    effusion = {"finding": "Effusion"}
    assert set(blind.filter(**effusion)["verdict"]) == {"present"}
    assert set(blind.filter(**effusion)["confidence"]) == {75}
    assert set(second.filter(**effusion)["verdict"]) == {"absent"}
    assert (set(blind["saw_signal"]), set(second["saw_signal"])) == ({0}, {1})
    assert set(blind["note"]) == {f"note {case}" for case in range(1, 6)}
    assert (set(blind["quality"]), set(blind["devices"])) == ({"good"}, {"present"})


def test_u01_focus_is_visible_everywhere(hall, enter):
    """U01: Tab goes through every control of the page, each has an outline, and none holds the focus."""
    window = enter(hall(browsers.case_films(1)))
    until(window, FILM)
    press(window, "m")
    window.evaluate("document.querySelector('.skip-link').focus()")
    outlines, seen = [], []
    about = """() => { const on = document.activeElement; const style = getComputedStyle(on);
      const name = on.tagName + (on.id || on.textContent.trim().slice(0, 30));
      return [name, parseFloat(style.outlineWidth), on === document.body]; }"""
    for _ in range(140):
        press(window, "Tab")
        name, outline, away = window.evaluate(about)
        if away:
            break
        seen.append(name)
        outlines.append(outline)
    assert away
    assert min(outlines) >= 2
    assert sum("CXR-CANVAS" in name for name in seen) == 1
    wanted = {"BUTTONsave", "TEXTAREAnote", "BUTTONlogout", "INPUTconfidence", "SELECTpreset"}
    assert wanted <= set(seen)


def test_a_quick_second_enter_stores_no_second_verdict(hall, enter):
    """Two presses in a row lock once: the reveal is to be seen first."""
    room = hall(browsers.case_films(2))
    window = enter(room)
    until(window, FILM)
    press(window, "Enter", "Enter")
    until(window, SECOND)
    press(window, "Enter")
    assert window.evaluate(SECOND)
    assert set(room.reviews()["phase"]) == {"blind"}


def test_where_nothing_is_revealed_the_last_lock_can_be_undone(hall, enter):
    """Z with nothing left to undo goes back to the case before, as it was written; locked again it counts once."""
    room = hall(browsers.case_films(3), reveal=False)
    window = enter(room)
    until(window, FILM)
    press(window, "m", "Enter")
    until(window, "document.getElementById('case').textContent.startsWith('Case 2')")
    until(window, SAVED)
    press(window, "z")
    until(window, "document.getElementById('case').textContent.startsWith('Case 1')")
    assert "present" in sign(window, "Mass")
    press(window, "m", "Enter")
    until(window, "document.getElementById('case').textContent.startsWith('Case 2')")
    until(window, SAVED)
    blind = room.reviews().filter(phase="blind", finding="Mass", stands=True)
    assert blind["verdict"].to_list() == ["uncertain"]


def test_a_skipped_case_can_be_had_back(hall, enter):
    """Z right after the skip, or later, when nothing else is left; what was written is still there."""
    room = hall(browsers.case_films(2))
    window = enter(room)
    until(window, FILM)
    press(window, "m", "s")
    until(window, "document.getElementById('case').textContent.startsWith('Case 2')")
    assert mentions(window.inner_text("#notice"), "Case 1", "skipped", "(Z)")
    until(window, SAVED)
    press(window, "z")
    until(window, "document.getElementById('case').textContent.startsWith('Case 1')")
    assert "present" in sign(window, "Mass")
    for _ in range(2):
        case = window.inner_text("#case")
        press(window, "s")
        until(window, "words => document.getElementById('case').textContent !== words", case)
        until(window, SAVED)
    until(window, NOTHING)
    window.click("#bring-back")
    until(window, BLIND)


def test_what_comes_next_is_not_taken_from_an_answer_that_is_out_of_date(hall, enter):
    """Asked before Undo and answered after it, the room names the case on the screen; once skipped, it stays away."""
    room = hall(browsers.case_films(2))
    window = enter(room)
    until(window, FILM)
    until(window, f"{FETCHED} === 2")
    held = []
    window.route("**/api/next", lambda route: route.continue_() if held else held.append(route))
    with window.expect_request("**/api/next"):
        press(window, "s")
    until(window, "document.getElementById('case').textContent.startsWith('Case 2')")
    press(window, "z")
    until(window, "document.getElementById('case').textContent.startsWith('Case 1')")
    with window.expect_response("**/api/next"):
        held[0].continue_()
    window.wait_for_timeout(CALM_MS)
    press(window, "s")
    until(window, "document.getElementById('case').textContent.startsWith('Case 2')")
    until(window, SAVED)
    press(window, "s")
    until(window, NOTHING)


def test_a_case_that_was_asked_for_anew_does_not_come_twice(hall, enter):
    """A late answer about what comes after an earlier case does not bring the one on the screen again."""
    window = enter(hall(browsers.case_films(4)))
    until(window, f"{FETCHED} === 3")
    held = []
    window.route("**/api/next", lambda route: route.continue_() if len(held) == 2 else held.append(route))
    for case in (2, 3):
        with window.expect_request("**/api/next"):
            press(window, "s")
        until(window, f"document.getElementById('case').textContent.startsWith('Case {case}')")
    press(window, "s")
    until(window, "document.getElementById('case').textContent.startsWith('Case 4')")
    until(window, SAVED)
    for route in held:
        with window.expect_response("**/api/next"):
            route.continue_()
    window.wait_for_timeout(CALM_MS)
    press(window, "s")
    until(window, NOTHING)


def test_a_study_that_asks_wants_every_finding_marked(hall, enter):
    """With unmarked = ask a case is not locked before all are marked; Shift Enter marks the rest absent."""
    room = hall(browsers.case_films(1), unmarked="ask", reveal=False)
    window = enter(room)
    until(window, FILM)
    press(window, "m", "Enter")
    assert "13 findings have no verdict" in window.inner_text("#notice")
    press(window, "Shift+Enter")
    assert "absent" in sign(window, "Hernia")
    press(window, "Enter")
    until(window, NOTHING)
    assert dict(room.reviews()["verdict"].value_counts().rows()) == {"absent": 13, "present": 1}


def test_the_next_cases_are_fetched_before_they_are_wanted(hall, enter):
    """While the first case is on the screen the films of the next two are fetched, each once, and shown at once."""
    room = hall(browsers.case_films(4), reveal=False)
    window = enter(room)
    until(window, FILM)
    until(window, SAVED)
    until(window, f"{FETCHED} === 3")
    press(window, "Enter")
    until(window, "document.getElementById('case').textContent.startsWith('Case 2')")
    assert window.evaluate(FILM) is not None
    until(window, f"{FETCHED} === 4")
    assert len(room.films.asked) == len(set(room.films.asked)) == 4


def test_single_keys_can_be_switched_off(hall, enter):
    """WCAG 2.1.4: with the switch in the help off, letters do nothing, and buttons still do."""
    window = enter(hall(browsers.case_films(1)))
    until(window, FILM)
    press(window, "?")
    window.uncheck("#keys-on")
    press(window, "Escape", "m")
    assert sign(window, "Mass") == ""
    window.click("[data-finding=Mass] [data-verdict=absent]")
    assert "absent" in sign(window, "Mass")
    window.click(".tools [data-does=help]")
    window.check("#keys-on")
    press(window, "Escape", "m")
    assert "unreadable" in sign(window, "Mass")


def test_mouse_and_keys_can_be_mixed(hall, enter):
    """After a click on a verdict, a preset or the slider the keys still mark, and Enter still saves."""
    room = hall(browsers.case_films(1), reveal=False)
    window = enter(room)
    until(window, FILM)
    window.click("[data-finding=Mass] [data-verdict=present]")
    window.select_option("#preset", "2")
    press(window, "e")
    window.locator("#confidence").click(position={"x": 4, "y": 8})
    press(window, "Shift+c", "Enter")
    until(window, NOTHING)
    kept = dict(room.reviews().select("finding", "verdict").rows())
    assert (kept["Mass"], kept["Effusion"], kept["Cardiomegaly"]) == ("present", "present", "absent")
    assert room.reviews().filter(finding="Effusion")["confidence"].item() == 0


def test_a_film_that_cannot_be_shown_says_so(hall, enter):
    """A missing or broken film is a sentence in its place; the case can still be skipped or called unreadable."""
    room = hall({"broken.png": browsers.png(browsers.chest())[:2000]}, reveal=False)
    window = enter(room, allowed=("404",))
    window.wait_for_selector(".wait:has-text('cannot be shown')")
    press(window, "q", "q", "q", "Enter")
    until(window, NOTHING)
    assert set(room.reviews()["quality"]) == {"unreadable"}


@pytest.mark.parametrize("tool", ["ruler", "box"])
def test_u10_every_tool_is_reached_by_touch(hall, enter, tool):
    """U10: without hover and keys, every key of the help has a button, and a finger draws."""
    window = enter(hall(browsers.case_films(1)), has_touch=True, viewport={"width": 820, "height": 1180})
    until(window, FILM)
    does = "[...document.querySelectorAll('#help [data-does]')].map(each => each.dataset.does)"
    buttons = set(window.evaluate("[...document.querySelectorAll('button[data-does]')].map(each => each.dataset.does)"))
    others = {
        "note",
        "quality",
        "devices",
        "less",
        "more",
        "earlier",
        "later",
        "leave",
        "preset1",
        "preset2",
        "preset3",
    }
    moved = {"left", "right", "up", "down", "brighter", "darker", "narrower", "wider", "preset4", "preset5"}
    assert set(window.evaluate(does)) - buttons - others - moved == set()
    small = """[...document.querySelectorAll('button, select, input')].filter(each => each.checkVisibility())
      .map(each => each.getBoundingClientRect()).filter(each => Math.min(each.width, each.height) < 24
        && !(each.width >= 18 && each.height >= 18)).length"""
    assert window.evaluate(small) == 0
    window.tap("[data-finding=Mass] [data-verdict=present]")
    window.tap(f".tools [data-does={tool}]")
    assert window.evaluate("document.querySelector('cxr-canvas').placing?.kind") == tool
