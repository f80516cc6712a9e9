"""The guard and the rules: what is refused before anything else, and who may use which route."""

import contextlib
import http.client
import itertools
import json
import socket
import time

import httpx
import hypothesis
import pytest
import schemathesis
from fastapi import FastAPI
from sqlalchemy import select
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from bpals.errors import ContractBroken
from bpals.room.room import Settings
from bpals.room.web.app import check_rules, create_app
from bpals.room.web.guard import ANYONE, CONTENT_POLICY, FILM_POLICY, FORGED, RULES, Guard
from bpals.store.ledger.schema import REVIEW_TABLES
from world import rooms

LOCK = {"version": 0, "key": "request-guard", "answer": {}, "spent": rooms.SPENT}


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A room for the whole file."""
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("guard"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def anna(room):
    """A reader who is logged in."""
    return room.browser("anna")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A room behind a real server, and the browser of a reader."""
    port = rooms.free_port()
    address = rooms.address_of(tmp_path_factory.mktemp("served"))
    settings = {"body_s": 0.6}
    origin = f"http://127.0.0.1:{port}"
    with (
        rooms.open_room(address, origin=origin, settings=settings) as opened,
        rooms.serving(opened.app, port, head_s=0.6),
    ):
        token = opened.room.accounts.make_link(opened.account("anna"), by="test")
        with httpx.Client(base_url=origin, headers={"origin": origin}) as client:
            assert client.post("/enter", json={"token": token}).status_code == 200
            yield client


FOREIGN = {
    "a form": ({"content-type": "application/x-www-form-urlencoded", "origin": "https://evil.example"}, b"x=1"),
    "JSON as text": ({"content-type": "text/plain", "origin": "https://evil.example"}, b"{}"),
    "real JSON": ({"content-type": "application/json", "origin": "https://evil.example"}, b"{}"),
    "no origin": ({"content-type": "application/json"}, b"{}"),
    "the null origin": ({"content-type": "application/json", "origin": "null"}, b"{}"),
    "cross-site": ({"content-type": "application/json", "sec-fetch-site": "cross-site"}, b"{}"),
    "same-site": ({"content-type": "application/json", "sec-fetch-site": "same-site"}, b"{}"),
    "another port": ({"content-type": "application/json", "origin": "http://127.0.0.1:9999"}, b"{}"),
    "another scheme": ({"content-type": "application/json", "origin": "https://127.0.0.1:8765"}, b"{}"),
    "both, disagreeing": (
        {"content-type": "application/json", "origin": "https://evil.example", "sec-fetch-site": "same-origin"},
        b"{}",
    ),
    "an htmx form": (
        {"content-type": "application/x-www-form-urlencoded", "hx-request": "true", "origin": "https://evil.example"},
        b"name=x",
    ),
}


@pytest.mark.parametrize("how", FOREIGN)
def test_s04_a_post_from_another_site_is_refused(anna, how):
    """S04: whoever is logged in, a page elsewhere cannot act for him."""
    headers, body = FOREIGN[how]
    for path in ("/api/next", "/login", "/logout", "/password"):
        reply = anna.client.post(path, headers=headers, content=body)
        assert reply.status_code == 403
        assert FORGED.message in reply.text
    assert anna.get("/api/sessions").status_code == 200


def test_s04_on_plain_http_over_a_network_origin_alone_must_do(tmp_path):
    """S04: without Sec-Fetch-Site, which browsers leave out there, the same Origin is let in and another is not."""
    origin = "http://192.168.1.20:8765"
    with rooms.open_room(rooms.address_of(tmp_path), origin=origin) as opened:
        visitor = opened.visitor()
        wrong = {"token": "x" * 43}
        assert visitor.client.post("/enter", json=wrong, headers={"origin": origin}).status_code == 401
        for other in ("http://192.168.1.21:8765", "http://192.168.1.20", "null"):
            assert visitor.client.post("/enter", json=wrong, headers={"origin": other}).status_code == 403


def test_a_post_from_our_own_page_must_bring_json(anna):
    """A form or text is refused also from here, except the forms of htmx; a body that is not there is no form."""
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
        reply = anna.post("/api/next", headers={"content-type": kind}, content=b"x=1")
        assert reply.status_code == 415
    assert anna.post("/api/next").status_code == 200


