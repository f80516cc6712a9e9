"""How far each judge of a workspace is: what `bpals judge status` prints, read from the ledger.

It may be asked while a run goes on in another process, and after one was killed.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

from bpals.errors import UnknownName, UsageError
from bpals.ledger import Ledger

LEDGER = "ledger.sqlite"


def status_of(workspace: str | os.PathLike[str] = "audit", judge: str | None = None) -> list[dict[str, Any]]:
    """Say how far each judge that was asked here is, or one of them."""
    path = Path(workspace) / LEDGER
    if not path.exists():
        raise UsageError(f"{workspace} holds no ledger: no judge was asked here. Type: bpals judge run SPEC")
    with Ledger.open(path, readonly=True, must_exist=True) as ledger:
        names = [card["judge"] for card in ledger.cards()]
        if judge is not None and judge not in names:
            raise UnknownName.of("asked judge", judge, names, where=str(workspace))
        return [_status(ledger, name) for name in names if judge in (None, name)]


def end_killed(ledger: Ledger) -> None:
    """Write down which runs were killed; whoever calls this holds the lock, so that none of them can be alive."""
    for card in ledger.cards():
        for run in ledger.runs(card["judge_id"]):
            if run["state"] == "running":
                ledger.end(run["run_id"], "killed", run["counts"])


def _status(ledger: Ledger, name: str) -> dict[str, Any]:
    """Say how far a judge is; the pace is that of its latest run."""
    judge_id = ledger.judge_id(name)
    counts = ledger.counts(judge_id)
    last: dict[str, Any] = next(reversed(ledger.runs(judge_id)), {})
    plan = last.get("plan", {})
    wanted = max(int(plan.get("films", 0)), counts["films"])
    seconds = _seconds_between(last.get("began"), counts["latest"])
    films_per_s = (counts["films"] - int(plan.get("films_before", 0))) / seconds if seconds else 0.0
    state, left, tokens = _state(ledger, last), wanted - counts["films"], counts["tokens"]
    if state == "done" and left:  # its controls are, and its films are not begun
        state = "running" if ledger.busy() else "unfinished"
    return {
        "judge": name,
        "state": state,
        **counts,
        "films_all": wanted,
        "films_per_s": films_per_s,
        "eta_s": left / films_per_s if state == "running" and films_per_s > 0 else None,
        "cached_share": tokens["cached"] / tokens["prompt"] if tokens["prompt"] else 0.0,
    }


def _state(ledger: Ledger, last: dict[str, Any]) -> str:
    state = str(last.get("state", "never run"))
    return "killed" if state == "running" and not ledger.busy() else state


def _seconds_between(began: str | None, latest: str | None) -> float:
    if began is None or latest is None:
        return 0.0
    return max(0.0, (datetime.fromisoformat(latest) - datetime.fromisoformat(began)).total_seconds())
