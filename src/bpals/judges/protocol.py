"""What an image judge is: one film, many questions.

A judge knows how to ask; `judges/run.py` owns concurrency, retries, time limits and storage. A judge keeps no state
between films, swallows no error and cannot reach a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from bpals.findings import Vocabulary
from bpals.types import Film, JudgeCard, Question, Reply

R = TypeVar("R")

Read = Callable[[Mapping[str, Any]], R]
"""Turns the JSON of a server into what the judge wants of it; raises BadReply if it is not what was promised."""


class BadReply(Exception):
    """A server said 200 and its body is not what it promised: asked again like any passing fault."""


class RequestRefused(Exception):
    """A server refused one request for good (400, 413, 422): it says nothing about the next film."""

    def __init__(self, status: int, message: str) -> None:
        """Keep what the server said."""
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Line(Protocol):
    """The way from one film to one server: limits, retries and deadlines are behind it."""

    image_sent: bool
    """Set by the judge once the server has this film's image, so that it need not be sent again."""

    async def post(self, body: bytes, read: Read[R]) -> R:
        """Send one request and give what `read` makes of the reply; passing faults are retried, also BadReply.

        Raises RequestRefused for a refusal that no retry cures. Every other end is the runner's business.
        """
        ...


@runtime_checkable
class ImageJudge(Protocol):
    """A judge that answers in this process."""

    @property
    def card(self) -> JudgeCard:
        """Say who this judge is."""
        ...

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """List what every film is asked, in order."""
        ...

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer the questions about one film, a reply each, in order; no film is the no-image control."""
        ...


@runtime_checkable
class ChatJudge(Protocol):
    """A judge behind an endpoint."""

    @property
    def at_once(self) -> int:
        """How many questions travel in one request; 1 lets a server reuse the film for each."""
        ...

    @property
    def card(self) -> JudgeCard:
        """Say who this judge is."""
        ...

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """List what every film is asked, in order."""
        ...

    async def ask_line(self, film: Film | None, questions: Sequence[Question], line: Line) -> Sequence[Reply]:
        """Answer up to `at_once` questions about one film through the line, a reply each, in order."""
        ...