def test_htmx_forms_become_json(room):
    """The login form is sent by htmx: each field once, and an error comes back as a fragment."""
    room.account("formal", password=rooms.PASSWORD)
    visitor = room.visitor()
    headers = {"hx-request": "true", "content-type": "application/x-www-form-urlencoded"}
    wrong = visitor.post("/login", headers=headers, content=b"name=formal&password=wrong+one")
    assert wrong.status_code == 401
    assert wrong.text.startswith('<p class="error" role="alert">')
    for broken in (b"name=formal&name=other&password=x", b"%ff=1", b"&".join(b"a%d=1" % n for n in range(100_000))):
        assert visitor.post("/login", headers=headers, content=broken).status_code in {413, 422}
    right = visitor.post("/login", headers=headers, content=b"name=formal&password=four+plain+words+together")
    assert right.status_code == 200
    assert right.headers["hx-redirect"] == "/read"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1", "127.0.0.1:80", "", "0.0.0.0:8765"])
def test_a_request_for_another_host_is_refused(room, host):
    """A name that somebody points at this machine (DNS rebinding) opens nothing."""
    reply = room.visitor().client.get("/login", headers={"host": host})
    assert reply.status_code == 421


def test_other_sites_cannot_fetch_films_or_data(anna):
    """Only a link may come from elsewhere: pixels and JSON are not fetched by other pages."""
    reading = anna.next()["reading"]["reading_id"]
    for path in (f"/api/readings/{reading}", f"/api/readings/{reading}/films/0", "/read"):
        assert anna.get(path).status_code == 200
        for site in ("cross-site", "same-site"):
            assert anna.get(path, headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert anna.get("/read", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status_code == 200


def test_s06_every_route_sends_the_headers(room, anna):
    """S06: policy, nosniff, no frames, no referrer; what is private is not stored."""
    reading = anna.next()["reading"]["reading_id"]
    for method, path in RULES:
        address = path.format(reading_id=reading, n="1", case_id="1", account_id="1", name="page.js")
        for browser in (anna, room.visitor()):
            reply = browser.get(address) if method == "GET" else browser.post(address, {})
            check_headers(reply, film=path.endswith("{n}") and reply.status_code == 200)
            if not path.startswith("/static/") and reply.headers["content-type"] != "image/png":
                assert reply.headers["cache-control"] == "no-store"
    for reply in (anna.get("/nothing/here"), anna.client.put("/login"), anna.client.options("/login")):
        assert reply.status_code in {403, 404, 405}
        check_headers(reply)


def check_headers(reply, *, film=False):
    """The headers that stand on everything."""
    assert reply.headers["content-security-policy"] == (FILM_POLICY if film else CONTENT_POLICY)
    assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in reply.headers


def test_s06_over_tls_the_browser_is_told_to_stay_there(tmp_path):
    """S06: HSTS and a cookie with the __Host- prefix, where there is TLS; neither where there is none."""
    with rooms.open_room(rooms.address_of(tmp_path), origin="https://room.example.org") as opened:
        visitor = opened.visitor()
        token = opened.room.accounts.make_link(opened.account("anna"), by="test")
        reply = visitor.post("/enter", {"token": token})
        assert reply.headers["strict-transport-security"].startswith("max-age=")
        cookie = reply.headers["set-cookie"]
        assert cookie.startswith("__Host-bpals=")
        for word in ("HttpOnly", "Secure", "SameSite=lax", "Path=/"):
            assert word in cookie
        assert "Domain" not in cookie


def test_on_loopback_the_cookie_has_a_plain_name(room):
    """Browsers refuse the prefix without TLS; the port is in the name because all ports share one jar."""
    reply = room.visitor().post("/enter", {"token": room.room.accounts.make_link(room.account("petra"), by="test")})
    cookie = reply.headers["set-cookie"]
    assert cookie.startswith("bpals-8765=")
    assert "HttpOnly" in cookie
    assert "Secure" not in cookie


@pytest.mark.parametrize("path", ["/", "/api/next", "/ws", "/api/progress"])
def test_s19_no_websocket_is_opened(room, path):
    """S19: there is none, with a session or without, from here or elsewhere."""
    for browser in (room.visitor(), room.browser("socket")):
        for origin in (rooms.ORIGIN, "https://evil.example"):
            with (
                pytest.raises(WebSocketDisconnect),
                browser.client.websocket_connect(path, headers={"origin": origin}),
            ):
                pass


def test_s19_nothing_streams_events(anna):
    """S19: no route answers as an event stream, whatever is accepted."""
    for method, path in RULES:
        if method == "GET" and "{" not in path:
            reply = anna.get(path, headers={"accept": "text/event-stream"})
            assert "event-stream" not in reply.headers.get("content-type", "")


def test_s12_ranges_are_not_served(served):
    """S12: ten thousand ranges are one whole film, at once."""
    reading = served.post("/api/next").json()["reading"]["reading_id"]
    path = f"/api/readings/{reading}/films/1"
    whole = served.get(path)
    ranges = "bytes=" + ",".join(f"{n}-{n + 1}" for n in range(3_000))
    for given in (ranges, "bytes=0-10", "bytes=-1"):
        began = time.monotonic()
        reply = served.get(path, headers={"range": given})
        assert time.monotonic() - began < 20
        assert reply.status_code == 200
        assert reply.content == whole.content
        assert "content-range" not in reply.headers
    assert served.get(path, headers={"range": ranges * 10}).status_code == 400


def test_s12_no_route_hears_of_a_range():
    """S12: whoever adds a route that could serve ranges does not: the header is gone before it gets there."""

    async def echo(scope, receive, send):
        del receive
        names = [name.decode() for name, _ in scope["headers"]]
        await JSONResponse(names)(scope, None, send)

    guarded = TestClient(Guard(echo, Settings(origin=rooms.ORIGIN)), base_url=rooms.ORIGIN)
    seen = guarded.get("/", headers={"range": "bytes=0-1", "if-range": "x", "x-other": "y"}).json()
    assert "x-other" in seen
    assert not {"range", "if-range"} & set(seen)


def test_s12_a_gigabyte_is_refused_before_it_is_sent(served):
    """S12: its length is looked at first; one that hides its length is cut off."""
    raw = speak(served, "POST /api/next HTTP/1.1", "content-type: application/json", "content-length: 1000000000")
    assert raw.startswith(b"HTTP/1.1 413")

    def endless():
        for _ in range(2_000):
            yield b" " * 65_536

    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
        reply = served.post("/api/next", content=endless(), headers={"content-type": "application/json"})
        assert reply.status_code == 413


def test_s12_deep_and_wide_json_is_refused(served):
    """S12: nesting and a hundred thousand fields cost nothing and break nothing."""
    reading = served.post("/api/next").json()["reading"]["reading_id"]
    path = f"/api/readings/{reading}/draft"
    deep = b"[" * 100_000
    wide = json.dumps({f"f{n}": 1 for n in range(15_000)}).encode()
    many = json.dumps(LOCK | {"answer": {"verdicts": {f"f{n}": "present" for n in range(5_000)}}}).encode()
    for body in (deep, wide, many, b"\xff\xfe", b"nul", b'{"version": 1e999}'):
        began = time.monotonic()
        reply = served.post(path, content=body, headers={"content-type": "application/json"})
        assert reply.status_code in {413, 422}
        assert time.monotonic() - began < 20


def test_s12_a_slow_body_is_cut_off(served):
    """S12: one that drips is answered when its time is over, and readers are served meanwhile."""
    with open_socket(served) as dripping:
        dripping.sendall(head(served, "POST /login HTTP/1.1", "content-type: application/json", "content-length: 100"))
        began = time.monotonic()
        assert served.get("/healthz").status_code == 200
        reply = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not reply and time.monotonic() - began < 30:
                dripping.sendall(b" ")
                reply = read_some(dripping, 0.1)
        assert reply.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_s12_a_slow_head_is_cut_off(served, before):
    """S12: a connection that says nothing, or drips its headers, is closed; also one that was used before."""
    with open_socket(served) as dripping:
        dripping.sendall(before)
        if before:
            assert read_some(dripping, 5).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        dripping.sendall(b"GET /")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - began < 30:
                dripping.sendall(b"x")
                dripping.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    if dripping.recv(10) == b"":
                        break
        assert 0.3 < time.monotonic() - began < 20


def test_s12_a_megabyte_of_cookie_is_refused(served):
    """S12: the head of a request is bounded."""
    raw = speak(served, "GET /read HTTP/1.1", "cookie: " + "c" * 1_000_000)
    assert raw.startswith(b"HTTP/1.1 400")
    assert served.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/img/../../etc/passwd",
        "/static/../../../../etc/passwd",
        "/static/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/%00",
        "/static/\\..\\..\\x",
    ],
)
def test_s01_a_path_that_climbs_is_not_found(served, path):
    """S01: sent as it stands, as no browser would send it."""
    raw = speak(served, f"GET {path} HTTP/1.1")
    assert raw.startswith(b"HTTP/1.1 404")
    assert b"root:" not in raw


