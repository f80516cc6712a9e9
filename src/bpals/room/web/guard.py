"""The guard: what is refused before anything else looks at it, who may use which route, and the headers of replies.

A request must name this room as its host. One that changes something must come from this room's own pages, as
`Sec-Fetch-Site` or `Origin` says, and bring JSON; its body must be short and must arrive soon. Ranges are not served.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bpals.room.desk.study import Account, Study
from bpals.room.room import Room, Settings
from bpals.room.web import server

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
# For pixels: whatever they turn out to be, they are not run.
FILM_POLICY = "sandbox; default-src 'none'; frame-ancestors 'none'"

_ALWAYS: Mapping[str, str] = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
    "cache-control": "no-store",
}
_SECURE = {"strict-transport-security": "max-age=31536000"}


def missing_headers(given: set[str], *, secure: bool) -> dict[str, str]:
    """Give the headers that a reply does not set for itself."""
    wanted = {**_ALWAYS, **(_SECURE if secure else {})}
    return {name: value for name, value in wanted.items() if name not in given}


PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<link rel="stylesheet" href="/static/room.css"></head>
<body class="plain"><main><h1>{title}</h1><p>{message}</p>
<p>Report this id to whoever runs the room: <code>{id}</code></p>
<p><a href="/">Back to the room</a></p></main></body>
</html>
"""

