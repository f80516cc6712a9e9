"""Asking a judge in the workers of an engine: each makes the judge, tries it out, and asks about blocks of films."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bpals.awayfilms import Away, Block, Films, Treat
from bpals.errors import JudgeError
from bpals.films.reading import Reading
from bpals.judges import controls
from bpals.judges.away import Sheet, ask_block, gather
from bpals.judges.engine import Engine
from bpals.judges.openai import OpenAIJudge
from bpals.judges.protocol import ChatJudge, ImageJudge
from bpals.judges.run import Plan, Watch, lines
from bpals.judges.selftest import Observed, selftest
from bpals.judges.snapshot import Tally
from bpals.judges.waiting import wait_for
from bpals.ledger import Ledger
from bpals.lightbox import Lightbox
from bpals.registry import Spec, find
from bpals.types import Film, Reply

W = TypeVar("W")

CONTROL = "noise"
"""The film that every worker's judge is shown first ..."""
APART = 0.5
"""... and how far its logits may be from those of the judge here: devices round differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a worker's judge must show before it is asked anything for good."""

    films: tuple[Film, ...]
    """A few films for the self-test of an endpoint."""
    said: tuple[tuple[str, float | None], ...] = ()
    """What the judge said here of a control film, outcome and logit a question; empty where it was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hired:
    """Makes the judge of a worker, and what asks it about a block."""

    judge: ImageJudge | ChatJudge | Spec
    """A spec is opened where it is used, weights and all; an object travels."""
    options: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str
    plan: Plan
    trial: Trial

    def __call__(self) -> Callable[[Films, Block], Sheet]:
        """Open the judge, see that it is the same as the one here, and that it works."""
        judge, plan = self._opened(), self.plan

        def ask(films: Films, block: Block) -> Sheet:
            return ask_block(judge, films, replace(plan, todo=len(block.image_ids), known=block.known))

        return ask

    def _opened(self) -> ImageJudge | ChatJudge:
        judge = self.judge
        if isinstance(judge, Spec):
            judge = find(judge.kind)(judge.target, judge.revision, **self.options)
        if judge.card.fingerprint != self.fingerprint:
            raise JudgeError(
                f"the worker on {platform.node()} opens another judge: its fingerprint is {judge.card.fingerprint}, "
                f"and {self.fingerprint} is asked. Give every machine the same files, and the same versions"
            )
        if isinstance(judge, OpenAIJudge):
            self._test_endpoint(judge)
        elif isinstance(judge, ImageJudge) and self.trial.said:
            self._test_model(judge)
        return judge

    def _test_endpoint(self, judge: OpenAIJudge) -> None:
        async def trial() -> Observed:
            async with lines(self.plan.endpoints, self.plan.pace) as open_line:
                return await selftest(judge, self.trial.films, self.plan.questions, open_line)

        if wait_for(trial()).judge != judge:
            raise JudgeError(
                f"seen from {platform.node()} the endpoint is another one than from here. Serve the same model, with "
                "the same options, at every --base-url"
            )

    def _test_model(self, judge: ImageJudge) -> None:
        """Show the control film, and compare: a worker whose device computes nonsense asks about nothing."""
        film = dict(controls.films(max(self.trial.films[0].width_px, self.trial.films[0].height_px)))[CONTROL]
        replies = judge.ask(film, self.plan.questions)
        if not all(_alike(reply, *said) for reply, said in zip(replies, self.trial.said, strict=True)):
            raise JudgeError(
                f"the judge in the worker on {platform.node()} answers about a control film otherwise than here. "
                "Look at that machine's device and versions"
            )


def _alike(reply: Reply, outcome: str, logit: float | None) -> bool:
    if reply.outcome != outcome:
        return False
    return reply.logit is None or logit is None or abs(reply.logit - logit) <= APART


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is asked of whom, and who keeps the answers."""

    judge: ImageJudge | ChatJudge
    """The judge as it was tried out here."""
    spec: Spec | None
    """Where the workers open their own; None sends them this one."""
    options: Mapping[str, Any]
    plan: Plan
    ledger: Ledger
    trial: Sequence[Film]


def ask_away(engine: Engine, job: Job, box: Lightbox, todo: Sequence[str], watch: Watch) -> tuple[Tally, Away[Sheet]]:
    """Ask about films in the workers of an engine; what comes back is written here, under the rules of any run."""
    plan = job.plan
    asked = replace(plan.pace, in_flight=max(1, plan.pace.in_flight // engine.workers))
    trial = Trial(films=tuple(job.trial), said=_said(job.ledger, plan.judge_id))
    hired = Hired(
        # What was found out about an endpoint belongs to the judge and is sent along.
        judge=job.spec if job.spec is not None and isinstance(job.judge, ImageJudge) else job.judge,
        options=job.options,
        fingerprint=job.judge.card.fingerprint,
        plan=replace(plan, pace=asked, known={}, settings={}, environment={}),
        trial=trial,
    )
    treat = Treat(work=box.preparation, reads=Reading, works=hired)
    with Away(engine, box.shelf, todo, treat, plan.known) as away:
        return gather(job.judge, away, job.ledger, plan, watch=watch), away


def done_away(engine: Engine, work: Callable[[], W]) -> W:
    """Have one piece of work done by a worker of an engine, such as reading a table."""
    results = engine.run(iter([work]), _Doer)
    try:
        return next(iter(results))
    finally:
        results.close()


class _Doer:
    """A worker that does what it is handed."""

    def __call__(self, work: Callable[[], W]) -> W:
        """Do it."""
        return work()

    def close(self) -> None:
        """Let go of nothing."""


def _said(ledger: Ledger, judge_id: int) -> tuple[tuple[str, float | None], ...]:
    """Recall what the judge said here of the control film; nothing where it failed."""
    replies = ledger.replies(judge_id, control=True)
    rows = [row for row in replies.iter_rows(named=True) if row["control"] == CONTROL]
    if any(row["outcome"] == "failed" for row in rows):
        return ()
    return tuple((str(row["outcome"]), row["logit"]) for row in rows)
