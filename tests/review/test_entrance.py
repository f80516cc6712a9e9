"""The entrance over HTTP: password, link, logout, and how often one may try."""

import statistics
import time

import pyotp
import pytest

from bpals.room.web import entrance
from world import rooms

PASSWORD = rooms.PASSWORD


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A room for the whole file."""
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("entrance"))) as opened:
        opened.account("the admin", "admin")
        yield opened


@pytest.fixture
def anna(room):
    """Somebody new with a password; nothing was tried yet."""
    room.app.state.entrance = entrance.Entrance()
    return room.account(f"anna {len(room.room.accounts.cards())}", password=PASSWORD)


def log_in(room, name, password=PASSWORD, **more):
    """Try to enter, from a browser of one's own."""
    visitor = room.visitor()
    return visitor, visitor.post("/login", {"name": name, "password": password, **more})


def token_in(browser):
    """The token in a browser's cookie."""
    return browser.cookies.get("bpals-8765")


def test_s07_the_token_changes_at_login(room, anna):
    """S07: a token that was planted in the browser, or stood there before, is worth nothing afterwards."""
    visitor = room.visitor()
    visitor.cookies.set("bpals-8765", "planted")
    assert visitor.post("/login", {"name": anna.name, "password": PASSWORD}).status_code == 200
    first = visitor.client.cookies.jar
    tokens = {cookie.value for cookie in first if cookie.name == "bpals-8765"} - {"planted"}
    assert len(tokens) == 1
    assert room.room.sessions.find("planted") is None
    (token,) = tokens
    assert room.room.sessions.find(token) == anna


def test_s07_a_second_login_ends_the_first(room, anna):
    """S07: of the same browser."""
    visitor, _ = log_in(room, anna.name)
    before = token_in(visitor)
    visitor.post("/login", {"name": anna.name, "password": PASSWORD})
    assert token_in(visitor) != before
    assert room.room.sessions.find(before) is None


def test_s07_after_logout_the_token_is_worth_nothing(room, anna):
    """S07: the cookie goes, the films that the browser kept go, and the token does not work from elsewhere."""
    visitor, _ = log_in(room, anna.name)
    token = token_in(visitor)
    reply = visitor.post("/logout")
    assert reply.json() == {"next": "/login"}
    assert reply.headers["clear-site-data"] == '"cache"'
    assert "Max-Age=0" in reply.headers["set-cookie"]
    thief = room.visitor()
    thief.cookies.set("bpals-8765", token)
    assert thief.get("/api/sessions").status_code == 401
    assert visitor.post("/logout").status_code == 200


def test_s07_a_new_password_throws_everybody_else_out(room, anna):
    """S07: this browser gets a new session, all others end."""
    here, _ = log_in(room, anna.name)
    elsewhere, _ = log_in(room, anna.name)
    body = {"old": PASSWORD, "new": "another four plain words"}
    assert here.post("/password", body | {"old": "wrong"}).status_code == 422
    weak = here.post("/password", body | {"new": "password2026"})
    assert (weak.status_code, "anybody would guess" in weak.text) == (422, True)
    assert here.post("/password", body).status_code == 200
    assert here.get("/api/sessions").status_code == 200
    assert elsewhere.get("/api/sessions").status_code == 401
    assert log_in(room, anna.name)[1].status_code == 401
    assert log_in(room, anna.name, "another four plain words")[1].status_code == 200


def test_s07_a_disabled_account_is_out_at_once(room, anna):
    """S07: through the office of an admin, while he reads."""
    reader, _ = log_in(room, anna.name)
    boss = room.browser("the admin")
    assert boss.post(f"/api/accounts/{anna.account_id}", {"disabled": True}).json()["disabled"] is True
    assert reader.post("/api/next").status_code == 401
    assert log_in(room, anna.name)[1].status_code == 401
    assert boss.post(f"/api/accounts/{anna.account_id}/link").status_code == 404
    boss.post(f"/api/accounts/{anna.account_id}", {"disabled": False})
    assert reader.post("/api/next").status_code == 401


def test_s07_one_can_see_and_end_ones_other_sessions(room, anna):
    """S07: where one is logged in, and out of it again."""
    here, _ = log_in(room, anna.name)
    elsewhere, _ = log_in(room, anna.name)
    assert [visit["this"] for visit in here.get("/api/sessions").json()["sessions"]].count(True) == 1
    assert here.post("/api/sessions/end-others").json() == {"ended": 1}
    assert elsewhere.get("/api/sessions").status_code == 401
    assert here.get("/api/sessions").status_code == 200