def head(client, line, *headers):
    """The head of a request, as bytes."""
    host = f"127.0.0.1:{client.base_url.port}"
    lines = [line, f"host: {host}", f"origin: http://{host}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def open_socket(client):
    """A connection to the server."""
    return socket.create_connection(("127.0.0.1", client.base_url.port), timeout=30)


def speak(client, line, *headers):
    """Send the head of a request by hand, and read what comes."""
    with open_socket(client) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(head(client, line, *headers))
        return read_some(connection, 30)


def read_some(connection, seconds):
    """What comes within some time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(4096)
    except TimeoutError:
        return b""


def test_the_standard_library_is_answered_too(served):
    """A client that sends neither Origin nor Sec-Fetch may read what is open, and change nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", served.base_url.port, timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b'{"ok":true}'
    connection.request("POST", "/api/next", body=b"{}", headers={"content-type": "application/json"})
    assert connection.getresponse().status == 403
    connection.close()


ROLES = ("nobody", "reader", "adjudicator", "admin")
FIELDS = {
    "draft": {"version": 0, "answer": {}},
    "lock": {"version": 0, "answer": {}, "spent": rooms.SPENT},
    "second": {"version": 0, "answer": {}, "spent": rooms.SPENT},
    "skip": {"version": 0},
    "undo": {"version": 0},
    "amend": {"version": 0, "answer": {}, "reason": "a slip"},
    "/login": {"name": "nobody", "password": "wrong"},
    "/enter": {"token": "x" * 43},
    "/oidc": {},
    "/oidc/return": {"code": "x", "state": "x"},
    "/password": {"old": "wrong", "new": "four plain words together"},
    "/api/adjudication/{case_id}": {"pinned": {}, "verdicts": {"Mass": {"verdict": "present", "how": "adjudicator"}}},
    "/api/rounds/{case_id}": {"round": 1, "verdicts": {"Mass": "present"}},
    "/api/accounts": {"name": "", "role": "reader"},
    "/api/accounts/{account_id}": {},
}
"""A body that each route understands; where there is none, none is sent."""


@pytest.fixture(scope="module")
def ruled_room(tmp_path_factory):
    """A room for the whole file."""
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("rules")), films=40) as opened:
        yield opened


