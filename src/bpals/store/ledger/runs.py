"""Judges and their runs: who a name is bound to, when each run began and ended, and what it counts to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, delete, func, insert, or_, select, update

from bpals.errors import UsageError
from bpals.store.ledger.answers import SUMS, QuestionSet
from bpals.store.ledger.locks import lock_answers
from bpals.store.ledger.schema import ATTEMPT, EVENT, FILM, JUDGE, JUDGMENT, OUTCOMES, QUESTION, REPLY, RUN, now
from bpals.types import JudgeCard, Question

LONGEST_VALUE = 80  # characters of a differing value in a message
MOST_PROBLEMS = 20
RECENT = 1000  # replies whose latency is shown


def enrol(connection: Connection, card: JudgeCard, questions: Sequence[Question], dataset: str) -> int:
    """Give the judge's id, adding it if its name is new; refuse the name of another judge."""
    lock_answers(connection)
    found = connection.execute(select(JUDGE).where(JUDGE.c.name == card.judge)).mappings().one_or_none()
    if found is None:
        return _add(connection, card, questions, dataset)
    judge_id = int(found["judge_id"])
    differs = _differences(connection, found, card, questions, dataset)
    if differs and _has_answered(connection, judge_id):
        raise UsageError(
            f"judge {card.judge!r} is already here and is another one: {'; '.join(differs)}. "
            "Two judges are never mixed under one name. Give this one a name of its own: --name OTHER"
        )
    if differs:
        _forget(connection, judge_id)
        return _add(connection, card, questions, dataset)
    # Fields that do not change an answer may be corrected: the licence, the evidence.
    connection.execute(update(JUDGE).where(JUDGE.c.judge_id == judge_id).values(card=json.dumps(card.as_dict())))
    return judge_id


def differing(connection: Connection, card: JudgeCard, questions: Sequence[Question], dataset: str) -> list[str]:
    """Say how the judge of the same name here differs; nothing if it is the same, or never answered."""
    found = connection.execute(select(JUDGE).where(JUDGE.c.name == card.judge)).mappings().one_or_none()
    if found is None or not _has_answered(connection, int(found["judge_id"])):
        return []
    return _differences(connection, found, card, questions, dataset)


def _has_answered(connection: Connection, judge_id: int) -> bool:
    """Say whether a judge ever answered: its name is bound from its first answer on."""
    answered = [FILM.c[outcome] > 0 for outcome in OUTCOMES if outcome not in ("unsupported", "failed")]
    found = select(FILM.c.film_id).where(FILM.c.judge_id == judge_id, or_(*answered)).limit(1)
    return connection.execute(found).first() is not None


def _forget(connection: Connection, judge_id: int) -> None:
    """Remove a judge that never answered, with its failed attempts: another takes its name."""
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
    fields = ("subject", "about", "polarity", "wording", "text", "sha256")
    rows = [
        {"judge_id": judge_id, "number": number, **{name: getattr(question, name) for name in fields}}
        for number, question in enumerate(questions)
    ]
    if rows:
        connection.execute(insert(QUESTION), rows)
    return judge_id


