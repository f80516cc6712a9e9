"""A reader's own last readings in a real browser: found after a reload, amended with a reason, nothing of them lost."""

from dataclasses import dataclass, replace

from world import browsers
from world.browsers import until
from world.words import mentions

BLIND = "document.getElementById('sheet').dataset.phase === 'blind' && !document.getElementById('written').hidden"
SECOND = "document.getElementById('sheet').dataset.phase === 'second'"
AMEND = "document.getElementById('sheet').dataset.phase === 'amend'"
FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
BOXES = "document.querySelector('.pane.current cxr-canvas').boxes.map(box => box.finding)"
IN_VIEW = """selector => { const box = document.querySelector(selector).getBoundingClientRect();
  return box.height > 0 && box.top >= 0 && box.bottom <= innerHeight; }"""
NOTHING = "!document.getElementById('nothing').hidden"


@dataclass
class Learning(browsers.Films):
    """Films whose signal is learned anew when a test says so."""

    def reveal(self, image_id):
        """What is shown after the lock, in its newest version."""
        return replace(super().reveal(image_id), version=f"sha256:of {self.reason}")


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


def test_an_amendment_after_the_last_case_is_confirmed_where_nothing_more_comes(hall, enter):
    """The page that says that no case is left says first that the amendment is stored."""
    room = hall(browsers.case_films(1), reveal=False)
    window = enter(room)
    until(window, FILM)
    press(window, "m", "Enter")
    window.wait_for_selector("#nothing:not([hidden])")
    open_past(window)
    window.click("button[aria-label='Amend case 1']")
    until(window, AMEND)
    press(window, "e")
    window.fill("#reason", "there is fluid too")
    window.click("#save")
    window.wait_for_selector("#nothing:not([hidden])")
    assert mentions(window.inner_text("#phase"), "amendment of case 1")


def test_any_of_the_last_readings_is_amended_also_after_a_reload(hall, enter):
    """Two cases back: refused without a reason, stored beside the first read with one; the draft before it is kept."""
    room = hall(browsers.case_films(4), reveal=False)
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
    assert "Say why" in window.inner_text("#why-missing")
    window.fill("#reason", "I took the shadow for a mass")
    window.click("#save")
    until(window, BLIND)
    assert mentions(window.inner_text("#notice"), "amendment of case 1")
    assert window.inner_text("#case").startswith("Case 3 ")
    assert "present" in window.inner_text("[data-finding=Hernia] .sign")
    kept = room.reviews()
    assert kept.filter(phase="amended", finding="Effusion")["verdict"].to_list() == ["present"]
    assert kept.filter(phase="blind", finding="Effusion")["verdict"].sort().to_list() == ["absent", "uncertain"]
    assert open_past(window)[1] == ("1", "Blind: Mass present. Amended: Effusion present, Mass present.")


def test_an_amendment_after_the_reveal_shows_again_what_was_revealed(hall, enter):
    """And only of that case: the list itself says nothing of labels; when all is read the list is still there."""
    room = hall(browsers.case_films(1))
    window = enter(room)
    until(window, FILM)
    press(window, "m", "Enter")
    until(window, SECOND)
    assert open_past(window) == []
    press(window, "Escape")
    window.wait_for_timeout(650)
    press(window, "Enter")
    until(window, NOTHING)
    assert window.inner_text("#sheet").count("Stored of your blind read") == 0
    assert window.title().startswith("Read ")
    assert open_past(window) == [("1", "Blind: Mass present. Second: the same.")]
    assert "abel" not in window.inner_text("#past-table")
    window.click("button[aria-label='Amend case 1']")
    until(window, AMEND)
    assert "Label present" in window.inner_text("[data-finding=Effusion] .known")
    window.click("#back")
    until(window, NOTHING)
    assert set(room.reviews()["phase"]) == {"blind", "second"}


def test_an_amendment_without_a_connection_is_stored_once(hall, enter):
    """It waits like a lock does, cannot be pressed twice, and is sent when the line is back."""
    room = hall(browsers.case_films(2), reveal=False)
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


def finish_with_another_second(window):
    """Read the only case: a mass with a box, and after the reveal an effusion instead."""
    until(window, FILM)
    press(window, "m", "b", "Enter")
    until(window, f"{BOXES}.length === 1")
    press(window, "Enter")
    until(window, SECOND)
    press(window, "e")
    window.wait_for_timeout(650)
    press(window, "Enter")
    until(window, NOTHING)


def test_after_a_new_signal_an_amendment_says_so_and_shows_what_is_known_now(hall, enter):
    """Blind and second read apart in words, also in the list; the box is on the film before anything is marked."""
    room = hall(browsers.case_films(1), films=Learning())
    window = enter(room)
    finish_with_another_second(window)
    room.films.reason = "against: learned since"
    assert open_past(window) == [("1", "Blind: Mass present. Second: Effusion present, Mass present.")]
    window.click("button[aria-label='Amend case 1']")
    until(window, AMEND)
    assert mentions(window.inner_text("#stored"), "signal has changed")
    known = window.inner_text("[data-finding=Effusion] .known")
    assert mentions(known, "blind", "absent", "second", "present", "Label present", "trust 6 %")
    until(window, FILM)
    until(window, f"{BOXES}.join() === 'Mass'")
    window.click("#back")
    until(window, NOTHING)
    open_past(window)
    window.click("button[aria-label='Amend case 1']")
    until(window, AMEND)
    assert "changed" not in window.inner_text("#stored")


def test_an_amendment_is_saved_with_the_keyboard_alone(hall, enter):
    """The first Enter brings the reason and why it is wanted on a low screen, the next one in the field saves."""
    room = hall(browsers.case_films(1))
    window = enter(room, viewport={"width": 1280, "height": 600})
    finish_with_another_second(window)
    open_past(window)
    window.click("button[aria-label='Amend case 1']")
    until(window, AMEND)
    press(window, "h", "Enter")
    assert window.inner_text("#why-missing") == "Say why you amend it."
    assert window.evaluate(IN_VIEW, "#why-missing")
    assert window.evaluate(IN_VIEW, "#reason")
    window.keyboard.type("a slip")
    press(window, "Enter")
    until(window, NOTHING)
    assert room.reviews().filter(phase="amended", finding="Hernia")["verdict"].to_list() == ["present"]
