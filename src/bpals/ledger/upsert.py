"""Rows that may be there already, the same way on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

MOST_AT_ONCE = 500
"""Rows of one statement: SQLite takes 32,766 values in one, PostgreSQL 65,535."""

_COUNTED = {"preserve_rowcount": True}


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows that no unique column or key of the table holds yet, and say how many those were."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    added = 0
    for start in range(0, len(rows), MOST_AT_ONCE):
        some = [dict(row) for row in rows[start : start + MOST_AT_ONCE]]
        added += connection.execute(
            make(table).values(some).on_conflict_do_nothing(), execution_options=_COUNTED
        ).rowcount
    return added