TITLES = {401: "Log in first", 403: "Not allowed", 404: "Not found", 500: "Something went wrong"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was not done."""

    status: int
    code: str  # one word, for a program
    message: str  # one sentence of ours, for a person: nothing that came with the request stands in it
    more: Mapping[str, Any] = field(default_factory=dict)  # also in the reply, such as the newer version of a reading
    headers: Mapping[str, str] = field(default_factory=dict)


class Declined(Exception):
    """A request is not done; raised where that is seen, answered by the application."""

    def __init__(self, problem: Problem) -> None:
        """Carry what is answered."""
        super().__init__(problem.code)
        self.problem = problem


NOT_FOUND = Problem(status=404, code="not_found", message="There is nothing here, or it is not yours.")


def problem_response(request: Request, problem: Problem, *, close: bool = False) -> Response:
    """Answer with a problem: as a page where a page was requested, else as JSON."""
    reference = getattr(request.state, "id", "")
    headers = {**problem.headers, **({"connection": "close"} if close else {})}
    to_look_at = request.method in {"GET", "HEAD"} and not request.url.path.startswith("/api/")
    if to_look_at and "text/html" in request.headers.get("accept", ""):
        title = TITLES.get(problem.status, "Not done")
        page = PAGE.format(title=escape(title), message=escape(problem.message), id=escape(reference))
        return HTMLResponse(page, status_code=problem.status, headers=headers)
    if request.headers.get("hx-request") == "true":
        words = f'<p class="error" role="alert">{escape(problem.message)}</p>'
        return HTMLResponse(words, status_code=problem.status, headers=headers)
    error = {"code": problem.code, "message": problem.message, "id": reference}
    return JSONResponse({"error": error, **problem.more}, status_code=problem.status, headers=headers)


ANYONE = frozenset({"nobody", "reader", "adjudicator", "admin"})
READERS = frozenset({"reader", "adjudicator", "admin"})
SETTLERS = frozenset({"adjudicator", "admin"})
ADMINS = frozenset({"admin"})

RULES: Mapping[tuple[str, str], frozenset[str]] = {
    ("GET", "/healthz"): ANYONE,
    ("GET", "/static/{name}"): ANYONE,
    ("GET", "/login"): ANYONE,
    ("POST", "/login"): ANYONE,
    ("GET", "/enter"): ANYONE,
    ("POST", "/enter"): ANYONE,
    ("POST", "/oidc"): ANYONE,
    ("GET", "/oidc/return"): ANYONE,
    ("POST", "/oidc/return"): ANYONE,
    ("POST", "/logout"): ANYONE,
    ("POST", "/password"): READERS,
    ("GET", "/"): READERS,
    ("GET", "/read"): READERS,
    ("GET", "/progress"): READERS,
    ("GET", "/adjudicate"): READERS,
    ("GET", "/account"): READERS,
    ("POST", "/api/next"): READERS,
    ("POST", "/api/bring-back"): READERS,
    ("GET", "/api/readings"): READERS,
    ("GET", "/api/readings/{reading_id}"): READERS,
    ("POST", "/api/readings/{reading_id}/draft"): READERS,
    ("POST", "/api/readings/{reading_id}/lock"): READERS,
    ("POST", "/api/readings/{reading_id}/second"): READERS,
    ("POST", "/api/readings/{reading_id}/skip"): READERS,
    ("POST", "/api/readings/{reading_id}/undo"): READERS,
    ("POST", "/api/readings/{reading_id}/amend"): READERS,
    ("POST", "/api/readings/{reading_id}/reveal"): READERS,
    ("GET", "/api/readings/{reading_id}/films/{n}"): READERS,
    ("POST", "/api/rounds/next"): READERS,
    ("POST", "/api/rounds/{case_id}"): READERS,
    ("GET", "/api/rounds/{case_id}/films/{n}"): READERS,
    ("POST", "/api/adjudication/next"): SETTLERS,
    ("POST", "/api/adjudication/{case_id}"): SETTLERS,
    ("GET", "/api/adjudication/{case_id}/films/{n}"): SETTLERS,
    ("GET", "/api/progress"): READERS,
    ("GET", "/api/sessions"): READERS,
    ("POST", "/api/sessions/end-others"): READERS,
    ("GET", "/api/accounts"): ADMINS,
    ("POST", "/api/accounts"): ADMINS,
    ("POST", "/api/accounts/{account_id}"): ADMINS,
    ("POST", "/api/accounts/{account_id}/link"): ADMINS,
}
QUERIES: Mapping[str, frozenset[str]] = {
    "/login": frozenset({"next"}),
    "/static/{name}": frozenset({"v"}),
    "/api/accounts": frozenset({"sort"}),
    "/oidc/return": frozenset(
        {"code", "state", "iss", "session_state", "error", "error_description", "error_uri", "scope"}
    ),
}
"""What may stand behind the ? of a route; everywhere else nothing may."""

PAGES_AFTER_LOGIN = ("/read", "/adjudicate", "/progress", "/account")  # where one may be sent after logging in


def page_after_login(wanted: str) -> str:
    """Give the page to go to next: one of ours, whatever was wanted."""
    return wanted if wanted in PAGES_AFTER_LOGIN else PAGES_AFTER_LOGIN[0]


def first_page(account: Account, study: Study) -> str:
    """Give the page that somebody gets first: adjudicators settle, where the study settles; everybody else reads."""
    return "/adjudicate" if account.role == "adjudicator" and study.settles else PAGES_AFTER_LOGIN[0]


SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 50
LONGEST_QUERY = 8192

NOT_THIS_HOST = Problem(status=421, code="host", message="This room has another address.")
FORGED = Problem(status=403, code="origin", message="This did not come from a page of this room.")
NOT_JSON = Problem(status=415, code="type", message="Send JSON.")
TOO_LONG = Problem(status=413, code="too_long", message="That is longer than anything this room takes.")
TOO_SLOW = Problem(status=408, code="too_slow", message="It took too long to arrive. Send it again.")
BAD_FORM = Problem(status=422, code="invalid", message="Some field is missing, doubled or unknown.")
NO_SOCKETS = 1008  # the code with which a websocket is closed: policy


class Guard:
    """Stands around the application."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        """Take the address of the room and its limits."""
        self._app = app
        self._settings = settings
        parts = urlsplit(settings.origin)
        host = parts.netloc.rpartition("@")[2].lower()
        names = LOOPBACK if _name(host) in LOOPBACK else {_name(host)}
        port = f":{parts.port}" if parts.port else ""
        self._hosts = frozenset(f"{name}{port}" for name in names)
        self._scheme = parts.scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": NO_SOCKETS, "reason": "no websockets here"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in {b"range", b"if-range"}]
        state = scope.setdefault("state", {})
        state["id"] = secrets.token_hex(6)
        began, sent = time.monotonic(), _Sent(send, secure=self._settings.secure)
        try:
            await self._let_in(scope, receive, sent)
        finally:
            server.request(scope, sent.status, time.monotonic() - began)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if problem := self._objection(scope, headers):
            server.refused(scope, problem.code)
            await problem_response(Request(scope), problem)(scope, receive, send)
            return
        if scope["method"] in SAFE:
            await self._app(scope, receive, send)
            return
        body = await self._body(receive)
        if isinstance(body, bytes) and _content_type(headers) == FORM:
            body = _form_as_json(scope, body)
        if isinstance(body, Problem):
            await problem_response(Request(scope), body, close=True)(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    def _objection(self, scope: Scope, headers: Mapping[str, str]) -> Problem | None:
        """Give what is wrong with a request before its body is read."""
        host = headers.get("host", "").lower()
        if scope["path"] != "/healthz" and host not in self._hosts:
            return NOT_THIS_HOST
        if self._is_foreign(scope["method"], headers, host):
            return FORGED
        if len(scope["query_string"]) > LONGEST_QUERY:
            return TOO_LONG
        if scope["method"] in SAFE:
            return None
        if len(length := headers.get("content-length", "0")) > 12 or int(length) > self._settings.body_bytes:
            return TOO_LONG
        kind = _content_type(headers)
        empty = not kind and length == "0" and "transfer-encoding" not in headers
        by_htmx = kind == FORM and headers.get("hx-request") == "true"
        return None if empty or by_htmx or kind == "application/json" else NOT_JSON

    def _is_foreign(self, method: str, headers: Mapping[str, str], host: str) -> bool:
        """Say whether a request may come from another site's page.

        On plain http over a network a browser sends no Sec-Fetch-Site: then Origin alone must do.
        """
        fetched, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if method in SAFE:
            # Links to a page may come from anywhere; pixels and data may not be fetched by other sites.
            by_link = headers.get("sec-fetch-mode") == "navigate"
            return fetched in {"cross-site", "same-site"} and not by_link
        if origin is not None and origin.lower() != f"{self._scheme}://{host}":
            return True
        return fetched not in {"same-origin", "none"} if fetched is not None else origin is None

    async def _body(self, receive: Receive) -> bytes | Problem:
        """Read a body whole; it is bounded in bytes and in time."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return TOO_SLOW
                    body += message.get("body", b"")
                    if len(body) > self._settings.body_bytes:
                        return TOO_LONG
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            return TOO_SLOW


class _Sent:
    """Sends a reply with the headers that it lacks, and remembers its status."""

    def __init__(self, send: Send, *, secure: bool) -> None:
        self._send = send
        self._secure = secure
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name.decode("latin-1").lower() for name, _ in message["headers"]}
            more = missing_headers(given, secure=self._secure)
            message["headers"] = [
                *message["headers"],
                *((name.encode(), value.encode()) for name, value in more.items()),
            ]
        await self._send(message)


