"""`bpals judge status`: how far each judge of a workspace is.

It reads the ledger, the features of probes and the finished tables, also while a run goes on in another process.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bpals.errors import UnknownName, UsageError
from bpals.store.features import Begun, begun
from bpals.store.ledger import Ledger
from bpals.store.ledger.ledger import is_there, ledger_of
from bpals.store.workspace import FinishedJudge, Workspace
from bpals.types import OUTCOME


def status_of(
    workspace: str | os.PathLike[str] = "audit", judge: str | None = None, *, ledger: str | None = None
) -> list[dict[str, Any]]:
    """Give the status of each judge that was asked here or whose scores were read here, or of one of them."""
    rows = [*asked_status(workspace, ledger=ledger), *looking_status(workspace)]
    asked = {row["judge"] for row in rows}
    rows += [_read(sealed) for sealed in Workspace(workspace).judges() if sealed.name not in asked]
    if not rows and not is_there(ledger_of(Workspace(workspace), ledger)):
        raise UsageError(f"{workspace} holds no ledger: no judge was asked here. Type: bpals judge run SPEC")
    names = [row["judge"] for row in rows]
    if judge is not None and judge not in names:
        raise UnknownName.of("asked judge", judge, names, where=str(workspace))
    return [row for row in rows if judge in (None, row["judge"])]


def asked_status(workspace: str | os.PathLike[str] = "audit", *, ledger: str | None = None) -> list[dict[str, Any]]:
    """Give the status of each judge that was asked here; none where there is no ledger."""
    address = ledger_of(Workspace(workspace), ledger)
    if not is_there(address):
        return []
    with Ledger.open(address, readonly=True, must_exist=True) as opened:
        return [_status(opened, card["judge"]) for card in opened.cards()]


_STATES = {
    (True, False): "looking",
    (True, True): "learning",
    (False, False): "unfinished",
    (False, True): "looked at",
}
"""(a run is at work, all images are seen) -> the state of a probe."""


def looking_status(workspace: str | os.PathLike[str] = "audit") -> list[dict[str, Any]]:
    """Give the status of each probe that has seen images and is not fitted on all of them yet."""
    home = Workspace(workspace)
    rows = []
    for probe in begun(home.path):
        name = probe.plan.judge
        sealed = home.judge(name) if name in home.judge_names() else None
        if sealed is None or sealed.answers("image_id")["image_id"].n_unique() < probe.plan.films:
            state = _STATES[probe.busy, probe.seen]
            films_all = max(probe.plan.part, probe.films)
            rows.append(
                _unasked(name, state, {} if sealed is None else sealed.record["counts"])
                | {"films": probe.films, "films_all": films_all, "next": _next(probe, home)}
            )
    return rows


def _next(probe: Begun, home: Workspace) -> str:
    """Say what to type for the rest."""
    plan, where = probe.plan, f"--workspace {shlex.quote(str(home.path))}"
    if probe.busy:
        return "a run is at it now; films are counted once they are kept, every 20 seconds at least"
    if probe.seen and plan.shard:
        return f"part {plan.shard} is looked at. Bring the parts together: bpals judge merge PART ... --workspace DIR"
    part = f" --shard {plan.shard}" if plan.shard else ""
    rest = "nothing is learnt from them yet" if probe.seen else "they are kept, and the rest is not looked at yet"
    return f"{rest}. Type: bpals judge run {shlex.quote(plan.spec)}{part} {where}"


def _read(sealed: FinishedJudge) -> dict[str, Any]:
    """Give the status of a judge whose scores were computed elsewhere."""
    films = sealed.answers("image_id")["image_id"].n_unique()
    state = "read from a table" if sealed.card.get("engine") == "table of scores" else "sealed"
    return _unasked(sealed.name, state, sealed.record["counts"]) | {"films": films, "films_all": films}


def _unasked(name: str, state: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Give the status of a judge that was never asked question by question, and so cost nothing here."""
    outcomes = {outcome: int(counts.get(outcome, 0)) for outcome in OUTCOME.categories}
    return {
        "judge": name,
        "state": state,
        "films": 0,
        "controls": 0,
        "replies": outcomes,
        "judgments": outcomes,
        "tokens": {"prompt": 0, "cached": 0, "output": 0},
        "attempts": 0,
        "seconds": 0.0,
        "p50_s": 0.0,
        "p95_s": 0.0,
        "latest": None,
        "films_all": 0,
        "films_per_s": 0.0,
        "eta_s": None,
        "cached_share": 0.0,
        "next": "",
    }


def end_killed(ledger: Ledger, shard: str = "") -> None:
    """Mark runs that were killed; the caller holds the lock, so none of them can be alive."""
    for card in ledger.cards():
        for run in ledger.runs(card["judge_id"]):
            # On PostgreSQL the lock is that of one shard: runs of the other shards may be alive.
            ours = ledger.dialect == "sqlite" or run["plan"].get("shard", "") == shard
            if run["state"] == "running" and ours:
                ledger.end(run["run_id"], "killed", run["counts"])


def _status(ledger: Ledger, name: str) -> dict[str, Any]:
    """Give the status of a judge; the pace is that of its latest run."""
    judge_id = ledger.judge_id(name)
    counts = ledger.counts(judge_id)
    last: dict[str, Any] = next(reversed(ledger.runs(judge_id)), {})
    plan = last.get("plan", {})
    wanted = max(int(plan.get("films", 0)), counts["films"])
    seconds = _seconds_between(last.get("began"), counts["latest"])
    films_per_s = (counts["films"] - int(plan.get("films_before", 0))) / seconds if seconds else 0.0
    state, left, tokens = _state(ledger, last), wanted - counts["films"], counts["tokens"]
    if state == "done" and left:  # its controls are done, and its images are not begun
        state = "running" if ledger.busy() else "unfinished"
    return {
        "judge": name,
        "state": state,
        **counts,
        "films_all": wanted,
        "films_per_s": films_per_s,
        "eta_s": left / films_per_s if state == "running" and films_per_s > 0 else None,
        "cached_share": tokens["cached"] / tokens["prompt"] if tokens["prompt"] else 0.0,
        "next": "",
    }


def _state(ledger: Ledger, last: dict[str, Any]) -> str:
    state = str(last.get("state", "never run"))
    return "killed" if state == "running" and not ledger.busy() else state


def _seconds_between(began: str | None, latest: str | None) -> float:
    if began is None or latest is None:
        return 0.0
    return max(0.0, (datetime.fromisoformat(latest) - datetime.fromisoformat(began)).total_seconds())
