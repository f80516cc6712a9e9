"""What is sent of a reading: the blind payload is made here, field by field, and nothing else of it is ever sent.

No image id, label, trust, flag, file name, share drawn, or other reader's answer is among its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from bpals.review.desk.account import Account
from bpals.review.desk.views import BlindRead, Disagreement, Handed, PastReading, ReadingView
from bpals.review.room import PatientFilm, Revealed, Room


def study_payload(room: Room) -> dict[str, Any]:
    """Send what a reader must know of the study."""
    study = room.study
    return {
        "name": study.name,
        "reveal": study.reveal,
        "priors": study.priors,
        "unmarked": study.unmarked,
        "adjudication": study.adjudication,
        "findings": [{"name": finding, "key": study.keys[finding]} for finding in study.findings],
    }


def reading_payload(room: Room, view: ReadingView) -> dict[str, Any]:
    """Send a reading: enough to read the case blind, and no more."""
    return {
        "reading_id": view.reading_id,
        "case_no": view.case_no,
        "findings": [{"name": finding, "key": room.study.keys[finding]} for finding in view.findings],
        "state": view.state,
        "phase": view.phase,
        "version": view.version,
        "answer": asdict(view.answer),
        "films": film_list(room, view.image_id),
        "unmarked": room.study.unmarked,
        "revealed": view.revealed,
    }


def handed_payload(room: Room, handed: Handed) -> dict[str, Any]:
    """Send the case to be read now and the names of the films that come after it."""
    current = handed.current
    return {
        "reading": None if current is None else {**reading_payload(room, current), "of": handed.of},
        "why": handed.why_none,
        "why_code": handed.why_code,
        "ahead": [{"reading_id": view.reading_id, "films": film_list(room, view.image_id)} for view in handed.ahead],
        "study": study_payload(room),
    }


def disagreement_payload(room: Room, disagreement: Disagreement | None) -> dict[str, Any]:
    """Send a disagreement: what the readers said, without their names."""
    if disagreement is None:
        return {"case": None}
    case = {name: value for name, value in asdict(disagreement).items() if name != "image_id"}
    return {"case": {**case, "films": film_list(room, disagreement.image_id)}}


def revealed_payload(revealed: Revealed, read: BlindRead, *, changed: bool) -> dict[str, Any]:
    """Send what is shown after the lock: what is known without the reader, and what is stored of the blind read.

    `changed` says that the reader saw another version of the signal before.
    """
    return {**asdict(revealed), "changed": changed, "read": asdict(read)}


def past_payload(past: Iterable[PastReading]) -> dict[str, Any]:
    """Send a reader's own last readings: what he said, nothing of label or trust."""
    return {"readings": [asdict(reading) for reading in past]}


OPEN_TO_READERS = ("counts", "least", "stopping", "ready", "fresh")
HIDDEN_COUNTS = ("repeats",)
LISTED_BY_READER = {"pace": "reader", "within": "first"}


def progress_payload(told: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """Send how far the study is; a reader gets the counts and what concerns himself.

    What others found, and how often the label was wrong, could tell him before his own lock what to expect.
    """
    if account.may_settle:
        return dict(told)
    own = {
        part: [row for row in told[part] if row[column] == account.name]
        for part, column in LISTED_BY_READER.items()
        if part in told
    }
    open_to_all = {name: told[name] for name in OPEN_TO_READERS if name in told}
    counts = {name: value for name, value in told.get("counts", {}).items() if name not in HIDDEN_COUNTS}
    return open_to_all | {"counts": counts} | own


def patient_films(room: Room, image_id: str) -> list[PatientFilm]:
    """Give the films that may be shown with a case, in time order: the patient's, or in some studies only itself."""
    films = list(room.others(image_id)) if room.study.priors else []
    alone = [PatientFilm(image_id=image_id, when="")]
    return films if any(film.image_id == image_id for film in films) else alone


def film_list(room: Room, image_id: str) -> list[dict[str, Any]]:
    """Send the films of a case by number: their names stay here."""
    return [
        {"n": number, "current": film.image_id == image_id, "when": film.when}
        for number, film in enumerate(patient_films(room, image_id))
    ]
