"""The roll of judges: a name is bound to one judge, one list of questions and one dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select, update

from bpals.errors import UnknownName, UsageError
from bpals.ledger.alone import alone
from bpals.ledger.asked import Asking
from bpals.ledger.schema import ATTEMPT, EVENT, FILM, JUDGE, JUDGMENT, OUTCOMES, QUESTION, REPLY, RUN, now
from bpals.types import JudgeCard, Question

LONGEST_VALUE = 80


def enrol(connection: Connection, card: JudgeCard, questions: Sequence[Question], dataset: str) -> int:
    """Give the judge's id, writing it down if its name is new; refuse the name of another judge."""
    alone(connection)
    found = connection.execute(select(JUDGE).where(JUDGE.c.name == card.judge)).mappings().one_or_none()
    written = json.dumps(card.as_dict())
    if found is None:
        return _add(connection, card, questions, dataset)
    judge_id = int(found["judge_id"])
    if differs := differing(connection, card, questions, dataset):
        raise UsageError(
            f"judge {card.judge!r} is already here and is another one: {'; '.join(differs)}. "
            "Two judges are never mixed under one name. Give this one a name of its own: --name OTHER"
        )
    before = asking(connection, judge_id).questions
    if list(_otherwise(json.loads(found["card"]), before, found["dataset"], (card, questions, dataset))):
        _forget(connection, judge_id)
        return _add(connection, card, questions, dataset)
    # What does not change an answer may be corrected: the licence, the evidence.
    connection.execute(update(JUDGE).where(JUDGE.c.judge_id == judge_id).values(card=written))
    return judge_id


def differing(connection: Connection, card: JudgeCard, questions: Sequence[Question], dataset: str) -> list[str]:
    """Say how the judge that bears a card's name here is another one; nothing if it is the same, or never spoke."""
    found = connection.execute(select(JUDGE).where(JUDGE.c.name == card.judge)).mappings().one_or_none()
    if found is None or not _has_spoken(connection, int(found["judge_id"])):
        return []
    before = asking(connection, int(found["judge_id"])).questions
    return list(_otherwise(json.loads(found["card"]), before, found["dataset"], (card, questions, dataset)))


def _otherwise(
    card: Mapping[str, Any],
    questions: Sequence[Question],
    dataset: str,
    new: tuple[JudgeCard, Sequence[Question], str],
) -> Iterator[str]:
    """List the fields in which a new judge is not the one that is here."""
    written = json.loads(json.dumps(new[0].as_dict()))
    yield from _differences(_bound(card, questions, dataset), _bound(written, new[1], new[2]))
    yield from _asked_otherwise(questions, new[1])


def _has_spoken(connection: Connection, judge_id: int) -> bool:
    """Say whether a judge ever said anything: its name is bound from its first answer on."""
    said = [FILM.c[outcome] > 0 for outcome in OUTCOMES if outcome not in ("unsupported", "failed")]
    found = select(FILM.c.film_id).where(FILM.c.judge_id == judge_id, or_(*said)).limit(1)
    return connection.execute(found).first() is not None


def _forget(connection: Connection, judge_id: int) -> None:
    """Remove a judge that never said anything, with its attempts to: another takes its name."""
    films = select(FILM.c.film_id).where(FILM.c.judge_id == judge_id)
    runs = select(RUN.c.run_id).where(RUN.c.judge_id == judge_id)
    for part in (ATTEMPT, REPLY, JUDGMENT):
        connection.execute(delete(part).where(part.c.film_id.in_(films)))
    connection.execute(delete(FILM).where(FILM.c.judge_id == judge_id))
    connection.execute(delete(EVENT).where(EVENT.c.run_id.in_(runs)))
    for part in (RUN, QUESTION, JUDGE):
        connection.execute(delete(part).where(part.c.judge_id == judge_id))


