"""What was heard about one film: a reply a question, and what went wrong on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from bpals.errors import ContractBroken
from bpals.judges.line import Fault
from bpals.types import Question, Reply


@dataclass(slots=True)
class Heard:
    """The replies to some questions about one film."""

    replies: list[Reply]
    faults: list[tuple[int, int, Fault]] = field(default_factory=list)
    """The number of the question, which send it was, and what went wrong."""
    refused: bool = False
    """The server refused a request for good."""
    lost: bool = False
    """Nothing usable came at all."""
    broken: str = ""
    """Why the judge's own code failed, where no question was answered."""


def failed(why: str, count: int = 1) -> list[Reply]:
    """Write failed replies: a reason, and no number."""
    return [Reply(outcome="failed", why=why)] * count


def joined(parts: Sequence[Heard]) -> Heard:
    """Put what was heard chunk by chunk together, in the order of the questions."""
    replies = [reply for part in parts for reply in part.replies]
    nothing = all(reply.outcome == "failed" for reply in replies)
    return Heard(
        replies,
        [fault for part in parts for fault in part.faults],
        refused=any(part.refused for part in parts),
        lost=all(part.lost for part in parts),
        broken=next((part.broken for part in parts if part.broken), "") if nothing else "",
    )


def checked(judge: str, replies: Sequence[Reply], questions: Sequence[Question]) -> list[Reply]:
    """Refuse a judge that does not keep its promise: a reply a question, a number exactly if answered."""
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
