"""A ledger in a file of the workspace: one writing process, a backup before each migration.

ledger.sqlite  ledger.sqlite-wal      the tables, and SQLite's log
ledger.lock  ledger.relayed.lock      held by the writer, and by a run whose answers the reading room writes
ledger.sqlite-birth  -doubt           there while the ledger is made, and after the disk failed
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool

from bpals.errors import BpalsError, ContractBroken, LockHeld, WorkspaceError
from bpals.store.files import sync_folder
from bpals.store.ledger import runs
from bpals.store.ledger.backend import Dialect, Migration, Ready, migrate, refuse_newer, version
from bpals.store.ledger.locks import SERVING, FairLock, GroupCommit, held, holder, only_writer
from bpals.store.ledger.schema import LEDGER_ID

Connect = Callable[[], Any]
"""Gives a DB-API connection to the ledger's file, in autocommit mode."""

BUSY_MS = 10_000
# The log is moved into the file when it has grown by this much: a larger one makes every read slower.
LOG_BYTES = 4 << 20
# Connections that stay open for reading; more are opened while they are needed.
READERS = 4
# How long to wait for another process that migrates the same tables.
PATIENCE_S, PAUSE_S = 60.0, 0.05
MIGRATING = "bringing the ledger up to date"

MAGIC = b"SQLite format 3\0"
MOUNTS = Path("/proc/mounts")
ELSEWHERE = "Name a folder on a local disk with --workspace DIR"
# SQLite's log needs shared memory, which these do not have: two machines would damage the file.
_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\d?|smbfs|ncpfs|afs|ceph|lustre|gpfs|beegfs|glusterfs|davfs|drvfs|9p)$"
    r"|fuse\.(sshfs|glusterfs|ceph|s3fs|gcsfuse|goofys|rclone|davfs|mergerfs|hadoop|mount-s3)"
)
_NO_JOURNAL = ("exfat", "vfat", "msdos")
# The first SQLite whose log bears two writing processes.
_FIXED = (3, 51, 3)

_BEGIN = "begins_with"
_Result = TypeVar("_Result")


def unfit(folder: Path, mounts: str) -> str | None:
    """Say why a ledger may not lie in a folder, given the text of /proc/mounts; None where it may."""
    found = _mount_of(folder, mounts)
    if found is None:
        return None
    point, kind, options = found
    if _NETWORK.match(kind):
        return (
            f"{folder} lies on {point}, a network filesystem ({kind}): SQLite's log needs memory that all "
            f"its users share, and would be damaged there. {ELSEWHERE}"
        )
    if kind in _NO_JOURNAL:
        return f"{folder} lies on {point}, which is {kind}: it may lose a file in a power cut. {ELSEWHERE}"
    if "ro" in options.split(","):
        return f"{folder} lies on {point}, which is mounted read-only. {ELSEWHERE}"
    return None


def _mount_of(folder: Path, mounts: str) -> tuple[str, str, str] | None:
    """Find the innermost mount that holds a folder; of two on one point the later one hides the earlier."""
    best: tuple[str, str, str] | None = None
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) < 4:
            continue
        # /proc/mounts writes a space in a path as \040.
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[1])
        if folder.is_relative_to(point) and (best is None or len(point) >= len(best[0])):
            best = (point, words[2], words[3])
    return best


def old_sqlite(version: tuple[int, ...]) -> str | None:
    """Say what to mind with an SQLite of this version; None where its log is sound."""
    if version >= _FIXED:
        return None
    written = ".".join(map(str, version))
    return (
        f"{written}, fine for a ledger: one process writes to a workspace, a judge run beside the reading room writes "
        "through it, and bpals refuses a second (before 3.51.3 SQLite itself does not bear two)"
    )


def _ours(header: bytes) -> bool:
    return int.from_bytes(header[68:72], "big") == LEDGER_ID


