"""What a reader has read: what is stored of a blind read, and the last readings, to be looked at again or amended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Row, bindparam, select

from bpals.errors import NotNow
from bpals.ledger.ready import Ready
from bpals.ledger.reviewschema import READING, REVIEW
from bpals.review.desk import readings
from bpals.review.desk.answer import Answer, Verdict
from bpals.review.desk.assignment import in_hand, repeat_distance
from bpals.review.desk.sitting import Sitting
from bpals.review.desk.views import BlindRead, PastReading, Saved

_SAID = Ready(
    select(REVIEW.c.phase, REVIEW.c.finding, REVIEW.c.verdict, REVIEW.c.quality, REVIEW.c.devices)
    .where(REVIEW.c.reading_id == bindparam("wanted_id"))
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


def with_reading(sitting: Sitting, saved: Saved, reading_id: str) -> Saved:
    """Put into a receipt the reading as it stands now, and what is stored of it where its second read is due."""
    row = readings.fresh(sitting, reading_id)
    view = readings.show(sitting, row)
    return replace(saved, view=view, read=_blind_read(sitting, row) if view.phase == "second" else None)


def blind_read(sitting: Sitting, reading_id: str) -> BlindRead:
    """Give what is stored of a reader's own blind read; NotNow before the lock."""
    return _blind_read(sitting, readings.find(sitting, reading_id))


def _blind_read(sitting: Sitting, row: Row[Any]) -> BlindRead:
    said = _said(sitting, row.reading_id)
    blind = said.get("blind")
    if row.state not in {"locked", "done"} or not blind:
        raise NotNow("this case is not locked: nothing of it is stored yet")
    any_of_it = next(iter(blind.values()))
    return BlindRead(
        verdicts=_verdicts(blind),
        quality=any_of_it.quality,
        devices=any_of_it.devices,
        second=_verdicts(said["second"]) if "second" in said else None,
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
    return tuple(_past(sitting, row) for row in sitting.connection.execute(_FINISHED, asked).all())


def _past(sitting: Sitting, row: Row[Any, Any, Any, Any]) -> PastReading:
    now, said = Answer.from_json(row.answer), _said(sitting, row.reading_id)
    return PastReading(
        reading_id=row.reading_id,
        case_no=row.position + 1,
        locked=row.locked,
        marked=now.verdicts,
        quality=now.quality,
        amended="amended" in said,
        blind=_verdicts(said.get("blind", {})),
        second=_verdicts(said["second"]) if "second" in said else None,
    )


def _said(sitting: Sitting, reading_id: str) -> dict[str, dict[str, Any]]:
    """Give phase -> finding -> what is stored of it."""
    said: dict[str, dict[str, Any]] = {}
    for one in _SAID.rows(sitting.connection, wanted_id=reading_id):
        # A later row stands instead of an earlier one: undone and read again.
        said.setdefault(one.phase, {})[one.finding] = one
    return said


def _verdicts(said: dict[str, Any]) -> dict[str, Verdict]:
    return {finding: one.verdict for finding, one in said.items()}