def _differences(
    connection: Connection, found: RowMapping, card: JudgeCard, questions: Sequence[Question], dataset: str
) -> list[str]:
    """List the fields in which a new judge is not the one that is here."""
    before = question_set(connection, int(found["judge_id"])).questions
    old = _identity(json.loads(found["card"]), before, found["dataset"])
    # Through JSON and back: the stored card has lists where the new one has tuples.
    new = _identity(json.loads(json.dumps(card.as_dict())), questions, dataset)
    fields = [
        f"{name} was {_short(old.get(name))}, is {_short(new.get(name))}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
    # Only the first question that differs is shown: a changed pack changes them all.
    changed = [pair for pair in enumerate(zip(before, questions, strict=False), start=1) if pair[1][0] != pair[1][1]]
    if changed:
        number, pair = changed[0]
        was, now = (f"{each.subject} {each.polarity}/{each.wording} {each.text}".strip() for each in pair)
        more = f" (and {len(changed) - 1} more questions)" if changed[1:] else ""
        fields.append(f"question {number} was {_short(was)}, is {_short(now)}{more}")
    return fields


def _identity(card: Mapping[str, Any], questions: Sequence[Question], dataset: str) -> dict[str, object]:
    """List what a name is bound to, by field: the card's identity, the number of questions, the dataset."""
    names = (*JudgeCard(judge="", kind="", version="").identity,)
    fields = dict(_leaves({name: card[name] for name in names}))
    return {**fields, "number of questions": len(questions), "dataset": dataset}


def _leaves(tree: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _short(value: object) -> str:
    text = "nothing" if value in (None, "", {}) else repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def question_set(connection: Connection, judge_id: int) -> QuestionSet:
    """Give the questions of a judge."""
    name = connection.execute(select(JUDGE.c.name).where(JUDGE.c.judge_id == judge_id)).scalar_one_or_none()
    if name is None:
        raise UsageError(f"no judge has the number {judge_id}. Type: bpals judge list")
    columns = (QUESTION.c.subject, QUESTION.c.about, QUESTION.c.polarity, QUESTION.c.wording, QUESTION.c.text)
    rows = connection.execute(
        select(*columns).where(QUESTION.c.judge_id == judge_id).order_by(QUESTION.c.number)
    ).mappings()
    return QuestionSet(name, judge_id, (Question(**row) for row in rows))


def cards(connection: Connection) -> list[dict[str, Any]]:
    """List the judges: each card with what was observed, the dataset and the number of questions."""
    return [
        {
            **json.loads(row["card"]),
            "observed": json.loads(row["observed"]),
            "judge_id": row["judge_id"],
            "dataset": row["dataset"],
            "questions": len(question_set(connection, row["judge_id"]).questions),
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


def run_row(judge_id: int, plan: Mapping[str, object], environment: Mapping[str, object]) -> dict[str, Any]:
    """Give the row of a run that begins now."""
    return {
        "judge_id": judge_id,
        "plan": json.dumps(dict(plan), default=str),
        "environment": json.dumps(dict(environment), default=str),
        "state": "running",
        "counts": "{}",
        "began": now(),
    }


def begin(connection: Connection, row: Mapping[str, Any], *, again: bool = False) -> int:
    """Write down that a run begins, and give its id; with `again`, the id of the same run that is there."""
    same = [RUN.c[name] == row[name] for name in ("judge_id", "began", "plan", "environment")]
    if again and (run_id := connection.execute(select(RUN.c.run_id).where(*same)).scalar()):
        return int(run_id)
    key = connection.execute(insert(RUN).values(dict(row))).inserted_primary_key
    return int(key[0]) if key else 0


def event_row(run_id: int, kind: str, detail: Mapping[str, object] | str) -> dict[str, Any]:
    """Give the row of an event that happens now."""
    return {"run_id": run_id, "kind": kind, "detail": json.dumps(detail, default=str), "at": now()}


def event(connection: Connection, row: Mapping[str, Any], *, again: bool = False) -> None:
    """Write down what happened to a run; with `again`, leave the same event that is there."""
    same = [EVENT.c[name] == value for name, value in row.items()]
    if again and connection.execute(select(EVENT.c.event_id).where(*same)).first():
        return
    connection.execute(insert(EVENT).values(dict(row)))


def stored(connection: Connection, judge_id: int) -> list[dict[str, Any]]:
    """Give the runs of a judge as rows, in their order, each with the rows of its events."""
    rows = connection.execute(select(RUN).where(RUN.c.judge_id == judge_id).order_by(RUN.c.run_id)).mappings()
    found = [dict(row) for row in rows]
    for run in found:
        query = select(EVENT.c.kind, EVENT.c.detail, EVENT.c.at).where(EVENT.c.run_id == run["run_id"])
        run["events"] = [dict(row) for row in connection.execute(query.order_by(EVENT.c.event_id)).mappings()]
    return found


def counts(connection: Connection, judge_id: int) -> dict[str, Any]:
    """Count the images of the dataset that a judge answered about, and its answers; controls are only counted."""
    of_judge = FILM.c.judge_id == judge_id
    sums = [func.coalesce(func.sum(FILM.c[name]), 0).label(name) for name in SUMS]
    columns = (func.count().label("films"), func.max(FILM.c.at).label("latest"), *sums)
    # The sums of each image stand in `film`: adding up the replies would read one row per question.
    totals = select(*columns).select_from(FILM).where(of_judge, FILM.c.control == "")
    found = connection.execute(totals).mappings().one()
    by_outcome = (
        select(JUDGMENT.c.outcome, func.count())
        .select_from(FILM.join(JUDGMENT, JUDGMENT.c.film_id == FILM.c.film_id))
        .where(of_judge)
        .group_by(JUDGMENT.c.outcome)
    )
    judged: dict[str, int] = dict(connection.execute(by_outcome).all())
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
    """Give the median and the 95th percentile of the latest replies' seconds."""
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
    """List what does not add up: pages, references, images whose rows do not fit; nothing if all does."""
    found: list[str] = []
    # PostgreSQL checks its pages and references by itself.
    if connection.dialect.name == "sqlite":
        damaged = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check") if row[0] != "ok"]
        if damaged:
            return damaged[:MOST_PROBLEMS]
        orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(MOST_PROBLEMS)
        found.extend(f"a row of {row[0]} belongs to no {row[2]}" for row in orphans)
    found.extend(_uneven(connection))
    return found[:MOST_PROBLEMS]


def _uneven(connection: Connection) -> Iterator[str]:
    """Name images without one reply per question, one judgment per subject, or the sums of their replies."""
    due_replies = select(QUESTION.c.judge_id, func.count().label("n")).group_by(QUESTION.c.judge_id).subquery()
    subjects = select(QUESTION.c.judge_id, QUESTION.c.about, QUESTION.c.subject).distinct().subquery()
    judged = select(subjects.c.judge_id, func.count().label("n")).group_by(subjects.c.judge_id).subquery()
    tokens = ("prompt_tokens", "cached_tokens", "output_tokens")
    replies = (
        select(
            REPLY.c.film_id,
            func.count().label("n"),
            *(func.count().filter(REPLY.c.outcome == outcome).label(outcome) for outcome in OUTCOMES),
            *(func.sum(REPLY.c[name]).label(name) for name in tokens),
        )
        .group_by(REPLY.c.film_id)
        .subquery()
    )
    judgments = select(JUDGMENT.c.film_id, func.count().label("n")).group_by(JUDGMENT.c.film_id).subquery()
    whole = and_(replies.c.n == due_replies.c.n, *(FILM.c[name] == replies.c[name] for name in (*OUTCOMES, *tokens)))
    due = judged.c.n * (FILM.c.control == "").cast(FILM.c.failed.type)
    replied, judgments_n = func.coalesce(replies.c.n, 0), func.coalesce(judgments.c.n, 0)
    rows = connection.execute(
        select(FILM.c.image_id, FILM.c.control, replied, due_replies.c.n, judgments_n, due)
        .select_from(
            FILM.join(due_replies, due_replies.c.judge_id == FILM.c.judge_id)
            .join(judged, judged.c.judge_id == FILM.c.judge_id)
            .outerjoin(replies, replies.c.film_id == FILM.c.film_id)
            .outerjoin(judgments, judgments.c.film_id == FILM.c.film_id)
        )
        .where(~func.coalesce(whole, False) | (judgments_n != due))
        .limit(MOST_PROBLEMS)
    )
    for image_id, control, got, questions, judged_n, judged_due in rows:
        image = f"image {image_id!r}" + (f" (control {control})" if control else "")
        yield (
            f"{image} does not add up: {got} replies to {questions} questions, "
            f"{judged_n} of {judged_due} judgments, or sums that are not theirs"
        )
