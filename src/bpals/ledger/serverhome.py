"""A ledger in a PostgreSQL database: many processes write, each kind of work that needs one worker takes its lock."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import URL, Connection, text

from bpals.errors import BpalsError, TransactionLost, UsageError, WorkspaceError
from bpals.ledger import migrations
from bpals.ledger.home import Dialect
from bpals.ledger.migrations import Migration
from bpals.ledger.place import OURS
from bpals.ledger.server import ServerLink

LONGEST_NAME = 63
"""Bytes of a connection's name that PostgreSQL keeps."""

_MUST_BE_ON = ("fsync", "full_page_writes")


class ServerHome:
    """One database and the connections to it."""

    dialect: Dialect = "postgresql"

    def __init__(self, url: URL, *, readonly: bool) -> None:
        """Connect; a server that does not keep what it acknowledges is refused to writers."""
        self._url = url
        self.link = ServerLink(url, readonly=readonly)
        self.where = self.link.where
        if not readonly:
            try:
                self._check_durability()
            except BpalsError:
                self.link.close()
                raise

    @property
    def path(self) -> Path:
        """Refuse: there is no file."""
        raise UsageError(f"the ledger at {self.where} is no file")

    def _check_durability(self) -> None:
        def ask(connection: Connection) -> list[str]:
            found = {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in _MUST_BE_ON}
            return [name for name, value in found.items() if value != "on"]

        if off := self.link.look(ask):
            repair = " ".join(f"ALTER SYSTEM SET {name} = on;" for name in off)
            raise WorkspaceError(
                f"the server at {self.where} has {' and '.join(off)} off: a power cut would lose or damage what it has "
                f"acknowledged. Type in psql: {repair} SELECT pg_reload_conf();"
            )

    def bring_up(self, known: Sequence[Migration], *, readonly: bool) -> None:
        """Make the changes of the tables that are due, all or none; of two that begin at once the second waits."""
        found = self.link.look(migrations.version)
        migrations.refuse_newer(self.where, found, known)
        latest = known[-1].number
        if found == latest:
            return
        if readonly and not found:
            raise WorkspaceError(f"{self.where} holds no ledger yet. Type: bpals judge run SPEC --ledger {self.where}")
        if readonly:
            raise WorkspaceError(
                f"{self.where} has tables {found} and this bpals reads {latest}. Bring it up to date: "
                f"bpals review serve --ledger {self.where}, or bpals judge run SPEC --ledger {self.where}"
            )

        def make(connection: Connection) -> None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:ours, 0)"), {"ours": OURS})
            migrations.make_due(connection, migrations.version(connection), known)

        self.link.make(make)

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Be the only one that does this while inside; a second is refused, and told the process and host of the first.

        The lock is that of a connection: it ends with this process. After a restart of the server it is taken again
        with the first transaction; meanwhile the tables themselves hold that nothing is written twice.
        """
        hold = _Hold(self._url, what)
        try:
            self._keep(hold)
            self.link.on_return = lambda: self._keep(hold)
            yield
        finally:
            self.link.on_return = None
            hold.close()

    def _keep(self, hold: _Hold) -> None:
        if not hold.take():
            raise WorkspaceError(f"{self._who(hold.what)} is writing to {self.where}. Wait for it to end, or stop it")

    def busy(self, what: str) -> bool:
        """Say whether somebody does this now, or a part of it."""
        return any(f"{name} ".startswith(f"{what} ") for _, name in self._holders())

    def _who(self, what: str) -> str:
        number = _key(what)["what"] % 2**32
        return next((name for held, name in self._holders() if held == number), "")

    def _holders(self) -> list[tuple[int, str]]:
        """Give the number of each lock that is held in this database, and who holds it."""
        asked = text(
            "SELECT l.objid, a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
            "WHERE l.locktype = 'advisory' AND l.granted AND l.classid = :ours AND l.objsubid = 2 "
            "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return self.link.look(
            lambda connection: [(int(row[0]), str(row[1])) for row in connection.execute(asked, {"ours": OURS})]
        )

    def backup(self, _target: str | os.PathLike[str]) -> None:
        """Refuse: PostgreSQL has its own way."""
        raise UsageError(f"a ledger on PostgreSQL is copied by pg_dump. Type: pg_dump -Fc -f ledger.dump {self.where}")


class _Hold:
    """A lock that one connection holds."""

    def __init__(self, url: URL, what: str) -> None:
        """Name the work and connect; the connection bears the name of who works, for those who are refused."""
        self.what = what
        name = f"{what} (process {os.getpid()} on {platform.node()})".encode()[:LONGEST_NAME].decode(errors="ignore")
        self._link = ServerLink(url, name=name)
        self._closing = contextlib.ExitStack()
        self._connection: Connection | None = None
        self._turn = threading.Lock()

    def take(self) -> bool:
        """Take the lock, or see that it is still held; say whether it is."""
        with self._turn:
            return self._take()

    def _take(self) -> bool:
        if self._connection is not None:
            with contextlib.suppress(TransactionLost), self._link.speaking():
                self._connection.exec_driver_sql("SELECT 1")
                return True
            self._let_go()
        self._connection = self._closing.enter_context(self._link.bare())
        statement = text("SELECT pg_try_advisory_lock(:ours, :what)")
        if self._connection.execute(statement, _key(self.what)).scalar_one():
            return True
        self._let_go()
        return False

    def _let_go(self) -> None:
        if self._connection is not None and not self._connection.invalidated:
            # A closed connection would do too, but only when the server has noticed.
            with contextlib.suppress(TransactionLost), self._link.speaking():
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
        self._connection = None
        self._closing.close()

    def close(self) -> None:
        """Let the lock go."""
        self._let_go()
        self._link.close()


def _key(what: str) -> dict[str, int]:
    """Give the two 4-byte numbers of a lock: ours, and that of the work."""
    number = zlib.crc32(what.encode())
    return {"ours": OURS, "what": number - 2**32 if number >= 2**31 else number}
