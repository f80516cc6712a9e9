"""What was said, for good: reviews and adjudications are only ever added, each with a digest for the log."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import Column, Connection, Double, Integer, RowMapping, Table, func, insert, select
from sqlalchemy.dialects import sqlite

from bpals.ledger.ready import Ready
from bpals.ledger.reviewschema import ADJUDICATION, REVIEW

SEAL_LETTERS = 32


def _cast(column: Column[Any]) -> type | None:
    """Give what makes a value of a column the one that either database gives back; texts are that already."""
    if isinstance(column.type, Double):
        return float
    return int if isinstance(column.type, Integer) else None


@dataclass(frozen=True, slots=True)
class _Said:
    """What a row of a table says: every column but its number."""

    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    casts: tuple[tuple[int, type], ...]
    """Place of each column with numbers, and their type."""

    @classmethod
    def of(cls, table: Table) -> _Said:
        """Look at a table once."""
        columns = [column for column in table.c if not column.primary_key]
        casts = ((place, _cast(column)) for place, column in enumerate(columns))
        names = tuple(column.name for column in columns)
        return cls(names, itemgetter(*names), tuple((place, cast) for place, cast in casts if cast is not None))


_SAID = {table: _Said.of(table) for table in (REVIEW, ADJUDICATION)}


def store_reviews(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Add reviews, and give id -> digest: what the entry about them holds under `reviews`."""
    return _store(connection, REVIEW, rows)


def store_adjudications(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Add adjudications, and give id -> digest: what the entry about them holds under `adjudications`."""
    return _store(connection, ADJUDICATION, rows)


def digest(table: Table, row: Mapping[str, Any] | RowMapping) -> str:
    """Give the digest of what a row says, whatever its number."""
    said = list(_SAID[table].values(row))
    for place, cast in _SAID[table].casts:
        if said[place] is not None:
            said[place] = cast(said[place])
    return hashlib.sha256(json.dumps(said, ensure_ascii=False).encode()).hexdigest()[:SEAL_LETTERS]


def _store(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    if not rows:
        return {}
    whole = [{name: row.get(name) for name in _SAID[table].names} for row in rows]
    if connection.dialect.name == "sqlite":
        # Nobody else writes now, and SQLite gives back the numbers of many rows one row at a time only.
        first = int(_last_number(table).value(connection)) + 1
        numbers: Sequence[int] = range(first, first + len(whole))
        said = _SAID[table]
        placed = [(number, *said.values(row)) for number, row in zip(numbers, whole, strict=True)]
        connection.exec_driver_sql(_plain_insert(table), placed)
    else:
        (identity,) = table.primary_key.columns
        added = connection.execute(insert(table).returning(identity, sort_by_parameter_order=True), whole)
        numbers = added.scalars().all()
    return {str(number): digest(table, row) for number, row in zip(numbers, whole, strict=True)}


@functools.cache
def _last_number(table: Table) -> Ready:
    (identity,) = table.primary_key.columns
    return Ready(select(func.coalesce(func.max(identity), 0)))


@functools.cache
def _plain_insert(table: Table) -> str:
    """Write the statement out: what SQLAlchemy does to each of 14 rows takes longer than SQLite does."""
    return str(insert(table).compile(dialect=sqlite.dialect()))
