"""The headers of every reply: what a browser may do with it, and who else may have it."""

from __future__ import annotations

from collections.abc import Mapping

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
FILM_POLICY = "sandbox; default-src 'none'; frame-ancestors 'none'"
"""For pixels: whatever they turn out to be, they are not run."""

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
