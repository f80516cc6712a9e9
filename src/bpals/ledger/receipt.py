"""Receipts: whether a commit was made whose answer was lost, as only the database itself can say.

Each writer has a row of its own, and every transaction of it writes its number there. After a lost answer the row is
read with a lock, so that a commit which is still on its way ends first. (The number that PostgreSQL gives to a
transaction does not serve: after a crash it may be given to another one.)
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, delete, select
from sqlalchemy.dialects.postgresql import insert

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
