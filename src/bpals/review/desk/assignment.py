"""Who reads what next: leases, the order of each reader, and the hidden repeats.

The lowest batch that still wants a reader comes first, and within it each reader has an order of their own, made from
the seed of the study. A lease ends by the database's clock: the case goes back, and what was written stays.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from sqlalchemy import Row, and_, bindparam, exists, func, insert, literal, or_, select

from bpals.errors import ContractBroken
from bpals.ledger.ready import Ready
from bpals.ledger.reviewschema import CASE, READING
from bpals.review.desk import readings
from bpals.review.desk.answer import Answer
from bpals.review.desk.floors import Floors
from bpals.review.desk.readings import STILL_OPEN, WHOLE
from bpals.review.desk.settling import settle
from bpals.review.desk.sitting import Sitting
from bpals.review.desk.study import Study

BLANK = Answer().as_json()
PLENTY, SPARE = 12, 3
"""Where a batch has so many cases left for a reader, some more are leased at once: the next asks then write nothing."""
_INSERT = Ready(insert(READING))

_MINE = and_(READING.c.study_id == bindparam("study"), READING.c.account_id == bindparam("reader"))
_IN_HAND = Ready(WHOLE.where(_MINE, READING.c.state.in_([literal("leased"), literal("locked")])))
_RETURNED = Ready(
    WHOLE.where(
        _MINE, READING.c.state == "released", or_(CASE.c.taken < CASE.c.wanted, READING.c.slot.like("repeat %"))
    )
    .order_by(READING.c.position)
    .limit(1)
)
_SKIPPED = Ready(WHOLE.where(_MINE, READING.c.state == "skipped"))
_LAST_PLACE = Ready(select(func.coalesce(func.max(READING.c.position), -1)).where(_MINE))
_OVERDUE = Ready(
    WHOLE.where(
        READING.c.study_id == bindparam("study"),
        READING.c.state.in_([literal("leased"), literal("locked")]),
        READING.c.held_until < bindparam("moment"),
    )
)
_FIRST_OVERDUE = Ready(
    select(READING.c.reading_id)
    .where(
        READING.c.study_id == bindparam("study"),
        READING.c.state == "leased",
        READING.c.held_until < bindparam("moment"),
    )
    .limit(1)
)
_READ_BY_ME = exists(literal(1)).where(READING.c.account_id == bindparam("reader"), READING.c.case_id == CASE.c.case_id)
_OFFERED = and_(CASE.c.study_id == bindparam("study"), STILL_OPEN, ~_READ_BY_ME)


def _lowest(*more: Any) -> Ready:
    from_floor = CASE.c.batch >= bindparam("floor")
    return Ready(select(CASE.c.batch).where(_OFFERED, from_floor, *more).order_by(CASE.c.batch).limit(1))


def _of_batch(*more: Any) -> Ready:
    numbered = CASE.c.batch == bindparam("number")
    return Ready(select(CASE.c.case_id, CASE.c.wanted, CASE.c.taken).where(_OFFERED, numbered, *more))


_LOWEST, _OF_BATCH = _lowest(), _of_batch()
_BEGUN = CASE.c.taken > 0
_LOWEST_BEGUN, _BEGUN_OF_BATCH = _lowest(_BEGUN), _of_batch(_BEGUN)


def shuffled(seed: int, *names: object) -> str:
    """Give a text by which things are ordered as if at random, and the same way each time."""
    return hashlib.sha256("\0".join(map(str, (seed, *names))).encode()).hexdigest()


def sweep(sitting: Sitting) -> None:
    """Let the clock do its part: leases that ended go back, and a last lock can no longer be undone."""
    overdue = {"study": sitting.study_id, "moment": sitting.now}
    for row in _OVERDUE.rows(sitting.connection, **overdue):
        if row.state == "leased":
            readings.give_back(sitting, row, "released")
            sitting.note("lease ended", {"state": "released", "version": row.version}, reading_id=row.reading_id)
        elif not sitting.study.reveal:
            finish_blind(sitting, row)


def finish_blind(sitting: Sitting, row: Row[Any]) -> None:
    """Make a locked read final where nothing is revealed, and see whether its case is settled."""
    readings.move(sitting, row.reading_id, state="done")
    sitting.note("final", {"state": "done", "version": row.version}, reading_id=row.reading_id)
    settle(sitting, row.case_id)


def is_due(sitting: Sitting, held: list[Row[Any]]) -> bool:
    """Say whether the clock has something to do: a lease of anybody's has ended, or one of these is half over."""
    overdue = {"study": sitting.study_id, "moment": sitting.now}
    ends = _FIRST_OVERDUE.first(sitting.connection, **overdue)
    return ends is not None or any(_is_half_over(sitting, row) for row in held)


def in_hand(sitting: Sitting) -> list[Row[Any]]:
    """Give the readings that this reader holds, in their order: being read, or locked and waiting for a second read."""
    rows = _IN_HAND.rows(sitting.connection, **_me(sitting))
    # Sorted here: asked to sort, SQLite would go through all that the reader ever read.
    return sorted((row for row in rows if row.state == "leased" or sitting.study.reveal), key=lambda row: row.position)


def fill(sitting: Sitting, missing: int, *, stopped: bool, floors: Floors) -> int:
    """Lease so many cases, fewer where fewer are left, and some more where there are plenty; say how many."""
    leased = 0
    while leased < missing and _take_returned(sitting):
        leased += 1
    if leased == missing:
        return leased
    place = int(_LAST_PLACE.value(sitting.connection, **_me(sitting)))
    offered: list[Row[Any]] = []
    while leased < missing:
        case_id = None if stopped else due_repeat(sitting, place + 1)
        if case_id is not None:
            _lease(sitting, case_id, f"repeat {sitting.account.name}", place + 1)
        else:
            if not offered:
                offered = _offer(sitting, stopped=stopped, floors=floors)
                missing += SPARE if len(offered) >= PLENTY else 0
            if not offered:
                break
            _take(sitting, offered.pop(0), place + 1)
        place, leased = place + 1, leased + 1
    return leased


