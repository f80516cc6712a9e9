"""The ledger of a workspace: its own file, or the PostgreSQL address that it was given once."""

from __future__ import annotations

import os
from pathlib import Path

from bpals.errors import UsageError
from bpals.ledger.store import Ledger
from bpals.ledger.url import address_of, is_url, parse_url, shown
from bpals.workspace import LEDGER, Workspace


def ledger_of(home: Workspace, given: str | None = None) -> str | Path:
    """Say where a workspace keeps what must not be lost: its own file, or the PostgreSQL address that it was given."""
    remembered, file = home.remembered("ledger"), home.path / LEDGER
    # An address that is named anew takes the place of the old one: a server may move.
    address = address_of(given, None if given else remembered, os.environ)
    if address is not None and remembered is None and file.exists():
        raise UsageError(
            f"{home.path} keeps its answers in {file}, and a workspace has one ledger. "
            "Leave out --ledger and BPALS_LEDGER, or name another folder: --workspace DIR"
        )
    return address or file


def remember_ledger(home: Workspace, address: str | Path) -> None:
    """Let the commands that come later find the ledger; its password is not kept."""
    plain = shown(parse_url(str(address))) if is_url(address) else None
    if plain != home.remembered("ledger"):
        home.remember(ledger=plain)


def is_there(address: str | Path) -> bool:
    """Say whether something may be found at an address: a server is asked later."""
    return is_url(address) or Path(address).exists()


def open_ledger(home: Workspace, given: str | None = None, *, readonly: bool = False) -> Ledger:
    """Open the ledger of a workspace, and remember an address that was given; one that is only read is not made."""
    address = ledger_of(home, given)
    ledger = Ledger.open(address, readonly=readonly, must_exist=readonly)
    if given is not None:
        remember_ledger(home, address)
    return ledger
