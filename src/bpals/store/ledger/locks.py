"""One transaction at a time: SQLite has no other way, PostgreSQL is asked for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TextIO, TypeVar

from sqlalchemy import Connection, text

from bpals.errors import ContractBroken, LockHeld, WorkspaceError

MAGIC = b"SQLite format 3\0"
OURS = 0x6270616C
"""SQLite's application id of a ledger: `bpal`."""

MOUNTS = Path("/proc/mounts")
ELSEWHERE = "Name a folder on a local disk with --workspace DIR"

_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\d?|smbfs|ncpfs|afs|ceph|lustre|gpfs|beegfs|glusterfs|davfs|drvfs|9p)$"
    r"|fuse\.(sshfs|glusterfs|ceph|s3fs|gcsfuse|goofys|rclone|davfs|mergerfs|hadoop|mount-s3)"
)
_NO_JOURNAL = ("exfat", "vfat", "msdos")

_FIXED = (3, 51, 3)


def unfit(folder: Path, mounts: str) -> str | None:
    """Say why a ledger may not lie in a folder, given the text of /proc/mounts; nothing where it may."""
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
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[1])
        if folder.is_relative_to(point) and (best is None or len(point) >= len(best[0])):
            best = (point, words[2], words[3])
    return best


def old_sqlite(version: tuple[int, ...]) -> str | None:
    """Say what to mind with an SQLite of this version; nothing where its log is sound."""
    if version >= _FIXED:
        return None
    written = ".".join(map(str, version))
    return (
        f"{written}, fine for a ledger: one process writes to a workspace, a judge run beside the reading room writes "
        "through it, and bpals refuses a second (before 3.51.3 SQLite itself does not bear two)"
    )


def _whole(header: bytes) -> int:
    """Give the size that a file's header says it has; while there is a log, the header may be of yesterday."""
    page = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)


class Place:
    """The file of one ledger and the files beside it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the file; nothing is read or made yet."""
        self.path = Path(path)
        self.log = Path(f"{self.path}-wal")
        self.lock = self.path.with_suffix(".lock")
        self.relayed = self.path.with_suffix(".relayed.lock")
        """Held by a run whose films the serving process writes."""
        self.socket = self.path.with_name(f".{self.path.stem}.sock")
        """Where the serving process takes what others want written."""
        self.birth = Path(f"{self.path}-birth")
        """Is there while the ledger is being made: a file that is not yet a ledger is then ours."""
        self.doubt = Path(f"{self.path}-doubt")
        """Is there after a failed read or write: the next writer verifies the ledger first."""

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
        with self.path.open("rb") as file:
            header = file.read(100)
        if self.birth.exists() and header[:16] in {b"", MAGIC}:
            return
        if not header:
            raise WorkspaceError(
                f"{self.path} is empty: its content was cut off. Put a backup in its place, or remove it to begin anew"
            )
        if header[:16] != MAGIC:
            raise WorkspaceError(f"{self.path} is not a database, and is left as it is. {ELSEWHERE}")
        if len(header) < 100 or (not self.log_bytes() and self.path.stat().st_size < _whole(header)):
            raise WorkspaceError(
                f"{self.path} is cut off after {self.path.stat().st_size} bytes. Put a backup in its place"
            )
        if int.from_bytes(header[68:72], "big") != OURS:
            raise WorkspaceError(
                f"{self.path} is a database that bpals did not make, and is left as it is. {ELSEWHERE}"
            )

    def log_bytes(self) -> int:
        """Give the size of the log; 0 if there is none."""
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def announce(self) -> None:
        """Say that a ledger is about to be made here, so that a half-made one is known as ours."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.birth.touch()
            self.sync_folder()
        except OSError as error:
            raise WorkspaceError(f"{self.path} cannot be made: {error.strerror}. {ELSEWHERE}") from None

    def take(self, part: Path) -> None:
        """Make a finished copy durable under this name."""
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(self.path)
        self.sync_folder()

    def sync_folder(self) -> None:
        """Make what was created or removed beside the ledger last."""
        handle = os.open(self.path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


SERVING = "review serve"
"""What the process that serves the reading room calls its lock of the ledger."""
RUNNING = "judge run"
"""What a run of a judge calls its lock."""

NAMELESS_S, PAUSE_S = 5.0, 0.01
"""How long a lock may be held without a name: somebody is just taking it, leaving it, or looking whether it is held."""


@contextlib.contextmanager
def only_writer(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file while inside; a second writer is refused, and told who the first is."""
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise WorkspaceError(
            f"{path} cannot be written: {error.strerror}. Name another folder with --workspace DIR"
        ) from None
    with file:
        if (by := _take(file)) is not None:
            raise LockHeld(_refusal(path, by))
        # What a killed holder left in the file says nothing: the kernel gave us the lock.
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "what": what}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _take(file: TextIO) -> str | None:
    """Take the lock; give what its holder wrote where it has one."""
    until = time.monotonic() + NAMELESS_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            if (by := file.read()) or time.monotonic() > until:
                return by
            time.sleep(PAUSE_S)
        else:
            return None


