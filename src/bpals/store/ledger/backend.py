"""Rows that may be there already, the same way on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import sqlalchemy
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Delete,
    Insert,
    MetaData,
    Select,
    Table,
    Text,
    Update,
    delete,
    func,
    inspect,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import insert

from bpals.errors import WorkspaceError, install_line
from bpals.store.ledger.locks import OURS
from bpals.store.ledger.schema import MIGRATION, REVIEW_TABLES, TABLES, now
from bpals.version import VERSION


class Driver(Protocol):
    """What there is of a driver's connection, in a pool or out of it."""

    def cursor(self) -> Any:
        """Give a cursor."""


class Ready:
    """One statement, with names for the values that change; a list in it is one of `literal`s."""

    def __init__(self, statement: Select[Any] | Insert | Update | Delete) -> None:
        """Take it; it is written out when it is first run."""
        self.statement = statement

    def rows(self, connection: Connection, **values: Any) -> list[Any]:
        """Give all rows; their columns are attributes."""
        if connection.dialect.name != "sqlite":
            return [*connection.execute(self.statement, values)]
        return [self._row(*row) for row in self._run(connection.connection, values).fetchall()]

    def first(self, connection: Connection, **values: Any) -> Any:
        """Give the first row, or None."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self.statement, values).first()
        return self.first_of(connection.connection, values)

    def first_of(self, driver: Driver, values: Mapping[str, Any]) -> Any:
        """Give the first row on a connection of SQLite's driver, or None."""
        row = self._run(driver, values).fetchone()
        return None if row is None else self._row(*row)

    def value(self, connection: Connection, **values: Any) -> Any:
        """Give what stands first in the first row, or None."""
        row = self.first(connection, **values)
        return None if row is None else row[0]

    def run(self, connection: Connection, **values: Any) -> int:
        """Run it, and say how many rows it changed."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self.statement, values).rowcount
        return int(self._run(connection.connection, values).rowcount)

    def _run(self, driver: Driver, values: Mapping[str, Any]) -> Any:
        written, fixed = self._written
        cursor = driver.cursor()
        cursor.execute(written, {**fixed, **values})
        return cursor

    @functools.cached_property
    def _written(self) -> tuple[str, dict[str, Any]]:
        """The text for SQLite's driver, and the values that stand in the statement itself."""
        compiled = self.statement.compile(dialect=sqlite.dialect(paramstyle="named"))
        # What has no value yet is left out: the driver then refuses to run it without one.
        wanted = {name for name, bound in compiled.binds.items() if bound.required}
        values = compiled.construct_params(_check=False)
        return str(compiled), {name: value for name, value in values.items() if name not in wanted}

    @functools.cached_property
    def _row(self) -> Any:
        names = self.statement.selected_columns.keys() if isinstance(self.statement, Select) else []
        return namedtuple("Row", names, rename=True)  # noqa: PYI024  the columns are known only here


RECEIPTS = MetaData()

RECEIPT = Table(
    "receipt",
    RECEIPTS,
    Column("writer", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
)


def write_receipt(connection: Connection, writer: str, number: int) -> None:
    """Write the number of this transaction into its writer's row."""
    new = insert(RECEIPT).values(writer=writer, number=number)
    connection.execute(new.on_conflict_do_update(index_elements=["writer"], set_={"number": number}))


def has_receipt(connection: Connection, writer: str, number: int) -> bool:
    """Say whether the transaction of that number was made; one that is still on its way is waited for."""
    connection.execute(insert(RECEIPT).values(writer=writer, number=0).on_conflict_do_nothing())
    found = select(RECEIPT.c.number).where(RECEIPT.c.writer == writer).with_for_update()
    return bool(connection.execute(found).scalar_one() == number)


def drop_receipts(connection: Connection, writers: list[str]) -> None:
    """Remove the rows of writers that have ended."""
    connection.execute(delete(RECEIPT).where(RECEIPT.c.writer.in_(writers)))


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
            connection.execute(sqlalchemy.insert(MIGRATION).values(row))


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


_COUNTED = {"preserve_rowcount": True}


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows that no unique column or key of the table holds yet, and say how many those were."""
    if not rows:
        return 0
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    # One statement for all rows: written out with the values of 500 it takes nine times as long.
    statement = make(table).on_conflict_do_nothing()
    return connection.execute(statement, [dict(row) for row in rows], execution_options=_COUNTED).rowcount
