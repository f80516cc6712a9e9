"""Settling disagreements: by an adjudicator, or by the readers themselves in rounds."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from bpals.review.web.bodies import AdjudicationBody, RoundBody
from bpals.review.web.door import Me, TheRoom
from bpals.review.web.payloads import disagreement_payload
from bpals.review.web.routes.films import FilmNumber, film_response

router = APIRouter(prefix="/api")

CaseId = Annotated[int, Path(ge=1, le=2**53)]


@router.post("/adjudication/next")
def next_disagreement(room: TheRoom, account: Me) -> dict[str, Any]:
    """Hand out a case that its readers read differently."""
    return disagreement_payload(room, room.desk.adjudication_next(account))


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
    return disagreement_payload(room, room.desk.round_next(account))


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
