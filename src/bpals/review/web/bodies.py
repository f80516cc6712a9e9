"""What a browser may send: closed shapes, bounded in every length; a field that nobody knows is refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bpals.review.desk.account import Role
from bpals.review.desk.answer import Answer, Box, Devices, Quality, Spent, Verdict

MOST_FINDINGS = 100
MOST_BOXES = 200
LONGEST_NOTE = 4000


def _storable(text: str) -> str:
    """Refuse what a database cannot keep: the character 0, and half of a character."""
    text.encode()
    if "\0" in text:
        raise ValueError("a text has no character 0")
    return text


Text = Annotated[str, AfterValidator(_storable)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]
Key = Annotated[str, Field(min_length=8, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+$")]
"""Made by the browser, once for each thing it does: sent twice, it is done once."""
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
    boxes: Annotated[list[BoxBody], Field(max_length=MOST_BOXES)] = []
    note: Annotated[Text, Field(max_length=LONGEST_NOTE)] = ""
    quality: Quality | None = None
    devices: Devices | None = None

    def answer(self) -> Answer:
        """Give it as the desk takes it."""
        return Answer(
            verdicts=self.verdicts,
            confidence=self.confidence,
            boxes=tuple(Box(**box.model_dump()) for box in self.boxes),
            note=self.note,
            quality=self.quality,
            devices=self.devices,
        )


class SpentBody(Body):
    """How long it took, as the browser counted it."""

    active_s: Seconds
    wall_s: Seconds

    def spent(self) -> Spent:
        """Give it as the desk takes it."""
        return Spent(active_s=self.active_s, wall_s=self.wall_s)


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
