"""The routes of reading: cases, drafts, the lock, the reveal, and the pixels of films."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import httpx
import pytest
from PIL import Image
from sqlalchemy import func, select

from bpals.images.collection import open_index
from bpals.images.rendition import Renditions
from bpals.room.people.accounts import Accounts
from bpals.store.ledger import Ledger
from bpals.store.ledger.schema import ENTRY, REVIEW
from world import rooms
from world.waiting import wait_until

ANSWER = {"verdicts": {"Mass": "present"}, "note": "left upper zone", "confidence": {"Mass": 80}}


@pytest.fixture
def room(tmp_path):
    """A room of one's own."""
    with rooms.open_room(rooms.address_of(tmp_path)) as opened:
        yield opened


def count(ledger, table, *where):
    """How many rows of a table."""
    return ledger.look(
        lambda connection: connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one()
    )


def test_a_case_is_read_from_its_first_key_to_the_last(room):
    """Next, draft, lock, second: what was written comes back, and the learner hears of the lock."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    assert reading["findings"] == [
        {"name": "Mass", "key": "m"},
        {"name": "Nodule", "key": "o"},
        {"name": "Pneumothorax", "key": "p"},
    ]
    assert anna.act("draft", reading, answer=ANSWER).json()["version"] == 1
    drafted = anna.next()["reading"]
    assert drafted["answer"]["note"] == "left upper zone"
    locked = anna.lock(drafted, answer=ANSWER).json()
    assert (locked["state"], locked["reading"]["phase"]) == ("locked", "second")
    done = anna.act("second", locked["reading"], answer=ANSWER, spent=rooms.SPENT).json()
    assert done["state"] == "done"
    assert room.shelf.locks == 1
    assert anna.next()["reading"]["case_no"] == 2
    assert count(room.ledger, REVIEW, REVIEW.c.phase == "blind") == 3


@pytest.mark.parametrize("act", ["draft", "lock", "skip"])
def test_c02_the_same_request_twice_is_done_once(room, act):
    """C02: a double click, a browser's retry, a replayed POST: one answer, and the second reply is the first."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    body = {"version": 0, "key": "the-same-key"}
    body |= {"answer": ANSWER} if act != "skip" else {}
    body |= {"spent": rooms.SPENT} if act == "lock" else {}
    replies = [anna.post(f"/api/readings/{reading['reading_id']}/{act}", body) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200] * 3
    assert replies[0].json() == replies[1].json() == replies[2].json()
    assert count(room.ledger, ENTRY, ENTRY.c.action == act) == 1
    assert count(room.ledger, REVIEW) == (3 if act == "lock" else 0)


def test_c02_a_key_that_was_used_for_something_else_is_refused(room):
    """C02: it is told so, and nothing is stored."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    path = f"/api/readings/{reading['reading_id']}/draft"
    body = {"version": 0, "key": "the-same-key", "answer": ANSWER}
    first = anna.post(path, body).json()
    other = anna.post(path, body | {"version": 1, "answer": {"note": "another"}})
    assert (other.status_code, other.json()["error"]["code"]) == (422, "refused")
    assert anna.get(f"/api/readings/{reading['reading_id']}").json()["version"] == first["version"]


def test_c03_a_stale_window_is_told_and_overwrites_nothing(room):
    """C03: 409 with what stands now, so that both can be shown; the reader decides."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    anna.act("draft", reading, answer=ANSWER)
    for act, more in (("draft", {}), ("lock", {"spent": rooms.SPENT})):
        reply = anna.act(act, reading, answer={"note": "from the other window"}, **more)
        assert reply.status_code == 409
        assert reply.json()["error"]["code"] == "stale"
        assert reply.json()["current"]["answer"]["note"] == "left upper zone"
        assert reply.json()["current"]["version"] == 1
    assert anna.get(f"/api/readings/{reading['reading_id']}").json()["answer"]["note"] == "left upper zone"
    assert count(room.ledger, REVIEW) == 0


