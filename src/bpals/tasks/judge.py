"""Asking an image judge about a dataset's films, and sealing what it said: what `bpals judge run` does, in one call.

    run_judge("table:scores.parquet@chexnet")                   scores computed elsewhere
    run_judge(my_judge, images="films")                         a function under @bpals.judge
    run_judge("openai:MODEL", images="films", order=Order(endpoints=(Endpoint(url=...),)))

Only the names of the films and of the findings are taken from the dataset: no claim is read here.
"""

from __future__ import annotations

import os
import platform
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import JudgeError, Stopped, UsageError, WorkspaceError
from bpals.images.prepare import Preparation
from bpals.images.stream import Reading
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.dispatch import open_clients
from bpals.judges.runner.executor import Executor, LocalExecutor, call
from bpals.judges.runner.messages import Plan
from bpals.judges.runner.progress import Tally
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.runner import Judge, Watch, ask_block, ask_controls, collect, run, wait_for
from bpals.judges.runner.transport import Endpoint
from bpals.judges.runner.writer import Batch
from bpals.judges.selftest import Drift, Observed, ask_again, control_images, measure, offsets, selftest
from bpals.registry import JUDGES, Spec, find, parse_spec
from bpals.store.files import commit, packages
from bpals.store.ledger import Ledger
from bpals.store.ledger.ledger import ledger_of, remember_ledger
from bpals.store.ledger.relay import for_a_run
from bpals.store.shards import Draw, Shard
from bpals.store.workspace import Workspace, check_judge_name
from bpals.tasks.image_access import (
    Block,
    BlockTask,
    ImageBlocks,
    Images,
    Lightbox,
    Named,
    Oddities,
    name_films,
    odd_films,
    open_lightbox,
)
from bpals.tasks.judge_status import end_killed
from bpals.types import OUTCOME, ChatJudge, Film, ImageJudge, JudgeCard, Notice, Question, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How a judge is to be asked: everything beside who it is and where the films are."""

    name: str = ""
    """What it is called in the workspace; by default after its model."""
    source: str | None = None
    """The dataset, as in `bpals audit`; by default the one that the workspace remembers, or NIH."""
    mapping: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    pace: RunPolicy = field(default_factory=RunPolicy)
    preparation: Preparation = field(default_factory=Preparation)
    limit_images: int | None = None
    """Ask about that many films only, drawn at random: the same ones each time, and a larger number adds to them."""
    require_all: bool = False
    """Refuse to begin if a film of the dataset is missing."""
    retry_failed: bool = False
    verify: int = 0
    """Ask at least that many stored questions again, whole films of them, and say how far the answers drift."""
    seed: int = 0
    ledger: str | None = None
    """The address of a PostgreSQL ledger; by default the one that the workspace remembers, or a file of its own."""
    shard: Shard | None = None
    """Ask about this part of the films only; `bpals judge merge` brings the parts together."""
    engine: Executor | None = None
    """Where images are judged: a `RayExecutor`; by default this process."""
    workers: int | None = None
    """Processes that read films; by default one a core, four at most."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the judge's own kind takes: pack, layout, method, licence, device, card."""

    @property
    def executor(self) -> Executor:
        """Where the work happens: the engine, or this process."""
        return self.engine or LocalExecutor(processes=self.workers)

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        if self.name:
            check_judge_name(self.name)
        if self.limit_images is not None and self.limit_images < 1:
            raise UsageError(f"{self.limit_images} films cannot be asked about. Type: --limit-images 30")
        if self.verify < 0:
            raise UsageError(f"{self.verify} questions cannot be asked again. Type: --verify 20")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRun:
    """How asking a judge ended."""

    name: str
    card: JudgeCard
    state: str
    """done, interrupted, budget or verified; a run that had to stop raises Stopped."""
    counts: Mapping[str, int]
    """Each of the six outcomes -> pairs, over all runs of this judge here."""
    films: int
    why: str
    """Why there is no answer, as the judge or the run says of the first pair without one; empty where all have one."""
    sealed: Path | None
    """The record of its sealed answers; none where it has not been asked about any film yet."""
    tally: Tally | None = None
    """What this run did; none where nothing had to be asked."""
    drift: Drift | None = None
    notices: tuple[Notice, ...] = ()
    looked: tuple[int, int] | None = None
    """Films that a probe has looked at and keeps, and of how many, where it has not learnt from them yet."""


