"""Accounts: who may enter, and by which password, code, login link or OIDC subject.

Nobody makes their own account: an admin does, at the command line or through the room. Every change is an entry of the
log.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import pyotp
from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select, update

from bpals.errors import UnknownName, UsageError
from bpals.room.desk.study import Account, Role
from bpals.room.people.passwords import Passwords, objection
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.relay import Work, have_done
from bpals.store.ledger.schema import ACCOUNT, LINK, ROLES, SESSION, now

TOKEN_BYTES = 32


def new_token() -> str:
    """Make 256 bits that nobody can guess, as they stand in a cookie or behind the # of an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def hashed(secret: bytes, token: str) -> str:
    """Hash a token with the secret of the installation: without that secret the ledger lets nobody in."""
    return hmac.new(secret, token.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


STEP_S = 30
DRIFT = (0, -1, 1)  # steps by which the app's clock may be off


class SecondFactor:
    """Checks codes; a code that was taken once is not taken again by this process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin with no code taken."""
        self._clock = clock
        self._taken: dict[int, int] = {}
        self._guard = threading.Lock()

    def fits(self, account_id: int, secret: str, code: str) -> bool:
        """Say whether a code is the account's now, and was not taken before."""
        totp = pyotp.TOTP(secret, interval=STEP_S)
        now = int(self._clock()) // STEP_S
        given = code.strip().encode("utf-8", "replace")
        with self._guard:
            for step in (now + drift for drift in DRIFT):
                # In constant time; and a step that was used is used up, so an overheard code opens nothing.
                right = hmac.compare_digest(totp.generate_otp(step).encode(), given)
                if right and step > self._taken.get(account_id, -1):
                    self._taken[account_id] = step
                    return True
        return False


LONGEST_NAME = 64
LINK_S = 15 * 60  # how long a login link works


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountCard:
    """What an admin sees of an account."""

    account: Account
    password: bool
    totp: bool
    subject: str | None
    disabled: bool
    at: str


class Accounts:
    """The accounts of one ledger; any thread may ask."""

    def __init__(self, ledger: Ledger, secret: bytes) -> None:
        """Take the ledger, and the secret of the installation, with which links are hashed."""
        self._ledger = ledger
        self._secret = secret
        self._passwords = Passwords()
        self._second = SecondFactor()

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
        """Make an account; without a password one enters it by a link or by OIDC. The same `key` twice makes one."""
        shown = " ".join(name.split())
        if not shown or len(shown) > LONGEST_NAME or not shown.isprintable():
            raise UsageError(f"an account's name has 1 to {LONGEST_NAME} printable characters, and {name!r} has not")
        kept = self._hash(shown, password) if password is not None else None
        row = {"name": shown, "role": _checked_role(role), "password": kept, "subject": subject}

        def work(connection: Connection) -> Account:
            known = connection.execute(select(ACCOUNT).where(ACCOUNT.c.name == shown)).first()
            if known is not None:
                if key is not None and log.recall(connection, key) is not None:
                    return _account(known)
                raise UsageError(f"there is an account {shown!r} already. Name another")
            if subject is not None:
                _refuse_subject(connection, subject, but=0)
            made = insert(ACCOUNT).returning(ACCOUNT)
            account = _account(connection.execute(made, [{**row, "disabled": 0, "at": now()}]).one())
            detail = {"account": account.name, "role": role}
            log.append(connection, actor=by, action="account made", detail=detail, key=key)
            return account

        return self._ledger.change(work)

    def cards(self) -> list[AccountCard]:
        """List all accounts by name."""
        asked = select(ACCOUNT).order_by(ACCOUNT.c.name)
        return [_card(row) for row in self._ledger.look(lambda connection: connection.execute(asked).all())]

    def card(self, account_id: int) -> AccountCard | None:
        """Give one account."""
        row = self._row(ACCOUNT.c.account_id == account_id)
        return _card(row) if row else None

    def named(self, name: str) -> Account:
        """Give the account with a name."""
        row = self._row(ACCOUNT.c.name == name)
        if row is None:
            raise UnknownName.of("account", name, [card.account.name for card in self.cards()])
        return _account(row)

    def enter(self, name: str, password: str, code: str = "") -> Account | None:
        """Give the account that name, password and perhaps a code prove; which of them was wrong is not said."""
        row = self._row((ACCOUNT.c.name == name) & (ACCOUNT.c.disabled == 0))
        fits = self._passwords.fits(row.password if row else None, password)
        if row is None or not fits:
            return None
        if row.totp is not None and not self._second.fits(row.account_id, row.totp, code):
            return None
        if self._passwords.outdated(row.password):
            same = (ACCOUNT.c.account_id == row.account_id) & (ACCOUNT.c.password == row.password)
            again = update(ACCOUNT).where(same).values(password=self._passwords.hash(password))
            self._ledger.change(lambda connection: connection.execute(again))
        return _account(row)

    def set_password(self, account: Account, password: str, *, by: str) -> None:
        """Give an account a new password; whoever is in by it is out."""
        self._change(account, "password set", by, {"password": self._hash(account.name, password)}, end=True)

    def change_password(self, account: Account, old: str, new: str) -> bool:
        """Give oneself a new password, if the old one is right; an account without one sets its first."""
        row = self._row(ACCOUNT.c.account_id == account.account_id)
        if row is None or (row.password is not None and not self._passwords.fits(row.password, old)):
            return False
        self.set_password(account, new, by=account.name)
        return True

    def set_role(self, account: Account, role: str, *, by: str) -> None:
        """Change what somebody may do, from the next request on."""
        self._change(account, f"role set to {role}", by, {"role": _checked_role(role)})

    def set_disabled(self, account: Account, *, disabled: bool, by: str) -> None:
        """Let nobody in by an account any more, or again; what was read by it stays."""
        words = "account disabled" if disabled else "account enabled"
        self._change(account, words, by, {"disabled": int(disabled)}, end=disabled)

    def set_subject(self, account: Account, subject: str | None, *, by: str) -> None:
        """Say who an account is for the OIDC provider: see `oidc.invitation_of`."""
        self._change(account, "subject set", by, {"subject": subject}, end=True)

    def add_second_factor(self, account: Account, title: str, *, by: str) -> str:
        """Ask for a code at login from now on, and give the otpauth:// address for the app; it is shown once."""
        secret = pyotp.random_base32()
        self._change(account, "second factor set", by, {"totp": secret}, end=True)
        return pyotp.TOTP(secret, interval=STEP_S).provisioning_uri(name=account.name, issuer_name=title)

    def drop_second_factor(self, account: Account, *, by: str) -> None:
        """Ask for no code any more."""
        self._change(account, "second factor dropped", by, {"totp": None}, end=True)

    def make_link(self, account: Account, *, by: str, seconds: float = LINK_S) -> str:
        """Give the token of a login link that works once, for so long."""
        token = new_token()

        def work(connection: Connection) -> None:
            moment = self._ledger.database_time(connection)
            connection.execute(delete(LINK).where(LINK.c.ends <= moment))
            row = {"token": hashed(self._secret, token), "account_id": account.account_id}
            connection.execute(insert(LINK).values(row | {"ends": moment + seconds, "used": 0}))
            _note(connection, by, "link made", account)

        self._ledger.change(work)
        return token

    def use_link(self, token: str) -> Account | None:
        """Give the account of a link and use it up; one that was used, is too old, or never was gives none."""
        key = hashed(self._secret, token)

        def work(connection: Connection) -> Row[Any] | None:
            moment = self._ledger.database_time(connection)
            good = (LINK.c.token == key) & (LINK.c.used == 0) & (LINK.c.ends > moment)
            if not connection.execute(update(LINK).where(good).values(used=1)).rowcount:
                return None
            mine = select(ACCOUNT).join(LINK, LINK.c.account_id == ACCOUNT.c.account_id)
            return connection.execute(mine.where(LINK.c.token == key, ACCOUNT.c.disabled == 0)).first()

        row = self._ledger.change(work)
        return _account(row) if row else None

    def by_subject(self, subject: str, invited: str | None) -> Account | None:
        """Give the account of whom the OIDC provider names; one invited by address is bound at the first login."""

        def work(connection: Connection) -> Row[Any] | None:
            row = connection.execute(select(ACCOUNT).where(ACCOUNT.c.subject == subject)).first()
            if row is not None or invited is None:
                return row
            row = connection.execute(select(ACCOUNT).where(ACCOUNT.c.subject == invited)).first()
            if row is not None:
                connection.execute(update(ACCOUNT).where(_is(_account(row))).values(subject=subject))
                _note(connection, log.ROOM, "subject bound", _account(row))
            return row

        row = self._ledger.change(work)
        return _account(row) if row is not None and not row.disabled else None

    def note(self, account: Account, action: str) -> None:
        """Write into the log that somebody came or went."""
        self._ledger.change(lambda connection: _note(connection, account.name, action, account))

    def _row(self, which: ColumnElement[bool]) -> Row[Any] | None:
        return self._ledger.look(lambda connection: connection.execute(select(ACCOUNT).where(which)).first())

    def _change(
        self, account: Account, action: str, by: str, values: Mapping[str, str | int | None], *, end: bool = False
    ) -> None:
        """Change an account, and end what was begun by it before."""

        def work(connection: Connection) -> None:
            if values.get("subject") is not None:
                _refuse_subject(connection, str(values["subject"]), but=account.account_id)
            connection.execute(update(ACCOUNT).where(_is(account)).values(dict(values)))
            for table in (SESSION, LINK) if end else ():
                connection.execute(delete(table).where(table.c.account_id == account.account_id))
            admins = select(ACCOUNT.c.account_id).where(ACCOUNT.c.role == "admin", ACCOUNT.c.disabled == 0)
            if account.role == "admin" and connection.execute(admins).first() is None:
                raise UsageError("this is the last admin who can enter. Make another one first")
            _note(connection, by, action, account)

        self._ledger.change(work)

    def _hash(self, name: str, password: str) -> str:
        if why := objection(password, name):
            raise UsageError(f"this password is refused: {why}. Take a longer one, such as four words")
        return self._passwords.hash(password)


def _checked_role(role: str) -> str:
    if role not in ROLES:
        raise UnknownName.of("role", role, ROLES)
    return role


def _refuse_subject(connection: Connection, subject: str, *, but: int) -> None:
    """Refuse to give one person of the OIDC provider two accounts."""
    others = select(ACCOUNT.c.name).where(ACCOUNT.c.subject == subject, ACCOUNT.c.account_id != but)
    if (holder := connection.execute(others).scalar()) is not None:
        raise UsageError(f"the account {holder!r} belongs to that person of the OIDC provider already")


def _is(account: Account) -> ColumnElement[bool]:
    return ACCOUNT.c.account_id == account.account_id


def _note(connection: Connection, by: str, action: str, account: Account, **more: str) -> None:
    log.append(connection, actor=by, action=action, detail={"account": account.name, **more})


def _account(row: Row[Any]) -> Account:
    return Account(account_id=row.account_id, name=row.name, role=cast("Role", row.role))


def _card(row: Row[Any]) -> AccountCard:
    return AccountCard(
        account=_account(row),
        password=row.password is not None,
        totp=row.totp is not None,
        subject=row.subject,
        disabled=bool(row.disabled),
        at=row.at,
    )


ADD, PASSWORD, DISABLE, SECOND_FACTOR = "account add", "account password", "account disable", "account totp"

NO_SECRET = b""  # the installation's secret is for login links, and none is made through another process


class RelayedAccounts(Accounts):
    """The accounts of a ledger whose only writer is another process: that one makes the changes."""

    def __init__(self, ledger: Ledger) -> None:
        """Take a ledger that was opened for reading."""
        super().__init__(ledger, NO_SECRET)
        self._path = ledger.path

    def make(self, name: str, role: str, **given: Any) -> Account:
        """Have an account made; a request that is sent again carries the same key, and makes no second one."""
        whole = {"password": None, "subject": None, "by": "room", "key": None, **given, "name": name, "role": role}
        return Account(**have_done(self._path, ADD, {**whole, "key": whole["key"] or str(uuid.uuid4())}))

    def set_password(self, account: Account, password: str, *, by: str) -> None:
        """Have a new password set; whoever is in by the old one is out."""
        have_done(self._path, PASSWORD, {"name": account.name, "password": password, "by": by})

    def set_disabled(self, account: Account, *, disabled: bool, by: str) -> None:
        """Let nobody in by an account any more, or again."""
        have_done(self._path, DISABLE, {"name": account.name, "disabled": disabled, "by": by})

    def add_second_factor(self, account: Account, title: str, *, by: str) -> str:
        """Ask for a code at login from now on, and give the address for the app."""
        return str(have_done(self._path, SECOND_FACTOR, {"name": account.name, "title": title, "by": by})["address"])


def _of_account(change: Callable[..., str | None]) -> Work:
    """Make a change of one account out of a method: the account comes by its name, the rest as it was sent."""

    def work(ledger: Ledger, given: Mapping[str, Any]) -> dict[str, Any]:
        accounts = Accounts(ledger, NO_SECRET)
        rest = {name: value for name, value in given.items() if name != "name"}
        return {"address": change(accounts, accounts.named(given["name"]), **rest)}

    return work


ACTS: Mapping[str, Work] = {
    ADD: lambda ledger, given: asdict(Accounts(ledger, NO_SECRET).make(**given)),
    PASSWORD: _of_account(Accounts.set_password),
    DISABLE: _of_account(Accounts.set_disabled),
    SECOND_FACTOR: _of_account(Accounts.add_second_factor),
}
"""What the process that serves the reading room does for a command beside it."""
