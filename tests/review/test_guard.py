"""The guard: requests from elsewhere, bodies that are too long or too slow, and the headers on whatever goes out."""

import contextlib
import http.client
import json
import socket
import time

import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from bpals.room.room import Settings
from bpals.room.web.guard import CONTENT_POLICY, FILM_POLICY, FORGED, RULES, Guard
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
