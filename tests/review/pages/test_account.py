"""The account page in a real browser: password, sessions, and who may enter."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from world import browsers, rooms

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def room(hall):
    """A room with one film."""
    return hall(browsers.case_films(1))


def test_an_admin_invites_somebody_who_sets_a_password(room, enter):
    """A link that is shown once lets the new reader in; there he sets his first password, and logs in with it."""
    window = enter(room, "boss", "admin", page="/account")
    window.fill("#name", MARKUP)
    window.select_option("#role", "reader")
    window.click("#add button")
    window.wait_for_selector("#link:not([hidden]) code")
    assert window.inner_text("#words") == f"{MARKUP} may enter."
    link = window.inner_text("#link code")
    assert not [
        found for found in Axe().run(window).response["violations"] if found["impact"] in {"serious", "critical"}
    ]
    other = enter(room, "somebody", page="/account")
    other.goto(link)
    other.wait_for_url("**/read")
    assert other.inner_text(".who") == MARKUP
    other.click(".who")
    other.wait_for_selector("#sessions table")
    assert "8 hours" in other.inner_text("main")
    assert other.locator("#accounts").count() == 0
    other.fill("#new", rooms.PASSWORD)
    other.click("#password button")
    other.locator("#words", has_text="Your password is changed.").wait_for()
    assert room.room.accounts.enter(MARKUP, rooms.PASSWORD) is not None


def test_an_admin_closes_an_account(room, enter):
    """He is out at his next step; the last admin cannot shut himself out."""
    reader = enter(room, "ada", allowed=("401",))
    window = enter(room, "boss", "admin", page="/account", allowed=("422",))
    window.click("button[aria-label='Close account ada']")
    window.wait_for_selector("button[aria-label='Reopen account ada']")
    reader.goto(f"{room.origin}/progress")
    assert "/login" in reader.url
    window.click("button[aria-label='Close account boss']")
    window.locator("#words", has_text="last admin").wait_for()
    assert window.locator("button[aria-label='Close account boss']").count() == 1
