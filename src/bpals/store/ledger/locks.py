"""Who may write: one process per file, one thread at a time, one writer of answers on PostgreSQL."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from sqlalchemy import Connection, text

from bpals.errors import ContractBroken, LockHeld, WorkspaceError
from bpals.store.ledger.schema import LEDGER_ID

# The names under which the reading room and a run of a judge hold the lock; a refused second writer reads them.
SERVING = "review serve"
RUNNING = "judge run"
# A lock may be held without a name for so long: its holder is just taking it, leaving it, or checking it.
NAMELESS_S, PAUSE_S = 5.0, 0.01
# How long Ctrl-C may wait for a thread that waits for a lock.
INTERRUPT_S = 0.5
# Works in one transaction, so that nobody waits long for the others.
MOST = 16
_FILMS = 1

_Result = TypeVar("_Result")
Begin = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction; it is durable when it ends."""


@contextlib.contextmanager
def only_writer(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file while inside; a second writer gets an error that names the first."""
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise WorkspaceError(
            f"{path} cannot be written: {error.strerror}. Name another folder with --workspace DIR"
        ) from None
    with file:
        if (by := _take(file)) is not None:
            raise LockHeld(_refusal(path, by))
        # The file may still name a killed holder. That means nothing: the kernel gave us the lock.
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "what": what}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _take(file: TextIO) -> str | None:
    """Take the lock; where another holds it, give what that one wrote."""
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
            # A shared lock: two that only look never refuse each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def holder(path: Path) -> str | None:
    """Name the work of the process that holds the lock; None where nobody holds it."""
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
    ways = {
        SERVING: "Close the reading room with Ctrl-C where it was started, then type the same command again",
        RUNNING: f"Wait for it to end, or stop it (Ctrl-C, or: kill -INT {pid}); its answers are kept. To have both, "
        "open the reading room first: a judge run that is typed again then goes on through the room",
    }
    way = ways.get(what, f"Wait for it to end, or stop it: kill {pid}")
    return f"{what} (process {pid} on {host}) is writing to {path.parent}. {way}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 only asks whether the process is there
    except ProcessLookupError:
        return False
    except PermissionError:  # there, but of another user
        return True
    return True


class FairLock:
    """A lock that threads get in the order in which they asked for it."""

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
        acquired = False
        try:
            while not acquired:
                # Polars lets the system resume a wait after Ctrl-C: only between two waits does Python see it.
                acquired = gate.acquire(timeout=INTERRUPT_S)
        finally:
            if not acquired:  # interrupted while it waited
                self._give_up(gate)
        self._holder = me

    def __exit__(self, *_error: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._state:
            if self._waiting:
                # 0 is no thread: until the next one wakes, no newcomer may take the lock.
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


class _Work(Generic[_Result]):
    """What one thread wants written."""

    def __init__(self, work: Callable[[Connection], _Result]) -> None:
        self.work = work
        self.result: list[_Result] = []  # one entry once it is durable


class GroupCommit:
    """Commits the waiting works of several threads in one transaction, in the order in which they came."""

    def __init__(self, lock: FairLock, begin: Begin) -> None:
        """Take the writers' lock, and how a transaction begins."""
        self._lock = lock
        self._begin = begin
        self._waiting: deque[_Work[Any]] = deque()

    def do(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do a work, and give its result once that is durable; the work may be begun anew."""
        mine = _Work(work)
        self._waiting.append(mine)
        try:
            with self._lock:
                if not mine.result:
                    self._do_with(mine)
        finally:
            if not mine.result and mine in self._waiting:
                self._waiting.remove(mine)
        return mine.result[0]

    def _do_with(self, mine: _Work[Any]) -> None:
        """Do a work together with some that wait; if that fails, the work alone."""
        batch = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        if mine not in batch:  # more wait than fit: it came behind them
            self._waiting.remove(mine)
            batch.append(mine)
        if len(batch) > 1 and self._all(batch):
            return
        self._waiting.extendleft(other for other in reversed(batch) if other is not mine)
        with self._begin() as connection:
            result = mine.work(connection)
        mine.result.append(result)

    def _all(self, batch: list[_Work[Any]]) -> bool:
        """Do several in one transaction; say whether that went well."""
        try:
            with self._begin() as connection:
                results = [each.work(connection) for each in batch]
        except Exception:  # noqa: BLE001  whatever it was, the work that caused it raises it again alone
            return False
        for each, result in zip(batch, results, strict=True):
            each.result.append(result)
        return True


def lock_answers(connection: Connection) -> None:
    """Wait until no other transaction writes answers of judges; the lock lasts until this transaction ends."""
    # SQLite has one writer anyway. On PostgreSQL two shards would else give one film_id twice.
    if connection.dialect.name == "postgresql":
        values = {"ours": LEDGER_ID, "films": _FILMS}
        connection.execute(text("SELECT pg_advisory_xact_lock(:ours, :films)"), values)