def seal_asked(
    home: Workspace, films: Named, ledger: Ledger, card: JudgeCard, state: str, notices: Sequence[Notice] = ()
) -> JudgeRun:
    """Seal everything that an asked judge has said so far, if it has said anything."""
    judge_id = ledger.judge_id(card.judge)
    observed = next(each["observed"] for each in ledger.cards() if each["judge_id"] == judge_id)
    drift = observed.pop("drift", None)
    whole = replace(card, observed=observed)
    answers, said = ledger.judgments(judge_id, films.vocabulary), ledger.film_answers(judge_id)
    extra = {
        "dataset": films.dataset,
        "state": state,
        "offsets": _offsets(ledger, judge_id),
        "tally": ledger.counts(judge_id),
        "drift": drift,
    }
    sealed = None
    if answers.height:
        sealed = home.write_judge(whole.judge, whole.as_dict(), answers, said if said.height else None, extra)
    return ended(whole, state, answers, sealed, notices)


def ended(
    card: JudgeCard, state: str, answers: pl.DataFrame, sealed: Path | None, notices: Sequence[Notice]
) -> JudgeRun:
    """Count what a judge has said."""
    counted = dict(answers["outcome"].cast(pl.String).value_counts().iter_rows())
    return JudgeRun(
        name=card.judge,
        card=card,
        state=state,
        counts={outcome: counted.get(outcome, 0) for outcome in OUTCOME.categories},
        films=answers["image_id"].n_unique(),
        why=str(answers["why"].drop_nulls().head(1).to_list()[0]) if answers["why"].count() else "",
        sealed=sealed,
        notices=tuple(notices),
    )


def _offsets(ledger: Ledger, judge_id: int) -> dict[str, list[float | None]]:
    """Give the judge's answer without a film, subject by subject, where it answered both polarities."""
    found = offsets(ledger.replies(judge_id, control=True))
    return {subject: both for subject, both in found.items() if None not in both}


# Every worker shows its judge this control image first ...
CONTROL = "noise"
# ... and its logits may be this far from those of the judge here: devices round differently.
TOLERANCE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJudge:
    """Opens the judge in a worker, and returns what asks it about a block."""

    judge: Judge | Spec
    """A spec is opened where it is used, with its weights; an object travels."""
    options: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str
    plan: Plan
    trial: tuple[Film, ...]
    control: tuple[tuple[str, float | None], ...] = ()
    """Outcome and logit per question for the control image, as the judge here answered; empty if it did not."""

    def __call__(self) -> Callable[[Images, Block], Batch]:
        """Open the judge, check that it is the same as here, and that it works."""
        judge, plan = self._open(), self.plan

        def ask(images: Images, block: Block) -> Batch:
            return ask_block(judge, images, replace(plan, todo=len(block.image_ids), known=block.known))

        return ask

    def _open(self) -> Judge:
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
        elif isinstance(judge, ImageJudge) and self.control:
            self._test_model(judge)
        return judge

    def _test_endpoint(self, judge: OpenAIJudge) -> None:
        async def trial() -> Observed:
            async with open_clients(self.plan.endpoints, self.plan.pace) as open_client:
                return await selftest(judge, self.trial, self.plan.questions, open_client)

        if wait_for(trial()).judge != judge:
            raise JudgeError(
                f"seen from {platform.node()} the endpoint is another one than from here. Serve the same model, with "
                "the same options, at every --base-url"
            )

    def _test_model(self, judge: ImageJudge) -> None:
        """Compare the answers about the control image: a worker whose device computes nonsense judges nothing."""
        image = dict(control_images(max(self.trial[0].width_px, self.trial[0].height_px)))[CONTROL]
        replies = judge.ask(image, self.plan.questions)
        if not all(_alike(reply, *answer) for reply, answer in zip(replies, self.control, strict=True)):
            raise JudgeError(
                f"the judge in the worker on {platform.node()} answers about a control film otherwise than here. "
                "Look at that machine's device and versions"
            )


def _alike(reply: Reply, outcome: str, logit: float | None) -> bool:
    if reply.outcome != outcome:
        return False
    return reply.logit is None or logit is None or abs(reply.logit - logit) <= TOLERANCE


def control_answers(ledger: Ledger, judge_id: int) -> tuple[tuple[str, float | None], ...]:
    """Read what the judge here answered about the control image; nothing where it failed."""
    replies = ledger.replies(judge_id, control=True)
    rows = [row for row in replies.iter_rows(named=True) if row["control"] == CONTROL]
    if any(row["outcome"] == "failed" for row in rows):
        return ()
    return tuple((str(row["outcome"]), row["logit"]) for row in rows)


