"""What a reader does with a reading: draft, lock, second read, skip, undo, amend; each is one entry of the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, bindparam, func, select, update

from bpals.errors import NotNow
from bpals.room.desk import readings
from bpals.room.desk.assignment import finish_blind
from bpals.room.desk.readings import FIRST_TIME, IS_LOCKED, MINE, Answer, Request, Saved, Spent, Transaction, Verdict
from bpals.room.desk.settling import settle
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.review_rows import store
from bpals.store.ledger.schema import DRAWN, READING, REVIEW, STUDY
from bpals.text import several

_INCLUSION = Ready(select(DRAWN.c.finding, DRAWN.c.inclusion).where(DRAWN.c.case_id == bindparam("of_case")))
_OTHERS_LOCKED = Ready(
    readings.WHOLE.where(MINE, READING.c.state == "locked", READING.c.reading_id != bindparam("but"))
)
_LAST_LOCK = Ready(
    select(READING.c.locked)
    .where(MINE, READING.c.locked.is_not(None), READING.c.reading_id != bindparam("but"))
    .order_by(READING.c.position.desc())
    .limit(1)
)
_LOCKED = Ready(select(func.count()).where(READING.c.study_id == bindparam("study"), IS_LOCKED, FIRST_TIME))


def draft(tx: Transaction, request: Request, version: int, answer: Answer) -> Saved:
    """Keep what is written so far."""
    row = _writable(tx, request.subject, version)
    if row.state == "skipped":
        raise NotNow("you skipped this case. Undo the skip, then write")
    readings.check_answer(answer, _findings(tx, row))
    state = "leased" if row.state == "released" and readings.take_again(tx, row) else row.state
    return _save(tx, request, row, state, answer=answer, held_until=tx.lease_end)


def lock(
    tx: Transaction, request: Request, version: int, answer: Answer, spent: Spent, signal: str | None = None
) -> Saved:
    """Store the blind read for good; `signal` is the version that the reader is shown next."""
    row = _writable(tx, request.subject, version, blind=True)
    if row.state == "skipped":
        raise NotNow("you skipped this case. Undo the skip, then lock")
    verdicts = _verdicts(tx, row, answer, spent)
    if row.state == "released" and not readings.take_again(tx, row):
        # The case has all its readers: kept as a draft, nothing is lost and no reader too many counts.
        return _save(tx, request, row, "released", answer=answer, detail={"kept": True})
    values = {"locked": tx.now, "held_until": tx.lease_end} | ({} if signal is None else {"signal": signal})
    detail = {"reviews": _store(tx, row, answer, verdicts, phase="blind", spent=spent)}
    saved = _save(tx, request, row, "locked", answer=answer, detail=detail, **values)
    if signal is not None:
        _log_reveal(tx, row.reading_id, state="locked", version=saved.version, signal=signal)
    _after_lock(tx, row)
    return saved


def second(tx: Transaction, request: Request, version: int, answer: Answer, spent: Spent, signal: str | None) -> Saved:
    """Store what the reader says after the reveal, apart from the blind read."""
    row = readings.find(tx, request.subject)
    if not tx.study.reveal:
        raise NotNow("this study shows nothing after the lock, so there is no second read")
    if row.state == "done":
        raise NotNow("the second read of this case is stored. To change it, amend it with a reason")
    if row.state != "locked":
        raise NotNow("the second read comes after the lock. Lock the blind read first")
    readings.check_version(tx, row, version)
    verdicts = _verdicts(tx, row, answer, spent)
    seen = signal if signal is not None else row.signal
    if seen is None:
        raise NotNow("nothing was revealed of this case yet")
    digests = _store(tx, row, answer, verdicts, phase="second", spent=spent, signal=seen)
    return _save(tx, request, row, "done", answer=answer, detail={"reviews": digests, "signal": seen}, signal=seen)


def amend(tx: Transaction, request: Request, version: int, answer: Answer, reason: str) -> Saved:
    """Store a correction of a locked read beside it, with the reason; the first one stays."""
    row = readings.find(tx, request.subject)
    if row.state not in {"locked", "done"}:
        raise NotNow("this case is not locked: write and lock it, there is nothing to amend yet")
    readings.check_version(tx, row, version)
    findings = _findings(tx, row)
    readings.check_answer(answer, findings)
    why = readings.check_reason(reason)
    verdicts = readings.complete(answer, findings, tx.study.unmarked)
    digests = _store(tx, row, answer, verdicts, phase="amended", signal=row.signal)
    saved = _save(tx, request, row, row.state, answer=answer, detail={"reviews": digests, "reason": why})
    settle(tx, row.case_id)
    return saved


def skip(tx: Transaction, request: Request, version: int) -> Saved:
    """Give the case to another reader; what was written stays with its writer."""
    row = _writable(tx, request.subject, version)
    if row.state == "skipped":
        raise NotNow("you skipped this case already")
    if row.state == "locked":
        raise NotNow("this case is locked, and is not left to others. Store the second read, or amend it with a reason")
    if row.state == "leased":
        readings.give_back(tx, row, "skipped")
    return _save(tx, request, row, "skipped")


def undo(tx: Transaction, request: Request, version: int) -> Saved:
    """Take back a skip, or the last lock where nothing was revealed; the history keeps both."""
    row = readings.find(tx, request.subject)
    readings.check_version(tx, row, version)
    if row.state == "locked" and not tx.study.reveal:
        return _save(tx, request, row, "leased", detail={"undone": "lock"}, locked=None, held_until=tx.lease_end)
    if row.state == "locked" or (row.state == "done" and tx.study.reveal):
        raise NotNow("the label was shown after this lock: the blind read stands. To change it, amend it with a reason")
    if row.state == "done":
        raise NotNow("you have locked another case since. To change this one, amend it with a reason")
    if row.state != "skipped":
        raise NotNow("there is nothing to undo: the case is neither locked nor skipped")
    if not readings.take_again(tx, row):
        raise NotNow("the case that you skipped has gone to another reader; what you wrote is kept")
    return _save(tx, request, row, "leased", detail={"undone": "skip"})


def _writable(tx: Transaction, reading_id: str, version: int, *, blind: bool = False) -> Any:
    """Give a reading that its reader may still write to; after the lock only the second read may be drafted."""
    row = readings.find(tx, reading_id)
    if row.state == "done" or (row.state == "locked" and (blind or not tx.study.reveal)):
        raise NotNow("this case is locked: the blind read stands. To change it, amend it with a reason")
    readings.check_version(tx, row, version)
    return row


def _verdicts(tx: Transaction, row: Row[Any], answer: Answer, spent: Spent) -> dict[str, Verdict]:
    """Check an answer and its time, and give the verdict on every finding of the case."""
    findings = _findings(tx, row)
    readings.check_answer(answer, findings)
    readings.check_spent(spent)
    return readings.complete(answer, findings, tx.study.unmarked)


def _findings(tx: Transaction, row: Row[Any]) -> tuple[str, ...]:
    return tx.findings_of([row.case_id])[row.case_id]


def _save(
    tx: Transaction,
    request: Request,
    row: Row[Any],
    state: str,
    *,
    answer: Answer | None = None,
    detail: Mapping[str, Any] | None = None,
    **values: Any,
) -> Saved:
    """Change the reading, write the entry of the log, and give the receipt."""
    entry = dict(detail or {})
    if answer is not None:
        values["answer"], entry["answer"] = answer.as_json(), asdict(answer)
    stands = {"version": readings.change(tx, row, state=state, **values), "state": state}
    return request.finish(tx, {"reading_id": row.reading_id, **stands}, entry | stands, reading_id=row.reading_id)


def _store(
    tx: Transaction,
    row: Row[Any],
    answer: Answer,
    verdicts: dict[str, Any],
    *,
    phase: str,
    spent: Spent | None = None,
    signal: str | None = None,
) -> dict[str, str]:
    inclusion = {drawn.finding: drawn.inclusion for drawn in _INCLUSION.rows(tx.connection, of_case=row.case_id)}
    if tx.study.asks == "all":
        # It is the film that was drawn: each of its findings is read with the film's chance.
        inclusion = dict.fromkeys(verdicts, max(filter(None, inclusion.values()), default=None))
    active, wall = _bounded(tx, row, spent)
    saw = phase == "second" or (phase == "amended" and tx.study.reveal)
    boxes: dict[str, list[list[float]]] = {}
    for box in answer.boxes:
        boxes.setdefault(box.finding, []).append([box.x, box.y, box.width, box.height])
    same = readings.review_row(
        tx,
        row,
        phase,
        saw_signal=int(saw),
        signal=signal if saw else None,
        note=answer.note or None,
        quality=answer.quality,
        devices=answer.devices,
        active_s=active,
        wall_s=wall,
    )
    rows = [
        {
            **same,
            "finding": finding,
            "verdict": verdict,
            "confidence": answer.confidence.get(finding),
            "inclusion": inclusion.get(finding),
            "box": json.dumps(boxes[finding]) if finding in boxes else None,
        }
        for finding, verdict in verdicts.items()
    ]
    return store(tx.connection, REVIEW, rows)


def _bounded(tx: Transaction, row: Row[Any], spent: Spent | None) -> tuple[float | None, float | None]:
    """Bound the seconds that a browser counted by those that the database's clock saw."""
    if spent is None:
        return None, None
    # A second read began at the lock; a first one not before the reader's last lock of another case.
    since = row.locked
    if since is None:
        last = _LAST_LOCK.value(tx.connection, **tx.mine, but=row.reading_id)
        since = max(float(row.began), float(last or 0.0))
    wall = min(float(spent.wall_s), max(0.0, tx.now - float(since)))
    return min(float(spent.active_s), wall), wall


