"""What a reader has read: what is stored of a blind read, and the last readings, to be looked at again or amended."""

from __future__ import annotations

from sqlalchemy import bindparam, select

from bpals.errors import NotNow
from bpals.ledger.reviewschema import READING, REVIEW
from bpals.review.desk import readings
from bpals.review.desk.answer import Answer
from bpals.review.desk.assignment import in_hand, repeat_distance
from bpals.review.desk.sitting import Sitting
from bpals.review.desk.views import BlindRead, PastReading

_BLIND = (
    select(REVIEW.c.finding, REVIEW.c.verdict, REVIEW.c.quality, REVIEW.c.devices)
    .where(REVIEW.c.reading_id == bindparam("wanted_id"), REVIEW.c.phase == "blind")
    .order_by(REVIEW.c.review_id)
)
_FINISHED = (
    select(READING.c.reading_id, READING.c.position, READING.c.locked, READING.c.answer)
    .where(
        READING.c.study_id == bindparam("study"),
        READING.c.account_id == bindparam("reader"),
        READING.c.state.in_(bindparam("states", expanding=True)),
        READING.c.position > bindparam("after"),
    )
    .order_by(READING.c.position.desc())
    .limit(bindparam("most"))
)


def blind_read(sitting: Sitting, reading_id: str) -> BlindRead:
    """Give what is stored of a reader's own blind read; NotNow before the lock."""
    row = readings.find(sitting, reading_id)
    # A later row stands instead of an earlier one: undone and read again.
    said = {one.finding: one for one in sitting.connection.execute(_BLIND, {"wanted_id": row.reading_id})}
    if row.state not in {"locked", "done"} or not said:
        raise NotNow("this case is not locked: nothing of it is stored yet")
    verdicts = {finding: one.verdict for finding, one in said.items()}
    any_of_it = next(iter(said.values()))
    return BlindRead(verdicts=verdicts, quality=any_of_it.quality, devices=any_of_it.devices)


def last_readings(sitting: Sitting, most: int) -> tuple[PastReading, ...]:
    """Give the readings that this reader finished last, the newest first.

    Where films come again unmarked, none is listed that may be the one on the screen: that is to be read anew.
    """
    study, held = sitting.study, in_hand(sitting)
    asked = {
        "study": sitting.study_id,
        "reader": sitting.account.account_id,
        # Where the study reveals, a case that is locked and not done still waits for its second read.
        "states": ["done"] if study.reveal else ["locked", "done"],
        "after": held[0].position - repeat_distance(study) if held and study.repeats > 0 else -1,
        "most": most,
    }
    rows = sitting.connection.execute(_FINISHED, asked).all()
    amended = _amended(sitting, [row.reading_id for row in rows])
    return tuple(
        PastReading(
            reading_id=row.reading_id,
            case_no=row.position + 1,
            locked=row.locked,
            marked=(said := Answer.from_json(row.answer)).verdicts,
            quality=said.quality,
            amended=row.reading_id in amended,
        )
        for row in rows
    )


def _amended(sitting: Sitting, reading_ids: list[str]) -> set[str]:
    which = select(REVIEW.c.reading_id).where(REVIEW.c.reading_id.in_(reading_ids), REVIEW.c.phase == "amended")
    return set(sitting.connection.execute(which.distinct()).scalars())