def test_a_link_is_used_by_its_post_and_not_by_its_page(room, anna):
    """A mail program that looks at the link uses nothing up: what counts stands behind the # and is posted."""
    token = room.room.accounts.make_link(anna, by="test")
    for _ in range(3):
        assert room.visitor().get("/enter").status_code == 200
    assert room.visitor().get(f"/enter?token={token}").status_code == 422
    first, second = room.visitor(), room.visitor()
    assert first.post("/enter", {"token": token}).status_code == 200
    assert first.get("/api/sessions").status_code == 200
    used = second.post("/enter", {"token": token})
    assert (used.status_code, used.json()["error"]["code"]) == (401, "link")


def test_an_admin_lets_somebody_in(room):
    """A new account comes with a link that works once; the name is taken then."""
    boss = room.browser("the admin")
    made = boss.post("/api/accounts", {"name": "new <b>reader</b>", "role": "reader"}).json()
    assert made["link"].startswith(f"{rooms.ORIGIN}/enter#")
    visitor = room.visitor()
    assert visitor.post("/enter", {"token": made["link"].partition("#")[2]}).status_code == 200
    assert "new &lt;b&gt;reader&lt;/b&gt;" in visitor.get("/read").text
    assert boss.post("/api/accounts", {"name": "new <b>reader</b>", "role": "reader"}).status_code == 422


def test_a_second_factor_is_asked_for_at_login(room, anna):
    """Without it the reply is that of a wrong password."""
    app = pyotp.parse_uri(room.room.accounts.add_second_factor(anna, "Reading room", by="test"))
    without, wrong = log_in(room, anna.name)[1], log_in(room, anna.name, "wrong")[1]
    assert {**without.json()["error"], "id": ""} == {**wrong.json()["error"], "id": ""}
    assert log_in(room, anna.name, code=app.now())[1].status_code == 200


def test_s08_guessing_is_limited_for_those_that_exist_and_those_that_do_not(room, anna):
    """S08: the same replies in the same order, so that nobody learns which names there are."""

    def guess(name):
        replies = [log_in(room, name, f"guess {n}")[1] for n in range(entrance.TRIES_OF_ACCOUNT + 2)]
        return [
            (reply.status_code, reply.json()["error"]["code"], reply.json()["error"]["message"]) for reply in replies
        ]

    there, absent = guess(anna.name), guess("nobody at all")
    assert there == absent
    assert [status for status, _, _ in there] == [401] * entrance.TRIES_OF_ACCOUNT + [429] * 2
    reply = log_in(room, anna.name)[1]
    assert reply.status_code == 429
    assert 0 < int(reply.headers["retry-after"]) <= entrance.WINDOW_S + 1
    token = room.room.accounts.make_link(anna, by="test")
    assert room.visitor().post("/enter", {"token": token}).status_code == 200


def test_s08_an_address_is_limited_across_accounts(room, anna):
    """S08: one password tried on many names ends too; links are counted with it."""
    room.app.state.entrance.by_address._most = 5
    for number in range(4):
        assert room.visitor().post("/enter", {"token": f"guess {number}"}).status_code == 401
    assert log_in(room, "somebody", "x")[1].status_code == 401
    assert log_in(room, anna.name)[1].status_code == 429
    assert room.visitor().post("/enter", {"token": "guess"}).status_code == 429


def test_s08_a_right_login_is_not_counted(room, anna):
    """S08: a clinic behind one address logs in all day."""
    room.app.state.entrance.by_address._most = 3
    for _ in range(5):
        assert log_in(room, anna.name)[1].status_code == 200


def test_s08_a_wrong_name_takes_as_long_as_a_wrong_password(room, anna):
    """S08: measured over HTTP, one after the other."""

    def seconds(name):
        began = time.perf_counter()
        assert log_in(room, name, "wrong")[1].status_code == 401
        return time.perf_counter() - began

    pairs = [(seconds(anna.name), seconds("nobody at all")) for _ in range(3)]
    there, absent = (statistics.median(column) for column in zip(*pairs, strict=True))
    assert 0.5 < there / absent < 2


def test_a_login_that_waits_keeps_no_reader_waiting(room):
    """Hashes have two threads of their own."""
    assert room.app.state.entrance.clerks.total_tokens == 2
