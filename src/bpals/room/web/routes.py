"""The routes of reading, settling and progress: each takes JSON, calls the desk once, and sends JSON.

Those of reading give whole responses: FastAPI would check plain values against their type, each time in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from bpals.errors import NotNow
from bpals.room.desk.readings import BlindRead, ReadingView, Saved
from bpals.room.desk.study import Account
from bpals.room.room import Room
from bpals.room.web import payloads
from bpals.room.web.guard import FILM_POLICY, NOT_FOUND, Declined, Me, Problem, TheRoom
from bpals.room.web.payloads import AdjudicationBody, AmendBody, DraftBody, ReadBody, RoundBody, StepBody
from bpals.types import Refusal

# Digits and nothing else: as an int, 1.0 and a blank before it would do.
FilmNumber = Annotated[str, Path(pattern=r"^(0|[1-9][0-9]{0,3})$")]

FILM_THREADS = 8  # films that are decoded or sent together: while they wait for the disk, answers are still saved
HELD_S = 3600  # how long the browser of this session may keep a film: the next cases are fetched ahead


async def film_response(request: Request, room: Room, find: Callable[[], str], number: str) -> Response:
    """Send the film with that number of the patient on the film that is found; decoding has threads of its own."""
    return await to_thread.run_sync(lambda: _film(room, find(), number), limiter=request.app.state.film_threads)


def _film(room: Room, image_id: str, number: str) -> Response:
    films = payloads.patient_films(room, image_id)
    if int(number) >= len(films):
        raise Declined(NOT_FOUND)
    found = room.film(films[int(number)].image_id)
    if isinstance(found, Refusal):
        words = f"This film cannot be shown ({found.code})."
        raise Declined(Problem(status=404, code="film", message=words, more={"film": {"refused": found.code}}))
    headers = {
        "x-film": json.dumps(dict(found.about())),
        "content-security-policy": FILM_POLICY,
        "cache-control": f"private, max-age={HELD_S}",
        "vary": "Cookie",
    }
    if found.kind == "grey16":
        headers["content-encoding"] = "gzip"
    kind = "image/png" if found.kind == "png8" else "application/octet-stream"
    return Response(found.content, media_type=kind, headers=headers)


router = APIRouter(prefix="/api")


@router.get("/progress")
def progress(room: TheRoom, account: Me) -> dict[str, Any]:
    """Send how far the study is."""
    return payloads.progress_payload(room.progress(), account)


CaseId = Annotated[int, Path(ge=1, le=2**53)]


@router.post("/adjudication/next")
def next_disagreement(room: TheRoom, account: Me) -> dict[str, Any]:
    """Hand out a case that its readers read differently."""
    return payloads.disagreement_payload(room, room.desk.adjudication_next(account))


@router.post("/adjudication/{case_id}")
def adjudicate(case_id: CaseId, body: AdjudicationBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Settle a case, from what was on the screen."""
    saved = room.desk.adjudicate(
        account,
        case_id,
        pinned=body.pinned,
        key=body.key,
        verdicts={finding: (settled.verdict, settled.how) for finding, settled in body.verdicts.items()},
        note=body.note,
    )
    return {"version": saved.version, "reply": saved.reply}


@router.get("/adjudication/{case_id}/films/{n}")
async def disputed_film(request: Request, case_id: CaseId, n: FilmNumber, room: TheRoom, account: Me) -> Response:
    """Send the pixels of a film of a disputed case."""
    return await film_response(request, room, lambda: room.desk.disagreement(account, case_id).image_id, n)


@router.post("/rounds/next")
def next_round(room: TheRoom, account: Me) -> dict[str, Any]:
    """Hand out a discussion in which this reader is asked again."""
    return payloads.disagreement_payload(room, room.desk.round_next(account))


@router.post("/rounds/{case_id}")
def answer_round(case_id: CaseId, body: RoundBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Keep what a reader says in a round."""
    saved = room.desk.round_answer(
        account, case_id, round_=body.round, key=body.key, verdicts=body.verdicts, note=body.note
    )
    return {"version": saved.version, "reply": saved.reply}


@router.get("/rounds/{case_id}/films/{n}")
async def discussed_film(request: Request, case_id: CaseId, n: FilmNumber, room: TheRoom, account: Me) -> Response:
    """Send the pixels of a film that is discussed."""
    return await film_response(request, room, lambda: room.desk.round(account, case_id).image_id, n)


ReadingId = Annotated[str, Path(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


@router.post("/next")
def next_case(room: TheRoom, account: Me) -> JSONResponse:
    """Hand out the case that this reader reads now, and what comes after it."""
    handed = room.desk.next(account)
    view, reveal = handed.current, None
    if view is not None and view.phase == "second":
        reveal = _reveal(room, account, view, room.desk.blind_read(account, view.reading_id))
    return JSONResponse({**payloads.handed_payload(room, handed), "reveal": reveal})


@router.post("/bring-back")
def bring_back(room: TheRoom, account: Me) -> JSONResponse:
    """Offer this reader again what they skipped and nobody else has taken."""
    return JSONResponse({"brought_back": room.desk.bring_back(account)})


@router.get("/readings")
def last_readings(room: TheRoom, account: Me) -> JSONResponse:
    """Send one's own last readings, the newest first: each can be amended."""
    return JSONResponse({"readings": [asdict(each) for each in room.desk.last_readings(account)]})


@router.get("/readings/{reading_id}")
def reading(reading_id: ReadingId, room: TheRoom, account: Me) -> JSONResponse:
    """Send a reading of one's own, as it stands."""
    return JSONResponse(payloads.reading_payload(room, room.desk.reading(account, reading_id)))


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
        account, reading_id, version=body.version, key=body.key, answer=body.answer.answer(), spent=body.spent.spent()
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
        account, reading_id, version=body.version, key=body.key, answer=body.answer.answer(), reason=body.reason
    )
    return _receipt(room, account, saved)


@router.post("/readings/{reading_id}/reveal")
def reveal(reading_id: ReadingId, room: TheRoom, account: Me) -> JSONResponse:
    """Show again what is known of a case that was revealed, as it is now: a newer signal is noted, so it is a POST."""
    view = room.desk.reading(account, reading_id)
    if not view.revealed:
        raise NotNow("this case is not locked: nothing is revealed before")
    return JSONResponse(_reveal(room, account, view, room.desk.blind_read(account, reading_id)))


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
            "reading": view and payloads.reading_payload(room, view),
            "reveal": view and saved.read and _reveal(room, account, view, saved.read),
        }
    )


def _reveal(room: Room, account: Account, view: ReadingView, read: BlindRead) -> dict[str, Any]:
    """Give what is known now, after the log has noted which version of it the reader sees."""
    revealed = room.reveal(view.image_id)
    changed = revealed.version != view.signal
    if changed:
        room.desk.note_reveal(account, view.reading_id, revealed.version)
    return payloads.revealed_payload(revealed, read, changed=changed and view.signal is not None)