class Place:
    """The file of one ledger and the files beside it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the files; nothing is read or made yet."""
        self.path = Path(path)
        self.log = Path(f"{self.path}-wal")
        self.lock = self.path.with_suffix(".lock")
        self.relayed = self.path.with_suffix(".relayed.lock")  # held by a run whose answers the serving process writes
        self.socket = self.path.with_name(f".{self.path.stem}.sock")  # where the serving process takes them
        self.birth = Path(f"{self.path}-birth")  # while it exists, a half-made file is known as ours
        self.doubt = Path(f"{self.path}-doubt")  # after a failed read or write: the next writer verifies first

    def check(self, *, must_exist: bool) -> bool:
        """Say whether a ledger is here already; refuse a place or a file that is not fit to be one."""
        folder = self.path.absolute().parent.resolve()
        try:
            mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            mounts = ""  # only Linux has it
        if why := unfit(folder, mounts):
            raise WorkspaceError(why)
        try:
            return self._look(must_exist=must_exist)
        except OSError as error:
            raise WorkspaceError(f"{self.path} cannot be read: {error.strerror}. {ELSEWHERE}") from None

    def _look(self, *, must_exist: bool) -> bool:
        try:
            kind = self.path.stat().st_mode
        except FileNotFoundError:
            if self.log_bytes():
                raise WorkspaceError(
                    f"{self.path} is gone, but {self.log.name}, which holds its last answers, is still there. "
                    f"Put the ledger back, or remove {self.log} to begin anew"
                ) from None
            if must_exist:
                raise WorkspaceError(
                    f"{self.path} does not exist: no judge was asked here. "
                    f"Type: bpals judge run SPEC --images PATH --workspace {self.path.parent}"
                ) from None
            return False
        if not stat.S_ISREG(kind):
            raise WorkspaceError(f"{self.path} is no file. {ELSEWHERE}")
        self._read_header()
        return True

    def _read_header(self) -> None:
        # Asked before the file is read: a ledger that is finished in between would look cut off.
        half_made = self.birth.exists()
        with self.path.open("rb") as file:
            header = file.read(100)
        if half_made and header[:16] in {b"", MAGIC}:
            return
        if not header:
            raise WorkspaceError(
                f"{self.path} is empty: its content was cut off. Put a backup in its place, or remove it to begin anew"
            )
        if header[:16] != MAGIC:
            raise WorkspaceError(f"{self.path} is not a database, and is left as it is. {ELSEWHERE}")
        page = int.from_bytes(header[16:18], "big")
        whole = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
        # While there is a log, the header may be older than the file: then its size proves nothing.
        if len(header) < 100 or (not self.log_bytes() and self.path.stat().st_size < whole):
            raise WorkspaceError(
                f"{self.path} is cut off after {self.path.stat().st_size} bytes. Put a backup in its place"
            )
        if not _ours(header):
            raise WorkspaceError(
                f"{self.path} is a database that bpals did not make, and is left as it is. {ELSEWHERE}"
            )

    def is_ours(self) -> bool:
        """Say whether the file itself, without its log, is marked as a ledger."""
        with self.path.open("rb") as file:
            return _ours(file.read(100))

    def log_bytes(self) -> int:
        """Give the size of the log; 0 if there is none."""
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def announce(self) -> None:
        """Mark that a ledger is about to be made here, so that a half-made one is known as ours."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.birth.touch()
            sync_folder(self.path.absolute().parent)
        except OSError as error:
            raise WorkspaceError(f"{self.path} cannot be made: {error.strerror}. {ELSEWHERE}") from None


def file_connection(path: Path, *, readonly: bool) -> sqlite3.Connection:
    """Connect to the file; a reader never makes one."""
    address = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)


class FileBackend:
    """One connection that writes, for one thread at a time, and some that read; an error of the disk ends both."""

    dialect: Dialect = "sqlite"

    def __init__(self, place: Place, connect: Connect, *, readonly: bool) -> None:
        """Open the connection that writes and set it up: use `FileBackend.open`."""
        self.path = place.path
        self.where = str(place.path)
        self._place = place
        self._readonly = readonly
        self._lock = FairLock()
        self._group = GroupCommit(self._lock, lambda: self._use(self._writer, "BEGIN IMMEDIATE"))
        self._ended = ""
        self._inode: tuple[int, int] | None = None
        self._log_kept = 0
        self._writer = create_engine("sqlite://", creator=connect, poolclass=StaticPool, pool_reset_on_return=None)
        # No limit on readers: a connection costs less than a thread that waits for one.
        self._readers = create_engine(
            "sqlite://", creator=connect, poolclass=QueuePool, pool_size=READERS, max_overflow=-1
        )
        event.listen(self._writer, "connect", self._set_up_writer)
        event.listen(self._readers, "connect", lambda driver, _record: _set_up(driver, "query_only=ON"))
        for engine in (self._writer, self._readers):
            event.listen(engine, "begin", _begin)
        try:
            with self._translated_errors():
                self._writer.connect().close()
        except (BpalsError, OSError):
            self._writer.dispose()
            raise
        self._inode = self._find_inode()

    @classmethod
    def open(cls, path: str | os.PathLike[str], connect: Connect | None, *, readonly: bool, must_exist: bool) -> Self:
        """Connect to the file at a path, making it if nothing is there; a file that is no ledger is never touched."""
        place = Place(path)
        if not place.check(must_exist=readonly or must_exist):
            place.announce()
        connect = connect or functools.partial(file_connection, place.path, readonly=readonly)
        return cls(place, connect, readonly=readonly)

    def _set_up_writer(self, driver: Any, _record: object) -> None:
        if self._readonly:
            _set_up(driver)
        elif (mode := _set_up(driver, "journal_mode=WAL")) != "wal":
            raise WorkspaceError(f"{self.path} cannot keep a write-ahead log (it is in mode {mode!r})")

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that may write; it is durable when this ends, or it never was."""
        with self._lock, self._use(self._writer, "BEGIN IMMEDIATE") as connection:
            yield connection
        self._empty_log_if_due()

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """Open a transaction that reads one moment, whoever else writes meanwhile."""
        return self._use(self._readers, "BEGIN")

    def change(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do some work in a transaction that may write, and give its result once that is durable."""
        result = self._group.do(work)
        self._empty_log_if_due()
        return result

    def look(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do some work that only reads, in a transaction of its own."""
        with self.reading() as connection:
            return work(connection)

    def glance(self, ready: Ready, **values: Any) -> Any:
        """Give the first row of one statement that only reads, in no transaction."""
        self._check_place()
        with self._translated_errors():
            driver = self._readers.raw_connection()
            try:
                return ready.first_of(driver, values)
            finally:
                driver.close()

    @contextlib.contextmanager
    def no_transaction(self) -> Iterator[Connection]:
        """Give the writing connection outside of any transaction: checkpoints and backups need that."""
        with self._lock, self._use(self._writer, "") as connection:
            yield connection

    @contextlib.contextmanager
    def _use(self, engine: Engine, begin: str) -> Iterator[Connection]:
        self._check_place()
        with self._translated_errors(), engine.connect() as connection:
            connection.execution_options(**{_BEGIN: begin})
            with connection.begin():
                yield connection

    def _empty_log_if_due(self) -> None:
        if self._place.log_bytes() - self._log_kept >= LOG_BYTES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Move the log into the file and empty it; what a reader still needs stays for the next time."""
        with self.no_transaction() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout=0")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").all()
            connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_MS}")
        self._log_kept = self._place.log_bytes()

    def close(self) -> None:
        """Close the connections; later calls are refused."""
        with self._lock:
            self._ended = self._ended or f"{self.path} is closed"
            # The writer goes last: who closes last empties the log.
            self._readers.dispose()
            self._writer.dispose()

    def _check_place(self) -> None:
        if self._ended:
            raise WorkspaceError(self._ended)
        # A removed file lives on for whoever has it open: its answers would be lost at the end.
        if self._find_inode() != self._inode:
            self._ended = (
                f"{self.path} was removed or replaced while it was in use: nothing more is written. "
                "Put it back, then type the same command again"
            )
            raise WorkspaceError(self._ended)

    def _find_inode(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            raise self._translate(error) from error

    def _translate(self, error: DBAPIError | sqlite3.Error) -> Exception:
        """Turn an error of the driver into one that says what to do, and stop writing where it is not safe."""
        path = self.path
        cause = error.orig if isinstance(error, DBAPIError) else error
        code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        name = getattr(cause, "sqlite_errorname", cause)
        match code & 0xFF:
            case sqlite3.SQLITE_FULL:
                self._ended = (
                    f"the disk is full: {path} takes nothing more. Make room, then type the same command again"
                )
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            case sqlite3.SQLITE_IOERR:
                # A second fsync after a failed one may falsely succeed: stop, reopen, verify.
                # The disk that failed may also refuse this note; then the verification is lost, nothing else.
                with contextlib.suppress(OSError):
                    self._place.doubt.touch()
                self._ended = (
                    f"{path} could not be read or written ({name}): nothing more is written. "
                    "Check the disk, then type the same command again; the ledger is verified first"
                )
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                self._ended = f"{path} is damaged or cut off ({cause}). Put a backup in its place"
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
                self._ended = (
                    f"{path} cannot be opened for this ({cause}). "
                    "Give yourself the right to write it and its folder, or name another with --workspace DIR"
                )
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return WorkspaceError(f"another process is writing to {path}. Wait for it to end, then type it again")
            case sqlite3.SQLITE_CONSTRAINT:
                return ContractBroken(f"{path} refuses a row: {cause}")
            case _:
                return error
        return WorkspaceError(self._ended)

    def bring_up(self, known: Sequence[Migration], *, readonly: bool) -> None:
        """Make the migrations that are due: all or none, and first a backup of what is there."""
        refuse_newer(self.where, self.look(version), known)
        if readonly:
            if not self._made(known):
                self._bring_up_elsewhere(known)
            return
        until = time.monotonic() + PATIENCE_S
        while not self._made(known) or self._place.birth.exists():
            try:
                self._bring_up_now(known)
            except LockHeld:
                # Two that find a new ledger at one moment: one makes its tables, the other finds them made. By then
                # the first may hold the lock for its run: only a holder that leaves the tables as they are refuses us.
                another = holder(self._place.lock) not in {None, "", MIGRATING}
                if another and self._made(known):
                    return
                if another or time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)
            else:
                if self._place.birth.exists():
                    if time.monotonic() > until:
                        return  # the mark stays, for the next writer
                    time.sleep(PAUSE_S)

    def _made(self, known: Sequence[Migration]) -> bool:
        return self.look(version) >= known[-1].number

    def _bring_up_now(self, known: Sequence[Migration]) -> None:
        latest = known[-1].number
        with only_writer(self._place.lock, MIGRATING):
            found = self.look(version)
            if 0 < found < latest:
                self._copy(Path(f"{self.path}.before-{latest}"))
            with self.writing() as connection:
                migrate(connection, found, known)
            self.checkpoint()
            # A reader can keep the log from being moved into the file. Until the file itself says whose it is, the mark
            # must: without it the next one to look would take the ledger for another program's.
            if self._place.is_ours():
                self._place.birth.unlink(missing_ok=True)
                sync_folder(self.path.absolute().parent)

    def _bring_up_elsewhere(self, known: Sequence[Migration]) -> None:
        """Migrate through a connection that may write: a reader of old tables has no other way."""
        found = self.look(version)
        try:
            with contextlib.closing(FileBackend.open(self.path, None, readonly=False, must_exist=True)) as writer:
                writer.bring_up(known, readonly=False)
        except (BpalsError, OSError) as error:
            raise WorkspaceError(
                f"{self.path} has tables {found}, this bpals reads {known[-1].number}, "
                f"and they could not be brought up to date: {error}"
            ) from error

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Be the only writer while inside; a second gets an error with the process and host of the first.

        First check what the last writer left: verify after an error of the disk, and empty the log.
        """
        with only_writer(self._place.lock, what):
            doubted = self._place.doubt.exists()
            if doubted and (found := self.look(runs.problems)):
                raise WorkspaceError(f"{self.path} is damaged: {found[0]}. Put a backup in its place")
            # A log that was written but not synced may be read back from memory only. A checkpoint makes it durable.
            self.checkpoint()
            if doubted:
                self._place.doubt.unlink(missing_ok=True)
            yield

    def busy(self, _what: str) -> bool:
        """Say whether a run is at work, in this process or another: a file has one lock for all but a served room's."""
        now = holder(self._place.lock)
        return held(self._place.relayed) if now == SERVING else now is not None

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the ledger as it is at one moment to a new file; runs may go on meanwhile."""
        if Path(target).exists():
            raise WorkspaceError(f"{target} is there already and is not overwritten. Name another file")
        self._copy(Path(target))

    def _copy(self, target: Path) -> None:
        part = Path(f"{target}.part-{os.getpid()}")
        part.unlink(missing_ok=True)
        try:
            with self.no_transaction() as connection:
                connection.exec_driver_sql("VACUUM INTO ?", (str(part),))
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(target)
            sync_folder(target.absolute().parent)
        finally:
            part.unlink(missing_ok=True)


def _set_up(driver: Any, *more: str) -> Any:
    """Make the settings of every connection, and some more; give SQLite's answer to the last of them."""
    # SQLite's own checkpoints hide an error of the disk: they are done by hand, in `writing`.
    settings = (f"busy_timeout={BUSY_MS}", "foreign_keys=ON", "synchronous=FULL", "wal_autocheckpoint=0", *more)
    with contextlib.closing(driver.cursor()) as cursor:
        for setting in settings:
            cursor.execute(f"PRAGMA {setting}")
        answer = cursor.fetchone()
    return answer[0] if answer else None


def _begin(connection: Connection) -> None:
    if statement := connection.get_execution_options().get(_BEGIN, "BEGIN"):
        connection.exec_driver_sql(statement)
