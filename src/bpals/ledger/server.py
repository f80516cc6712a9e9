"""The connections to PostgreSQL: opened anew when they break, and transactions that are made once, whatever breaks."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from bpals.errors import BpalsError, ContractBroken, MissingExtra, TransactionLost, WorkspaceError
from bpals.ledger.ready import Ready
from bpals.ledger.receipt import drop_receipts, has_receipt, write_receipt
from bpals.ledger.url import shown

PATIENCE_S = 60.0
"""How long a server may be away before a command gives up: a restart or a failover is shorter."""
PAUSE_S = 0.1
CONNECTIONS = 8
MOST_CONNECTIONS = 40

_LOST = ("08", "57P", "58")
_AGAIN = "40"
_REFUSED = "23"
_SENTENCES = {
    "25": "takes no writes: it is a copy, or was opened for reading",
    "53": "has no room. Make room on the server, then type the same command again",
    "42P07": "holds tables that bpals did not make. Give it a database of its own: createdb NAME",
    "42501": "does not allow you this. Ask its owner for the right to make and write tables",
}
"""What an error means, by how its SQLSTATE begins."""

_Given = TypeVar("_Given")


class ServerLink:
    """A pool of connections to one database; any thread may use it."""

    dialect = "postgresql"

    def __init__(
        self, url: URL, *, readonly: bool = False, name: str = "bpals", patience_s: float = PATIENCE_S
    ) -> None:
        """Make the pool and try one connection; a wrong address or name is said at once."""
        self.where = shown(url)
        self._readonly = readonly
        self._patience_s = patience_s
        try:
            self._engine = create_engine(
                url,
                # The films' inserts are written once and filled in by place.
                paramstyle="format",
                hide_parameters=True,
                pool_pre_ping=True,
                pool_size=CONNECTIONS,
                max_overflow=MOST_CONNECTIONS - CONNECTIONS,
                connect_args={"connect_timeout": 10, "application_name": name},
            )
        except ModuleNotFoundError:
            raise MissingExtra.of("a ledger on PostgreSQL", "postgres") from None
        event.listen(self._engine, "connect", self._set_up)
        self.on_return: Callable[[], None] | None = None
        """Called inside the next transaction that writes, once there was reason to connect anew."""
        self._anew = False
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._writers: set[str] = set()
        self._ended = ""
        self._met = False
        try:
            with self.speaking():
                self._connected().close()
        except BpalsError:
            self._engine.dispose()
            raise
        self._met = True

    def _set_up(self, driver: Any, _record: object) -> None:
        """See that a commit is on the disk when it is answered, whatever the database's default is."""
        with driver.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        driver.commit()
        self._anew = True

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that may write; `TransactionLost` means that it may be tried again as a whole."""
        if self._readonly:
            raise WorkspaceError(f"the ledger at {self.where} was opened for reading: it takes no writes")
        with self.speaking(), self._connected() as connection, connection.begin():
            yield connection

    def glance(self, ready: Ready, **values: Any) -> Any:
        """Give the first row of one statement that only reads."""
        return self.look(lambda connection: ready.first(connection, **values))

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that reads one moment, whoever else writes meanwhile."""
        with self.speaking(), self._connected() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    def change(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work in a transaction that may write, once, though connections break or other transactions cross it.

        The work is begun anew where its transaction was lost. Where the answer to the commit was lost, the receipt
        says whether it was made.
        """
        writer, number = f"{self._name} {threading.get_ident()}", next(self._numbers)
        self._writers.add(writer)
        ends = time.monotonic() + self._patience_s
        while True:
            finished = False
            try:
                with self.writing() as connection:
                    self._greet()
                    given = work(connection)
                    write_receipt(connection, writer, number)
                    finished = True
            except TransactionLost:
                if finished and self.make(lambda connection: has_receipt(connection, writer, number)):
                    return given
                if time.monotonic() >= ends:
                    raise
                # By chance, so that two that cross do not meet again.
                time.sleep(PAUSE_S * random.random())  # noqa: S311
            else:
                return given

    def make(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work in a transaction that may write, at least once: what it does may be done twice."""
        ends = time.monotonic() + self._patience_s
        while True:
            try:
                with self.writing() as connection:
                    return work(connection)
            except TransactionLost:
                if time.monotonic() >= ends:
                    raise
                time.sleep(PAUSE_S)

    def _greet(self) -> None:
        if self._anew and self.on_return is not None:
            self._anew = False
            self.on_return()

    def look(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work that only reads, in a transaction of its own, again if the connection breaks."""
        ends = time.monotonic() + self._patience_s
        while True:
            try:
                with self.reading() as connection:
                    return work(connection)
            except TransactionLost:
                if time.monotonic() >= ends:
                    raise
                time.sleep(PAUSE_S)

    @contextlib.contextmanager
    def bare(self) -> Iterator[Connection]:
        """Give a connection on which every statement stands for itself."""
        with self.speaking(), self._connected() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def _connected(self) -> Connection:
        """Take a connection, waiting while the server is away."""
        ends = time.monotonic() + self._patience_s
        while True:
            if self._ended:
                raise WorkspaceError(self._ended)
            try:
                return self._engine.connect()
            except DBAPIError as error:
                waits = self._met or _state(error) or "starting up" in str(error.orig)
                if not waits or not _away(error) or time.monotonic() >= ends:
                    raise
            except PoolTimeout:
                raise WorkspaceError(
                    f"{MOST_CONNECTIONS} connections to {self.where} are in use and none came free in 30 s. "
                    "Let fewer people work at once, or see in pg_stat_activity what holds them"
                ) from None
            time.sleep(PAUSE_S)

    def close(self) -> None:
        """Close the connections; what follows is refused."""
        if self._writers and not self._ended:
            writers, self._writers = sorted(self._writers), set()
            # A server that is away keeps a few rows too many.
            with contextlib.suppress(BpalsError), self.writing() as connection:
                drop_receipts(connection, writers)
        self._ended = self._ended or f"the ledger at {self.where} is closed"
        self._engine.dispose()

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Let an error of the driver say what to do."""
        try:
            yield
        except DBAPIError as error:
            raise self._say(error) from error

    def _say(self, error: DBAPIError) -> Exception:
        """Turn an error of the driver into one that says what to do."""
        words = " ".join(str(error.orig).split())
        if not self._met:
            return WorkspaceError(f"the ledger at {self.where} cannot be opened ({words}). {_advice(words)}")
        code = _state(error)
        if error.connection_invalidated or _away(error) or code.startswith(_AGAIN):
            return TransactionLost(
                f"the ledger at {self.where} went away or was crossed by another ({words}). "
                "See that the server runs, then type the same command again"
            )
        if code.startswith(_REFUSED):
            return ContractBroken(f"the ledger at {self.where} refuses a row: {words}")
        for beginning, sentence in _SENTENCES.items():
            if code.startswith(beginning):
                return WorkspaceError(f"the ledger at {self.where} {sentence} ({words})")
        return error


def _advice(words: str) -> str:
    """Say what to do about a server that did not let us in; libpq tells the reasons apart by words only."""
    if "password" in words or "authentication" in words:
        return "Give the password in ~/.pgpass, or the whole address in the environment variable BPALS_LEDGER"
    if "does not exist" in words:
        return "Make the database, or the role, first: createdb NAME"
    return "See that the server runs and that host and port are right"


def _state(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _away(error: DBAPIError) -> bool:
    """Say whether the server is not there now: no answer at all, or one that says it is starting or stopping."""
    code = _state(error)
    if code:
        return code.startswith(_LOST)
    return error.connection_invalidated or type(error.orig).__name__ == "OperationalError"
