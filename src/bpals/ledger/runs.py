"""The runs of a judge: when each began, what happened to it, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select, update

from bpals.ledger.schema import EVENT, RUN, now


def beginning(judge_id: int, plan: Mapping[str, object], environment: Mapping[str, object]) -> dict[str, Any]:
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
    """Write down that a run begins, and give its id; asked again, give the id of the one that is there."""
    if again and (there := _there(connection, row)):
        return there
    key = connection.execute(insert(RUN).values(dict(row))).inserted_primary_key
    return int(key[0]) if key else 0


def _there(connection: Connection, row: Mapping[str, Any]) -> int:
    same = [RUN.c[name] == row[name] for name in ("judge_id", "began", "plan", "environment")]
    return int(connection.execute(select(RUN.c.run_id).where(*same)).scalar() or 0)


def end(connection: Connection, run_id: int, state: str, counts: Mapping[str, object]) -> None:
    """Write down how a run ended."""
    values = {"state": state, "counts": json.dumps(dict(counts), default=str), "ended": now()}
    connection.execute(update(RUN).where(RUN.c.run_id == run_id).values(values))


def happening(run_id: int, kind: str, detail: Mapping[str, object] | str) -> dict[str, Any]:
    """Give the row of an event that happens now."""
    return {"run_id": run_id, "kind": kind, "detail": json.dumps(detail, default=str), "at": now()}


def event(connection: Connection, row: Mapping[str, Any], *, again: bool = False) -> None:
    """Write down what happened to a run; asked again, leave the one that is there."""
    same = [EVENT.c[name] == value for name, value in row.items()]
    if again and connection.execute(select(EVENT.c.event_id).where(*same)).first():
        return
    connection.execute(insert(EVENT).values(dict(row)))


def of_judge(connection: Connection, judge_id: int) -> list[dict[str, Any]]:
    """List the runs of a judge in their order, each with its plan, surroundings, counts and events."""
    rows = connection.execute(select(RUN).where(RUN.c.judge_id == judge_id).order_by(RUN.c.run_id)).mappings()
    found = [dict(row) for row in rows]
    for run in found:
        for name in ("plan", "environment", "counts"):
            run[name] = json.loads(run[name])
        events = connection.execute(
            select(EVENT.c.kind, EVENT.c.detail, EVENT.c.at)
            .where(EVENT.c.run_id == run["run_id"])
            .order_by(EVENT.c.event_id)
        ).mappings()
        run["events"] = [{**row, "detail": json.loads(row["detail"])} for row in events]
    return found