TRIAL_PATIENCE_S = 10.0
"""How long a server may be silent while it is tried out."""
MOST_VERIFIED = 1000
"""Films that are asked about again, at most: they are all in memory."""

ELSEWHERE = {
    "learn": "{judge} learns from the dataset's labels. Call bpals.run_probe, or bpals judge run {judge}",
    "audit": "{judge} is run by every audit. Type: bpals audit",
}
"""Kinds of judge that nobody asks image by image."""

Say = Callable[[str], None]
"""Called with a sentence that a user should read while the run goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """Everything that one run works with."""

    home: Workspace
    spec: Spec | None
    box: Lightbox
    ledger: Ledger
    wish: Order
    watch: Watch
    say: Say


def run_judge(
    judge: str | Judge,
    *,
    images: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] = "audit",
    order: Order | None = None,
    watch: Watch = lambda _snapshot: None,
    say: Say = lambda _sentence: None,
) -> JudgeRun:
    """Ask a judge about every film of the dataset, resumably, and seal its answers in the workspace."""
    home, wish = Workspace(workspace), order or Order()
    spec = parse_spec(judge) if isinstance(judge, str) else None
    if spec is not None and JUDGES.load(spec.kind).runs == "read":
        return _seal_table(home, spec, wish, say)
    asked = _made(judge, wish)
    where = images if images is not None else home.remembered("images")
    if where is None:
        raise UsageError("where are the films? Type: --images PATH (a folder, a tar or a zip)")
    films = name_films(home, wish.source, wish.mapping)
    box = open_lightbox(home, films, where, wish.preparation, require_all=wish.require_all)
    for notice in box.shelf.notices:
        say(notice.message)
    address = ledger_of(home, wish.ledger)
    part = str(wish.shard or "")
    with for_a_run(address, part) as ledger:
        remember_ledger(home, address)
        end_killed(ledger, part)
        return _ask(asked, _Desk(home=home, spec=spec, box=box, ledger=ledger, wish=wish, watch=watch, say=say))


def _made(judge: str | Judge, wish: Order) -> Judge:
    """Make the judge that a spec names; one that cannot be asked is refused before anything is read."""
    if isinstance(judge, str):
        spec = parse_spec(judge)
        if (elsewhere := ELSEWHERE.get(JUDGES.load(spec.kind).runs)) is not None:
            raise UsageError(elsewhere.format(judge=judge))
        judge = find(spec.kind)(spec.target, spec.revision, **wish.options)
    elif wish.options:
        raise UsageError(f"{', '.join(wish.options)}: options are for a spec. Give them to the judge itself")
    # A class looks like its instances to a runtime protocol.
    if isinstance(judge, type) or not isinstance(judge, ImageJudge | ChatJudge):
        raise UsageError(f"{judge!r} is no image judge. Write @bpals.judge('my-judge') above a def f(image, finding)")
    if isinstance(judge, ChatJudge) and not wish.endpoints:
        raise UsageError("an endpoint is missing. Type: --base-url http://127.0.0.1:8000/v1 (docs/byo-vlm.md)")
    return judge


def _ask(judge: Judge, desk: _Desk) -> JudgeRun:
    """Try the judge out, ask what is still to ask, and seal what it has said so far."""
    wish, ledger, box = desk.wish, desk.ledger, desk.box
    drawn, draw = box.draw(wish.limit_images, wish.seed), box.describe(wish.limit_images, wish.seed)
    questions = tuple(judge.questions(box.films.vocabulary))
    # Of all shards alike, so that each shows the same controls.
    first = box.first(drawn)
    drawn = [image_id for image_id in drawn if wish.shard is None or wish.shard.holds(image_id)]
    if isinstance(judge, OpenAIJudge):
        judge = _tried(judge, first, questions, desk)
    card = _named(judge.card, desk)
    judge_id = ledger.enrol(card, questions, box.films.dataset)
    ledger.note_observed(judge_id, card.observed)
    done = ledger.done(judge_id)
    kept = ledger.done(judge_id, retry_failed=True) if wish.retry_failed else done
    todo = [image_id for image_id in drawn if image_id not in kept]
    plan = Plan(
        judge_id=judge_id,
        questions=questions,
        todo=len(todo),
        endpoints=wish.endpoints,
        pace=wish.pace,
        known={image_id: sha256 for image_id, sha256 in done.items() if sha256},
        settings={
            "images": str(box.images),
            "seed": wish.seed,
            "films_before": len(done),
            "films": len(done.keys() | todo),
            "draw": draw.as_dict(),
            **({"shard": str(wish.shard)} if wish.shard else {}),
        },
        environment={"packages": packages(), "commit": commit()[0]},
        model=_served_model(ledger, judge_id),
    )
    if wish.verify:
        return _verify(judge, desk, plan, card)
    spent = _ask_controls(judge, desk, plan, first)
    try:
        state, tally, notices = _run(judge, desk, plan, todo, spent, first)
    except (Stopped, JudgeError):
        _seal(desk, card, "stopped")
        raise
    sealed = _seal(desk, card, state)
    return replace(sealed, tally=tally, notices=(*sealed.notices, *notices))


def _tried(judge: OpenAIJudge, films: Sequence[Film], questions: Sequence[Question], desk: _Desk) -> OpenAIJudge:
    """Show an endpoint a few films before anything is asked for good; what is odd is said and goes on the card."""
    # Nothing is done yet that would be worth waiting for: a wrong port is said at once.
    pace = replace(desk.wish.pace, patience_s=min(desk.wish.pace.patience_s, TRIAL_PATIENCE_S))

    async def trial() -> Observed:
        async with open_clients(desk.wish.endpoints, pace) as open_client:
            return await selftest(judge, films, questions, open_client)

    observed = wait_for(trial())
    unphrased = (notice.message for notice in judge.pack.unphrased(desk.box.films.vocabulary))
    for sentence in (*unphrased, *observed.warnings):
        desk.say(sentence)
    return observed.judge


def _named(card: JudgeCard, desk: _Desk) -> JudgeCard:
    """Give the judge its name in this workspace; how films are prepared is part of who it is."""
    name = desk.wish.name or slug(card.judge)
    refuse_taken(desk.home, name, card.engine)
    return replace(card, judge=name, preparation={**card.preparation, **desk.wish.preparation.as_dict()})


def refuse_taken(home: Workspace, name: str, engine: str) -> None:
    """Refuse the name of a table to a judge that is asked, and the other way round; the ledger sees to the rest."""
    check_judge_name(name)
    try:
        there = home.judge(name).card.get("engine") if name in home.judge_names() else engine
    except WorkspaceError:  # damaged: sealing it anew mends it
        return
    if there != engine:
        raise UsageError(
            f"judge {name!r} is already here and is another one: engine was {there!r}, is {engine!r}. "
            "Give this one a name of its own: --name OTHER"
        )


def _served_model(ledger: Ledger, judge_id: int) -> str:
    """Recall what the server called itself when it was last asked, also in a run that was killed."""
    events = (event for each in ledger.runs(judge_id) for event in each["events"])
    return next((str(event["detail"]) for event in reversed(list(events)) if event["kind"] == "model"), "")


def _ask_controls(judge: Judge, desk: _Desk, plan: Plan, films: Sequence[Film]) -> int:
    """Ask what the judge says when there is nothing to see, once; give the tokens that it cost."""
    said = desk.ledger.replies(plan.judge_id, control=True)
    asked, failed = set(said["control"]), set(said.filter(pl.col("outcome") == "failed")["control"])
    kept = asked - failed if desk.wish.retry_failed else asked
    side_px = max(films[0].width_px, films[0].height_px)
    missing = [(name, film) for name, film in control_images(side_px) if name not in kept]
    if not missing:
        return 0
    told = replace(plan, todo=len(missing), settings={**plan.settings, "controls": len(missing)})
    heard = ask_controls(judge, missing, desk.ledger, told)
    return sum(reply.usage.prompt + reply.usage.output for replies in heard.values() for reply in replies)


def _run(
    judge: Judge, desk: _Desk, plan: Plan, todo: Sequence[str], spent: int, first: Sequence[Film]
) -> tuple[str, Tally | None, Sequence[Notice]]:
    """Ask about the films that are still to be asked about; what is odd about them is said at the end."""
    budget = plan.pace.budget_tokens
    if not todo:
        _note_done(desk.ledger, plan)
        return "done", None, ()
    if budget is not None and spent >= budget:
        return "budget", None, ()
    left = plan.pace if budget is None else replace(plan.pace, budget_tokens=budget - spent)
    plan = replace(plan, pace=left)
    tally, films = _judge_images(judge, desk, plan, todo, first)
    notices = odd_films(films, tally.changed_films)
    # The self-test has already said what a run would warn of: another model's name.
    warnings = () if isinstance(judge, OpenAIJudge) else tally.warnings
    for sentence in (*(notice.message for notice in notices), *warnings):
        desk.say(sentence)
    return tally.state, tally, notices


def _judge_images(
    judge: Judge, desk: _Desk, plan: Plan, todo: Sequence[str], first: Sequence[Film]
) -> tuple[Tally, Oddities]:
    """Judge images where the executor says; the answers are always written here."""
    executor, box = desk.wish.executor, desk.box
    if isinstance(executor, LocalExecutor) and not executor.in_blocks:
        with box.read(todo, workers=executor.processes) as images:
            return run(judge, images, desk.ledger, plan, watch=desk.watch), images
    share = replace(plan.pace, in_flight=max(1, plan.pace.in_flight // executor.workers))
    open_judge = OpenJudge(
        # What the self-test found out about an endpoint is part of the judge, which is therefore sent as it is.
        judge=desk.spec if desk.spec is not None and isinstance(judge, ImageJudge) else judge,
        options=desk.wish.options,
        fingerprint=judge.card.fingerprint,
        plan=replace(plan, pace=share, known={}, settings={}, environment={}),
        trial=tuple(first),
        control=control_answers(desk.ledger, plan.judge_id),
    )
    task = BlockTask(work=box.preparation, reads=Reading, begin=open_judge)
    with ImageBlocks(executor, box.shelf, todo, task, plan.known) as blocks:
        return collect(judge, blocks, desk.ledger, plan, watch=desk.watch), blocks


def _note_done(ledger: Ledger, plan: Plan) -> None:
    """Write down that nothing is left to ask, unless the latest run of this shard says so of these films and more."""
    told = plan.settings
    ours = [run for run in ledger.runs(plan.judge_id) if run["plan"].get("shard") == told.get("shard")]
    last = next((run for run in reversed(ours) if "controls" not in run["plan"]), None)
    done = Draw.read(last["plan"]) if last is not None and last["state"] == "done" else None
    wanted = Draw.read(told)
    if done is None or (wanted is not None and not done.covers(wanted)):
        ledger.end(ledger.begin(plan.judge_id, plan.as_dict(), plan.environment), "done", {})


def _verify(judge: Judge, desk: _Desk, plan: Plan, card: JudgeCard) -> JudgeRun:
    """Ask again about films whose answers are stored, compare, and keep the drift with the judge."""
    # A film that failed has nothing to compare with, and may fail again.
    whole = desk.ledger.done(plan.judge_id, retry_failed=True)
    there = sorted(whole.keys() & set(desk.box.shelf.found))
    count = min(len(there), MOST_VERIFIED, -(-desk.wish.verify // len(plan.questions)))
    drawn = random.Random(desk.wish.seed).sample(there, count)  # noqa: S311  a fair sample, not a secret
    with desk.box.read(drawn) as reading:
        films = {name: film for name, film in reading if isinstance(film, Film) and film.sha256 == whole[name]}
    if not films:
        raise UsageError("--verify: nothing is stored about these films that could be asked again. Run the judge first")
    again = ask_again(judge, films, plan)
    stored = desk.ledger.replies(plan.judge_id, image_ids=list(films))
    before = list(stored.select(pl.col("outcome").cast(pl.String), "logit").iter_rows())
    drift = measure(before, [reply for image_id in sorted(films) for reply in again[image_id]])
    desk.ledger.note_observed(plan.judge_id, {"drift": drift.as_dict()})
    state = next((str(each["state"]) for each in reversed(desk.ledger.runs(plan.judge_id))), "done")
    return replace(_seal(desk, card, state), state="verified", drift=drift)


def _seal(desk: _Desk, card: JudgeCard, state: str) -> JudgeRun:
    return seal_asked(desk.home, desk.box.films, desk.ledger, card, state, desk.box.shelf.notices)


def _seal_table(home: Workspace, spec: Spec, wish: Order, say: Say) -> JudgeRun:
    """Seal scores that were computed elsewhere."""
    films = name_films(home, wish.source, wish.mapping)
    read = partial(find(spec.kind), spec.target, spec.revision, films.vocabulary, films.image_ids, **wish.options)
    scores = call(wish.executor, read)
    for notice in scores.notices:
        say(notice.message)
    card = replace(scores.card, judge=wish.name or slug(scores.card.judge))
    refuse_taken(home, card.judge, card.engine)
    answers = scores.table.with_columns(judge=pl.lit(card.judge))
    extra = {"dataset": films.dataset, "state": "done"}
    sealed = home.write_judge(card.judge, card.as_dict(), answers, None, extra)
    return ended(card, "done", answers, sealed, tuple(scores.notices))


def slug(name: str) -> str:
    """Make a name for a file out of a model's: Qwen2.5-VL-7B-Instruct is qwen2.5-vl-7b-instruct."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:80] or "judge"
