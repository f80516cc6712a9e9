"""The JSON that browsers send and get: bodies with exactly these fields, and what a reader is sent of a reading.

What is sent before the lock is made here, field by field: no image id, label, trust, flag, file name, share drawn, or
other reader's answer is among it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bpals.room.desk import readings
from bpals.room.desk.readings import Answer, BlindRead, Disagreement, Handed, ReadingView, Spent, Verdict
from bpals.room.desk.study import Account, Role
from bpals.room.room import PatientFilm, Revealed, Room

MOST_FINDINGS = 100
LONGEST_NOTE = 4000


def _storable(text: str) -> str:
    """Refuse what a database cannot keep: the character 0, and half of a character."""
    text.encode()
    if "\0" in text:
        raise ValueError("a text has no character 0")
    return text


Text = Annotated[str, AfterValidator(_storable)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]
# Made by the browser, once for each thing it does: sent twice, it is done once.
Key = Annotated[str, Field(min_length=8, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+$")]
Version = Annotated[int, Field(ge=0, le=2**31 - 1)]
Pixels = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=10**7, allow_inf_nan=False)]
Percent = Annotated[int, Field(ge=0, le=100)]


class Body(BaseModel):
    """A body with these fields and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class BoxBody(Body):
    """Where a finding is."""

    finding: Name
    x: Pixels
    y: Pixels
    width: Pixels
    height: Pixels


class AnswerBody(Body):
    """What is written of one case."""

    verdicts: Annotated[dict[Name, Verdict], Field(max_length=MOST_FINDINGS)] = {}
    confidence: Annotated[dict[Name, Percent], Field(max_length=MOST_FINDINGS)] = {}
    boxes: Annotated[list[BoxBody], Field(max_length=readings.MOST_BOXES)] = []
    note: Annotated[Text, Field(max_length=LONGEST_NOTE)] = ""
    quality: readings.Quality | None = None
    devices: readings.Devices | None = None

    def answer(self) -> Answer:
        """Give it as the desk takes it."""
        boxes = tuple(readings.Box(**box.model_dump()) for box in self.boxes)
        return Answer(**{**self.model_dump(), "boxes": boxes})


class SpentBody(Body):
    """How long it took, as the browser counted it."""

    active_s: Seconds
    wall_s: Seconds

    def spent(self) -> Spent:
        """Give it as the desk takes it."""
        return Spent(**self.model_dump())


class StepBody(Body):
    """A step that writes nothing new: skip, undo."""

    version: Version
    key: Key


class DraftBody(StepBody):
    """What is written so far."""

    answer: AnswerBody


class ReadBody(DraftBody):
    """A read that is finished: blind, or second."""

    spent: SpentBody


class AmendBody(DraftBody):
    """A read that is changed after its lock."""

    reason: Annotated[Text, Field(min_length=1, max_length=LONGEST_NOTE)]


class SettledBody(Body):
    """What one finding of a disagreement is settled to."""

    verdict: Verdict
    how: Annotated[str, Field(pattern="^(consensus|majority|adjudicator)$")]


class AdjudicationBody(Body):
    """A disagreement, settled; `pinned` says which versions of the readings were on the screen."""

    pinned: Annotated[dict[Name, Version], Field(max_length=MOST_FINDINGS)]
    key: Key
    verdicts: Annotated[dict[Name, SettledBody], Field(min_length=1, max_length=MOST_FINDINGS)]
    note: Annotated[Text, Field(max_length=LONGEST_NOTE)] = ""


class RoundBody(Body):
    """What a reader says in a round of a discussion."""

    round: Annotated[int, Field(ge=1, le=1000)]
    key: Key
    verdicts: Annotated[dict[Name, Verdict], Field(min_length=1, max_length=MOST_FINDINGS)]
    note: Annotated[Text, Field(max_length=LONGEST_NOTE)] = ""


class LoginBody(Body):
    """A name, a password, and the code of the second factor where there is one."""

    name: Name
    password: Annotated[Text, Field(min_length=1, max_length=256)]
    code: Annotated[Text, Field(max_length=10)] = ""
    next: Annotated[Text, Field(max_length=200)] = ""


class TokenBody(Body):
    """What a login link carries."""

    token: Annotated[Text, Field(min_length=1, max_length=100)]


class NextBody(Body):
    """Where to go afterwards."""

    next: Annotated[Text, Field(max_length=200)] = ""


class OidcReturnBody(Body):
    """What the provider sent back."""

    code: Annotated[Text, Field(min_length=1, max_length=4096)]
    state: Annotated[Text, Field(min_length=1, max_length=200)]


class PasswordBody(Body):
    """A new password, and the old one."""

    old: Annotated[Text, Field(max_length=256)] = ""
    new: Annotated[Text, Field(min_length=1, max_length=256)]


class NewAccountBody(Body):
    """Somebody who may enter from now on."""

    name: Name
    role: Role


class AccountBody(Body):
    """What of an account is changed."""

    role: Role | None = None
    disabled: bool | None = None


OF_THE_STUDY = ("name", "reveal", "priors", "unmarked", "adjudication")  # what a reader must know of it


def _with_keys(room: Room, findings: Iterable[str]) -> list[dict[str, str]]:
    return [{"name": finding, "key": room.study.keys[finding]} for finding in findings]


def reading_payload(room: Room, view: ReadingView) -> dict[str, Any]:
    """Send a reading: enough to read the case blind, and no more."""
    return {
        "reading_id": view.reading_id,
        "case_no": view.case_no,
        "findings": _with_keys(room, view.findings),
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
    study = {name: getattr(room.study, name) for name in OF_THE_STUDY}
    return {
        "reading": None if current is None else {**reading_payload(room, current), "of": handed.of},
        "why": handed.why_none,
        "why_code": handed.why_code,
        "ahead": [{"reading_id": view.reading_id, "films": film_list(room, view.image_id)} for view in handed.ahead],
        "study": {**study, "findings": _with_keys(room, room.study.findings)},
    }


def disagreement_payload(room: Room, disagreement: Disagreement | None) -> dict[str, Any]:
    """Send a disagreement: the verdicts of its readers, without their names."""
    if disagreement is None:
        return {"case": None}
    case = {name: value for name, value in asdict(disagreement).items() if name != "image_id"}
    return {"case": {**case, "films": film_list(room, disagreement.image_id)}}


def revealed_payload(revealed: Revealed, read: BlindRead, *, changed: bool) -> dict[str, Any]:
    """Send what is shown after the lock: what is known without the reader, and what is stored of the blind read.

    `changed` says that the reader saw another version of the signal before.
    """
    return {**asdict(revealed), "changed": changed, "read": asdict(read)}


OPEN_TO_READERS = ("counts", "least", "stopping", "ready", "fresh")
HIDDEN_COUNTS = ("repeats",)
LISTED_BY_READER = {"pace": "reader", "within": "first"}


def progress_payload(numbers: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """Send how far the study is; a reader gets the counts and their own rows.

    What others found, and how often the label was wrong, could tell a reader before the lock what to expect.
    """
    if account.may_settle:
        return dict(numbers)
    own = {
        part: [row for row in numbers[part] if row[column] == account.name]
        for part, column in LISTED_BY_READER.items()
        if part in numbers
    }
    open_to_all = {name: numbers[name] for name in OPEN_TO_READERS if name in numbers}
    counts = {name: value for name, value in numbers.get("counts", {}).items() if name not in HIDDEN_COUNTS}
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
