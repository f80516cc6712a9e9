"""Adjudication and discussion in a real browser."""

import pytest

from world import browsers
from world.browsers import until
from world.words import mentions

FILM = "document.querySelector('.pane.current cxr-canvas')?.film"
SLOW_CLOCK = """longest => void (setTimeout = ((later) => (work, after, ...more) =>
  later(work, after > longest ? 1000 * after : after, ...more))(setTimeout))"""
"""From now on longer timers of the page take a thousand times as long: what still comes does not wait for one."""
NOTHING = "!document.getElementById('nothing').hidden"


@pytest.fixture
def disputed(hall):
    """A room in which two readers differ on one film."""

    def opened(**more):
        room = hall(browsers.case_films(1), readers_per_case=2, **more)
        browsers.disagree(room, "00000000_000.png", note="a shadow at the base")
        return room

    return opened


def test_disagreements_stand_side_by_side_without_names_and_are_settled(disputed, enter):
    """Reader 1 and Reader 2, their verdicts, notes and boxes on the film; by keyboard; recorded as what it was."""
    room = disputed(adjudication="adjudicator")
    window = enter(room, "judge", "adjudicator", page="/adjudicate")
    until(window, FILM)
    text = window.inner_text("#sheet")
    assert "Reader 1" in text
    assert "Reader 2" in text
    assert "a shadow at the base" in text
    assert "present" in text
    whole = window.content()
    assert "bea" not in whole
    assert "cyd" not in whole
    assert "00000000_000" not in whole
    until(window, "document.querySelector('cxr-canvas').boxes.length === 1")
    window.keyboard.press("Enter")
    assert "No verdict yet: Effusion" in window.inner_text("#notice")
    window.keyboard.press("e")
    window.keyboard.press("e")
    window.keyboard.press("Enter")
    until(window, NOTHING)
    settled = room.room.desk.consensus().filter(finding="Effusion").row(0, named=True)
    assert (settled["verdict"], settled["how"]) == ("uncertain", "adjudicator")


def test_what_was_chosen_and_written_outlives_a_reload(disputed, enter):
    """The window keeps verdict and note until they are stored; then nothing of it stays in the browser."""
    room = disputed(adjudication="adjudicator")
    window = enter(room, "judge", "adjudicator", page="/adjudicate")
    until(window, FILM)
    window.keyboard.press("e")
    window.select_option(".dispute select", "consensus")
    window.fill("#note", "seen on the lateral film too")
    window.reload()
    until(window, FILM)
    assert window.is_checked(".dispute input[value=present]")
    assert window.input_value("#note") == "seen on the lateral film too"
    window.click("#save")
    until(window, NOTHING)
    settled = room.room.desk.consensus().filter(finding="Effusion").row(0, named=True)
    assert (settled["verdict"], settled["how"]) == ("present", "consensus")
    assert window.evaluate("sessionStorage.length") == 0


def test_a_majority_is_recorded_as_one(hall, enter):
    """With three readers the majority can be taken as it is, and is stored as such."""
    room = hall(browsers.case_films(1), readers_per_case=3, adjudication="adjudicator")
    browsers.disagree(room, "00000000_000.png")
    account = room.room.accounts.make("dov", "reader")
    view = room.room.desk.next(account).current
    said = browsers.Answer(verdicts={"Effusion": "present"})
    key, spent = browsers.desks.fresh_key(), browsers.desks.SPENT
    room.room.desk.lock(account, view.reading_id, version=view.version, key=key, answer=said, spent=spent)
    window = enter(room, "judge", "adjudicator", page="/adjudicate")
    until(window, FILM)
    window.select_option(".dispute select", "majority")
    window.click("#save")
    until(window, NOTHING)
    settled = room.room.desk.consensus().filter(finding="Effusion").row(0, named=True)
    assert (settled["verdict"], settled["how"]) == ("present", "majority")


