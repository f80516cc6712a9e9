"""Drift: whether a judge still says what it said. Servers update, batch otherwise, cache otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bpals.judges.protocol import ChatJudge, ImageJudge
from bpals.judges.run import Plan, lines
from bpals.judges.waiting import wait_for
from bpals.plural import several
from bpals.types import Film, Reply

EXPECTED = 0.06
"""Nats. What batching and prefix caches were seen to move a logit by on one server; more is another judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far answers moved when the same questions were asked again."""

    questions: int
    other_outcome: int
    """Questions that were answered once and not the other time."""
    compared: int
    mean: float | None
    """Of the distance between the two logits, in nats; null where none was answered twice."""
    largest: float | None
    beyond: int
    """Answers that moved by more than .06 nat."""

    @property
    def sentence(self) -> str:
        """Say it in one line."""
        asked = several(self.questions, "question")
        if self.mean is None or self.largest is None:
            return f"drift: {asked} asked again, none answered both times"
        return (
            f"drift: {asked} asked again; answers moved by {self.mean:.4f} nat on average, "
            f"{self.largest:.4f} at most, {self.beyond:,} by more than {EXPECTED}; "
            f"{several(self.other_outcome, 'has', 'have')} another outcome"
        )

    def as_dict(self) -> dict[str, object]:
        """Write it out."""
        return asdict(self)


def measure(before: Sequence[tuple[str, float | None]], after: Sequence[Reply]) -> Drift:
    """Compare outcome and logit of the same questions, then and now."""
    moved = [
        abs(logit - reply.logit)
        for (_, logit), reply in zip(before, after, strict=True)
        if logit is not None and reply.logit is not None
    ]
    return Drift(
        questions=len(before),
        other_outcome=sum(said != reply.outcome for (said, _), reply in zip(before, after, strict=True)),
        compared=len(moved),
        mean=sum(moved) / len(moved) if moved else None,
        largest=max(moved, default=None),
        beyond=sum(distance > EXPECTED for distance in moved),
    )


def ask_again(judge: ImageJudge | ChatJudge, films: Mapping[str, Film], plan: Plan) -> dict[str, Sequence[Reply]]:
    """Ask every question about some films again; nothing is written."""
    if isinstance(judge, ChatJudge):
        return wait_for(_ask_lines(judge, films, plan))
    return {image_id: judge.ask(film, plan.questions) for image_id, film in films.items()}


async def _ask_lines(judge: ChatJudge, films: Mapping[str, Film], plan: Plan) -> dict[str, Sequence[Reply]]:
    size = min(judge.at_once, len(plan.questions))
    chunks = [plan.questions[at : at + size] for at in range(0, len(plan.questions), size)]
    said: dict[str, Sequence[Reply]] = {}
    async with lines(plan.endpoints, plan.pace) as open_line:
        for image_id, film in films.items():
            parts = await asyncio.gather(*(judge.ask_line(film, chunk, open_line()) for chunk in chunks))
            said[image_id] = [reply for part in parts for reply in part]
    return said
