"""What a reader has read: what is stored of a blind read, and the last readings, to be looked at again or amended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, select

from bpals.errors import NotNow
from bpals.ledger.reviewschema import READING, REVIEW
from bpals.review.desk import readings
from bpals.review.desk.answer import Answer, Verdict
from bpals.review.desk.assignment import in_hand, repeat_distance
from bpals.review.desk.sitting import Sitting
from bpals.review.desk.views import BlindRead, PastReading

_SAID = (
    select(REVIEW.c.reading_id, REVIEW.c.phase, REVIEW.c.finding, REVIEW.c.verdict, REVIEW.c.quality, REVIEW.c.devices)
    .where(REVIEW.c.reading_id.in_(bindparam("wanted_ids", expanding=True)))
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
    said = _said(sitting, [row.reading_id])
    blind = said.get((row.reading_id, "blind"))
    if row.state not in {"locked", "done"} or not blind:
        raise NotNow("this case is not locked: nothing of it is stored yet")
    any_of_it = next(iter(blind.values()))
    return BlindRead(
        verdicts=_verdicts(blind),
        quality=any_of_it.quality,
        devices=any_of_it.devices,
        second=_verdicts(said[row.reading_id, "second"]) if (row.reading_id, "second") in said else None,
    )


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
    said = _said(sitting, [row.reading_id for row in rows])
    return tuple(
        PastReading(
            reading_id=row.reading_id,
            case_no=row.position + 1,
            locked=row.locked,
            marked=(now := Answer.from_json(row.answer)).verdicts,
            quality=now.quality,
            amended=(row.reading_id, "amended") in said,
            blind=_verdicts(said.get((row.reading_id, "blind"), {})),
            second=_verdicts(said[row.reading_id, "second"]) if (row.reading_id, "second") in said else None,
        )
        for row in rows
    )


def _said(sitting: Sitting, reading_ids: Sequence[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Give (reading, phase) -> finding -> what is stored of it."""
    said: dict[tuple[str, str], dict[str, Any]] = {}
    for one in sitting.connection.execute(_SAID, {"wanted_ids": list(reading_ids)}):
        # A later row stands instead of an earlier one: undone and read again.
        said.setdefault((one.reading_id, one.phase), {})[one.finding] = one
    return said


def _verdicts(said: dict[str, Any]) -> dict[str, Verdict]:
    return {finding: one.verdict for finding, one in said.items()}
