"""Plan, Request and Response: what a run does, one image to judge, and the judge's replies about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from bpals.errors import ContractBroken
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.transport import Endpoint
from bpals.types import Attempt, Film, Judgment, Outcome, Question, Refusal, Reply

# One answer of a pair is no evidence: the pair takes the first of these outcomes that one of its replies has.
GRAVEST: tuple[Outcome, ...] = ("failed", "refused", "unparsed", "unsupported", "abstained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does."""

    judge_id: int
    questions: tuple[Question, ...]
    """The questions about every image, in order."""
    todo: int
    """How many images will come."""
    endpoints: tuple[Endpoint, ...] = ()
    """The servers of a ChatJudge."""
    pace: RunPolicy = field(default_factory=RunPolicy)
    known: Mapping[str, str] = field(default_factory=dict)
    """Image id -> sha256 of its file when it was last hashed: an image that has changed since is not judged."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """What else belongs into the record of the run: source, images, options as they were given."""
    environment: Mapping[str, object] = field(default_factory=dict)
    model: str = ""
    """The model's name in an earlier run of this judge, from Tally.model."""

    def as_dict(self) -> dict[str, object]:
        """Return the plan for the record; the keys of endpoints stay out of it."""
        urls = [endpoint.url for endpoint in self.endpoints]
        # The key is `pace` since the first ledger, whatever the class is called.
        return {"todo": self.todo, "endpoints": urls, "pace": asdict(self.pace), **self.settings}


class RetriesExhausted(Exception):
    """No usable reply came in all the tries: the question has failed, and the run goes on."""


class RunEnding(Exception):
    """The run ends and this image would have to wait: the next run judges it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One image to judge, the reason why there is none, or a control in its place."""

    image_id: str
    image: Film | Refusal | None
    """None is the control without an image."""
    control: str = ""
    sha256: str = ""
    """Of the image's file; empty where there is none."""

    @classmethod
    def of(cls, image_id: str, image: Film | Refusal | None, control: str = "") -> Request:
        """Make the request for one image."""
        sha256 = image.sha256 if isinstance(image, Film) else ""
        return cls(image_id=image_id, image=image, control=control, sha256=sha256)

    @property
    def film(self) -> Film | None:
        """The image that the judge is shown."""
        return self.image if isinstance(self.image, Film) else None


@dataclass(slots=True)
class Response:
    """The replies to some questions about one image, one each, in order."""

    request: Request
    replies: list[Reply]
    failures: list[Attempt] = field(default_factory=list)
    refused: bool = False
    """The server refused a request for good."""
    lost: bool = False
    """No usable reply came at all."""
    broken: str = ""
    """Why the judge's own code failed, where no question was answered."""

    @classmethod
    def failed(
        cls, request: Request, why: str, count: int, *, refused: bool = False, lost: bool = False, broken: str = ""
    ) -> Response:
        """Write failed replies: a reason, and no number."""
        return cls(request, [Reply(outcome="failed", why=why)] * count, [], refused, lost, broken)

    @classmethod
    def joined(cls, parts: Sequence[Response]) -> Response:
        """Put the parts of one image together, in the order of the questions."""
        replies = [reply for part in parts for reply in part.replies]
        nothing = all(reply.outcome == "failed" for reply in replies)
        return cls(
            parts[0].request,
            replies,
            [failure for part in parts for failure in part.failures],
            refused=any(part.refused for part in parts),
            lost=all(part.lost for part in parts),
            broken=next((part.broken for part in parts if part.broken), "") if nothing else "",
        )

    def without_pixels(self) -> Response:
        """Leave the image out, for the way from a worker to the run: it is 100 KB, and nobody needs it there."""
        request = self.request
        return replace(self, request=replace(request, image=None)) if request.film else self


def checked(judge: str, replies: Sequence[Reply], questions: Sequence[Question]) -> list[Reply]:
    """Raise ContractBroken unless there is one reply per question, with a finite number exactly if it answered."""
    if len(replies) != len(questions):
        raise ContractBroken(f"judge {judge!r} gave {len(replies)} replies to {len(questions)} questions")
    for question, reply in zip(questions, replies, strict=True):
        number = reply.logit
        if (reply.outcome == "answered") != (number is not None) or (number is not None and not math.isfinite(number)):
            raise ContractBroken(
                f"judge {judge!r} replied {reply.outcome!r} with the logit {number} to the question about "
                f"{question.subject!r}: a finite number is due exactly if it answered"
            )
    return list(replies)


def to_judgments(questions: Sequence[Question], replies: Sequence[Reply]) -> list[Judgment]:
    """Combine the replies about one image into one judgment per subject, in the order of the questions."""
    by_subject: dict[tuple[Literal["finding", "film"], str], dict[str, Reply]] = {}
    for question, reply in zip(questions, replies, strict=True):
        by_subject.setdefault((question.about, question.subject), {})[question.polarity] = reply
    return [_judgment(about, subject, pair) for (about, subject), pair in by_subject.items()]


def _judgment(about: Literal["finding", "film"], subject: str, pair: dict[str, Reply]) -> Judgment:
    logits = {polarity: reply.logit for polarity, reply in pair.items()}
    masses = [reply.mass for reply in pair.values() if reply.mass is not None]
    worst = next((bad for bad in GRAVEST if any(reply.outcome == bad for reply in pair.values())), None)
    # "Is it free of ..." counts against the finding: its logit is turned round.
    signed = [value if polarity == "present" else -value for polarity, value in logits.items() if value is not None]
    return Judgment(
        subject=subject,
        about=about,
        outcome=worst or "answered",
        p_present=None if worst else _sigmoid(sum(signed) / len(signed)),
        logit_present=logits.get("present"),
        logit_absent=logits.get("absent"),
        mass=min(masses, default=None),
        why=next((reply.why for reply in pair.values() if worst and reply.outcome == worst), None),
    )


def _sigmoid(z: float) -> float:
    # Each branch stays on the side where exp cannot overflow. Not bpals.numeric's: that one differs in the last bit.
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
