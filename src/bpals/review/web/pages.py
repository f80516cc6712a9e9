"""The pages: templates compiled once, and the files beside them, held in memory and served by name."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from bpals.review.room import Settings
from bpals.review.web.toolkeys import FINDING_KEYS, TOOLS

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
    place = resources.files("bpals.review.web") / folder
    return [file for file in place.iterdir() if file.is_file()] if place.is_dir() else []


def _asset(name: str, content: bytes) -> Asset:
    suffix = name[name.rfind(".") :]
    kind = KINDS.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Asset(content=content, kind=kind, sha256=hashlib.sha256(content).hexdigest())
