"""Sessions: who is in. They are kept in the ledger, so that ending one ends it everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from bpals.ledger import Ledger
from bpals.ledger.ready import Ready
from bpals.ledger.reviewschema import ACCOUNT, SESSION
from bpals.review.desk.account import Account
from bpals.review.people.tokens import hashed, new_token

SEEN_EVERY_S = 60
"""`seen` is written at most this often: a request that only reads stays one that only reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One session, as its owner sees it."""

    began: float
    seen: float
    ends: float
    """At the latest, however often it is used; without a request it ends before."""
    this: bool
    """The one that asks."""


class Sessions:
    """The sessions of one ledger; times are the database's."""

    def __init__(self, ledger: Ledger, secret: bytes, *, idle_s: float, stay_s: float) -> None:
        """Take the limits: so long without a request, and so long in any case."""
        self._ledger = ledger
        self._secret = secret
        self._idle_s = idle_s
        self._stay_s = stay_s
        self._running = Ready(
            select(ledger.clock, SESSION.c.seen, SESSION.c.ends, ACCOUNT.c.account_id, ACCOUNT.c.name, ACCOUNT.c.role)
            .join_from(SESSION, ACCOUNT, ACCOUNT.c.account_id == SESSION.c.account_id)
            .where(SESSION.c.token == bindparam("key"), ACCOUNT.c.disabled == 0)
        )

    def begin(self, account_id: int, *, instead_of: str | None = None) -> str:
        """Begin a session under a new token; the one that the browser came with ends."""
        token = new_token()

        def work(connection: Connection) -> None:
            now = self._ledger.database_time(connection)
            gone = SESSION.c.ends <= now
            if instead_of is not None:
                gone |= SESSION.c.token == hashed(self._secret, instead_of)
            connection.execute(delete(SESSION).where(gone))
            row = {"token": hashed(self._secret, token), "account_id": account_id}
            row |= {"began": now, "seen": now, "ends": now + self._stay_s}
            connection.execute(insert(SESSION).values(row))

        self._ledger.change(work)
        return token

    @property
    def at_hand(self) -> bool:
        """Say whether looking one up takes no longer than handing the task to another thread would."""
        return self._ledger.dialect == "sqlite"

    def look_up(self, token: str) -> tuple[Account | None, bool]:
        """Give the account that a token stands for now, if its session still runs and it may enter.

        The second is whether it is time to `touch` the session.
        """
        found = self._ledger.glance(self._running, key=hashed(self._secret, token))
        if found is None:
            return None, False
        now, seen, ends, account_id, name, role = found
        if now >= min(ends, seen + self._idle_s):
            return None, False
        return Account(account_id=account_id, name=name, role=role), now >= seen + SEEN_EVERY_S

    def touch(self, token: str) -> None:
        """Write down that somebody is still there."""
        with self._ledger.writing() as connection:
            now = self._ledger.database_time(connection)
            key = hashed(self._secret, token)
            connection.execute(update(SESSION).where(SESSION.c.token == key).values(seen=now))

    def find(self, token: str) -> Account | None:
        """Give the account that a token stands for now, and write down that it is there."""
        account, due = self.look_up(token)
        if due:
            self.touch(token)
        return account

    def end(self, token: str) -> None:
        """End the session of a token."""
        gone = delete(SESSION).where(SESSION.c.token == hashed(self._secret, token))
        self._ledger.change(lambda connection: connection.execute(gone))

    def end_others(self, account_id: int, token: str) -> int:
        """End every session of an account but one, and say how many."""
        others = (SESSION.c.account_id == account_id) & (SESSION.c.token != hashed(self._secret, token))
        return self._ledger.change(lambda connection: connection.execute(delete(SESSION).where(others)).rowcount)

    def visits(self, account_id: int, token: str) -> list[Visit]:
        """List the sessions of an account that still run, newest first."""
        asked = select(SESSION).where(SESSION.c.account_id == account_id).order_by(SESSION.c.began.desc())
        rows, now = self._ledger.look(
            lambda connection: (connection.execute(asked).all(), self._ledger.database_time(connection))
        )
        key = hashed(self._secret, token)
        return [
            Visit(began=row.began, seen=row.seen, ends=row.ends, this=row.token == key)
            for row in rows
            if now < min(row.ends, row.seen + self._idle_s)
        ]
