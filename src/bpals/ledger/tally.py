"""What a ledger adds up to, and whether it adds up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, and_, func, select

from bpals.ledger.schema import FILM, JUDGMENT, OUTCOMES, QUESTION, REPLY

MOST_PROBLEMS = 20
RECENT = 1000
"""Replies whose latency is shown."""


def counts(connection: Connection, judge_id: int) -> dict[str, Any]:
    """Count the films of the dataset that a judge was asked, and what came of it; controls are only counted."""
    of_judge = FILM.c.judge_id == judge_id
    totals = ("prompt_tokens", "cached_tokens", "output_tokens", "latency_ms", "attempts")
    sums = [func.coalesce(func.sum(FILM.c[name]), 0).label(name) for name in (*OUTCOMES, *totals)]
    found = (
        connection.execute(
            select(func.count().label("films"), func.max(FILM.c.at).label("latest"), *sums)
            .select_from(FILM)
            .where(of_judge, FILM.c.control == "")
        )
        .mappings()
        .one()
    )
    judged: dict[str, int] = dict(
        connection.execute(
            select(JUDGMENT.c.outcome, func.count())
            .select_from(FILM.join(JUDGMENT, JUDGMENT.c.film_id == FILM.c.film_id))
            .where(of_judge)
            .group_by(JUDGMENT.c.outcome)
        ).all()
    )
    controls = select(func.count()).select_from(FILM).where(of_judge, FILM.c.control != "")
    return {
        "films": found["films"],
        "controls": connection.execute(controls).scalar_one(),
        "replies": {outcome: int(found[outcome]) for outcome in OUTCOMES},
        "judgments": {outcome: judged.get(outcome, 0) for outcome in OUTCOMES},
        "tokens": {kind: int(found[f"{kind}_tokens"]) for kind in ("prompt", "cached", "output")},
        "attempts": int(found["attempts"]),
        "seconds": found["latency_ms"] / 1000,
        **_latencies(connection, judge_id),
        "latest": found["latest"],
    }


def _latencies(connection: Connection, judge_id: int) -> dict[str, float]:
    """Give the middle and the 95th of a hundred of the latest replies' seconds."""
    latest = (
        select(REPLY.c.latency_ms)
        .select_from(FILM.join(REPLY, REPLY.c.film_id == FILM.c.film_id))
        .where(FILM.c.judge_id == judge_id)
        .order_by(FILM.c.film_id.desc())
        .limit(RECENT)
    )
    ordered = sorted(connection.execute(latest).scalars())
    places = {"p50_s": len(ordered) // 2, "p95_s": len(ordered) * 95 // 100}
    return {name: ordered[place] / 1000 if ordered else 0.0 for name, place in places.items()}


def problems(connection: Connection) -> list[str]:
    """Say what does not add up: pages, references, films whose rows are not what the film says; nothing if it does."""
    found: list[str] = []
    # PostgreSQL looks after its pages and references by itself.
    if connection.dialect.name == "sqlite":
        damaged = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check") if row[0] != "ok"]
        if damaged:
            return damaged[:MOST_PROBLEMS]
        orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(MOST_PROBLEMS)
        found.extend(f"a row of {row[0]} belongs to no {row[2]}" for row in orphans)
    found.extend(_uneven(connection))
    return found[:MOST_PROBLEMS]


def _uneven(connection: Connection) -> Iterator[str]:
    """Name films that do not have a reply a question, a judgment a subject, or the sums of their replies."""
    asked = select(QUESTION.c.judge_id, func.count().label("n")).group_by(QUESTION.c.judge_id).subquery()
    subjects = select(QUESTION.c.judge_id, QUESTION.c.about, QUESTION.c.subject).distinct().subquery()
    judged = select(subjects.c.judge_id, func.count().label("n")).group_by(subjects.c.judge_id).subquery()
    replies = (
        select(
            REPLY.c.film_id,
            func.count().label("n"),
            *(func.count().filter(REPLY.c.outcome == outcome).label(outcome) for outcome in OUTCOMES),
            *(func.sum(REPLY.c[name]).label(name) for name in ("prompt_tokens", "cached_tokens", "output_tokens")),
        )
        .group_by(REPLY.c.film_id)
        .subquery()
    )
    judgments = select(JUDGMENT.c.film_id, func.count().label("n")).group_by(JUDGMENT.c.film_id).subquery()
    names = (*OUTCOMES, "prompt_tokens", "cached_tokens", "output_tokens")
    whole = and_(replies.c.n == asked.c.n, *(FILM.c[name] == replies.c[name] for name in names))
    due = judged.c.n * (FILM.c.control == "").cast(FILM.c.failed.type)
    rows = connection.execute(
        select(
            FILM.c.image_id,
            FILM.c.control,
            func.coalesce(replies.c.n, 0),
            asked.c.n,
            func.coalesce(judgments.c.n, 0),
            due,
        )
        .select_from(
            FILM.join(asked, asked.c.judge_id == FILM.c.judge_id)
            .join(judged, judged.c.judge_id == FILM.c.judge_id)
            .outerjoin(replies, replies.c.film_id == FILM.c.film_id)
            .outerjoin(judgments, judgments.c.film_id == FILM.c.film_id)
        )
        .where(~func.coalesce(whole, False) | (func.coalesce(judgments.c.n, 0) != due))
        .limit(MOST_PROBLEMS)
    )
    for image_id, control, replied, questions, judged_n, judged_due in rows:
        film = f"film {image_id!r}" + (f" (control {control})" if control else "")
        yield (
            f"{film} does not add up: {replied} replies to {questions} questions, "
            f"{judged_n} of {judged_due} judgments, or sums that are not theirs"
        )