@pytest.fixture(scope="module")
def browsers(ruled_room):
    """One browser a role; each has begun to read a case."""
    found = {"nobody": ruled_room.visitor()} | {role: ruled_room.browser(f"the {role}", role) for role in ROLES[1:]}
    for role in ROLES[1:]:
        found[role].reading = found[role].next()["reading"]
    return found


def ask(browser, method, path, **names):
    """Call a route with what it understands."""
    usual = {"reading_id": "no-such-reading", "n": 0, "case_id": 1, "account_id": 10**6, "name": "page.js"}
    address = path.format(**(usual | names))
    if method == "GET":
        return browser.get(address)
    body = FIELDS.get(path, FIELDS.get(path.rpartition("/")[2]))
    keyed = path.startswith(("/api/readings", "/api/adjudication/{", "/api/rounds/{"))
    return browser.post(address, body | {"key": rooms.fresh_key()} if keyed and body is not None else body)


@pytest.mark.parametrize(("method", "path"), sorted(RULES))
def test_s09_every_route_and_every_role(browsers, method, path):
    """S09: what the table allows passes the door, and nothing else does."""
    for role in ROLES:
        browser = browsers["nobody"] if path == "/logout" else browsers[role]
        reply = ask(browser, method, path)
        sent_away = reply.headers.get("location", "").startswith("/login")
        declined = sent_away or '"code":"login"' in reply.text or '"code":"role"' in reply.text
        assert declined == (role not in RULES[method, path]), (role, reply.status_code, reply.text[:200])
        if declined:
            assert reply.status_code == (403 if role != "nobody" else 303 if sent_away else 401)


def test_a_route_without_a_rule_does_not_open(ruled_room):
    """Whoever adds a route must say who may call it: the application refuses to start."""
    app = create_app(ruled_room.room)
    app.add_api_route("/api/everything", forgotten, methods=["GET"])
    with pytest.raises(ContractBroken, match="GET /api/everything"):
        check_rules(app)
    app = create_app(ruled_room.room)
    app.mount("/files", FastAPI())
    with pytest.raises(ContractBroken, match="files"):
        check_rules(app)
    with pytest.raises(ContractBroken, match="GET /read"):
        check_rules(FastAPI(openapi_url=None))


