"""A run in a process of its own, to be killed: forked from a server that has imported everything already."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from bpals.judges.runner.messages import Plan
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.runner import run
from bpals.judges.runner.transport import Endpoint
from bpals.store.ledger import Ledger
from bpals.types import Question
from world import runs

FINDINGS = tuple(f"Finding {number}" for number in range(14))
QUESTIONS = tuple(
    Question(subject=finding, polarity=polarity, text=f"{finding} {polarity}?")
    for finding in FINDINGS
    for polarity in ("present", "absent")
)
PACE = RunPolicy(in_flight=64, first_wait_s=0.01, longest_wait_s=0.05, drain_s=20)
OPEN_FILMS = 8
"""At 64 in flight with 28 questions a film."""


class Held(Ledger):
    """A ledger that never gets to writing: whoever is killed now dies between a reply and its commit."""

    def write(self, *_):
        """Wait for the end."""
        time.sleep(3600)  # it is killed before


def go(path, url, count, *, ledger_kind="Ledger", told=None, pace=None):
    """Ask about the films that are not in the ledger yet; write the tally beside it."""
    kind = {"Ledger": Ledger, "Held": Held}[ledger_kind]
    judge = runs.Chat()
    with kind.open(path) as ledger, ledger.lock("judge run"):
        judge_id = ledger.enrol(judge.card, QUESTIONS, "made-up")
        done = ledger.done(judge_id)
        left = [(image_id, film) for image_id, film in runs.films(count) if image_id not in done]
        plan = Plan(
            judge_id=judge_id,
            questions=QUESTIONS,
            todo=len(left),
            endpoints=(Endpoint(url=url, deadline_s=30),),
            pace=replace(PACE, **(pace or {})),
        )
        tally = run(judge, left, ledger, plan)
    Path(told or f"{path}.tally").write_text(json.dumps(tally.as_dict(), default=str), encoding="utf-8")
