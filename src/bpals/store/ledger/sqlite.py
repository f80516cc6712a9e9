"""A ledger in a file of the workspace: one writing process, a backup before each change of the tables."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool

from bpals.errors import BpalsError, ContractBroken, LockHeld, WorkspaceError
from bpals.store.ledger import backend, runs
from bpals.store.ledger.backend import Dialect, Migration, Ready
from bpals.store.ledger.locks import SERVING, Place, Together, Turn, held, holder, only_writer

Connect = Callable[[], Any]
"""Gives a DB-API connection to the ledger's file, in autocommit mode."""

BUSY_MS = 10_000
LOG_BYTES = 4 << 20
"""The log is moved into the file when it has grown by this much."""

READERS = 4
"""Connections that stay open for reading; more are opened while they are needed."""

_BEGIN = "begins_with"
_Given = TypeVar("_Given")


def file_connection(path: Path, *, readonly: bool) -> sqlite3.Connection:
    """Connect to the file; a reader never makes one."""
    address = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)


class Link:
    """One connection that writes, by one thread at a time, and some that read; after an error of the disk none does."""

    def __init__(self, place: Place, connect: Connect, *, readonly: bool) -> None:
        """Open the connection that writes and set it up."""
        self._place = place
        self._readonly = readonly
        self._turn = Turn()
        self._together = Together(self._turn, lambda: self._use(self._writer, "BEGIN IMMEDIATE"))
        self._ended = ""
        self._inode: tuple[int, int] | None = None
        self._log_kept = 0
        self._writer = create_engine("sqlite://", creator=connect, poolclass=StaticPool, pool_reset_on_return=None)
        # Nobody waits for a reader's connection: it costs less than a thread that stands still.
        self._readers = create_engine(
            "sqlite://", creator=connect, poolclass=QueuePool, pool_size=READERS, max_overflow=-1
        )
        event.listen(self._writer, "connect", self._set_up_writer)
        event.listen(self._readers, "connect", self._set_up_reader)
        for engine in (self._writer, self._readers):
            event.listen(engine, "begin", _begin)
        try:
            with self._speaking():
                self._writer.connect().close()
        except (BpalsError, OSError):
            self._writer.dispose()
            raise
        self._inode = self._where()

    def _set_up_writer(self, driver: Any, _record: object) -> None:
        cursor = driver.cursor()
        _set_up(cursor)
        if not self._readonly:
            cursor.execute("PRAGMA journal_mode=WAL")
            (mode,) = cursor.fetchone()
            if mode != "wal":
                raise WorkspaceError(f"{self._place.path} cannot keep a write-ahead log (it is in mode {mode!r})")
        cursor.close()

    def _set_up_reader(self, driver: Any, _record: object) -> None:
        cursor = driver.cursor()
        _set_up(cursor)
        cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that may write; it is durable when this ends, or it never was."""
        with self._turn, self._use(self._writer, "BEGIN IMMEDIATE") as connection:
            yield connection
        self._empty_log_if_due()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that reads one moment, whoever else writes meanwhile."""
        with self._use(self._readers, "BEGIN") as connection:
            yield connection

    def change(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work in a transaction that may write, and give what it gives once that is durable."""
        given = self._together.do(work)
        self._empty_log_if_due()
        return given

    def look(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work that only reads, in a transaction of its own."""
        with self.reading() as connection:
            return work(connection)

    def glance(self, ready: Ready, **values: Any) -> Any:
        """Give the first row of one statement that only reads, in no transaction."""
        self._check_place()
        with self._speaking():
            driver = self._readers.raw_connection()
            try:
                return ready.first_of(driver, values)
            finally:
                driver.close()

    @contextlib.contextmanager
    def bare(self) -> Iterator[Connection]:
        """Give the connection outside of any transaction: checkpoints and backups need that."""
        with self._turn, self._use(self._writer, "") as connection:
            yield connection

    def _empty_log_if_due(self) -> None:
        if self._place.log_bytes() - self._log_kept >= LOG_BYTES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Move the log into the file and empty it; what a reader still needs stays for the next time."""
        with self.bare() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout=0")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").all()
            connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_MS}")
        self._log_kept = self._place.log_bytes()

    def _check_place(self) -> None:
        if self._ended:
            raise WorkspaceError(self._ended)
        if self._where() != self._inode:
            self._ended = (
                f"{self._place.path} was removed or replaced while it was in use: nothing more is written. "
                "Put it back, then type the same command again"
            )
            raise WorkspaceError(self._ended)

    @contextlib.contextmanager
    def _use(self, engine: Engine, begin: str) -> Iterator[Connection]:
        self._check_place()
        with self._speaking(), engine.connect() as connection:
            connection.execution_options(**{_BEGIN: begin})
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Close the connections; what follows is refused."""
        with self._turn:
            self._ended = self._ended or f"{self._place.path} is closed"
            # The writer goes last: who closes last empties the log.
            self._readers.dispose()
            self._writer.dispose()

    def _where(self) -> tuple[int, int] | None:
        try:
            found = self._place.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            raise self._say(error) from error

    def _say(self, error: DBAPIError | sqlite3.Error) -> Exception:
        """Turn an error of the driver into one that says what to do, and end what may not go on."""
        path = self._place.path
        said = error.orig if isinstance(error, DBAPIError) else error
        code = getattr(said, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        name = getattr(said, "sqlite_errorname", said)
        match code & 0xFF:
            case sqlite3.SQLITE_FULL:
                self._ended = (
                    f"the disk is full: {path} takes nothing more. Make room, then type the same command again"
                )
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            case sqlite3.SQLITE_IOERR:
                # A second fsync after a failed one may falsely succeed: stop, reopen, verify.
                self._doubt()
                self._ended = (
                    f"{path} could not be read or written ({name}): nothing more is written. "
                    "Check the disk, then type the same command again; the ledger is verified first"
                )
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                self._ended = f"{path} is damaged or cut off ({said}). Put a backup in its place"
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
                self._ended = (
                    f"{path} cannot be opened for this ({said}). "
                    "Give yourself the right to write it and its folder, or name another with --workspace DIR"
                )
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return WorkspaceError(f"another process is writing to {path}. Wait for it to end, then type it again")
            case sqlite3.SQLITE_CONSTRAINT:
                return ContractBroken(f"{path} refuses a row: {said}")
            case _:
                return error
        return WorkspaceError(self._ended)

    def _doubt(self) -> None:
        # The disk that failed may also refuse this note; then the verification is lost, nothing else.
        with contextlib.suppress(OSError):
            self._place.doubt.touch()


def _set_up(cursor: Any) -> None:
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA synchronous=FULL")
    # SQLite's own checkpoints hide an error of the disk: they are done by hand, in `writing`.
    cursor.execute("PRAGMA wal_autocheckpoint=0")


def _begin(connection: Connection) -> None:
    if statement := connection.get_execution_options().get(_BEGIN, "BEGIN"):
        connection.exec_driver_sql(statement)


BRINGING = "bringing the ledger up to date"
PATIENCE_S, PAUSE_S = 10.0, 0.05
"""How long one waits for another process that does just that."""


class FileHome:
    """The file of one ledger, the files beside it, and the connections to it."""

    dialect: Dialect = "sqlite"

    def __init__(self, place: Place, link: Link) -> None:
        """Take over a connection: use `FileHome.open`."""
        self._place = place
        self.link = link
        self.where = str(place.path)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], connect: Connect | None, *, readonly: bool, must_exist: bool
    ) -> FileHome:
        """Connect to the file at a path, making it if nothing is there; a file that is no ledger is never touched."""
        place = Place(path)
        if not place.check(must_exist=readonly or must_exist):
            place.announce()
        connect = connect or functools.partial(file_connection, place.path, readonly=readonly)
        return cls(place, Link(place, connect, readonly=readonly))

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._place.path

    def bring_up(self, known: Sequence[Migration], *, readonly: bool) -> None:
        """Make the changes of the tables that are due: all or none, and first a backup of what is there."""
        found = self.link.look(backend.version)
        backend.refuse_newer(self.where, found, known)
        if readonly and self._due(known):
            self._bring_up_elsewhere(known)
            return
        until = time.monotonic() + PATIENCE_S
        while self._due(known):
            try:
                self._bring_up_now(known)
            except LockHeld:
                # Two that find a new ledger at one moment: one makes its tables, the other finds them made.
                if time.monotonic() > until or holder(self._place.lock) not in {None, "", BRINGING}:
                    raise
                time.sleep(PAUSE_S)

    def _due(self, known: Sequence[Migration]) -> bool:
        return self.link.look(backend.version) < known[-1].number or self._place.birth.exists()

    def _bring_up_now(self, known: Sequence[Migration]) -> None:
        latest = known[-1].number
        with only_writer(self._place.lock, BRINGING):
            found = self.link.look(backend.version)
            if 0 < found < latest:
                self._copy(Path(f"{self.path}.before-{latest}"))
            with self.link.writing() as connection:
                backend.make_due(connection, found, known)
            self.link.checkpoint()
            self._place.birth.unlink(missing_ok=True)
            self._place.sync_folder()

    def _bring_up_elsewhere(self, known: Sequence[Migration]) -> None:
        """Bring the tables up through a connection that may write: a reader of old tables has no other way."""
        found = self.link.look(backend.version)
        try:
            writer = FileHome.open(self.path, None, readonly=False, must_exist=True)
            try:
                writer.bring_up(known, readonly=False)
            finally:
                writer.link.close()
        except (BpalsError, OSError) as error:
            raise WorkspaceError(
                f"{self.path} has tables {found}, this bpals reads {known[-1].number}, "
                f"and they could not be brought up to date: {error}"
            ) from error

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Be the only writer while inside; a second is refused, and told the process and host of the first."""
        with only_writer(self._place.lock, what):
            self._settle()
            yield

    def busy(self, _what: str) -> bool:
        """Say whether a run is at work, in this process or another: a file has one lock for all but a served room's."""
        now = holder(self._place.lock)
        return held(self._place.relayed) if now == SERVING else now is not None

    def _settle(self) -> None:
        """Look at what the last writer left: verify after an error of the disk, and empty the log.

        A log that was written but not synced may be read back from memory only. Copying it into the file and syncing
        that makes it true.
        """
        doubted = self._place.doubt.exists()
        if doubted and (found := self.link.look(runs.problems)):
            raise WorkspaceError(f"{self.path} is damaged: {found[0]}. Put a backup in its place")
        self.link.checkpoint()
        if doubted:
            self._place.doubt.unlink(missing_ok=True)

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the ledger as it is at one moment to a new file; runs may go on meanwhile."""
        target = Path(target)
        if target.exists():
            raise WorkspaceError(f"{target} is there already and is not overwritten. Name another file")
        self._copy(target)

    def _copy(self, target: Path) -> None:
        part = Path(f"{target}.part-{os.getpid()}")
        part.unlink(missing_ok=True)
        try:
            with self.link.bare() as connection:
                connection.exec_driver_sql("VACUUM INTO ?", (str(part),))
            place = Place(target)
            place.take(part)
        finally:
            part.unlink(missing_ok=True)
