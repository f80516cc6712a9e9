"""Asking a judge about images in this process: through endpoints, or in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from bpals.errors import BpalsError, ContractBroken
from bpals.judges.runner.dispatch import ImageClient, ServerPool, Slot, images_at_once
from bpals.judges.runner.messages import Request, Response, RetriesExhausted, RunEnding, checked
from bpals.judges.runner.progress import Progress
from bpals.types import ChatJudge, Film, ImageJudge, Question, Reply, RequestRefused

T = TypeVar("T")


class ChatAsker:
    """Asks a judge behind endpoints about images, several at a time."""

    batch = 1

    def __init__(self, judge: ChatJudge, questions: tuple[Question, ...], pool: ServerPool) -> None:
        """Cut the questions into requests."""
        self._judge = judge
        self._name = judge.card.judge
        self._questions = questions
        self._at_once = max(1, min(judge.at_once, len(questions)))
        self._requests = -(-len(questions) // self._at_once)
        self._pool = pool
        images = images_at_once(pool.policy.in_flight, self._requests) * len(pool.servers)
        self.ahead = 2 * images
        """How many images to read before they are needed."""

    async def slot(self) -> Slot:
        """Wait until a server has room for another image."""
        return await self._pool.slot(self._requests)

    async def ask(self, requests: Sequence[Request], slot: Slot) -> list[Response]:
        """Ask every question about one image."""
        (request,) = requests
        starts = range(0, len(self._questions), self._at_once)
        if self._at_once > 1:
            return [Response.joined(await self._together(request, slot, starts, first=True))]
        # The first question goes alone, so that the server has read the image when the others come together.
        opening = await self._part(request, slot, 0, first=True)
        if opening.lost:
            # No others follow: one image that crashes the server would take it down once per question.
            why = f"not asked after the film's first question: {opening.replies[0].why}"
            rest = Response.failed(request, why, len(self._questions) - 1, lost=True)
            return [Response.joined([opening, rest])]
        return [Response.joined([opening, *await self._together(request, slot, starts[1:], first=False)])]

    async def _together(self, request: Request, slot: Slot, starts: range, *, first: bool) -> list[Response]:
        asking = (self._part(request, slot, start, first=first) for start in starts)
        # All are waited for: an error that ends the run does not cut the others off.
        parts = []
        for part in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(part, BaseException):
                raise part
            parts.append(part)
        return parts

    async def _part(self, request: Request, slot: Slot, start: int, *, first: bool) -> Response:
        client = ImageClient(self._pool, slot, first=first, number=start)
        questions = self._questions[start : start + self._at_once]
        asking = self._judge.ask_line(request.film, questions, client)
        response = await respond(self._name, request, questions, asking)
        response.replies = [
            replace(reply, latency_s=reply.latency_s or client.latency_s, attempts=max(1, client.sends))
            for reply in response.replies
        ]
        response.failures = client.failures
        return response


class ThreadAsker:
    """Asks a judge that computes in this process, in one thread: image by image, or in batches where it takes them."""

    def __init__(self, judge: ImageJudge, questions: tuple[Question, ...], progress: Progress) -> None:
        """Start no thread before it is needed."""
        self._judge = judge
        self._name = judge.card.judge
        self._questions = questions
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, "bpals-judge")
        self._ask_batch: Callable[..., Sequence[Sequence[Reply]]] | None = getattr(judge, "ask_batch", None)
        self.batch = max(1, int(getattr(judge, "batch", 1))) if self._ask_batch else 1
        self.ahead = 2 * self.batch + 2

    def close(self) -> None:
        """Let go of the thread without waiting for the image that it is busy with."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, requests: Sequence[Request], slot: None) -> list[Response]:
        """Ask about some images at once; if that fails, one by one, so that one does not spoil the others."""
        del slot
        responses = await self._at_once(requests) if len(requests) > 1 else None
        if responses is None:
            responses = [await self._one(request) for request in requests]
        for response in responses:
            self._progress.answered(sum(reply.latency_s for reply in response.replies))
        return responses

    async def _at_once(self, requests: Sequence[Request]) -> list[Response] | None:
        assert self._ask_batch is not None  # noqa: S101  only then are there several
        began_s = time.perf_counter()
        replies = await guarded(self._in_thread(self._ask_batch, [request.film for request in requests]))
        if isinstance(replies, Broken):
            return None
        if len(replies) != len(requests):
            raise ContractBroken(f"judge {self._name!r} was shown {len(requests)} films and spoke of {len(replies)}")
        each_s = (time.perf_counter() - began_s) / (len(requests) * len(self._questions))
        return [
            Response(request, _timed(checked(self._name, some, self._questions), each_s))
            for request, some in zip(requests, replies, strict=True)
        ]

    async def _one(self, request: Request) -> Response:
        began_s = time.perf_counter()
        asking = self._in_thread(self._judge.ask, request.film)
        response = await respond(self._name, request, self._questions, asking)
        response.replies = _timed(response.replies, (time.perf_counter() - began_s) / len(self._questions))
        return response

    def _in_thread(self, ask: Callable[..., T], shown: Film | Sequence[Film | None] | None) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, ask, shown, self._questions)


def _timed(replies: Sequence[Reply], each_s: float) -> list[Reply]:
    return [reply if reply.latency_s else replace(reply, latency_s=each_s) for reply in replies]


async def respond(
    judge: str, request: Request, questions: Sequence[Question], asking: Awaitable[Sequence[Reply]]
) -> Response:
    """Wait for a judge's replies to some questions; a failure becomes failed replies with the reason."""
    count = len(questions)
    try:
        replies = await guarded(asking)
    except RequestRefused as error:
        why = f"the server refused the request: {error}"
        return Response.failed(request, why, count, refused=True, lost=True)
    except RetriesExhausted as error:
        return Response.failed(request, str(error), count, lost=True)
    if isinstance(replies, Broken):
        return Response.failed(request, f"the judge failed: {replies}", count, broken=str(replies))
    return Response(request, checked(judge, replies, questions))


class Broken(str):
    """Why a judge's own code failed."""

    __slots__ = ()


async def guarded(asking: Awaitable[T]) -> T | Broken:
    """Wait for a judge's own code; if it fails, return the reason."""
    try:
        return await asking
    except (BpalsError, RunEnding, RequestRefused, RetriesExhausted):
        raise
    except Exception as error:  # noqa: BLE001
        # The one broad `except`: a judge is anybody's code. Its failure is a reply with a reason, and never evidence.
        return Broken(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
