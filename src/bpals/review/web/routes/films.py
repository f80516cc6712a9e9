"""Films: pixels that the server decoded and encoded itself, under an address that says nothing of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

from anyio import to_thread
from fastapi import Path, Request
from starlette.responses import Response

from bpals.review.room import Rendition, Room
from bpals.review.web.headers import FILM_POLICY
from bpals.review.web.payloads import patient_films
from bpals.review.web.problems import NOT_FOUND, Declined, Problem
from bpals.types import Refusal

FilmNumber = Annotated[str, Path(pattern=r"^(0|[1-9][0-9]{0,3})$")]
"""Digits and nothing else: as an int, 1.0 and a blank before it would do."""

PROJECTORS = 8
"""Films that are decoded or sent together: while they wait for the disk, answers are still saved."""
HELD_S = 3600
"""How long the browser of this session may keep a film: the next cases are fetched ahead."""


async def film_response(request: Request, room: Room, find: Callable[[], str], number: str) -> Response:
    """Send the film with that number of the patient on the film that is found; decoding has threads of its own."""
    return await to_thread.run_sync(lambda: _film(room, find(), number), limiter=request.app.state.projectors)


def _film(room: Room, image_id: str, number: str) -> Response:
    films = patient_films(room, image_id)
    if int(number) >= len(films):
        raise Declined(NOT_FOUND)
    found = room.film(films[int(number)].image_id)
    if isinstance(found, Refusal):
        words = f"This film cannot be shown ({found.code})."
        raise Declined(Problem(status=404, code="film", message=words, more={"film": {"refused": found.code}}))
    return _send(found)


def _send(film: Rendition) -> Response:
    headers = {
        "x-film": json.dumps(dict(film.about())),
        "content-security-policy": FILM_POLICY,
        "cache-control": f"private, max-age={HELD_S}",
        "vary": "Cookie",
    }
    if film.kind == "grey16":
        headers["content-encoding"] = "gzip"
    kind = "image/png" if film.kind == "png8" else "application/octet-stream"
    return Response(film.content, media_type=kind, headers=headers)
