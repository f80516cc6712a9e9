"""Statements that are ready: made once, run with every request.

What SQLAlchemy does around a statement takes several times as long as SQLite takes to run it. On SQLite a ready one
therefore goes to the driver as it was first written out; on PostgreSQL, where the way to the server is what takes long,
it goes as any other. Values and rows are what the driver takes and gives: numbers, texts and nothing.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy import Connection, Delete, Insert, Select, Update
from sqlalchemy.dialects import sqlite


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
