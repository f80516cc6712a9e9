"""Problems: what a person or a program is told, and what is never told."""

import re

import pytest

from world import rooms

SCRIPT = "<script>alert('xss')</script>"
PAGE = {"accept": "text/html"}


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A room for the whole file."""
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("problems"))) as opened:
        yield opened


@pytest.fixture
def fragile(tmp_path):
    """A room of one's own, to break."""
    with rooms.open_room(rooms.address_of(tmp_path)) as opened:
        yield opened


def shown(reply):
    """The text of a page, and that no script of a stranger stands in it."""
    assert "<script>alert" not in reply.text
    assert "onerror" not in reply.text
    return reply.text


@pytest.mark.parametrize(
    "path", [f"/{SCRIPT}", "/%3Cscript%3Ealert(1)", "/nothing", f"/static/{SCRIPT}", "/login?next=" + SCRIPT]
)
def test_s24_what_was_asked_for_is_not_repeated(room, path):
    """S24: neither on a page nor in JSON."""
    for accept in ("text/html", "application/json", "*/*"):
        reply = room.visitor().get(path, headers={"accept": accept})
        assert "alert" not in shown(reply)
        if path.startswith("/login"):
            assert reply.status_code == 200
        else:
            assert reply.status_code == 404


def test_s24_a_refusal_is_a_page_with_an_id(room):
    """S24: generic, with an id that is also in the log; a program gets JSON."""
    page = room.visitor().get("/nothing", headers=PAGE)
    assert page.headers["content-type"].startswith("text/html")
    assert re.search(r"<code>[0-9a-f]{12}</code>", page.text)
    told = room.visitor().get("/nothing").json()
    assert set(told) == {"error"}
    assert set(told["error"]) == {"code", "message", "id"}


def test_s24_what_is_invalid_is_not_repeated(room):
    """S24: 422 says that something is wrong, and not what was sent."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    for more in ({SCRIPT: 1}, {"answer": {"note": [SCRIPT]}}, {"key": SCRIPT}):
        body = {"version": 0, "key": rooms.fresh_key(), "answer": {}} | more
        reply = anna.post(f"/api/readings/{reading['reading_id']}/draft", body)
        assert reply.status_code == 422
        assert "script" not in reply.text
        assert "pydantic" not in reply.text


def test_s24_what_breaks_inside_is_not_told(fragile, caplog):
    """S24: no traceback, no message, no path; the id leads to the line in the log, which has the places in the code."""

    def breaks(image_id):
        raise RuntimeError(f"CANARY {image_id} {SCRIPT} and where the films are")

    object.__setattr__(fragile.room, "film", breaks)
    anna = fragile.browser("anna")
    anna.client = fragile.visitor(raise_server_exceptions=False).client
    anna.client.cookies = fragile.browser("anna").client.cookies
    reading = anna.next()["reading"]
    for accept in ("text/html", "application/json"):
        reply = anna.get(f"/api/readings/{reading['reading_id']}/films/1", headers={"accept": accept})
        assert reply.status_code == 500
        for word in ("CANARY", "Traceback", "RuntimeError", "film-0", "where the films are", "script"):
            assert word not in reply.text
        assert reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"
        identity = reply.json()["error"]["id"]
        lines = [record.fields["id"] for record in caplog.records if record.getMessage() == "failed"]
        assert identity in lines


def test_s24_a_full_disk_is_told_as_one_line(fragile):
    """S24: 503, so that the page keeps what was written and sends it again; where the ledger lies is not told."""
    anna = fragile.browser("anna")
    reading = anna.next()["reading"]
    fragile.ledger.close()
    reply = anna.act("draft", reading, answer={"note": "kept in the browser"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "ledger")
    assert "sqlite" not in reply.text


def test_s03_markup_in_names_and_notes_is_text(room):
    """S03, the server's part: pages escape whom they name, JSON is no page; the browser's part: pages/test_text.py."""
    anna = room.browser(f"anna {SCRIPT}")
    for path in ("/read", "/progress", "/adjudicate", "/account"):
        page = anna.get(path, headers=PAGE)
        assert "&lt;script&gt;alert" in shown(page)
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", page.text), "a script in the page itself"
        assert not re.search(r"\son\w+=|style=|javascript:", page.text)
    reading = anna.next()["reading"]
    reply = anna.act("draft", reading, answer={"note": SCRIPT})
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert anna.next()["reading"]["answer"]["note"] == SCRIPT


def test_s03_every_page_holds_no_script_but_our_files(room):
    """S03: the policy would stop it; there is none to stop."""
    for path in ("/login", "/enter"):
        page = room.visitor().get(path, headers=PAGE)
        assert page.status_code == 200
        sources = re.findall(r'<script[^>]*src="([^"]+)"', page.text)
        assert sources
        assert all(source.startswith("/static/") for source in sources)
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>|\son\w+=|<style|style=", page.text)


@pytest.mark.parametrize("text", ["nul\x00", "\ud800", "\ud83d alone"])
def test_what_no_database_keeps_is_refused(room, text):
    """422 before it gets there: PostgreSQL has no character 0, and half a character is none."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    for body in ({"note": text}, {"verdicts": {text: "present"}}):
        assert anna.act("draft", reading, answer=body).status_code == 422
    assert anna.post("/login", {"name": text, "password": "x"}).status_code == 422
    assert anna.post("/enter", {"token": text}).status_code in {401, 422}
    assert anna.act("draft", reading, answer={"note": "\U0001fac1 whole"}).status_code == 200


def test_s24_a_sentence_that_names_somebody_is_escaped(room):
    """S24: where a message repeats a name, as a fragment of a page, the name is text."""
    boss = room.browser("boss", "admin")
    form = {"hx-request": "true", "content-type": "application/x-www-form-urlencoded"}
    body = f"name={SCRIPT}&role=reader".encode()
    assert boss.post("/api/accounts", headers=form, content=body).status_code == 200
    taken = boss.post("/api/accounts", headers=form, content=body)
    assert (taken.status_code, taken.headers["content-type"]) == (422, "text/html; charset=utf-8")
    assert "&lt;script&gt;" in shown(taken)