def forgotten():
    """A route that somebody added in a hurry."""
    return {}


def test_s09_nobody_gets_at_anothers_reading(browsers, caplog):
    """S09: no other reader, adjudicator or admin, by any route; it looks as if it were not there, and is logged."""
    mine = browsers["reader"].reading["reading_id"]
    routes = [(method, path) for method, path in RULES if "{reading_id}" in path]
    assert len(routes) >= 9
    for role, (method, path) in itertools.product(("adjudicator", "admin"), routes):
        other = ask(browsers[role], method, path, reading_id=mine)
        absent = ask(browsers[role], method, path, reading_id="no-such-reading-at-all")
        assert other.status_code == absent.status_code == 404
        assert {**other.json()["error"], "id": ""} == {**absent.json()["error"], "id": ""}
    assert [record for record in caplog.records if getattr(record, "fields", {}).get("why") == "not_yours"]
    assert browsers["reader"].get(f"/api/readings/{mine}").json()["version"] == 0


def test_s09_ids_that_are_no_ids_are_not_found(browsers):
    """S09: numbers, paths and statements in the place of an id."""
    for wrong in ("1", "-1", "0' OR '1'='1", "%00", "..", "a" * 500, "%2e%2e%2f"):
        reply = browsers["reader"].get(f"/api/readings/{wrong}")
        assert reply.status_code in {404, 422}


def test_s05_no_get_changes_anything(browsers, ruled_room):
    """S05: everything that the ledger holds is the same before and after, whoever asks."""
    before = everything(ruled_room)
    for role, (method, path) in itertools.product(ROLES, RULES):
        if method == "GET":
            reading = getattr(browsers[role], "reading", {"reading_id": "none-at-all"})
            ask(browsers[role], method, path, reading_id=reading["reading_id"], n=1)
    assert everything(ruled_room) == before
    assert len(before) > 5
    browsers["reader"].act("draft", browsers["reader"].reading, answer={"note": "a change is seen"})
    assert everything(ruled_room) != before
    browsers["reader"].reading = browsers["reader"].next()["reading"]


def everything(ruled_room):
    """Every row of every table of the room."""

    def read(connection):
        return {table.name: connection.execute(select(table)).all() for table in REVIEW_TABLES.sorted_tables}

    return ruled_room.ledger.look(read)


def test_s05_only_get_and_post_exist():
    """S05: and nothing that sounds like a change is a GET."""
    assert {method for method, _ in RULES} == {"GET", "POST"}
    changing = {"draft", "lock", "second", "skip", "undo", "amend", "logout", "password", "link", "end-others", "next"}
    assert not [path for method, path in RULES if method == "GET" and path.rpartition("/")[2] in changing]


@pytest.mark.parametrize(
    "more",
    [
        {"role": "admin"},
        {"locked": False},
        {"state": "done"},
        {"account_id": 1},
        {"answer": {"verdicts": {}, "reader": "somebody else"}},
        {"answer": {"verdicts": {"Mass": "present"}, "saw_signal": 0}},
        {"version": "0"},
        {"version": True},
        {"__class__": "x"},
    ],
)
def test_s10_a_field_that_nobody_knows_is_refused(browsers, more):
    """S10: nothing is assigned that the shape does not name, and no type is guessed."""
    reader = browsers["reader"]
    body = {"version": reader.reading["version"], "key": rooms.fresh_key(), "answer": {}} | more
    assert reader.post(f"/api/readings/{reader.reading['reading_id']}/draft", body).status_code == 422
    assert reader.get(f"/api/readings/{reader.reading['reading_id']}").json()["version"] == reader.reading["version"]


def test_s10_nobody_makes_himself_an_admin(browsers, ruled_room):
    """S10: neither at login nor with a password nor through the office."""
    ruled_room.account("climber", password=rooms.PASSWORD)
    climber = ruled_room.visitor()
    body = {"name": "climber", "password": rooms.PASSWORD}
    assert climber.post("/login", body | {"role": "admin"}).status_code == 422
    assert climber.post("/login", body).status_code == 200
    account = ruled_room.room.accounts.named("climber").account_id
    assert climber.post(f"/api/accounts/{account}", {"role": "admin"}).status_code == 403
    assert climber.post("/api/accounts", {"name": "x", "role": "admin"}).status_code == 403
    owner = {"role": "owner"}
    assert browsers["admin"].post(f"/api/accounts/{account}", owner).status_code == 422
    assert browsers["admin"].post(f"/api/accounts/{account}", {"password": "$argon2id$"}).status_code == 422
    assert ruled_room.room.accounts.named("climber").role == "reader"


