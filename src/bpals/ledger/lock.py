"""The only writer: a lock that names who holds it, and that the kernel drops with the process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from bpals.errors import LockHeld, WorkspaceError

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
