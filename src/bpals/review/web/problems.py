"""Problems: how a refusal or a failure is told, as JSON or as a page, with an id and nothing of what is inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

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
    code: str
    """One word, for a program."""
    message: str
    """One sentence of ours, for a person: nothing that came with the request stands in it."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else the reply holds, such as the newer version of a reading."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Declined(Exception):
    """A request is not done; raised where that is seen, told by the application."""

    def __init__(self, problem: Problem) -> None:
        """Carry what is told."""
        super().__init__(problem.code)
        self.problem = problem


NOT_FOUND = Problem(status=404, code="not_found", message="There is nothing here, or it is not yours.")


def problem_response(request: Request, problem: Problem, *, close: bool = False) -> Response:
    """Tell a problem: a page to who asked for a page, else JSON."""
    reference = getattr(request.state, "id", "")
    headers = {**problem.headers, **({"connection": "close"} if close else {})}
    if _wants_page(request):
        title = TITLES.get(problem.status, "Not done")
        page = PAGE.format(title=escape(title), message=escape(problem.message), id=escape(reference))
        return HTMLResponse(page, status_code=problem.status, headers=headers)
    if request.headers.get("hx-request") == "true":
        words = f'<p class="error" role="alert">{escape(problem.message)}</p>'
        return HTMLResponse(words, status_code=problem.status, headers=headers)
    error = {"code": problem.code, "message": problem.message, "id": reference}
    return JSONResponse({"error": error, **problem.more}, status_code=problem.status, headers=headers)


def _wants_page(request: Request) -> bool:
    asked = request.method in {"GET", "HEAD"} and not request.url.path.startswith("/api/")
    return asked and "text/html" in request.headers.get("accept", "")
