"""OIDC: a provider says who a person is. Code flow with PKCE, state and nonce, and one exact redirect address.

Nobody gets an account by it: an admin invites a person by address, and the provider's verified address binds the
account to the provider's own name for that person at the first login.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import stat
import threading
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from bpals.errors import UnknownName, UsageError

FLOW_S = 600  # how long one may take at the provider
FETCH_S = 10.0
MOST_BYTES = 1 << 20
KNOWN_S = 3600  # how long the provider's addresses and keys are believed
LEEWAY_S = 60
# Signatures with a public key only: neither `none` nor a shared secret.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
RETURN = "/oidc/return"
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
KEYS = ("name", "issuer", "client_id", "client_secret", "scopes")


class OidcFailed(Exception):
    """The provider did not vouch for anybody; `code` is one word for the log."""

    def __init__(self, code: str) -> None:
        """Keep the word."""
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """What an admin writes down of a provider."""

    name: str  # as the login page calls it
    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    scopes: tuple[str, ...] = ("openid", "email")


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Whom the provider vouches for."""

    subject: str  # its own name for the person: see `subject_of`
    invited: str | None  # the same by verified address, if the provider verified one
    after: str  # the page the person wanted


def subject_of(issuer: str, sub: str) -> str:
    """Name a person as a provider does."""
    return f"{issuer} sub:{sub}"


def invitation_of(issuer: str, address: str) -> str:
    """Name whom an admin invites; the address is compared without regard to case."""
    return f"{issuer} email:{address.strip().casefold()}"


def load_oidc(path: str | os.PathLike[str]) -> OidcSettings:
    """Read a provider from a TOML file, which holds a secret and so must be its owner's alone."""
    place = Path(path)
    try:
        mode = stat.S_IMODE(place.stat().st_mode)
        written = tomllib.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no file {place}. docs/reading-room-security.md has one to copy") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{place} cannot be read as TOML: {str(error).splitlines()[0]}") from None
    if mode & 0o077:
        raise UsageError(f"{place} holds a secret and others can read it (mode {mode:04o}). Type: chmod 600 {place}")
    for key in written:
        if key not in KEYS:
            raise UnknownName.of("setting of a provider", key, KEYS, where=str(place))
    for key in ("issuer", "client_id", "client_secret"):
        if not isinstance(written.get(key), str) or not written[key]:
            raise UsageError(f'{place}: {key} is missing. Add a line {key} = "..."')
    scopes = tuple(written.get("scopes", ("openid", "email")))
    if "openid" not in scopes or not all(isinstance(scope, str) for scope in scopes):
        raise UsageError(f'{place}: scopes is {list(scopes)!r}; wanted is a list with "openid" in it')
    _check_address(written["issuer"], loopback=True)
    name = str(written.get("name", urlsplit(written["issuer"]).hostname))
    return OidcSettings(**{**written, "name": name, "scopes": scopes})


