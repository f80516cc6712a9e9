"""The exception tree. A branch says who must act.

BpalsError
  UsageError         the request cannot be met as it is
    UnknownName      a name that is not known; the message suggests the nearest one
    MissingExtra     an optional package is not installed; the message has the line to type
  SourceError        a dataset is not what its loader expects
  TruthError         an expert label file is not what its loader expects
  FilmError          a folder or archive of images cannot be used at all
  JudgeError         a judge cannot run at all: a wrong address, a refused key, an image that does not arrive
  Stopped            a run stopped before its end; its answers are kept, and the same command goes on
  WorkspaceError     a workspace is missing, half-written, busy or of another version
    LockHeld         another process writes to a workspace
    TransactionLost  a database went away in the middle; nothing of the transaction was kept, and it may be tried again
  ContractBroken     a source, judge or signal of your own breaks its contract
  RoomError          the reading room refuses a request
    NotYours         another reader's reading, or something for another role
    StaleVersion     it was changed elsewhere meanwhile; the error carries the newer one
    NotNow           the reading is locked, not locked yet, or its case has gone to somebody else
    Refused          an answer that cannot be stored as it is

Every message says what is wrong, where, and what to type next, in one line.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Versions that are known to work together, above all a torch without CUDA. It lies where bpals is installed from.
CONSTRAINTS = "constraints.txt"


class BpalsError(Exception):
    """An error that the user can fix; the command line prints it as one line and exits with 2."""


class UsageError(BpalsError):
    """The request cannot be met as it is."""


class UnknownName(UsageError):
    """A name that is not known."""

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
        """Name what needs the package and the exact line that installs it."""
        return cls(f"{what} needs an optional package. Type: {install_line(extra)}")


def install_line(extra: str = "", *, package: str = "") -> str:
    """Write the line that installs an extra of bpals, or another package, without CUDA.

    It is the line of the README; outside the folder that bpals was installed from, it names that folder.
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
    """A folder or archive of images cannot be used at all."""


class JudgeError(BpalsError):
    """A judge cannot run at all: a wrong address, a refused key, an image that does not arrive."""


class Stopped(BpalsError):
    """A run stopped before its end; its answers are kept, and the same command goes on. The exit code is 3."""


class WorkspaceError(BpalsError):
    """A workspace is missing, half-written, busy or of another version."""


class LockHeld(WorkspaceError):
    """Another process writes to a workspace."""


class TransactionLost(WorkspaceError):
    """A database went away, or two transactions crossed; the transaction may be tried again as a whole."""


class ContractBroken(BpalsError):
    """A source, judge or signal of your own breaks its contract."""


class RoomError(BpalsError):
    """The reading room refuses a request."""


class NotYours(RoomError):
    """Another reader's reading, or something for another role; it says nothing about what is there."""


class StaleVersion(RoomError):
    """The reading was changed elsewhere meanwhile; nothing is overwritten."""

    def __init__(self, message: str, current: Any) -> None:
        """Carry the newer one, so that both can be shown."""
        super().__init__(message)
        self.current = current
        """A `ReadingView`, or the `Disagreement` that was to be settled."""


class NotNow(RoomError):
    """The state of the case does not allow it: the reading is locked, or not locked yet."""


class Refused(RoomError):
    """An answer that cannot be stored as it is; nothing of it was kept."""
