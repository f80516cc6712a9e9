"""The pages: templates compiled once, and the files beside them, held in memory and served by name."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from bpals.room.desk.study import FINDING_KEYS, TOOLS
from bpals.room.room import Settings
from bpals.room.web.guard import NOT_FOUND, PAGES_AFTER_LOGIN, Declined, Me, TheRoom, first_page, page_after_login

KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file that a page loads."""

    content: bytes
    kind: str
    sha256: str


class Pages:
    """What can be shown: a template by its name, an asset by its own."""

    def __init__(self, settings: Settings) -> None:
        """Read and compile everything, so that no request does."""
        self.assets = {file.name: _asset(file.name, file.read_bytes()) for file in _files("static")}
        texts = {file.name: file.read_text(encoding="utf-8") for file in _files("templates")}
        self._jinja = Environment(
            loader=DictLoader(texts), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._jinja.globals |= {"asset": self._address, "title": settings.title, "dataset": settings.dataset}
        self._jinja.globals |= {"tools": TOOLS, "finding_keys": FINDING_KEYS, "idle_hours": settings.idle_s / 3600}
        self._templates = {name: self._jinja.get_template(name) for name in texts}

    def render(self, name: str, **values: Any) -> str:
        """Write a page."""
        return self._templates[name].render(values)

    def _address(self, name: str) -> Markup:
        """Give the address of an asset; it changes with the content, so that it may be kept for good."""
        return Markup("/static/{}?v={}").format(name, self.assets[name].sha256[:16])


def _files(folder: str) -> list[Any]:
    place = resources.files("bpals.room.web") / folder
    return [file for file in place.iterdir() if file.is_file()] if place.is_dir() else []


def _asset(name: str, content: bytes) -> Asset:
    kind = KINDS.get(name[name.rfind(".") :]) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Asset(content=content, kind=kind, sha256=hashlib.sha256(content).hexdigest())


router = APIRouter()

FOREVER = "public, max-age=31536000, immutable"  # for an asset under the address that names its content


@router.get("/healthz")
async def healthz() -> Response:
    """Say that the room is open, to whoever watches it."""
    return JSONResponse({"ok": True})


@router.get("/static/{name}")
async def static(
    request: Request, name: Annotated[str, Path(max_length=100)], v: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    """Send a script or a style sheet: one of those in memory, by its name."""
    pages: Pages = request.app.state.pages
    asset = pages.assets.get(name)
    if asset is None:
        raise Declined(NOT_FOUND)
    tag = f'"{asset.sha256[:32]}"'
    headers = {"etag": tag, "cache-control": FOREVER if v and asset.sha256.startswith(v) else "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, headers={**headers, "content-type": asset.kind})


@router.get("/login")
async def login_page(request: Request, room: TheRoom, after: Annotated[str, Query(alias="next")] = "") -> Response:
    """Show the login page."""
    provider = room.oidc.name if room.oidc else ""
    return _page(request, "login.html", oidc=provider, next=page_after_login(after))


@router.get("/enter")
async def enter_page(request: Request) -> Response:
    """Show the page that a login link opens: its script posts what stands behind the #, which no server sees in GET."""
    return _page(request, "enter.html")


@router.get("/oidc/return")
async def return_page(request: Request, room: TheRoom) -> Response:
    """Show the page that the provider sends back to: its script posts the code, so that GET changes nothing."""
    if room.oidc is None:
        raise Declined(NOT_FOUND)
    return _page(request, "return.html")


@router.get("/")
async def start(room: TheRoom, account: Me) -> Response:
    """Go to the page of one's role."""
    return RedirectResponse(first_page(account, room.study), status_code=303)


def _room_page(template: str) -> Callable[..., Coroutine[Any, Any, Response]]:
    async def page(request: Request, room: TheRoom, account: Me) -> Response:
        return _page(request, template, account=account, study=room.study)

    return page


# They are sent empty: their scripts fetch what they show. Readers meet on /adjudicate in the rounds of a discussion.
for _path in PAGES_AFTER_LOGIN:
    router.add_api_route(_path, _room_page(f"{_path[1:]}.html"), methods=["GET"])


def _page(request: Request, name: str, **values: Any) -> Response:
    pages: Pages = request.app.state.pages
    return HTMLResponse(pages.render(name, **values))
