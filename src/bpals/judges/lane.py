"""Asking a judge behind endpoints about one film: its first question alone, then the others together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from bpals.judges.heard import Heard, failed, joined
from bpals.judges.line import FilmLine, Pin, Switchboard
from bpals.judges.protocol import ChatJudge
from bpals.types import Film, Question, Reply

Hear = Callable[[Awaitable[Sequence[Reply]], Sequence[Question]], Awaitable[Heard]]
"""Waits for a judge's replies and makes a failed reply of every failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """How films are asked about through a switchboard."""

    judge: ChatJudge
    questions: tuple[Question, ...]
    hear: Hear

    @property
    def at_once(self) -> int:
        """How many questions travel in one request."""
        return max(1, min(self.judge.at_once, len(self.questions)))

    @property
    def requests(self) -> int:
        """How many requests a film takes."""
        return -(-len(self.questions) // self.at_once)

    async def ask(self, film: Film | None, board: Switchboard, pin: Pin) -> Heard:
        """Ask everything about one film.

        The first question goes alone, so that the server has the image when the others come. If nothing usable came
        to it after all the tries, the others are not asked: one poisonous film would take the server down 28 times.
        """
        starts = range(0, len(self.questions), self.at_once)
        if self.at_once > 1:
            return joined(await self._together(film, board, pin, starts, first=True))
        opening = await self._chunk(film, FilmLine(board, pin, first=True), 0)
        if opening.lost:
            why = f"not asked after the film's first question: {opening.replies[0].why}"
            return joined([opening, Heard(failed(why, len(self.questions) - 1), lost=True)])
        return joined([opening, *await self._together(film, board, pin, starts[1:], first=False)])

    async def _together(
        self, film: Film | None, board: Switchboard, pin: Pin, starts: range, *, first: bool
    ) -> list[Heard]:
        asking = (self._chunk(film, FilmLine(board, pin, first=first), start) for start in starts)
        # All are waited for: one that ends the run does not cut the others off.
        heard = []
        for said in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(said, BaseException):
                raise said
            heard.append(said)
        return heard

    async def _chunk(self, film: Film | None, line: FilmLine, start: int) -> Heard:
        asked = self.questions[start : start + self.at_once]
        heard = await self.hear(self.judge.ask_line(film, asked, line), asked)
        heard.replies = [
            replace(reply, latency_s=reply.latency_s or line.latency_s, attempts=max(1, line.sends))
            for reply in heard.replies
        ]
        heard.faults = [(start, send, fault) for send, fault in line.faults]
        return heard