def test_readers_discuss_in_rounds_without_names(disputed, enter):
    """In a discussion a reader is asked again beside what the others said, and may answer; he stays unnamed."""
    room = disputed(adjudication="discussion", rounds=2)
    window = enter(room, "bea", page="/adjudicate")
    until(window, FILM)
    assert "Round 1 of 2: Effusion" in window.inner_text("#phase")
    assert "(you)" in window.inner_text(".opinions")
    assert "cyd" not in window.inner_text("#main")
    window.keyboard.press("Shift+e")
    window.keyboard.press("n")
    window.keyboard.type("I see it now")
    window.keyboard.press("Escape")
    window.keyboard.press("Enter")
    until(window, NOTHING)
    rounds = room.reviews().filter(phase="round")
    assert rounds.select("reader", "verdict", "note").rows() == [("bea", "absent", "I see it now")]


def test_a_reader_without_the_role_finds_no_adjudication(hall, enter):
    """The link is not there, and the page says that nothing is his to settle."""
    room = hall(browsers.case_films(1), readers_per_case=2, adjudication="adjudicator")
    window = enter(room, "ada")
    assert window.locator("nav a[href='/adjudicate']").count() == 0


def test_what_is_settled_without_a_connection_is_sent_when_it_is_back(disputed, enter):
    """It says that it is not saved yet, with a button that tries now; the same key makes it one settlement."""
    room = disputed(adjudication="adjudicator")
    window = enter(room, "judge", "adjudicator", page="/adjudicate", allowed=("ERR_INTERNET_DISCONNECTED",))
    until(window, FILM)
    window.keyboard.press("e")
    window.context.set_offline(True)
    window.keyboard.press("Enter")
    window.wait_for_selector("#retry:visible")
    assert window.inner_text("#notice").startswith("Not saved yet")
    window.context.set_offline(False)
    until(window, NOTHING)
    assert window.is_hidden("#retry")
    assert window.is_hidden("#notice")
    assert room.room.desk.consensus().filter(finding="Effusion")["verdict"].to_list() == ["present"]


def test_a_room_that_does_not_answer_is_told_and_nothing_can_be_changed_meanwhile(disputed, enter):
    """After 2 s it says that it waits, before the request is given up; Retry now sends it again, once settled."""
    room = disputed(adjudication="adjudicator")
    window = enter(room, "judge", "adjudicator", page="/adjudicate", allowed=("Failed to load resource",))
    until(window, FILM)
    held = []
    window.route("**/api/adjudication/1", lambda route: route.continue_() if held else held.append(route))
    window.evaluate(SLOW_CLOCK, 2500)
    press = window.keyboard.press
    press("e")
    press("Enter")
    until(window, "document.getElementById('save').disabled")
    window.wait_for_selector("#retry:visible")
    assert window.inner_text("#notice").startswith("Not saved yet")
    press("e")
    press("Enter")
    assert window.is_checked(".dispute input[value=present]")
    window.click("#retry")
    until(window, NOTHING)
    assert len(held) == 1
    assert window.is_hidden("#notice")
    assert room.room.desk.consensus().filter(finding="Effusion")["verdict"].to_list() == ["present"]


def test_an_amendment_meanwhile_is_told_in_whole_sentences(disputed, enter):
    """Nothing is settled over it: what the readers say now is shown, and can be settled."""
    room = disputed(adjudication="adjudicator")
    window = enter(room, "judge", "adjudicator", page="/adjudicate", allowed=("409",))
    until(window, FILM)
    bea = next(card.account for card in room.room.accounts.cards() if card.account.name == "bea")
    desk = room.room.desk
    read = desk.next(bea).current
    about = {"version": read.version, "key": browsers.desks.fresh_key()}
    said = browsers.Answer(verdicts={"Effusion": "uncertain"})
    desk.amend(bea, read.reading_id, answer=said, reason="a slip", **about)
    window.keyboard.press("e")
    window.keyboard.press("Enter")
    until(window, "!document.getElementById('notice').hidden")
    assert mentions(window.inner_text("#notice"), "amended this case", "Look at it again")
    assert window.is_enabled("#save")
    assert window.is_enabled("#note")
