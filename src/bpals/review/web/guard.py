"""The guard at the door: what is refused before anything else looks at it, and the headers on whatever goes out.

A request must name this room as its host. One that changes something must come from this room's own pages, as
`Sec-Fetch-Site` or `Origin` says, and bring JSON; its body must be short and must arrive soon. Ranges are not served.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bpals.review.room import Settings
from bpals.review.web import roomlog
from bpals.review.web.headers import missing_headers
from bpals.review.web.problems import Problem, problem_response

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
NO_SOCKETS = 1008
"""The code with which a websocket is closed: policy."""


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
            roomlog.request(scope, sent.status, time.monotonic() - began)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if problem := self._objection(scope, headers):
            roomlog.refused(scope, problem.code)
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
        """Say what is wrong with a request before its body is read."""
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
    """Leave out the port."""
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