def test_u07_reload_and_two_windows_give_the_same_case(room):
    """U07: nothing is lost, nothing doubled, and the blind state holds."""
    anna = room.browser("anna")
    first = anna.next()
    assert anna.next() == first
    anna.act("draft", first["reading"], answer=ANSWER)
    again = anna.next()
    assert again["reading"]["reading_id"] == first["reading"]["reading_id"]
    assert again["reading"]["answer"]["note"] == "left upper zone"
    assert again["reveal"] is None
    assert again["reading"]["revealed"] is False
    second = room.browser("anna")
    assert second.next()["reading"]["reading_id"] == first["reading"]["reading_id"]


def test_u07_going_back_to_a_locked_case_changes_nothing(room):
    """U07: the back button shows it locked; what it then sends is refused or becomes the second read."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    locked = anna.lock(reading, answer=ANSWER).json()["reading"]
    anna.act("second", locked, answer=ANSWER, spent=rooms.SPENT)
    anna.next()
    back = anna.get(f"/api/readings/{reading['reading_id']}").json()
    assert back["state"] == "done"
    assert anna.lock(reading, answer={"note": "again"}).status_code == 409
    assert anna.lock(back, answer={"note": "again"}).status_code == 409
    assert count(room.ledger, REVIEW, REVIEW.c.phase == "blind") == 3


def test_a_readers_own_last_readings_are_listed_and_nothing_else(room):
    """The newest first, with what he marked; none of another reader, none unfinished, nothing of label or trust."""
    anna, clara = room.browser("anna"), room.browser("clara")
    clara.lock(clara.next()["reading"])
    assert anna.get("/api/readings").json() == {"readings": []}
    first = anna.next()["reading"]
    locked = anna.lock(first, answer=ANSWER).json()["reading"]
    assert anna.get("/api/readings").json() == {"readings": []}
    anna.act("second", locked, answer=ANSWER, spent=rooms.SPENT)
    second = anna.lock(anna.next()["reading"], answer={"quality": "unreadable"}).json()["reading"]
    anna.act("second", second, answer={"quality": "unreadable"}, spent=rooms.SPENT)
    back = anna.get(f"/api/readings/{first['reading_id']}").json()
    assert anna.act("amend", back, answer={"verdicts": {"Nodule": "uncertain"}}, reason="a slip").status_code == 200
    reply = anna.get("/api/readings")
    listed = reply.json()["readings"]
    assert set(listed[0]) == {"reading_id", "case_no", "locked", "marked", "quality", "amended", "blind", "second"}
    assert [(each["reading_id"], each["case_no"]) for each in listed] == [
        (second["reading_id"], 2),
        (first["reading_id"], 1),
    ]
    assert [(each["marked"], each["quality"], each["amended"]) for each in listed] == [
        ({}, "unreadable", False),
        ({"Nodule": "uncertain"}, None, True),
    ]
    assert rooms.LABEL not in reply.text
    assert "film-0" not in reply.text


def test_the_reveal_brings_what_is_stored_of_the_blind_read(room):
    """A verdict on every finding, also where it was left unmarked, and the quality; a later draft changes nothing."""
    anna = room.browser("anna")
    locked = anna.lock(anna.next()["reading"], answer={"verdicts": {"Mass": "present"}, "quality": "limited"}).json()
    read = {"verdicts": {"Mass": "present", "Nodule": "absent", "Pneumothorax": "absent"}}
    read |= {"quality": "limited", "devices": None, "second": None}
    assert locked["reveal"]["read"] == read
    anna.act("draft", locked["reading"], answer={"verdicts": {"Mass": "absent"}, "quality": "good"})
    assert anna.next()["reveal"]["read"] == read


def test_t02_the_browsers_times_are_bounded_by_the_servers(room):
    """T02: a clock that is wrong by a day, or a lie, does not become a reading time."""
    anna = room.browser("anna")
    anna.lock(anna.next()["reading"], spent={"active_s": 90_000.0, "wall_s": 86_400.0})
    rows = room.ledger.look(lambda connection: connection.execute(select(REVIEW.c.active_s, REVIEW.c.wall_s)).all())
    assert all(active <= wall < 60 for active, wall in rows)


def test_a_film_that_cannot_be_shown_is_told(room):
    """The reader can still say that it is unreadable; why is one word, not a path."""
    anna = room.browser("anna")
    reading = anna.next()["reading"]
    room.shelf.contents.clear()
    reply = anna.get(f"/api/readings/{reading['reading_id']}/films/1")
    assert (reply.status_code, reply.json()["film"]) == (404, {"refused": "missing"})
    assert "film-0" not in reply.text
    unreadable = dict.fromkeys(("Mass", "Nodule", "Pneumothorax"), "unreadable")
    assert anna.lock(reading, answer={"verdicts": unreadable, "quality": "unreadable"}).status_code == 200


def test_what_was_skipped_can_be_had_back(room):
    """Where nothing else is left."""
    anna = room.browser("anna")
    for _ in range(6):
        anna.act("skip", anna.next()["reading"])
    nothing = anna.next()
    assert (nothing["reading"], nothing["why_code"]) == (None, "skipped")
    assert anna.post("/api/bring-back").json() == {"brought_back": 6}
    assert anna.next()["reading"] is not None


KILLED = """
import os, signal, sys, threading
sys.path[:0] = sys.argv[3:]
from world import rooms
port = int(sys.argv[2])
with rooms.open_room(sys.argv[1], origin=f"http://127.0.0.1:{port}") as opened:
    if os.environ.get("DIE"):
        object.__setattr__(opened.room, "after_lock", lambda: os.kill(os.getpid(), signal.SIGKILL))
    with rooms.serving(opened.app, port):
        threading.Event().wait(60)
