"""Reading: the next case, drafts, the lock, the reveal, the second read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from bpals.errors import NotNow
from bpals.review.desk.account import Account
from bpals.review.desk.views import ReadingView, Saved
from bpals.review.room import Room
from bpals.review.web.bodies import AmendBody, DraftBody, ReadBody, StepBody
from bpals.review.web.door import Me, TheRoom
from bpals.review.web.payloads import handed_payload, past_payload, reading_payload, revealed_payload
from bpals.review.web.routes.films import FilmNumber, film_response

router = APIRouter(prefix="/api")

ReadingId = Annotated[str, Path(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


@router.post("/next")
def next_case(room: TheRoom, account: Me) -> dict[str, Any]:
    """Hand out the case that this reader reads now, and what comes after it."""
    handed = room.desk.next(account)
    reveal = _reveal(room, account, handed.current) if handed.current else None
    return {**handed_payload(room, handed), "reveal": reveal}


@router.post("/bring-back")
def bring_back(room: TheRoom, account: Me) -> dict[str, int]:
    """Offer this reader again what he skipped and nobody else has taken."""
    return {"brought_back": room.desk.bring_back(account)}


@router.get("/readings")
def last_readings(room: TheRoom, account: Me) -> dict[str, Any]:
    """Send one's own last readings, the newest first: each can be amended."""
    return past_payload(room.desk.last_readings(account))


@router.get("/readings/{reading_id}")
def reading(reading_id: ReadingId, room: TheRoom, account: Me) -> dict[str, Any]:
    """Send a reading of one's own, as it stands."""
    return reading_payload(room, room.desk.reading(account, reading_id))


@router.post("/readings/{reading_id}/draft")
def draft(reading_id: ReadingId, body: DraftBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Keep what is written so far."""
    saved = room.desk.draft(account, reading_id, version=body.version, key=body.key, answer=body.answer.answer())
    return {**saved.reply, "version": saved.version}


@router.post("/readings/{reading_id}/lock")
def lock(reading_id: ReadingId, body: ReadBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Lock the blind read; the reply reveals, where the study does, and the same transaction says which signal."""
    image_id = room.desk.reading(account, reading_id).image_id
    saved = room.desk.lock(
        account,
        reading_id,
        version=body.version,
        key=body.key,
        answer=body.answer.answer(),
        spent=body.spent.spent(),
        signal=room.reveal(image_id).version if room.study.reveal else None,
    )
    room.after_lock()
    return _receipt(room, account, reading_id, saved)


@router.post("/readings/{reading_id}/second")
def second(reading_id: ReadingId, body: ReadBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Keep the verdict after the reveal, apart from the blind one."""
    signal = room.desk.reading(account, reading_id).signal
    if signal is None:
        raise NotNow("nothing was revealed of this case yet")
    saved = room.desk.second(
        account,
        reading_id,
        version=body.version,
        key=body.key,
        answer=body.answer.answer(),
        spent=body.spent.spent(),
        signal=signal,
    )
    return {**saved.reply, "version": saved.version}


@router.post("/readings/{reading_id}/skip")
def skip(reading_id: ReadingId, body: StepBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Leave a case to others."""
    saved = room.desk.skip(account, reading_id, version=body.version, key=body.key)
    return _receipt(room, account, reading_id, saved)


@router.post("/readings/{reading_id}/undo")
def undo(reading_id: ReadingId, body: StepBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Take the last lock back, where nothing was revealed."""
    saved = room.desk.undo(account, reading_id, version=body.version, key=body.key)
    return _receipt(room, account, reading_id, saved)


@router.post("/readings/{reading_id}/amend")
def amend(reading_id: ReadingId, body: AmendBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Change a read after its lock, with a reason; the first one stays."""
    saved = room.desk.amend(
        account,
        reading_id,
        version=body.version,
        key=body.key,
        answer=body.answer.answer(),
        reason=body.reason,
    )
    return _receipt(room, account, reading_id, saved)


@router.post("/readings/{reading_id}/reveal")
def reveal(reading_id: ReadingId, room: TheRoom, account: Me) -> dict[str, Any]:
    """Show again what is known of a case that was revealed, as it is now: a newer signal is noted, so it is a POST."""
    view = room.desk.reading(account, reading_id)
    if not view.revealed:
        raise NotNow("this case is not locked: nothing is revealed before")
    return _shown(room, account, view)


@router.get("/readings/{reading_id}/films/{n}")
async def film(request: Request, reading_id: ReadingId, n: FilmNumber, room: TheRoom, account: Me) -> Response:
    """Send the pixels of a film of the case, or of the same patient."""
    return await film_response(request, room, lambda: room.desk.reading(account, reading_id).image_id, n)


def _receipt(room: Room, account: Account, reading_id: str, saved: Saved) -> dict[str, Any]:
    view = room.desk.reading(account, reading_id)
    return {
        **saved.reply,
        "version": saved.version,
        "reading": reading_payload(room, view),
        "reveal": _reveal(room, account, view),
    }


def _reveal(room: Room, account: Account, view: ReadingView) -> dict[str, Any] | None:
    """Show what belongs to the second read, once it may be shown."""
    return _shown(room, account, view) if view.revealed and view.phase == "second" else None


def _shown(room: Room, account: Account, view: ReadingView) -> dict[str, Any]:
    """Show what is known now, after the log knows which version of it the reader sees."""
    revealed = room.reveal(view.image_id)
    changed = revealed.version != view.signal
    if changed:
        room.desk.note_reveal(account, view.reading_id, revealed.version)
    read = room.desk.blind_read(account, view.reading_id)
    return revealed_payload(revealed, read, changed=changed and view.signal is not None)
