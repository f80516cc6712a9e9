"""Accounts beside an open reading room: the process that serves it makes the changes, and these are all it makes.

ACTS                 what the serving process does for others, by name
RelayedAccounts      the accounts of another process, which reads the file by itself and has the changes made
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from bpals.ledger import Ledger
from bpals.ledger.relay import Work, have_done
from bpals.review.desk.account import Account
from bpals.review.people.accounts import Accounts

ADD, PASSWORD, DISABLE, SECOND_FACTOR = "account add", "account password", "account disable", "account totp"

NO_SECRET = b""
"""The installation's secret is for login links, and none is made here."""


class RelayedAccounts(Accounts):
    """The accounts of a ledger whose only writer is another process."""

    def __init__(self, ledger: Ledger) -> None:
        """Take a ledger that was opened for reading."""
        super().__init__(ledger, NO_SECRET)
        self._path = ledger.path

    def make(
        self,
        name: str,
        role: str,
        *,
        password: str | None = None,
        subject: str | None = None,
        by: str = "room",
        key: str | None = None,
    ) -> Account:
        """Have an account made."""
        told = {"name": name, "role": role, "password": password, "subject": subject, "by": by}
        return Account(**have_done(self._path, ADD, {**told, "key": key or str(uuid.uuid4())}))

    def set_password(self, account: Account, password: str, *, by: str) -> None:
        """Have a new password set; whoever is in by the old one is out."""
        have_done(self._path, PASSWORD, {"name": account.name, "password": password, "by": by})

    def set_disabled(self, account: Account, *, disabled: bool, by: str) -> None:
        """Let nobody in by an account any more, or again."""
        have_done(self._path, DISABLE, {"name": account.name, "disabled": disabled, "by": by})

    def add_second_factor(self, account: Account, title: str, *, by: str) -> str:
        """Ask for a code at login from now on, and give the address for the app."""
        return str(have_done(self._path, SECOND_FACTOR, {"name": account.name, "title": title, "by": by})["address"])


def _add(ledger: Ledger, given: Mapping[str, Any]) -> dict[str, Any]:
    made = Accounts(ledger, NO_SECRET).make(
        given["name"],
        given["role"],
        password=given["password"],
        subject=given["subject"],
        by=given["by"],
        key=given["key"],
    )
    return {"account_id": made.account_id, "name": made.name, "role": made.role}


def _password(ledger: Ledger, given: Mapping[str, Any]) -> dict[str, Any]:
    accounts = Accounts(ledger, NO_SECRET)
    accounts.set_password(accounts.named(given["name"]), given["password"], by=given["by"])
    return {}


def _disable(ledger: Ledger, given: Mapping[str, Any]) -> dict[str, Any]:
    accounts = Accounts(ledger, NO_SECRET)
    accounts.set_disabled(accounts.named(given["name"]), disabled=bool(given["disabled"]), by=given["by"])
    return {}


def _second_factor(ledger: Ledger, given: Mapping[str, Any]) -> dict[str, Any]:
    accounts = Accounts(ledger, NO_SECRET)
    return {"address": accounts.add_second_factor(accounts.named(given["name"]), given["title"], by=given["by"])}


ACTS: Mapping[str, Work] = {
    ADD: _add,
    PASSWORD: _password,
    DISABLE: _disable,
    SECOND_FACTOR: _second_factor,
}
