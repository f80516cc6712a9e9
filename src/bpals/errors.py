"""The exception tree. A branch says who must act.

BpalsError
  UsageError        you asked for something that cannot be
    UnknownName     a name nobody knows; the message says what was meant
    MissingExtra    an optional package is not installed; the message has the line to type
  SourceError       a dataset is not what its loader expects
  TruthError        an expert label file is not what its loader expects
  FilmError         a folder or archive of films cannot be used at all
  JudgeError        a judge cannot be asked at all: a wrong address, a key refused, an image that does not arrive
  Stopped           a run stopped before its end; what is done is kept, the same command goes on
  WorkspaceError    a workspace is missing, half-written, busy or of another version
  ContractBroken    a source, judge or signal that somebody wrote does not keep its promise

Every message says what is wrong, where, and what to type next, in one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
        return cls(f"{place}no {kind} is called {name!r}.{hint} Known: {', '.join(names)}.")


class MissingExtra(UsageError):
    """An optional package is not installed."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingExtra:
        """Name what was asked for and the exact line that installs it."""
        return cls(f"{what} needs an optional package. Type: pip install 'bpals[{extra}]'")


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


class ContractBroken(BpalsError):
    """A source, judge or signal that somebody wrote does not keep its promise."""