def bring_back(sitting: Sitting) -> int:
    """Let the reader be handed again what they skipped, as far as others have not taken it."""
    rows = _SKIPPED.rows(sitting.connection, **_me(sitting))
    for row in rows:
        readings.move(sitting, row.reading_id, state="released")
        sitting.note("brought back", {"state": "released", "version": row.version}, reading_id=row.reading_id)
    return len(rows)


def renew(sitting: Sitting, held: list[Row[Any]]) -> None:
    """Lengthen leases that are more than half over: their reader is here."""
    for row in held:
        if _is_half_over(sitting, row):
            readings.move(sitting, row.reading_id, held_until=sitting.lease_end)


def _is_half_over(sitting: Sitting, row: Row[Any]) -> bool:
    return bool(row.state == "leased" and row.held_until < sitting.now + 30 * sitting.study.lease_minutes)


def _me(sitting: Sitting) -> dict[str, int]:
    return {"study": sitting.study_id, "reader": sitting.account.account_id}


def _take_returned(sitting: Sitting) -> bool:
    """Lease again what this reader had begun, with its draft, if the case is still free."""
    row = _RETURNED.first(sitting.connection, **_me(sitting))
    if row is None or not readings.take_again(sitting, row):
        return False
    sitting.note("leased again", {"state": "leased", "version": row.version}, reading_id=row.reading_id)
    return True


def _offer(sitting: Sitting, *, stopped: bool, floors: Floors) -> list[Row[Any]]:
    """Give the cases of the lowest batch that has one for this reader, in the reader's own order."""
    lowest, of_batch = (_LOWEST_BEGUN, _BEGUN_OF_BATCH) if stopped else (_LOWEST, _OF_BATCH)
    batch = _lowest_batch(sitting, lowest, floors)
    if batch is None:
        return []
    cases = of_batch.rows(sitting.connection, **_me(sitting), number=batch)
    seed, reader = sitting.study.seed, sitting.account.account_id
    return sorted(cases, key=lambda case: shuffled(seed, reader, case.case_id))


def _take(sitting: Sitting, case: Row[Any], place: int) -> None:
    """Lease a case that wants a reader."""
    slot = "1" if case.taken == 0 else readings.free_slot(sitting, case.case_id, case.wanted)
    if slot is None:
        raise ContractBroken(f"case {case.case_id} counts {case.taken} readers, but its {case.wanted} places are taken")
    readings.count_taken(sitting, case.case_id, 1)
    _lease(sitting, case.case_id, slot, place)


def _lowest_batch(sitting: Sitting, lowest: Ready, floors: Floors) -> int | None:
    """Give the lowest batch that has a case for this reader, looking first where it was last time."""
    reader = sitting.account.account_id
    for floor in dict.fromkeys((floors.of(reader), 0)):
        batch = lowest.value(sitting.connection, **_me(sitting), floor=floor)
        if batch is not None:
            floors.found(reader, batch, began_at=floor)
            return int(batch)
    return None


def _lease(sitting: Sitting, case_id: int, slot: str, place: int) -> None:
    reading_id = secrets.token_urlsafe(16)
    row = {
        "reading_id": reading_id,
        "study_id": sitting.study_id,
        "case_id": case_id,
        "account_id": sitting.account.account_id,
        "slot": slot,
        "position": place,
        "state": "leased",
        "version": 0,
        "answer": BLANK,
        "held_until": sitting.lease_end,
        "began": sitting.now,
        "locked": None,
        "signal": None,
    }
    _INSERT.run(sitting.connection, **row)
    told = {"state": "leased", "version": 0, "case": case_id, "slot": slot, "reader": sitting.account.name}
    sitting.note("leased", told, reading_id=reading_id)


_ONCE = READING.alias("once")
_REPEATABLE = Ready(
    select(READING.c.case_id)
    .where(
        _MINE,
        READING.c.state.in_([literal("locked"), literal("done")]),
        READING.c.position <= bindparam("latest"),
        READING.c.slot.not_like("repeat %"),
        ~exists(literal(1)).where(_ONCE.c.case_id == READING.c.case_id, _ONCE.c.slot == bindparam("slot")),
    )
    .order_by(READING.c.position.desc())
    .limit(200)
)
DISTANCE = 5
"""A film comes again after at least so many others, or half a batch if that is more."""


def repeat_distance(study: Study) -> int:
    """Say after how many cases at the earliest a film may come again."""
    return max(DISTANCE, study.batch // 2)


def due_repeat(sitting: Sitting, place: int) -> int | None:
    """Give the case that this reader is to read again at this place of their order, if there is to be one.

    Of every 1 / repeats places one is for a repeat; which one, is drawn from the seed, so that nobody can count it out.
    """
    if sitting.study.repeats <= 0:
        return None
    seed, reader = sitting.study.seed, sitting.account.account_id
    block = max(1, round(1 / sitting.study.repeats))
    drawn = int(shuffled(seed, reader, "repeat", place // block)[:8], 16) % block
    latest = place - repeat_distance(sitting.study)
    if place % block != drawn or latest < 0:
        return None
    asked = {**_me(sitting), "latest": latest, "slot": f"repeat {sitting.account.name}"}
    cases = [row.case_id for row in _REPEATABLE.rows(sitting.connection, **asked)]
    return min(cases, key=lambda case_id: shuffled(seed, reader, "again", case_id), default=None)
