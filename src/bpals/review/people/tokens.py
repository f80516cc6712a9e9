"""Tokens: what a cookie or a login link carries. The ledger keeps only a keyed hash of them."""

from __future__ import annotations

import hashlib
import hmac
import secrets

TOKEN_BYTES = 32


def new_token() -> str:
    """Make 256 bits that nobody can guess, as they stand in a cookie or behind the # of an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def hashed(secret: bytes, token: str) -> str:
    """Hash a token with the secret of the installation: without that secret the ledger lets nobody in."""
    return hmac.new(secret, token.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
