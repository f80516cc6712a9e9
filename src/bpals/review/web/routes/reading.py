"""Reading: the next case, drafts, the lock, the reveal, the second read.

These routes give whole responses: values FastAPI would check against their type, in another thread, for every answer.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from bpals.errors import NotNow
from bpals.review.desk.account import Account
from bpals.review.desk.views import BlindRead, ReadingView, Saved
from bpals.review.room import Room
from bpals.review.web.bodies import AmendBody, DraftBody, ReadBody, StepBody
from bpals.review.web.door import Me, TheRoom
from bpals.review.web.payloads import handed_payload, past_payload, reading_payload, revealed_payload
from bpals.review.web.routes.films import FilmNumber, film_response

router = APIRouter(prefix="/api")

ReadingId = Annotated[str, Path(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


@router.post("/next")
def next_case(room: TheRoom, account: Me) -> JSONResponse:
    """Hand out the case that this reader reads now, and what comes after it."""
    handed = room.desk.next(account)
    view, reveal = handed.current, None
    if view is not None and view.phase == "second":
        reveal = _shown(room, account, view, room.desk.blind_read(account, view.reading_id))
    return JSONResponse({**handed_payload(room, handed), "reveal": reveal})


@router.post("/bring-back")
def bring_back(room: TheRoom, account: Me) -> JSONResponse:
    """Offer this reader again what he skipped and nobody else has taken."""
    return JSONResponse({"brought_back": room.desk.bring_back(account)})


@router.get("/readings")
def last_readings(room: TheRoom, account: Me) -> JSONResponse:
    """Send one's own last readings, the newest first: each can be amended."""
    return JSONResponse(past_payload(room.desk.last_readings(account)))


@router.get("/readings/{reading_id}")
def reading(reading_id: ReadingId, room: TheRoom, account: Me) -> JSONResponse:
    """Send a reading of one's own, as it stands."""
    return JSONResponse(reading_payload(room, room.desk.reading(account, reading_id)))


@router.post("/readings/{reading_id}/draft")
def draft(reading_id: ReadingId, body: DraftBody, room: TheRoom, account: Me) -> JSONResponse:
    """Keep what is written so far."""
    saved = room.desk.draft(account, reading_id, version=body.version, key=body.key, answer=body.answer.answer())
    return JSONResponse({**saved.reply, "version": saved.version})


@router.post("/readings/{reading_id}/lock")
def lock(reading_id: ReadingId, body: ReadBody, room: TheRoom, account: Me) -> JSONResponse:
    """Lock the blind read; the reply reveals, where the study does, and the same transaction says which signal."""
    saved = room.desk.lock(
        account,
        reading_id,
        version=body.version,
        key=body.key,
        answer=body.answer.answer(),
        spent=body.spent.spent(),
        signal=room.signal() if room.study.reveal else None,
    )
    room.after_lock()
    return _receipt(room, account, saved)


@router.post("/readings/{reading_id}/second")
def second(reading_id: ReadingId, body: ReadBody, room: TheRoom, account: Me) -> JSONResponse:
    """Keep the verdict after the reveal, apart from the blind one."""
    saved = room.desk.second(
        account,
        reading_id,
        version=body.version,
        key=body.key,
        answer=body.answer.answer(),
        spent=body.spent.spent(),
    )
    return JSONResponse({**saved.reply, "version": saved.version})


@router.post("/readings/{reading_id}/skip")
def skip(reading_id: ReadingId, body: StepBody, room: TheRoom, account: Me) -> JSONResponse:
    """Leave a case to others."""
    saved = room.desk.skip(account, reading_id, version=body.version, key=body.key)
    return _receipt(room, account, saved)


@router.post("/readings/{reading_id}/undo")
def undo(reading_id: ReadingId, body: StepBody, room: TheRoom, account: Me) -> JSONResponse:
    """Take the last lock back, where nothing was revealed."""
    saved = room.desk.undo(account, reading_id, version=body.version, key=body.key)
    return _receipt(room, account, saved)


@router.post("/readings/{reading_id}/amend")
def amend(reading_id: ReadingId, body: AmendBody, room: TheRoom, account: Me) -> JSONResponse:
    """Change a read after its lock, with a reason; the first one stays."""
    saved = room.desk.amend(
        account,
        reading_id,
        version=body.version,
        key=body.key,
        answer=body.answer.answer(),
        reason=body.reason,
    )
    return _receipt(room, account, saved)


@router.post("/readings/{reading_id}/reveal")
def reveal(reading_id: ReadingId, room: TheRoom, account: Me) -> JSONResponse:
    """Show again what is known of a case that was revealed, as it is now: a newer signal is noted, so it is a POST."""
    view = room.desk.reading(account, reading_id)
    if not view.revealed:
        raise NotNow("this case is not locked: nothing is revealed before")
    return JSONResponse(_shown(room, account, view, room.desk.blind_read(account, reading_id)))


@router.get("/readings/{reading_id}/films/{n}")
async def film(request: Request, reading_id: ReadingId, n: FilmNumber, room: TheRoom, account: Me) -> Response:
    """Send the pixels of a film of the case, or of the same patient."""
    return await film_response(request, room, lambda: room.desk.reading(account, reading_id).image_id, n)


def _receipt(room: Room, account: Account, saved: Saved) -> JSONResponse:
    """Send what was saved, and what belongs to the second read once that is due."""
    view = saved.view
    return JSONResponse(
        {
            **saved.reply,
            "version": saved.version,
            "reading": view and reading_payload(room, view),
            "reveal": view and saved.read and _shown(room, account, view, saved.read),
        }
    )


def _shown(room: Room, account: Account, view: ReadingView, read: BlindRead) -> dict[str, Any]:
    """Show what is known now, after the log knows which version of it the reader sees."""
    revealed = room.reveal(view.image_id)
    changed = revealed.version != view.signal
    if changed:
        room.desk.note_reveal(account, view.reading_id, revealed.version)
    return revealed_payload(revealed, read, changed=changed and view.signal is not None)