def _name(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _form_as_json(scope: Scope, body: bytes) -> bytes | Problem:
    """Turn the form that htmx sends into the JSON that routes take, each field once."""
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MOST_FIELDS)
    except ValueError:
        return BAD_FORM
    written = dict(fields)
    if len(written) != len(fields):
        return BAD_FORM
    scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in {b"content-type", b"content-length"}]
    scope["headers"].append((b"content-type", b"application/json"))
    return json.dumps(written).encode()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand a body on that was read already, and then whatever comes."""
    given: list[Any] = []

    async def receive_again() -> Message:
        if given:
            return await receive()
        given.append(True)
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


LOGIN = Problem(status=401, code="login", message="Log in first.")
NOT_ALLOWED = Problem(status=403, code="role", message="Your role does not allow this.")
UNKNOWN_QUERY = Problem(status=422, code="invalid", message="The address asks for something that is not known here.")
LONGEST_TOKEN = 200


async def check_access(request: Request) -> None:
    """Let a request in as its account, or decline it: a dependency of every route."""
    path = request.scope["route"].path
    allowed = RULES[request.method, path]
    query = request.query_params
    if set(query) - QUERIES.get(path, frozenset()) or len(query.multi_items()) != len(query):
        raise Declined(UNKNOWN_QUERY)
    if "nobody" in allowed:
        return
    account = await who(request)
    if account is None:
        if path.startswith("/api/") or request.method != "GET":
            raise Declined(LOGIN)
        raise Declined(replace(LOGIN, status=303, headers={"location": f"/login?next={page_after_login(path)}"}))
    request.state.account = account
    if account.role not in allowed:
        server.refused(request.scope, "role")
        raise Declined(NOT_ALLOWED)


async def who(request: Request) -> Account | None:
    """Give the account whose session the request carries."""
    token = token_of(request)
    if token is None:
        return None
    room: Room = request.app.state.room
    sessions = room.sessions
    # In a file the look-up takes less time than handing it to another thread; over a network it must not hold the loop.
    if not sessions.at_hand:
        return await run_in_threadpool(sessions.find, token)
    account, due = sessions.look_up(token)
    if due:
        await run_in_threadpool(sessions.touch, token)
    return account


def token_of(request: Request) -> str | None:
    """Give the token in the cookie, if there is one that could be ours."""
    room: Room = request.app.state.room
    token = request.cookies.get(room.settings.cookie)
    return token if token and len(token) <= LONGEST_TOKEN else None


async def the_account(request: Request) -> Account:
    """Give the account that was let in."""
    account: Account = request.state.account
    return account


async def the_room(request: Request) -> Room:
    """Give the room."""
    room: Room = request.app.state.room
    return room


Me = Annotated[Account, Depends(the_account)]
TheRoom = Annotated[Room, Depends(the_room)]
