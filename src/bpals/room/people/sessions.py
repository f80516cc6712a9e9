"""Sessions: who is logged in, the installation's secret that signs them, and how often a login may be tried.

Sessions are kept in the ledger, so that ending one ends it everywhere.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from bpals.room.desk.study import Account
from bpals.room.people.accounts import hashed, new_token
from bpals.store.files import sync_folder
from bpals.store.ledger import Ledger
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.schema import ACCOUNT, SESSION

SECRET_BYTES = 32
OWNER_ONLY = 0o600


NEVER = "there was none"  # why a secret is new in a room that was never opened


def read_secret(path: Path) -> tuple[bytes, str]:
    """Give the secret, and why it is new if it is; one that others could have read, or that is cut off, is replaced.

    Tokens are hashed with it, so whoever was in by the old one is out.
    """
    why = _unfit(path)
    if not why:
        return path.read_bytes(), ""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    content = secrets.token_bytes(SECRET_BYTES)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)
    return content, why


def _unfit(path: Path) -> str:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return NEVER
    if not stat.S_ISREG(found.st_mode):
        return "it was no plain file"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"others could read it (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_uid != os.getuid():
        return "it belonged to somebody else"
    return "" if found.st_size == SECRET_BYTES else "it was cut off"


MOST_KEYS = 10_000  # keys that are remembered; the one that was tried longest ago is forgotten first


class Throttle:
    """Counts tries in a sliding window; a try is counted before it is looked at, so that many at once count as many."""

    def __init__(self, most: int, window_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow so many tries in so many seconds."""
        self._most = most
        self._window_s = window_s
        self._clock = clock
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()
        self._guard = threading.Lock()

    def wait_s(self, key: str) -> float:
        """Count a try and give 0, or give the seconds until the next is allowed."""
        with self._guard:
            now = self._clock()
            tries = self._tries.setdefault(key, deque())
            self._tries.move_to_end(key)
            while tries and tries[0] <= now - self._window_s:
                tries.popleft()
            if len(tries) >= self._most:
                return tries[0] + self._window_s - now
            tries.append(now)
            while len(self._tries) > MOST_KEYS:
                self._tries.popitem(last=False)
            return 0.0

    def take_back(self, key: str) -> None:
        """Do not count the last try: it was right."""
        with self._guard:
            if tries := self._tries.get(key):
                tries.pop()

    def forget(self, key: str) -> None:
        """Count from nothing again."""
        with self._guard:
            self._tries.pop(key, None)


SEEN_EVERY_S = 60  # `seen` is written at most this often: a request that only reads stays one that only reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One session, as its owner sees it."""

    began: float
    seen: float
    ends: float  # at the latest, however often it is used; without a request it ends before
    this: bool  # the one that asks


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