def _after_lock(tx: Transaction, row: Row[Any]) -> None:
    """Do what follows from a lock: earlier ones become final, the case may be settled, the study may be done."""
    if tx.study.reveal:
        settle(tx, row.case_id)
    else:
        for other in _OTHERS_LOCKED.rows(tx.connection, **tx.mine, but=row.reading_id):
            finish_blind(tx, other)
    limit = tx.study.stop_reads
    if limit is not None:
        read = int(_LOCKED.value(tx.connection, study=tx.study_id))
        if read >= limit:
            locked = several(read, "reading is", "readings are")
            stop(tx, f"{locked} locked, and the study was to stop at {limit:,}")


def stop(tx: Transaction, why: str) -> None:
    """Begin no more cases; those that were begun get their readers."""
    going_on = (STUDY.c.study_id == tx.study_id) & STUDY.c.stopped.is_(None)
    if tx.connection.execute(update(STUDY).where(going_on).values(stopped=why)).rowcount:
        tx.note("stopped", {"why": why})


def note_reveal(tx: Transaction, reading_id: str, signal: str) -> None:
    """Write down who saw which version of the signal, once for each version."""
    row = readings.find(tx, reading_id)
    if not tx.study.reveal:
        raise NotNow("this study shows neither label nor trust to its readers")
    if not readings.is_revealed(tx, row):
        raise NotNow("label and trust are shown after the lock. Lock the blind read first")
    if row.signal != signal:
        readings.move(tx, reading_id, signal=signal)
        _log_reveal(tx, reading_id, state=row.state, version=row.version, signal=signal)


def _log_reveal(tx: Transaction, reading_id: str, *, state: str, version: int, signal: str) -> None:
    detail = {"signal": signal, "state": state, "version": version, "study": tx.study_id}
    tx.log.append(actor=tx.account.name, action="revealed", detail=detail, reading_id=reading_id)
