"""What SQLite and PostgreSQL share: prepared statements, migrations, inserts of new rows."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Delete, Insert, Select, Table, Update, func, insert, inspect, select
from sqlalchemy.dialects import postgresql, sqlite

from bpals.errors import WorkspaceError, install_line
from bpals.store.ledger.schema import LEDGER_ID, MIGRATION, RECEIPTS, REVIEW_TABLES, TABLES, now
from bpals.version import VERSION

Dialect = Literal["sqlite", "postgresql"]


class Ready:
    """One prepared statement with named values; a list in it is made of `literal`s."""

    # On SQLite, SQLAlchemy takes longer to run a small statement than the database does. So it is compiled once, here.

    def __init__(self, statement: Select[Any] | Insert | Update | Delete) -> None:
        """Take it; it is compiled when it is first run."""
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

    def first_of(self, driver: Any, values: Mapping[str, Any]) -> Any:
        """Give the first row on a connection of SQLite's driver, or None."""
        row = self._run(driver, values).fetchone()
        return None if row is None else self._row(*row)

    def value(self, connection: Connection, **values: Any) -> Any:
        """Give the first value of the first row, or None."""
        row = self.first(connection, **values)
        return None if row is None else row[0]

    def run(self, connection: Connection, **values: Any) -> int:
        """Run it, and say how many rows it changed."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self.statement, values).rowcount
        return int(self._run(connection.connection, values).rowcount)

    def _run(self, driver: Any, values: Mapping[str, Any]) -> Any:
        written, fixed = self._compiled
        cursor = driver.cursor()
        cursor.execute(written, {**fixed, **values})
        return cursor

    @functools.cached_property
    def _compiled(self) -> tuple[str, dict[str, Any]]:
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


@dataclass(frozen=True, slots=True)
class Migration:
    """One change of the tables."""

    number: int
    name: str
    make: Callable[[Connection], None]


def _first(connection: Connection) -> None:
    TABLES.create_all(connection, checkfirst=False)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id={LEDGER_ID}")


def _reading_room(connection: Connection) -> None:
    REVIEW_TABLES.create_all(connection, checkfirst=False)
    if connection.dialect.name == "postgresql":
        RECEIPTS.create_all(connection, checkfirst=False)


# In order. A migration that was ever released is never changed again: ledgers out there were made by it.
MIGRATIONS = (Migration(1, "the first tables", _first), Migration(2, "the reading room", _reading_room))


def version(connection: Connection) -> int:
    """Give the number of the last migration that was made; 0 before the first."""
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


def migrate(connection: Connection, found: int, known: Sequence[Migration]) -> None:
    """Make every migration after the one found, inside the caller's transaction."""
    for migration in known:
        if migration.number > found:
            migration.make(connection)
            row = {"number": migration.number, "name": migration.name, "bpals": VERSION, "at": now()}
            connection.execute(insert(MIGRATION).values(row))


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows that no unique column or key of the table holds yet, and say how many those were."""
    if not rows:
        return 0
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    # One statement for all rows: written out with the values of 500 it takes nine times as long.
    statement, options = make(table).on_conflict_do_nothing(), {"preserve_rowcount": True}
    return connection.execute(statement, [dict(row) for row in rows], execution_options=options).rowcount
