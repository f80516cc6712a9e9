"""How far a study is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from bpals.ledger.reviewschema import ACCOUNT, CASE, READING, REVIEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Cases and readings of a study, counted."""

    cases: int
    """Not withdrawn."""
    wanted: int
    """Readings that they take."""
    taken: int
    """Of those, held or done."""
    complete: int
    """Cases with all their readers."""
    disputed: int
    settled: int
    locked: int
    """Readings whose blind read is stored, hidden repeats left out."""
    repeats: int
    """Hidden repeats whose blind read is stored."""
    readers: Mapping[str, int]
    """Name -> locked readings, repeats among them."""
    imported: int
    """Reviews that were brought in from files."""


def count(connection: Connection, study_id: int) -> Counts:
    """Count a study."""
    stage = CASE.c.stage
    cases = connection.execute(
        select(
            func.count().label("cases"),
            func.coalesce(func.sum(CASE.c.wanted), 0).label("wanted"),
            func.coalesce(func.sum(CASE.c.taken), 0).label("taken"),
            func.count().filter(CASE.c.taken >= CASE.c.wanted).label("complete"),
            func.count().filter(stage == "disputed").label("disputed"),
            func.count().filter(stage == "settled").label("settled"),
        ).where(CASE.c.study_id == study_id, CASE.c.withdrawn == 0)
    )
    again = READING.c.slot.like("repeat %")
    locked = connection.execute(
        select(ACCOUNT.c.name, func.count().filter(~again), func.count().filter(again))
        .join_from(READING, ACCOUNT, READING.c.account_id == ACCOUNT.c.account_id)
        .where(READING.c.study_id == study_id, READING.c.state.in_(["locked", "done"]))
        .group_by(ACCOUNT.c.name)
        .order_by(ACCOUNT.c.name)
    ).all()
    imported = select(func.count()).where(REVIEW.c.phase == "imported")
    return Counts(
        **{name: int(number) for name, number in cases.mappings().one().items()},
        locked=sum(first for _, first, _ in locked),
        repeats=sum(repeated for _, _, repeated in locked),
        readers={name: first + repeated for name, first, repeated in locked},
        imported=int(connection.execute(imported).scalar_one()),
    )