def _add(connection: Connection, card: JudgeCard, questions: Sequence[Question], dataset: str) -> int:
    row = {
        "name": card.judge,
        "fingerprint": card.fingerprint,
        "dataset": dataset,
        "card": json.dumps(card.as_dict()),
        "observed": json.dumps(dict(card.observed), default=str),
        "at": now(),
    }
    key = connection.execute(insert(JUDGE).values(row)).inserted_primary_key
    judge_id = int(key[0]) if key else 0
    rows = [
        {
            "judge_id": judge_id,
            "number": number,
            "subject": question.subject,
            "about": question.about,
            "polarity": question.polarity,
            "wording": question.wording,
            "text": question.text,
            "sha256": question.sha256,
        }
        for number, question in enumerate(questions)
    ]
    if rows:
        connection.execute(insert(QUESTION), rows)
    return judge_id


def _bound(card: Mapping[str, Any], questions: Sequence[Question], dataset: str) -> dict[str, object]:
    """List what a name is bound to, by field: the card's identity, the number of questions, the dataset."""
    identity = (*JudgeCard(judge="", kind="", version="").identity,)
    fields = dict(_leaves({name: card[name] for name in identity}))
    return {**fields, "number of questions": len(questions), "dataset": dataset}


def _leaves(tree: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield f"{name} was {_short(old.get(name))}, is {_short(new.get(name))}"


def _asked_otherwise(old: Sequence[Question], new: Sequence[Question]) -> Iterator[str]:
    """Show the first question that is not the same, and count the others: a changed pack changes them all."""
    changed = [number for number, (was, now) in enumerate(zip(old, new, strict=False)) if was != now]
    if changed:
        was, now = old[changed[0]], new[changed[0]]
        more = f" (and {len(changed) - 1} more questions)" if changed[1:] else ""
        yield f"question {changed[0] + 1} was {_short(_worded(was))}, is {_short(_worded(now))}{more}"


def _worded(question: Question) -> str:
    return f"{question.subject} {question.polarity}/{question.wording} {question.text}".strip()


def _short(value: object) -> str:
    shown = "nothing" if value in (None, "", {}) else repr(value)
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[:LONGEST_VALUE]}..."


def judge_id(connection: Connection, name: str, where: str) -> int:
    """Give the id of the judge with a name."""
    names = dict(connection.execute(select(JUDGE.c.name, JUDGE.c.judge_id).order_by(JUDGE.c.judge_id)).all())
    if name not in names:
        raise UnknownName.of("judge", name, names, where=where)
    return int(names[name])


def asking(connection: Connection, judge_id: int) -> Asking:
    """Give what a judge asks of every film."""
    name = connection.execute(select(JUDGE.c.name).where(JUDGE.c.judge_id == judge_id)).scalar_one_or_none()
    if name is None:
        raise UsageError(f"no judge has the number {judge_id}. Type: bpals judge list")
    columns = (QUESTION.c.subject, QUESTION.c.about, QUESTION.c.polarity, QUESTION.c.wording, QUESTION.c.text)
    rows = connection.execute(
        select(*columns).where(QUESTION.c.judge_id == judge_id).order_by(QUESTION.c.number)
    ).mappings()
    return Asking(judge=name, questions=tuple(Question(**row) for row in rows))


def cards(connection: Connection) -> list[dict[str, Any]]:
    """List who was asked here: each card with what was observed, the dataset and the number of questions."""
    return [
        {
            **json.loads(row["card"]),
            "observed": json.loads(row["observed"]),
            "judge_id": row["judge_id"],
            "dataset": row["dataset"],
            "questions": len(asking(connection, row["judge_id"]).questions),
            "enrolled": row["at"],
        }
        for row in connection.execute(select(JUDGE).order_by(JUDGE.c.judge_id)).mappings().all()
    ]


def note_observed(connection: Connection, judge_id: int, observed: Mapping[str, object]) -> None:
    """Add to what was observed of a judge; a fact of the same name is replaced."""
    here = JUDGE.c.judge_id == judge_id
    known = json.loads(connection.execute(select(JUDGE.c.observed).where(here)).scalar_one())
    text = json.dumps({**known, **observed}, default=str)
    connection.execute(update(JUDGE).where(here).values(observed=text))
