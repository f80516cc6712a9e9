"""The address of a ledger on PostgreSQL: told apart from a path, and never shown or kept with its password."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from bpals.errors import UsageError

ENVIRONMENT = "BPALS_LEDGER"
"""A whole address may stand in this variable: the place for one that has a password."""

_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_SECRET = ("password", "sslpassword")
_EXAMPLE = "postgresql://NAME@HOST:5432/DATABASE"


def is_url(address: str | os.PathLike[str]) -> bool:
    """Say whether an address is one of a server: all others are paths."""
    return isinstance(address, str) and "://" in address


def parse_url(address: str) -> URL:
    """Read the address of a PostgreSQL ledger; the message about a bad one shows no password."""
    scheme, _, rest = address.partition("://")
    if scheme not in _SCHEMES:
        raise UsageError(f"a ledger cannot lie at {scheme}://...: it is a file or a PostgreSQL address, {_EXAMPLE}")
    try:
        found = make_url(f"postgresql+psycopg://{rest}")
    except (ArgumentError, ValueError):
        raise UsageError(f"the ledger's address cannot be read. It has this form: {_EXAMPLE}") from None
    if not found.database:
        raise UsageError(f"the ledger's address {shown(found)} names no database. It has this form: {_EXAMPLE}")
    return found


def has_password(url: URL) -> bool:
    """Say whether an address carries a password, as its own part or among its options."""
    return bool(url.password) or any(name in url.query for name in _SECRET)


def without_password(url: URL) -> URL:
    """Leave the password out of an address."""
    query = {name: value for name, value in url.query.items() if name not in _SECRET}
    return URL.create(url.drivername, url.username, None, url.host, url.port, url.database, query)


def shown(url: URL) -> str:
    """Write an address for people and for files: without any password."""
    plain = without_password(url).set(drivername="postgresql")
    return plain.render_as_string(hide_password=False)


def remembered_form(address: str) -> str:
    """Give the form of an address that a workspace may keep; one with a password is refused."""
    url = parse_url(address)
    if has_password(url):
        raise UsageError(
            f"the ledger's address has a password in it, and a command line can be read by others. Put the address "
            f"into the environment instead: {ENVIRONMENT}={_EXAMPLE.replace('@', ':PASSWORD@')} "
            f"(or keep the password in ~/.pgpass and leave it out: --ledger {shown(url)})"
        )
    return shown(url)


def address_of(given: str | None, remembered: str | None, environment: Mapping[str, str]) -> str | None:
    """Choose the ledger's address: the option, then the environment, then what the workspace remembers; else none.

    The environment may bring the password of the address that is meant; it may not silently name another ledger.
    """
    told = environment.get(ENVIRONMENT) or None
    meant = remembered_form(given) if given is not None else remembered
    if told is None:
        return meant
    plain = shown(parse_url(told))
    if meant is not None and plain != meant:
        raise UsageError(
            f"{ENVIRONMENT} names the ledger {plain}, but {meant} is meant. Unset {ENVIRONMENT}, or name it the same"
        )
    return told
