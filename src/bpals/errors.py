"""The exception tree. A branch says who must act.

BpalsError
  UsageError         you asked for something that cannot be
    UnknownName      a name nobody knows; the message says what was meant
    MissingExtra     an optional package is not installed; the message has the line to type
  SourceError        a dataset is not what its loader expects
  TruthError         an expert label file is not what its loader expects
  FilmError          a folder or archive of films cannot be used at all
  JudgeError         a judge cannot be asked at all: a wrong address, a key refused, an image that does not arrive
  Stopped            a run stopped before its end; what is done is kept, the same command goes on
  WorkspaceError     a workspace is missing, half-written, busy or of another version
    LockHeld         another process writes to a workspace
    TransactionLost  a database went away in the middle; nothing of the transaction was kept, and it may be tried again
  ContractBroken     a source, judge or signal that somebody wrote does not keep its promise
  RoomError          the reading room does not do what was asked of it
    NotYours         another reader's reading, or something for another role
    StaleVersion     it was changed meanwhile, elsewhere; the newer one comes with the error
    NotNow           the lock holds, it is not locked yet, or the case has gone to somebody else
    Refused          an answer that cannot be kept as it stands

Every message says what is wrong, where, and what to type next, in one line.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CONSTRAINTS = "constraints.txt"
"""The versions that are known to work together, in the folder that bpals is installed from: a torch without CUDA."""


class BpalsError(Exception):
    """Something the user can mend; the command line prints it as one line and exits 2."""


class UsageError(BpalsError):
    """You asked for something that cannot be."""


class UnknownName(UsageError):
    """A name that nobody knows."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str], *, where: str = "") -> UnknownName:
        """Say which name is unknown, the nearest known one, and all that are known."""
        names = list(known)
        folded = {n.lower(): n for n in names}
        near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
        hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
        place = f"{where}: " if where else ""
        return cls(f"{place}no {kind} is called {name!r}.{hint} Known: {', '.join(names) or 'none yet'}.")


class MissingExtra(UsageError):
    """An optional package is not installed."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingExtra:
        """Name what was asked for and the exact line that installs it."""
        return cls(f"{what} needs an optional package. Type: {install_line(extra)}")


def install_line(extra: str = "", *, package: str = "") -> str:
    """Write the line that installs an extra of bpals, or another package beside it, without bringing CUDA.

    It is README's; typed elsewhere than in the folder that bpals was installed from, it names that folder.
    """
    folder = Path(__file__).resolve().parents[2]
    here = not (folder / CONSTRAINTS).is_file() or folder == Path.cwd()
    constraints = CONSTRAINTS if here else str(folder / CONSTRAINTS)
    ours = ("." if here else str(folder)) + (f"[{extra}]" if extra else "")
    return f"pip install -c {shlex.quote(constraints)} {package or f'-e {shlex.quote(ours)}'}"


class SourceError(BpalsError):
    """A dataset is not what its loader expects."""


class TruthError(BpalsError):
    """An expert label file is not what its loader expects."""


class FilmError(BpalsError):
    """A folder or archive of films cannot be used at all."""


class JudgeError(BpalsError):
    """A judge cannot be asked at all: a wrong address, a key refused, an image that does not arrive."""


class Stopped(BpalsError):
    """A run stopped before its end; what is done is kept, and the same command goes on. The exit code is 3."""


class WorkspaceError(BpalsError):
    """A workspace is missing, half-written, busy or of another version."""


class LockHeld(WorkspaceError):
    """Another process writes to a workspace."""


class TransactionLost(WorkspaceError):
    """A database went away, or two transactions crossed; the transaction may be tried again as a whole."""


class ContractBroken(BpalsError):
    """A source, judge or signal that somebody wrote does not keep its promise."""


class RoomError(BpalsError):
    """The reading room does not do what was asked of it."""


class NotYours(RoomError):
    """Another reader's reading, or something for another role; it says nothing about what is there."""


class StaleVersion(RoomError):
    """What was to be changed was changed meanwhile, elsewhere; nothing is overwritten."""

    def __init__(self, message: str, current: Any) -> None:
        """Carry the newer one, so that both can be shown."""
        super().__init__(message)
        self.current = current
        """A `ReadingView`, or the `Disagreement` that was to be settled."""


class NotNow(RoomError):
    """The state of the case does not allow it: the lock holds, or it is not locked yet."""


class Refused(RoomError):
    """An answer that cannot be kept as it stands; nothing of it was stored."""
