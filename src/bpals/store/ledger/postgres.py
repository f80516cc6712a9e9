"""A ledger in a PostgreSQL database: many processes write, and each kind of work with one worker takes its lock."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import random
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine, delete, event, make_url, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from bpals.errors import BpalsError, ContractBroken, MissingExtra, TransactionLost, UsageError, WorkspaceError
from bpals.store.ledger.backend import Dialect, Migration, Ready, migrate, refuse_newer, version
from bpals.store.ledger.schema import LEDGER_ID, RECEIPT

# A whole address may stand in this variable: the place for one with a password, which no command line should show.
ENVIRONMENT = "BPALS_LEDGER"
_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_SECRET = ("password", "sslpassword")
_EXAMPLE = "postgresql://NAME@HOST:5432/DATABASE"

# How long a server may be away before a command gives up: a restart or a failover is shorter.
PATIENCE_S = 60.0
PAUSE_S = 0.1
CONNECTIONS = 8
MOST_CONNECTIONS = 40
LONGEST_NAME = 63  # bytes of a connection's name that PostgreSQL keeps

# Settings without which a power cut loses acknowledged commits.
_MUST_BE_ON = ("fsync", "full_page_writes")
# How an SQLSTATE begins: the server went away; transactions crossed; a constraint refused a row.
_LOST = ("08", "57P", "58")
_AGAIN = "40"
_REFUSED = "23"
_SENTENCES = {
    "25": "takes no writes: it is a copy, or was opened for reading",
    "53": "has no room. Make room on the server, then type the same command again",
    "42P07": "holds tables that bpals did not make. Give it a database of its own: createdb NAME",
    "42501": "does not allow you this. Ask its owner for the right to make and write tables",
}

_Result = TypeVar("_Result")


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


def shown(url: URL) -> str:
    """Write an address for people and for files: without any password."""
    query = {name: value for name, value in url.query.items() if name not in _SECRET}
    plain = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return plain.render_as_string(hide_password=False)


def address_of(given: str | None, remembered: str | None, environment: Mapping[str, str]) -> str | None:
    """Choose the ledger's address: the option, then the environment, then what the workspace remembers; else none.

    The environment may bring the password of the address that is meant; it may not silently name another ledger. The
    option may not bring one.
    """
    whole, meant = environment.get(ENVIRONMENT) or None, remembered
    if given is not None:
        url = parse_url(given)
        meant = shown(url)
        if has_password(url):
            raise UsageError(
                f"the ledger's address has a password in it, and a command line can be read by others. Put the address "
                f"into the environment instead: {ENVIRONMENT}={_EXAMPLE.replace('@', ':PASSWORD@')} "
                f"(or keep the password in ~/.pgpass and leave it out: --ledger {meant})"
            )
    if whole is None:
        return meant
    plain = shown(parse_url(whole))
    if meant is not None and plain != meant:
        raise UsageError(
            f"{ENVIRONMENT} names the ledger {plain}, but {meant} is meant. Unset {ENVIRONMENT}, or name it the same"
        )
    return whole


class Pool:
    """Connections to one database; any thread may use them."""

    def __init__(self, url: URL, *, readonly: bool = False, name: str = "bpals") -> None:
        """Make the pool and try one connection: a wrong address or name is an error at once."""
        self.where = shown(url)
        self._readonly = readonly
        try:
            self._engine = create_engine(
                url,
                # `answers` compiles its inserts once and fills them in by position.
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
        self.on_return: Callable[[], None] | None = None  # called in the first writing transaction after a reconnect
        self._anew = False
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._writers: set[str] = set()
        self._ended = ""
        self._met = False
        try:
            with self.translated_errors():
                self._connected().close()
        except BpalsError:
            self._engine.dispose()
            raise
        self._met = True

    def _set_up(self, driver: Any, _record: object) -> None:
        """Make sure that an acknowledged commit is on the disk, whatever the database's default is."""
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
        with self.translated_errors(), self._connected() as connection, connection.begin():
            yield connection

    def glance(self, ready: Ready, **values: Any) -> Any:
        """Give the first row of one statement that only reads."""
        return self.look(lambda connection: ready.first(connection, **values))

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that reads one moment, whoever else writes meanwhile."""
        with self.translated_errors(), self._connected() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    def change(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do some work in a transaction that may write, once, though connections break or transactions cross."""
        # Where only the answer to the commit was lost, the receipt says whether the commit was made.
        writer, number = f"{self._name} {threading.get_ident()}", next(self._numbers)
        self._writers.add(writer)
        ends = time.monotonic() + PATIENCE_S
        while True:
            finished = False
            try:
                with self.writing() as connection:
                    if self._anew and self.on_return is not None:
                        self._anew = False
                        self.on_return()
                    result = work(connection)
                    _write_receipt(connection, writer, number)
                    finished = True
            except TransactionLost:
                if finished and self.make(lambda connection: _has_receipt(connection, writer, number)):
                    return result
                if time.monotonic() >= ends:
                    raise
                # A random pause, so that two that crossed do not meet again.
                time.sleep(PAUSE_S * random.random())  # noqa: S311
            else:
                return result

    def make(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do some work in a transaction that may write, at least once: what it does may be done twice."""
        return self._patiently(self.writing, work)

    def look(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do some work that only reads, in a transaction of its own, again if the connection breaks."""
        return self._patiently(self.reading, work)

    def _patiently(
        self, begin: Callable[[], AbstractContextManager[Connection]], work: Callable[[Connection], _Result]
    ) -> _Result:
        ends = time.monotonic() + PATIENCE_S
        while True:
            try:
                with begin() as connection:
                    return work(connection)
            except TransactionLost:
                if time.monotonic() >= ends:
                    raise
                time.sleep(PAUSE_S)

    @contextlib.contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """Give a connection on which every statement is a transaction of its own."""
        with self.translated_errors(), self._connected() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def _connected(self) -> Connection:
        """Take a connection, waiting while the server is away."""
        ends = time.monotonic() + PATIENCE_S
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
        """Close the connections; later calls are refused."""
        if self._writers and not self._ended:
            writers, self._writers = sorted(self._writers), set()
            # Receipts are only needed while their writer lives. A server that is away keeps a few rows too many.
            with contextlib.suppress(BpalsError), self.writing() as connection:
                connection.execute(delete(RECEIPT).where(RECEIPT.c.writer.in_(writers)))
        self._ended = self._ended or f"the ledger at {self.where} is closed"
        self._engine.dispose()

    @contextlib.contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn an error of the driver into one that says what to do."""
        try:
            yield
        except DBAPIError as error:
            raise self._translate(error) from error

    def _translate(self, error: DBAPIError) -> Exception:
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


def _write_receipt(connection: Connection, writer: str, number: int) -> None:
    """Write the number of this transaction into its writer's row."""
    new = insert(RECEIPT).values(writer=writer, number=number)
    connection.execute(new.on_conflict_do_update(index_elements=["writer"], set_={"number": number}))


def _has_receipt(connection: Connection, writer: str, number: int) -> bool:
    """Say whether the transaction of that number was made; one that is still on its way is waited for."""
    # The row must exist to be locked: only then does this wait for a commit that is under way.
    connection.execute(insert(RECEIPT).values(writer=writer, number=0).on_conflict_do_nothing())
    found = select(RECEIPT.c.number).where(RECEIPT.c.writer == writer).with_for_update()
    return bool(connection.execute(found).scalar_one() == number)


def _advice(words: str) -> str:
    """Say what to do about a server that refused; libpq gives its reasons in words only."""
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


class ServerBackend(Pool):
    """One database as a ledger."""

    dialect: Dialect = "postgresql"

    def __init__(self, url: URL, *, readonly: bool) -> None:
        """Connect; a server that does not keep what it acknowledges is refused to writers."""
        super().__init__(url, readonly=readonly)
        self._url = url
        if not readonly:
            try:
                self._check_durability()
            except BpalsError:
                self.close()
                raise

    @property
    def path(self) -> Path:
        """Refuse: there is no file."""
        raise UsageError(f"the ledger at {self.where} is no file")

    def _check_durability(self) -> None:
        def read(connection: Connection) -> list[str]:
            found = {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in _MUST_BE_ON}
            return [name for name, value in found.items() if value != "on"]

        if off := self.look(read):
            repair = " ".join(f"ALTER SYSTEM SET {name} = on;" for name in off)
            raise WorkspaceError(
                f"the server at {self.where} has {' and '.join(off)} off: a power cut would lose or damage what it has "
                f"acknowledged. Type in psql: {repair} SELECT pg_reload_conf();"
            )

    def bring_up(self, known: Sequence[Migration], *, readonly: bool) -> None:
        """Make the migrations that are due, all or none; of two that begin at once the second waits."""
        found = self.look(version)
        refuse_newer(self.where, found, known)
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

        def bring_up(connection: Connection) -> None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:ours, 0)"), {"ours": LEDGER_ID})
            migrate(connection, version(connection), known)

        self.make(bring_up)

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Hold the lock for this work; a second process gets an error with the process and host of the first."""
        # The lock belongs to a connection, so it ends with this process. After a restart of the server the first
        # transaction takes it again; until then the unique keys prevent that a row is written twice.
        hold = _Hold(self._url, what)
        try:
            self._keep(hold)
            self.on_return = lambda: self._keep(hold)
            yield
        finally:
            self.on_return = None
            hold.close()

    def _keep(self, hold: _Hold) -> None:
        if not hold.take():
            number = _key(hold.what)["what"] % 2**32  # pg_locks shows it without its sign
            who = next((name for held, name in self._holders() if held == number), "")
            raise WorkspaceError(f"{who} is writing to {self.where}. Wait for it to end, or stop it")

    def busy(self, what: str) -> bool:
        """Say whether somebody does this now, or a shard of it."""
        return any(f"{name} ".startswith(f"{what} ") for _, name in self._holders())

    def _holders(self) -> list[tuple[int, str]]:
        """Give the number of each lock that is held in this database, and who holds it."""
        query = text(
            "SELECT l.objid, a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
            "WHERE l.locktype = 'advisory' AND l.granted AND l.classid = :ours AND l.objsubid = 2 "
            "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return self.look(
            lambda connection: [(int(row[0]), str(row[1])) for row in connection.execute(query, {"ours": LEDGER_ID})]
        )

    def backup(self, _target: str | os.PathLike[str]) -> None:
        """Refuse: PostgreSQL has its own way."""
        raise UsageError(f"a ledger on PostgreSQL is copied by pg_dump. Type: pg_dump -Fc -f ledger.dump {self.where}")


class _Hold:
    """A lock that one connection holds."""

    def __init__(self, url: URL, what: str) -> None:
        """Name the work and connect; the connection carries the holder's name, for those who are refused."""
        self.what = what
        name = f"{what} (process {os.getpid()} on {platform.node()})".encode()[:LONGEST_NAME].decode(errors="ignore")
        self._pool = Pool(url, name=name)
        self._closing = contextlib.ExitStack()
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take the lock, or see that it is still held; say whether it is."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(TransactionLost), self._pool.translated_errors():
                    self._connection.exec_driver_sql("SELECT 1")
                    return True
                self._let_go()
            self._connection = self._closing.enter_context(self._pool.autocommit())
            statement = text("SELECT pg_try_advisory_lock(:ours, :what)")
            if self._connection.execute(statement, _key(self.what)).scalar_one():
                return True
            self._let_go()
            return False

    def _let_go(self) -> None:
        if self._connection is not None and not self._connection.invalidated:
            # A closed connection would do too, but only when the server has noticed.
            with contextlib.suppress(TransactionLost), self._pool.translated_errors():
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
        self._connection = None
        self._closing.close()

    def close(self) -> None:
        """Let the lock go."""
        self._let_go()
        self._pool.close()


def _key(what: str) -> dict[str, int]:
    """Give the two 4-byte numbers of a lock: ours, and that of the work."""
    number = zlib.crc32(what.encode())
    return {"ours": LEDGER_ID, "what": number - 2**32 if number >= 2**31 else number}
