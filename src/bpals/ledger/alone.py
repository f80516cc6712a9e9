"""One transaction at a time: SQLite has no other way, PostgreSQL is asked for it."""

from __future__ import annotations

from sqlalchemy import Connection, text

from bpals.ledger.place import OURS

_FILMS = 1


def alone(connection: Connection) -> None:
    """Wait until no other transaction writes what judges said; it lasts until this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:ours, :films)"), {"ours": OURS, "films": _FILMS})