"""


def start_server(address, port, **environment):
    """Serve a room from a process of its own, which may be killed."""
    here = Path(__file__).parents[1]
    line = [sys.executable, "-c", KILLED, str(address), str(port), str(here), str(here.parent / "src")]
    process = subprocess.Popen(line, env=os.environ | environment, stderr=subprocess.DEVNULL)

    def healthy():
        assert process.poll() is None
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2).status_code == 200
        return False

    wait_until(healthy)
    return process


def test_c07_a_server_killed_between_commit_and_reply_has_the_answer(tmp_path):
    """C07: kill -9 after the commit and before the reply; the retry gets the stored answer, and it is there once."""
    address, port = rooms.address_of(tmp_path), rooms.free_port()
    origin = f"http://127.0.0.1:{port}"
    with Ledger.open(address) as ledger:
        accounts = Accounts(ledger, rooms.SECRET)
        token = accounts.make_link(accounts.make("anna", "reader"), by="test")
    with httpx.Client(base_url=origin, headers={"origin": origin}, timeout=20) as anna:
        process = start_server(address, port, DIE="1")
        assert anna.post("/enter", json={"token": token}).status_code == 200
        reading = anna.post("/api/next").json()["reading"]
        body = {"version": 0, "key": "request-c07", "answer": ANSWER, "spent": rooms.SPENT}
        path = f"/api/readings/{reading['reading_id']}/lock"
        with pytest.raises(httpx.RemoteProtocolError):
            anna.post(path, json=body)
        assert process.wait(10) == -signal.SIGKILL
        process = start_server(address, port)
        try:
            reply = anna.post(path, json=body)
            assert reply.status_code == 200
            assert reply.json()["state"] == "locked"
            assert reply.json()["reveal"]["version"] == rooms.VERSION
            assert anna.post(path, json=body).json() == reply.json()
        finally:
            process.terminate()
            process.wait(10)
    with Ledger.open(address, readonly=True) as ledger:
        assert count(ledger, REVIEW) == 3
        assert count(ledger, ENTRY, ENTRY.c.action == "lock") == 1


TRAVERSALS = (
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "....//....//etc/passwd",
    "..\\..\\etc\\passwd",
    "..%5c..%5cetc%5cpasswd",
    "%00",
    "room.css%00.png",
    "/etc/passwd",
    "//etc/passwd",
    "%252e%252e%252fetc%252fpasswd",
    "page.js/../../secret.py",
    "film-000000",
)


@pytest.fixture(scope="module")
def film_room(tmp_path_factory):
    """A room for the whole file."""
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("films"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def anna(film_room):
    """A reader with a case."""
    browser = film_room.browser("anna")
    browser.reading = browser.next()["reading"]["reading_id"]
    return browser


@pytest.mark.parametrize("wrong", TRAVERSALS)
def test_s01_no_path_leads_out(anna, wrong):
    """S01: an address holds a number and a random name; whatever else stands there is not found, nothing is read."""
    for place in (f"/api/readings/{anna.reading}/films/", "/static/", "/api/readings/", "/img/", "/"):
        reply = anna.get(place + wrong)
        assert reply.status_code in {404, 422}, (place, reply.status_code)
        assert "root:" not in reply.text
        assert "def read_secret" not in reply.text


@pytest.mark.parametrize(
    "number", ["-1", "2", "9999", "10001", "1e9", "0x1", "1.0", "٣", " 1", "1 ", "99999999999999999999"]
)
def test_s01_a_number_that_no_film_has_is_not_found(anna, number):
    """S01: nor one that is no number."""
    assert anna.get(f"/api/readings/{anna.reading}/films/{number}").status_code in {404, 422}


def test_s01_a_link_out_of_the_films_is_not_followed(tmp_path):
    """S01: a room on a folder in which somebody put links: not found, nothing read."""
    outside = tmp_path / "outside.png"
    outside.write_bytes(rooms.film_png(1))
    folder = tmp_path / "films"
    folder.mkdir()
    with rooms.open_room(rooms.address_of(tmp_path)) as opened:
        for name in opened.shelf.contents:
            (folder / f"{name}.png").symlink_to(outside)
        with contextlib.closing(Renditions(open_index(folder, list(opened.shelf.contents)))) as films:
            object.__setattr__(opened.room, "film", films.film)
            anna = opened.browser("anna")
            reply = anna.get(f"/api/readings/{anna.next()['reading']['reading_id']}/films/1")
            assert (reply.status_code, reply.json()["film"]) == (404, {"refused": "link"})


def test_s02_a_film_is_encoded_anew(film_room, anna):
    """S02: a file that is a PNG and a page at once, with script in its text, comes out as pixels and nothing else."""
    page = b"<html><script>alert(1)</script></html>"
    polyglot = rooms.film_png(3, Comment="<script>alert(2)</script>", Title="<svg onload=alert(3)>") + page
    for name in film_room.shelf.contents:
        film_room.shelf.contents[name] = polyglot
    for number in (0, 1):
        reply = anna.get(f"/api/readings/{anna.reading}/films/{number}")
        if reply.status_code == 404:
            assert reply.json()["film"]["refused"]
            continue
        assert b"script" not in reply.content
        assert b"svg" not in reply.content
        check_pixels(reply)
    clean = rooms.film_png(3, Comment="<script>alert(2)</script>")
    for name in film_room.shelf.contents:
        film_room.shelf.contents[name] = clean
    reply = anna.get(f"/api/readings/{anna.reading}/films/1")
    assert reply.status_code == 200
    assert b"script" not in reply.content
    check_pixels(reply)


def check_pixels(reply):
    """It says that it is a PNG, is one, and may do nothing."""
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-security-policy"].startswith("sandbox;")
    assert reply.headers["cache-control"].startswith("private")
    assert reply.headers["vary"] == "Cookie"
    with Image.open(io.BytesIO(reply.content), formats=("PNG",)) as image:
        assert image.size == (64, 48)
        assert image.text == {}


def test_a_deep_film_comes_as_gzip(film_room, anna):
    """16 bits do not fit a browser's own decoder: they come packed, and the browser unpacks them."""
    ramp = Image.frombytes("I;16", (64, 48), b"".join(n.to_bytes(2, "little") for n in range(64 * 48)))
    deep = io.BytesIO()
    ramp.save(deep, "PNG")
    for name in film_room.shelf.contents:
        film_room.shelf.contents[name] = deep.getvalue()
    reply = anna.get(f"/api/readings/{anna.reading}/films/1", headers={"accept-encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.headers["content-type"] == "application/octet-stream"
    assert len(reply.content) == 64 * 48 * 2
    found = film_room.shelf.film(next(iter(film_room.shelf.contents)))
    assert zlib.decompress(found.content, 31) == reply.content