class Provider:
    """One provider, and one room that asks it."""

    def __init__(self, settings: OidcSettings, secret: bytes, origin: str) -> None:
        """Take the provider, the secret of the installation, and the address of the room; nothing is asked yet."""
        self.name = settings.name
        self._settings = settings
        self._secret = hmac.new(secret, b"oidc", hashlib.sha256).digest()
        self._redirect = f"{origin}{RETURN}"
        self._guard = threading.Lock()
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    def start(self, after: str) -> tuple[str, str]:
        """Give the address to send somebody to, and the signed note that must come back with the answer."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = str(self._discovered()["authorization_endpoint"])
        note = {"state": state, "nonce": nonce, "verifier": verifier, "after": after, "ends": time.time() + FLOW_S}
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}", self._sign(note)

    def finish(self, signed: str, code: str, state: str) -> Person:
        """Trade the code for the provider's word, check it, and say who came."""
        note = self._open_note(signed)
        if not hmac.compare_digest(note["state"].encode(), state.encode()):
            raise OidcFailed("state")
        claims = self._claims(self._token(code, note["verifier"]), note["nonce"])
        verified = claims.get("email_verified") is True and isinstance(claims.get("email"), str)
        issuer = self._settings.issuer
        return Person(
            subject=subject_of(issuer, claims["sub"]),
            invited=invitation_of(issuer, claims["email"]) if verified else None,
            after=str(note["after"]),
        )

    def _token(self, code: str, verifier: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "client_id": self._settings.client_id,
            "client_secret": self._settings.client_secret,
            "code_verifier": verifier,
        }
        token = _fetch(str(self._discovered()["token_endpoint"]), form=form).get("id_token")
        if not isinstance(token, str):
            raise OidcFailed("no_token")
        return token

    def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Check signature, issuer, audience, times and nonce of an ID token."""
        rules = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._settings.issuer},
            aud={"essential": True, "value": self._settings.client_id},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            keys = KeySet.import_key_set(self._remembered(str(self._discovered()["jwks_uri"])))  # type: ignore[arg-type]
            claims = dict(jwt.decode(token, keys, algorithms=ALGORITHMS).claims)
            rules.validate(claims)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise OidcFailed("token") from error
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (several or "azp" in claims) and claims.get("azp") != self._settings.client_id:
            raise OidcFailed("azp")
        if not isinstance(claims["sub"], str) or not claims["sub"].isprintable() or not 0 < len(claims["sub"]) <= 255:
            raise OidcFailed("sub")
        return claims

    def _discovered(self) -> dict[str, Any]:
        issuer = self._settings.issuer
        found = self._remembered(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise OidcFailed("issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            try:
                _check_address(str(found.get(name, "")), loopback=urlsplit(issuer).hostname in LOOPBACK)
            except UsageError as error:
                raise OidcFailed("endpoint") from error
        return found

    def _remembered(self, address: str) -> dict[str, Any]:
        """Fetch what the provider publishes, once an hour."""
        with self._guard:
            at, found = self._known.get(address, (0.0, {}))
            if not found or time.monotonic() - at > KNOWN_S:
                found = _fetch(address)
                self._known[address] = (time.monotonic(), found)
            return found

    def _sign(self, note: dict[str, Any]) -> str:
        text = base64.urlsafe_b64encode(json.dumps(note).encode()).decode()
        return f"{text}.{hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()}"

    def _open_note(self, signed: str) -> dict[str, Any]:
        text, _, mark = signed.partition(".")
        right = hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(right.encode(), mark.encode()):
            raise OidcFailed("seal")
        note: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text))
        if time.time() > note["ends"]:
            raise OidcFailed("late")
        return note


def _check_address(address: str, *, loopback: bool) -> None:
    """Refuse a provider that is not spoken to over TLS, except on this machine."""
    parts = urlsplit(address)
    if parts.scheme == "https" and parts.hostname:
        return
    if not (loopback and parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise UsageError(f"{address!r} is not an https:// address. A provider is spoken to over TLS only")


def _fetch(address: str, *, form: dict[str, str] | None = None) -> dict[str, Any]:
    """Get JSON, bounded in bytes and in time; redirects are not followed."""
    ends, body = time.monotonic() + FETCH_S, bytearray()
    method = "GET" if form is None else "POST"
    try:
        with (
            httpx.Client(timeout=FETCH_S, follow_redirects=False, trust_env=False) as client,
            client.stream(method, address, data=form, headers={"accept": "application/json"}) as reply,
        ):
            for piece in reply.iter_bytes():
                body += piece
                if len(body) > MOST_BYTES or time.monotonic() > ends:
                    raise OidcFailed("too_much")
        if reply.status_code != 200:
            raise OidcFailed(f"status_{reply.status_code}")
        found = json.loads(body)
    except (httpx.HTTPError, ValueError) as error:
        raise OidcFailed("unreachable") from error
    if not isinstance(found, dict):
        raise OidcFailed("no_object")
    return found