@pytest.mark.parametrize("query", ["sort=password", "sort=totp", "filter=name", "sort=name&sort=role", "limit=1", "x"])
def test_s11_sorting_by_an_unlisted_field_is_refused(browsers, query):
    """S11: a closed list, so that no order tells anything about a hash."""
    assert browsers["admin"].get(f"/api/accounts?{query}").status_code == 422


def test_s11_nothing_else_can_be_asked_for(browsers):
    """S11: a route takes the query that the table names, and mostly that is none; what lets one in is never listed."""
    for path in (
        "/api/progress",
        "/api/sessions",
        "/read",
        f"/api/readings/{browsers['reader'].reading['reading_id']}",
    ):
        assert browsers["reader"].get(f"{path}?order_by=trust").status_code == 422
    listed = browsers["admin"].get("/api/accounts?sort=role")
    assert listed.status_code == 200
    assert set(listed.json()["accounts"][0]) == {
        "account_id", "name", "role", "password", "totp", "subject", "disabled", "at",
    }  # fmt: skip
    assert "argon2" not in listed.text
    assert all(isinstance(account["password"], bool) for account in listed.json()["accounts"])


@pytest.mark.parametrize(
    "after",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/%2f%2fevil.example",
        "javascript:alert(1)",
        "/read/../../evil",
        "/read\r\nSet-Cookie: x=1",
        "/login",
        "read",
    ],
)
def test_s18_next_leads_to_pages_of_ours_only(ruled_room, after):
    """S18: after the login, and in the login page itself."""
    page = ruled_room.visitor().client.get("/login", params={"next": after})
    assert 'name="next" value="/read"' in page.text
    assert "evil" not in page.text
    if not [card for card in ruled_room.room.accounts.cards() if card.account.name == "goer"]:
        ruled_room.account("goer", password=rooms.PASSWORD)
    reply = ruled_room.visitor().post("/login", {"name": "goer", "password": rooms.PASSWORD, "next": after})
    assert reply.json() == {"next": "/read"}
    assert reply.headers["hx-redirect"] == "/read"


def test_a_stranger_is_sent_to_the_login_page_and_back(ruled_room):
    """A page asked for by name is where he lands."""
    ruled_room.account("traveller", password=rooms.PASSWORD)
    reply = ruled_room.visitor().get("/progress")
    assert (reply.status_code, reply.headers["location"]) == (303, "/login?next=/progress")
    visitor = ruled_room.visitor()
    body = {"name": "traveller", "password": rooms.PASSWORD, "next": "/progress"}
    assert visitor.post("/login", body).json() == {"next": "/progress"}
    assert visitor.get("/progress").status_code == 200


def test_s17_whatever_is_sent_nothing_breaks(ruled_room, browsers):
    """S17: made-up requests of every shape to every route: no 5xx, and nothing for strangers but what is for anyone."""
    schema = schemathesis.openapi.from_dict(ruled_room.app.openapi())
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {(operation.method.upper(), operation.path) for operation in operations} == set(RULES)
    ruled_room.app.state.entrance.by_address._most = ruled_room.app.state.entrance.by_account._most = 10**6
    for operation in operations:
        rule = RULES[operation.method.upper(), operation.path]
        if operation.path != "/logout":
            bombard(operation, browsers["nobody"], rule)
            bombard(operation, browsers["admin"], rule, reading=browsers["admin"].reading["reading_id"])


def bombard(operation, browser, rule, reading=None):
    """Send some made-up requests."""

    @hypothesis.given(case=operation.as_strategy())
    @hypothesis.settings(
        max_examples=4, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    def send(case):
        path = case.formatted_path
        if reading and "{reading_id}" in operation.path:
            path = operation.path.format(reading_id=reading, n=case.path_parameters.get("n", 0))
        body = case.body if isinstance(case.body, dict | list | str | int | float | bool | None) else None
        content = {} if body is None else {"content": json.dumps(body).encode("utf-8", "replace")}
        headers = {"origin": browser.origin, "content-type": "application/json"}
        reply = browser.client.request(
            operation.method.upper(), path, params=dict(case.query or {}), headers=headers, follow_redirects=False,
            **content,
        )  # fmt: skip
        assert reply.status_code < 500, (path, body)
        if reading is None and rule is not ANYONE:
            assert reply.status_code in {303, 401, 404, 422}, (path, reply.status_code)

    send()
