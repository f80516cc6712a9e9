"""Numbered changes of the tables, each made once, in one transaction, after a backup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, inspect, select

from bpals.errors import WorkspaceError, install_line
from bpals.ledger.place import OURS
from bpals.ledger.receipt import RECEIPTS
from bpals.ledger.reviewschema import REVIEW_TABLES
from bpals.ledger.schema import MIGRATION, TABLES, now
from bpals.version import VERSION


@dataclass(frozen=True, slots=True)
class Migration:
    """One change of the tables."""

    number: int
    name: str
    make: Callable[[Connection], None]


def _first(connection: Connection) -> None:
    TABLES.create_all(connection, checkfirst=False)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id={OURS}")


def _reading_room(connection: Connection) -> None:
    REVIEW_TABLES.create_all(connection, checkfirst=False)
    if connection.dialect.name == "postgresql":
        RECEIPTS.create_all(connection, checkfirst=False)


MIGRATIONS = (Migration(1, "the first tables", _first), Migration(2, "the reading room", _reading_room))
"""All of them, in order; one that was ever released is never changed again."""


def version(connection: Connection) -> int:
    """Give the number of the last change that was made; 0 before the first."""
    if not inspect(connection).has_table(MIGRATION.name):
        return 0
    return int(connection.execute(select(func.coalesce(func.max(MIGRATION.c.number), 0))).scalar_one())


def refuse_newer(where: str, found: int, known: Sequence[Migration]) -> None:
    """Refuse tables that a later bpals made: what they mean is not known here."""
    if found > known[-1].number:
        raise WorkspaceError(
            f"{where} was written by a newer bpals: it has tables {found}, and bpals {VERSION} knows "
            f"{known[-1].number}. Type: git pull (in the folder of bpals), then {install_line()}"
        )


def make_due(connection: Connection, found: int, known: Sequence[Migration]) -> None:
    """Make every change after the one found, inside the caller's transaction."""
    for migration in known:
        if migration.number > found:
            migration.make(connection)
            row = {"number": migration.number, "name": migration.name, "bpals": VERSION, "at": now()}
            connection.execute(insert(MIGRATION).values(row))
