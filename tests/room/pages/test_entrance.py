"""Coming in and going out, in a real browser."""

import hashlib
import re
from pathlib import Path

import pytest

import bpals.room
from bpals.room.desk.study import FREE_KEYS, TOOL_CHARACTERS, TOOLS, key_table
from world import browsers, rooms
from world.words import mentions

STATIC = Path(bpals.room.web.__file__).parent / "static"


@pytest.fixture
def room(hall):
    """A room with an account that has a password."""
    opened = hall(browsers.case_films(1))
    opened.room.accounts.make("ada", "reader", password=rooms.PASSWORD)
    return opened


def test_a_reader_logs_in_by_name_and_password_and_out_again(room, enter):
    """A wrong password is one sentence on the same page; a right one leads to the page that was wanted."""
    window = enter(room, "porter", page="/login?next=/progress", allowed=("401",))
    window.fill("#who", "ada")
    window.fill("#password", "wrong and wrong again")
    window.keyboard.press("Enter")
    window.wait_for_selector("#problem .error")
    assert mentions(window.inner_text("#problem"), "wrong")
    window.fill("#password", rooms.PASSWORD)
    window.keyboard.press("Enter")
    window.wait_for_url("**/progress")
    assert window.inner_text(".who") == "ada"
    window.click("#logout")
    window.wait_for_url("**/login")
    window.goto(f"{room.origin}/read")
    assert window.url.endswith("/login?next=/read")


def test_a_login_link_works_once_and_leaves_nothing_in_the_address(room, enter):
    """The token stands behind the #, is posted, and is gone from the address and the history."""
    link = room.link("ada")
    window = enter(room, "porter", page="/progress", allowed=("401",))
    window.goto(link)
    window.wait_for_url("**/read")
    window.goto("about:blank")
    window.goto(link)
    window.wait_for_selector("#again:not([hidden])")
    assert "used" in window.inner_text("#words")
    assert "#" not in window.url


def test_what_is_vendored_is_what_was_published():
    """The hash of each vendored file is the one in VENDORED.md, and its licence is beside it."""
    rows = re.findall(r"^\| `([\w.]+)` .* `([0-9a-f]{64})` \|$", (STATIC / "VENDORED.md").read_text(), re.MULTILINE)
    assert rows
    for name, sha256 in rows:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == sha256
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "entry"), [("read", "reading.js"), ("adjudicate", "adjudicate.js"), ("progress", "progress.js")]
)
def test_a_page_fetches_all_its_modules_at_once(page, entry):
    """Each module that the script imports, however deep, is named in the head: one round trip instead of four."""
    found, waiting = set(), [entry]
    while waiting:
        text = (STATIC / waiting.pop()).read_text(encoding="utf-8")
        new = set(re.findall(r'(?:from|import) "\./([\w.]+)"', text)) - found
        found |= new
        waiting += new
    head = (STATIC.parent / "templates" / f"{page}.html").read_text(encoding="utf-8").split('rel="modulepreload"')[0]
    assert set(re.findall(r'"(\w+)"', head.rsplit("for name in", 1)[1])) == {name.removesuffix(".js") for name in found}


def test_no_finding_can_have_a_key_of_a_tool():
    """The table of keys is in one place: what the page listens to is what a study may not use."""
    assert not TOOL_CHARACTERS & set(FREE_KEYS)
    assert len({tool.key for tool in TOOLS}) == len(TOOLS)
    assert len(FREE_KEYS) >= 14


def test_the_docs_print_the_keys_that_the_page_listens_to():
    """docs/reading-room.md has the table of toolkeys.py, row for row."""
    page = (Path(__file__).parents[3] / "docs" / "reading-room.md").read_text(encoding="utf-8")
    for shown, words in key_table():
        assert f"|{shown.replace('|', '&#124;')}|{words}|" in page
