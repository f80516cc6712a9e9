"""What a ledger needs of the place where it lives: a file of a workspace, or a database on a server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from sqlalchemy import Connection

from bpals.ledger.migrations import Migration
from bpals.ledger.ready import Ready

Dialect = Literal["sqlite", "postgresql"]

_Given = TypeVar("_Given")


class Link(Protocol):
    """The way to the tables: transactions that read and transactions that write."""

    def writing(self) -> contextlib.AbstractContextManager[Connection]:
        """Open a transaction that may write; it is durable when this ends, or it never was."""

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """Open a transaction that reads one moment, whoever else writes meanwhile."""

    def change(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work in a transaction that may write, once; the work may be begun anew."""

    def look(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work that only reads; it may be begun anew."""

    def glance(self, ready: Ready, **values: Any) -> Any:
        """Give the first row of one statement that only reads."""

    def close(self) -> None:
        """Close it; what follows is refused."""


class Home(Protocol):
    """Where one ledger lives."""

    dialect: Dialect
    where: str
    """For people: a path, or an address without its password."""

    @property
    def link(self) -> Link:
        """The way to its tables."""

    @property
    def path(self) -> Path:
        """The file; refused where there is none."""

    def bring_up(self, known: Sequence[Migration], *, readonly: bool) -> None:
        """Make the changes of the tables that are due: all or none."""

    def lock(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Be the only one of those that do this while inside."""

    def busy(self, what: str) -> bool:
        """Say whether somebody holds that lock."""

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the ledger as it is at one moment to a new file."""
