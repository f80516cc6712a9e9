"""A reading in the ledger: how it is found, shown, changed, taken and given back."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, bindparam, literal_column, select, update

from bpals.errors import NotYours, StaleVersion
from bpals.ledger.ready import Ready
from bpals.ledger.reviewschema import CASE, READING
from bpals.review.desk.answer import Answer
from bpals.review.desk.sitting import Sitting
from bpals.review.desk.views import ReadingView, ViewPhase

WHOLE = select(
    READING, CASE.c.image_id, CASE.c.batch, CASE.c.wanted, CASE.c.taken, CASE.c.stage, CASE.c.round
).join_from(READING, CASE, READING.c.case_id == CASE.c.case_id)
"""A reading with what is needed of its case."""

_ONE = Ready(WHOLE.where(READING.c.reading_id == bindparam("wanted_id")))
_SLOTS = Ready(select(READING.c.slot).where(READING.c.case_id == bindparam("of_case")))
_BY_ID = update(READING).where(READING.c.reading_id == bindparam("changed_id"))
_TAKEN = Ready(
    update(CASE).where(CASE.c.case_id == bindparam("of_case")).values(taken=CASE.c.taken + bindparam("more"))
)


def find(sitting: Sitting, reading_id: str) -> Any:
    """Give a reading of this person; another's is answered as if there were none."""
    # Ours are plain letters; what else an address can hold, a database may choke on.
    plain = reading_id.isascii() and reading_id.isprintable()
    row = _ONE.first(sitting.connection, wanted_id=reading_id) if plain else None
    if row is None or row.account_id != sitting.account.account_id or row.study_id != sitting.study_id:
        raise NotYours("you have no such reading. Ask for your next case")
    return row


def fresh(sitting: Sitting, reading_id: str) -> Any:
    """Give a reading as it stands after a change of this transaction."""
    return _ONE.first(sitting.connection, wanted_id=reading_id)


def show(sitting: Sitting, row: Row[Any]) -> ReadingView:
    """Give one reading as its reader sees it."""
    return show_all(sitting, [row])[0]


def show_all(sitting: Sitting, rows: Sequence[Row[Any]]) -> list[ReadingView]:
    """Give readings as their reader sees them."""
    findings = sitting.findings_of({row.case_id for row in rows})
    return [
        ReadingView(
            reading_id=row.reading_id,
            case_id=row.case_id,
            case_no=row.position + 1,
            image_id=row.image_id,
            findings=findings[row.case_id],
            state=row.state,
            version=row.version,
            answer=Answer.from_json(row.answer),
            phase=_phase(row.state, reveal=sitting.study.reveal),
            revealed=is_revealed(sitting, row),
            signal=row.signal,
        )
        for row in rows
    ]


def is_revealed(sitting: Sitting, row: Row[Any]) -> bool:
    """Say whether this reader may see label, judges and trust of the film: after the lock, in a study that reveals."""
    return sitting.study.reveal and row.state in {"locked", "done"}


def is_final(sitting: Sitting, row: Row[Any]) -> bool:
    """Say whether the blind read stands for good: where nothing is revealed, the last lock can still be undone."""
    return row.state == "done" or (row.state == "locked" and sitting.study.reveal)


def _phase(state: str, *, reveal: bool) -> ViewPhase:
    if state in {"leased", "released"}:
        return "blind"
    return "second" if state == "locked" and reveal else "done"


def check_version(sitting: Sitting, row: Row[Any], version: int) -> None:
    """Refuse a change of what was changed meanwhile."""
    if row.version != version:
        raise StaleVersion(
            f"this case was changed elsewhere: you have version {version}, and {row.version} is saved. "
            "Look at both, then save again",
            show(sitting, row),
        )


def change(sitting: Sitting, row: Row[Any], **values: Any) -> int:
    """Change a reading, and give its new version."""
    version = int(row.version) + 1
    move(sitting, row.reading_id, version=version, **values)
    return version


def move(sitting: Sitting, reading_id: str, **values: Any) -> None:
    """Change where a reading stands, and nothing that its reader wrote: its version stays."""
    _setting(*sorted(values)).run(sitting.connection, changed_id=reading_id, **_named(values))


@functools.cache
def _setting(*columns: str) -> Ready:
    """Make the statement that sets these columns: once, because making one takes longer than running it."""
    return Ready(_BY_ID.values({column: bindparam(f"new_{column}") for column in columns}))


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"new_{column}": value for column, value in values.items()}


def is_repeat(row: Row[Any]) -> bool:
    """Say whether the reader has read this film before."""
    return str(row.slot).startswith("repeat ")


def free_slot(sitting: Sitting, case_id: int, wanted: int) -> str | None:
    """Give the lowest place that is free among those a case wants; none if it has its readers."""
    held = {slot for (slot,) in _SLOTS.rows(sitting.connection, of_case=case_id)}
    return next((str(number) for number in range(1, wanted + 1) if str(number) not in held), None)


def count_taken(sitting: Sitting, case_id: int, more: int) -> None:
    """Count one reader more, or one fewer, of a case."""
    _TAKEN.run(sitting.connection, of_case=case_id, more=more)


def give_back(sitting: Sitting, row: Row[Any], state: str) -> None:
    """Let another reader have the case; what was written stays with its writer."""
    if is_repeat(row):
        move(sitting, row.reading_id, state=state)
        return
    move(sitting, row.reading_id, state=state, slot=f"{state} {row.reading_id}")
    count_taken(sitting, row.case_id, -1)


def take_again(sitting: Sitting, row: Row[Any]) -> bool:
    """Lease a reading that was given back to the reader who began it, if its case still wants one."""
    if is_repeat(row):
        move(sitting, row.reading_id, state="leased", held_until=sitting.lease_end)
        return True
    slot = free_slot(sitting, row.case_id, row.wanted)
    if slot is None:
        return False
    move(sitting, row.reading_id, state="leased", slot=slot, held_until=sitting.lease_end)
    count_taken(sitting, row.case_id, 1)
    return True


STILL_OPEN = (CASE.c.withdrawn == literal_column("0")) & (CASE.c.taken < CASE.c.wanted)
"""Literally the condition of the index `case_open`, so that both databases use it."""
