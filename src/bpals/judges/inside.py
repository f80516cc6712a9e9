"""Asking a judge inside this process, in one thread: film by film, or in batches where it takes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from bpals.errors import ContractBroken
from bpals.judges.heard import Heard, checked
from bpals.judges.lane import Hear
from bpals.judges.protocol import ImageJudge
from bpals.types import Film, Question, Reply

T = TypeVar("T")
OrReason = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Waits for what a judge gives, and gives the reason as a string if its code fails."""


class Inside:
    """One thread, in which a judge is asked; use it as a context manager."""

    def __init__(self, judge: ImageJudge, questions: Sequence[Question], hear: Hear, or_reason: OrReason) -> None:
        """Start no thread before it is needed."""
        self._judge = judge
        self._questions = questions
        self._hear = hear
        self._or_reason = or_reason
        self._thread = ThreadPoolExecutor(1, "bpals-judge")
        ask_batch: Callable[..., Sequence[Sequence[Reply]]] | None = getattr(judge, "ask_batch", None)
        self._ask_batch = ask_batch
        self.batch = max(1, int(getattr(judge, "batch", 1))) if ask_batch else 1
        """How many films are asked about at once."""

    def close(self) -> None:
        """Wait for nobody: a film that is being looked at is let go."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, films: Sequence[Film | None]) -> list[Heard]:
        """Ask about some films at once; if the batch fails, film by film, so that one does not spoil the others."""
        if len(films) > 1 and self._ask_batch and (heard := await self._at_once(self._ask_batch, films)):
            return heard
        return [await self._one(film) for film in films]

    async def _at_once(
        self, ask_batch: Callable[..., Sequence[Sequence[Reply]]], films: Sequence[Film | None]
    ) -> list[Heard] | None:
        began_s = time.perf_counter()
        said = await self._or_reason(self._in_thread(ask_batch, films))
        if isinstance(said, str):
            return None
        name = self._judge.card.judge
        if len(said) != len(films):
            raise ContractBroken(f"judge {name!r} was shown {len(films)} films and spoke of {len(said)}")
        each_s = (time.perf_counter() - began_s) / (len(films) * len(self._questions))
        return [Heard(_lasting(checked(name, replies, self._questions), each_s)) for replies in said]

    async def _one(self, film: Film | None) -> Heard:
        began_s = time.perf_counter()
        heard = await self._hear(self._in_thread(self._judge.ask, film), self._questions)
        heard.replies = _lasting(heard.replies, (time.perf_counter() - began_s) / len(self._questions))
        return heard

    def _in_thread(self, ask: Callable[..., T], shown: object) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, ask, shown, self._questions)


def _lasting(replies: Sequence[Reply], each_s: float) -> list[Reply]:
    return [reply if reply.latency_s else replace(reply, latency_s=each_s) for reply in replies]