def held(path: Path) -> bool:
    """Say whether somebody holds the lock now."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def holder(path: Path) -> str | None:
    """Say what whoever holds the lock does; nothing where nobody holds it."""
    if not held(path):
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["what"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _refusal(path: Path, text: str) -> str:
    try:
        holder = json.loads(text)
        pid, host, what = int(holder["pid"]), str(holder["host"]), str(holder["what"])
    except (ValueError, KeyError, TypeError):
        return f"another process is writing to {path.parent} ({path.name} is held). Wait for it to end"
    if host == platform.node() and not _alive(pid):
        return (
            f"{what} (process {pid} on {host}) has ended, but a process that it started still holds {path}. "
            f"See which: fuser {path}"
        )
    return f"{what} (process {pid} on {host}) is writing to {path.parent}. {_way_out(what, pid)}"


def _way_out(what: str, pid: int) -> str:
    """Say what to do about a process that writes."""
    if what == SERVING:
        return "Close the reading room with Ctrl-C where it was started, then type the same command again"
    if what == RUNNING:
        return (
            f"Wait for it to end, or stop it (Ctrl-C, or: kill -INT {pid}); its answers are kept. To have both, open "
            "the reading room first: a judge run that is typed again then goes on through the room"
        )
    return f"Wait for it to end, or stop it: kill {pid}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


LOOK_UP_S = 0.5
"""How long Ctrl-C may go unheard by a thread that waits for its turn."""


class Turn:
    """Held by one thread at a time; the others come next in the order of their asking."""

    def __init__(self) -> None:
        """Begin free."""
        self._state = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._holder: int | None = None

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._state:
            if self._holder is None:
                self._holder = me
                return
            if self._holder == me:
                raise ContractBroken("a transaction was opened inside another one of the same thread")
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        given = False
        try:
            while not given:
                # polars lets the system resume a wait after Ctrl-C: only between two waits can it be heard.
                given = gate.acquire(timeout=LOOK_UP_S)
        finally:
            if not given:  # interrupted while it waited
                self._give_up(gate)
        self._holder = me

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._state:
            if self._waiting:
                # Held by nobody that could ask again, until the next one wakes.
                self._holder = 0
                self._waiting.popleft().release()
            else:
                self._holder = None

    def _give_up(self, gate: threading.Lock) -> None:
        with self._state:
            still_waiting = gate in self._waiting
            if still_waiting:
                self._waiting.remove(gate)
        if not still_waiting:
            self._pass_on()


MOST = 16
"""Works in one transaction, so that nobody waits long for the others."""

_Given = TypeVar("_Given")
Begin = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction; it is durable when it ends."""


class _Work(Generic[_Given]):
    """What one thread wants done."""

    def __init__(self, work: Callable[[Connection], _Given]) -> None:
        self.work = work
        self.given: list[_Given] = []
        """What it gave, once that is durable."""


class Together:
    """Does works in the order in which they came, as many at once as wait."""

    def __init__(self, turn: Turn, begin: Begin) -> None:
        """Take the turn of whoever writes, and how a transaction begins."""
        self._turn = turn
        self._begin = begin
        self._waiting: deque[_Work[Any]] = deque()

    def do(self, work: Callable[[Connection], _Given]) -> _Given:
        """Have a work done, and give what it gives once that is durable; it may be begun anew."""
        mine = _Work(work)
        self._waiting.append(mine)
        try:
            with self._turn:
                if not mine.given:
                    self._do_with(mine)
        finally:
            if not mine.given and mine in self._waiting:
                self._waiting.remove(mine)
        return mine.given[0]

    def _do_with(self, mine: _Work[Any]) -> None:
        """Do a work, together with some that wait; where that fails, the work alone."""
        batch = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        if mine not in batch:  # more wait than fit: it came behind them
            self._waiting.remove(mine)
            batch.append(mine)
        if len(batch) > 1 and self._all(batch):
            return
        self._waiting.extendleft(other for other in reversed(batch) if other is not mine)
        with self._begin() as connection:
            given = mine.work(connection)
        mine.given.append(given)

    def _all(self, batch: list[_Work[Any]]) -> bool:
        """Do several in one transaction; say whether that went well."""
        given = []
        try:
            with self._begin() as connection:
                given = [each.work(connection) for each in batch]
        except Exception:  # noqa: BLE001  whatever it was, it is raised again where it belongs, by the work alone
            return False
        for each, result in zip(batch, given, strict=True):
            each.given.append(result)
        return True


_FILMS = 1


def alone(connection: Connection) -> None:
    """Wait until no other transaction writes what judges said; it lasts until this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:ours, :films)"), {"ours": OURS, "films": _FILMS})
