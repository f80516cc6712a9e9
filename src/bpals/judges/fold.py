"""From replies to judgments: both polarities of a pair must be answered, else the pair takes what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from bpals.types import Judgment, Outcome, Question, Reply

GRAVEST: tuple[Outcome, ...] = ("failed", "refused", "unparsed", "unsupported", "abstained")
"""Half a pair is no evidence: it takes the first of these that one of its replies has."""


def fold(questions: Sequence[Question], replies: Sequence[Reply]) -> list[Judgment]:
    """Fold the replies about one film into one judgment a subject, in the order of the questions."""
    by_subject: dict[tuple[Literal["finding", "film"], str], dict[str, Reply]] = {}
    for question, reply in zip(questions, replies, strict=True):
        by_subject.setdefault((question.about, question.subject), {})[question.polarity] = reply
    return [_judge(about, subject, pair) for (about, subject), pair in by_subject.items()]


def _judge(about: Literal["finding", "film"], subject: str, pair: dict[str, Reply]) -> Judgment:
    logits = {polarity: reply.logit for polarity, reply in pair.items()}
    masses = [reply.mass for reply in pair.values() if reply.mass is not None]
    worst = next((bad for bad in GRAVEST if any(reply.outcome == bad for reply in pair.values())), None)
    whole = [value if polarity == "present" else -value for polarity, value in logits.items() if value is not None]
    return Judgment(
        subject=subject,
        about=about,
        outcome=worst or "answered",
        p_present=None if worst else _sigmoid(sum(whole) / len(whole)),
        logit_present=logits.get("present"),
        logit_absent=logits.get("absent"),
        mass=min(masses, default=None),
        why=next((reply.why for reply in pair.values() if worst and reply.outcome == worst), None),
    )


def _sigmoid(z: float) -> float:
    """Keep to the side where exp cannot overflow."""
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
