"""A reader's own last readings in a real browser: found after a reload, amended with a reason, nothing of them lost."""

import browsing
from browsing import until

BLIND = "document.getElementById('sheet').dataset.phase === 'blind' && !document.getElementById('written').hidden"
SECOND = "document.getElementById('sheet').dataset.phase === 'second'"
AMEND = "document.getElementById('sheet').dataset.phase === 'amend'"
FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
NOTHING = "!document.getElementById('nothing').hidden"


def press(window, *keys):
    """Press keys one after another."""
    for key in keys:
        window.keyboard.press(key)


def case(number):
    """Say that a case is on the screen."""
    return f"document.getElementById('case').textContent.startsWith('Case {number} ')"


def open_past(window):
    """Open the list of one's last readings, and give its lines without the time."""
    window.click(".acts [data-does=past] >> visible=true")
    window.wait_for_selector("#past[open]")
    cells = "[...document.querySelectorAll('#past-rows tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    return [(number, said) for number, _, said, _ in window.evaluate(cells)]


def test_any_of_the_last_readings_is_amended_also_after_a_reload(hall, enter):
    """Two cases back: refused without a reason, stored beside the first read with one; the draft before it is kept."""
    room = hall(browsing.case_films(4), reveal=False)
    window = enter(room)
    until(window, FILM)
    press(window, "m", "Enter")
    until(window, case(2))
    press(window, "e", "e", "Enter")
    until(window, case(3))
    press(window, "h")
    window.reload()
    until(window, FILM)
    assert open_past(window) == [("2", "Effusion uncertain"), ("1", "Mass present")]
    window.click("button[aria-label='Amend case 1']")
    until(window, AMEND)
    until(window, FILM)
    assert window.inner_text("#case").startswith("Case 1 ")
    press(window, "e")
    window.click("#save")
    assert "Say why" in window.inner_text("#notice")
    window.fill("#reason", "I took the shadow for a mass")
    window.click("#save")
    until(window, BLIND)
    assert "The amendment of case 1 is stored." in window.inner_text("#notice")
    assert window.inner_text("#case").startswith("Case 3 ")
    assert "present" in window.inner_text("[data-finding=Hernia] .sign")
    kept = room.reviews()
    assert kept.filter(phase="amended", finding="Effusion")["verdict"].to_list() == ["present"]
    assert kept.filter(phase="blind", finding="Effusion")["verdict"].sort().to_list() == ["absent", "uncertain"]
    assert open_past(window)[1] == ("1", "Effusion present, Mass present, amended")


def test_an_amendment_after_the_reveal_shows_again_what_was_revealed(hall, enter):
    """And only of that case: the list itself says nothing of labels; when all is read the list is still there."""
    room = hall(browsing.case_films(1))
    window = enter(room)
    until(window, FILM)
    press(window, "m", "Enter")
    until(window, SECOND)
    assert open_past(window) == []
    press(window, "Escape")
    window.wait_for_timeout(650)
    press(window, "Enter")
    until(window, NOTHING)
    assert open_past(window) == [("1", "Mass present")]
    assert "abel" not in window.inner_text("#past-table")
    window.click("button[aria-label='Amend case 1']")
    until(window, AMEND)
    assert "Label present" in window.inner_text("[data-finding=Effusion] .known")
    window.click("#back")
    until(window, NOTHING)
    assert set(room.reviews()["phase"]) == {"blind", "second"}


def test_an_amendment_without_a_connection_is_stored_once(hall, enter):
    """It waits like a lock does, cannot be pressed twice, and is sent when the line is back."""
    room = hall(browsing.case_films(2), reveal=False)
    window = enter(room, allowed=("ERR_INTERNET_DISCONNECTED",))
    until(window, FILM)
    press(window, "m", "Enter")
    until(window, case(2))
    open_past(window)
    window.click("button[aria-label='Amend case 1']")
    until(window, AMEND)
    press(window, "e")
    window.fill("#reason", "a slip")
    window.context.set_offline(True)
    window.click("#save")
    until(window, "document.getElementById('phase').textContent.startsWith('Not saved yet')")
    assert window.is_disabled("#save")
    window.context.set_offline(False)
    until(window, BLIND)
    assert len(room.reviews().filter(phase="amended")) == 14
