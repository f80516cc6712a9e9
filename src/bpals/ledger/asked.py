"""What is written at once: one film, wholly asked, and the rows it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bpals.errors import ContractBroken
from bpals.ledger.evidence import pack
from bpals.ledger.schema import OUTCOMES
from bpals.types import Judgment, Question, Reply

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One failed try to get one reply."""

    number: int
    """Of the question, from 0."""
    attempt: int
    """Which try it was, from 1."""
    kind: str
    """One word for counting: `timeout`, `status`, `bad_reply`."""
    status: int | None = None
    """The HTTP status, where there was one."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFilm:
    """One film, wholly asked: the unit of a commit."""

    image_id: str
    sha256: str
    """Of the film's bytes; empty for the no-image control and for a film that could not be read."""
    control: str = ""
    """Empty for a film of the dataset; else what was shown in its place: none, black, mean, noise."""
    replies: Sequence[Reply]
    """One a question, in the order of the judge's questions."""
    judgments: Sequence[Judgment] = ()
    """One a subject, in any order; none for a control."""
    failures: Sequence[Attempt] = ()


@dataclass(frozen=True, slots=True)
class Asking:
    """What one judge asks of every film: how replies become rows."""

    judge: str
    questions: tuple[Question, ...]
    groups: dict[tuple[str, str], tuple[int, ...]] = field(init=False)
    """Subject -> the numbers of its questions, the first of which stands for it in `judgment`."""

    def __post_init__(self) -> None:
        """Group the questions by their subject."""
        groups: dict[tuple[str, str], tuple[int, ...]] = {}
        for number, question in enumerate(self.questions):
            key = (question.about, question.subject)
            groups[key] = (*groups.get(key, ()), number)
        object.__setattr__(self, "groups", groups)

    def reply_rows(self, film: AskedFilm) -> list[Row]:
        """Give the rows of `reply` without their film_id: one a question, else the film is not wholly asked."""
        if len(film.replies) != len(self.questions):
            raise ContractBroken(
                f"judge {self.judge!r} gave {len(film.replies)} replies about {film.image_id!r} "
                f"to {len(self.questions)} questions: a film is written whole or not at all"
            )
        return [
            (
                number,
                reply.outcome,
                reply.logit,
                reply.mass,
                reply.method,
                reply.usage.prompt,
                reply.usage.cached,
                reply.usage.output,
                reply.latency_s * 1000,
                reply.attempts,
                _clean(reply.why) if reply.why else None,
                pack(reply),
            )
            for number, reply in enumerate(film.replies)
        ]

    def judgment_rows(self, film: AskedFilm) -> list[Row]:
        """Give the rows of `judgment` without their film_id: one a subject, none for a control."""
        rows = []
        for judgment in film.judgments:
            numbers = self.groups.get((judgment.about, judgment.subject))
            if numbers is None:
                raise ContractBroken(
                    f"judge {self.judge!r} has a judgment of {judgment.subject!r} about {film.image_id!r}, "
                    "which it was not asked"
                )
            rows.append(
                (
                    numbers[0],
                    judgment.outcome,
                    judgment.p_present,
                    judgment.logit_present,
                    judgment.logit_absent,
                    judgment.mass,
                    _clean(judgment.why) if judgment.why else None,
                )
            )
        if len({row[0] for row in rows}) != len(rows) or len(rows) != (0 if film.control else len(self.groups)):
            raise ContractBroken(
                f"judge {self.judge!r} has {len(rows)} judgments of {film.image_id!r}: one is due "
                f"for each of its {len(self.groups)} subjects, and none for a control"
            )
        return rows


def sums(rows: Sequence[Row]) -> Row:
    """Sum the rows of `reply` for their film: six outcomes, three kinds of token, milliseconds, tries."""
    outcomes = [row[1] for row in rows]
    return (
        *(outcomes.count(outcome) for outcome in OUTCOMES),
        *(sum([row[place] for row in rows]) for place in (5, 6, 7, 8, 9)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmRows:
    """One film as the rows that it becomes, all without their film_id."""

    image_id: str
    control: str
    sha256: str
    run_id: int
    at: str
    replies: list[Row]
    judgments: list[Row]
    attempts: dict[tuple[int, int, int], Row]
    """By what tells them apart: the run, the number of the question, and which try it was."""


def rows_of(asking: Asking, film: AskedFilm, run_id: int, at: str) -> FilmRows:
    """Turn a film into its rows; one that is not whole is refused."""
    return FilmRows(
        image_id=film.image_id,
        control=film.control,
        sha256=film.sha256,
        run_id=run_id,
        at=at,
        replies=asking.reply_rows(film),
        judgments=asking.judgment_rows(film),
        attempts={
            (run_id, failure.number, failure.attempt): (
                run_id,
                failure.number,
                failure.attempt,
                failure.kind,
                failure.status,
                _clean(failure.message),
                at,
            )
            for failure in film.failures
        },
    )


def _clean(words: str) -> str:
    """Make words from outside fit for a column: no half characters, no zeros."""
    return words.replace("\0", "\u2400").encode("utf-8", "replace").decode("utf-8")
