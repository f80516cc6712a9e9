"""Ask an image judge about every image of a dataset, and write its answers: what `bpals judge run` does.

    run_judge("table:scores.parquet@chexnet")                   scores computed elsewhere
    run_judge(my_judge, images="images")                        a function under @bpals.judge
    run_judge("openai:MODEL", images="images", order=Order(endpoints=(Endpoint(url=...),)))

Only image ids and findings are taken from the dataset: no label is read here.
"""

from __future__ import annotations

import os
import platform
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
    DatasetImages,
    ImageBlocks,
    ImageManifest,
    Images,
    ReadImages,
    image_notices,
    images_path,
    open_images,
    open_manifest,
)
from bpals.tasks.judge_status import end_killed
from bpals.types import OUTCOME, ChatJudge, Film, ImageJudge, JudgeCard, Notice, Question, Reply

# Every worker shows its judge this control image first ...
CONTROL = "noise"
# ... and its logits may be this far from those of the judge here: devices round differently.
TOLERANCE = 0.5
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
class Order:
    """How to ask a judge: everything beside the judge and the place of the images."""

    name: str = ""
    """The judge's name in the workspace; by default after its model."""
    source: str | None = None
    """The dataset, as in `bpals audit`; by default the one that the workspace remembers, or NIH."""
    mapping: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    pace: RunPolicy = field(default_factory=RunPolicy)
    preparation: Preparation = field(default_factory=Preparation)
    limit_images: int | None = None
    """Ask about that many images only, drawn at random: the same ones each time, and a larger number adds to them."""
    require_all: bool = False
    """Refuse to begin if an image of the dataset is missing."""
    retry_failed: bool = False
    verify: int = 0
    """Ask at least that many stored questions again, image by image, and measure how far the answers drift."""
    seed: int = 0
    ledger: str | None = None
    """The address of a PostgreSQL ledger; by default the one that the workspace remembers, or a file of its own."""
    shard: Shard | None = None
    """Ask about this part of the images only; `bpals judge merge` brings the parts together."""
    engine: Executor | None = None
    """Where images are judged: a `RayExecutor`; by default this process."""
    workers: int | None = None
    """Processes that read images; by default one per core, four at most."""
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
            raise UsageError(f"{self.limit_images} images cannot be asked about. Type: --limit-images 30")
        if self.verify < 0:
            raise UsageError(f"{self.verify} questions cannot be asked again. Type: --verify 20")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRun:
    """The result of running a judge."""

    name: str
    card: JudgeCard
    state: str
    """done, interrupted, budget or verified; a run that had to stop raises Stopped."""
    counts: Mapping[str, int]
    """Each of the six outcomes -> pairs, over all runs of this judge here."""
    films: int
    why: str
    """Why the first pair without an answer has none; empty if all have one."""
    sealed: Path | None
    """The record of its answers in the workspace; None if it has answered about no image yet."""
    tally: Tally | None = None
    """What this run did; None if nothing had to be asked."""
    drift: Drift | None = None
    notices: tuple[Notice, ...] = ()
    looked: tuple[int, int] | None = None
    """Images whose features a probe has cached, and of how many, if it is not fitted yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """Everything that one run works with."""

    home: Workspace
    spec: Spec | None
    images: DatasetImages
    ledger: Ledger
    order: Order
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
    """Ask a judge about every image of the dataset, resumably, and write its answers into the workspace."""
    home, order = Workspace(workspace), order or Order()
    spec = parse_spec(judge) if isinstance(judge, str) else None
    if spec is not None and JUDGES.load(spec.kind).runs == "read":
        return _write_table(home, spec, order, say)
    opened = _make_judge(judge, order)
    where = images_path(home, images)
    manifest = open_manifest(home, order.source, order.mapping)
    found = open_images(home, manifest, where, order.preparation, require_all=order.require_all)
    for notice in found.index.notices:
        say(notice.message)
    address = ledger_of(home, order.ledger)
    part = str(order.shard or "")
    with for_a_run(address, part) as ledger:
        remember_ledger(home, address)
        end_killed(ledger, part)
        return _ask(
            opened, _Context(home=home, spec=spec, images=found, ledger=ledger, order=order, watch=watch, say=say)
        )


def _make_judge(judge: str | Judge, order: Order) -> Judge:
    """Make the judge that a spec names; one that cannot be asked is refused before anything is read."""
    if isinstance(judge, str):
        spec = parse_spec(judge)
        if (elsewhere := ELSEWHERE.get(JUDGES.load(spec.kind).runs)) is not None:
            raise UsageError(elsewhere.format(judge=judge))
        judge = find(spec.kind)(spec.target, spec.revision, **order.options)
    elif order.options:
        raise UsageError(f"{', '.join(order.options)}: options are for a spec. Give them to the judge itself")
    # A class looks like its instances to a runtime protocol.
    if isinstance(judge, type) or not isinstance(judge, ImageJudge | ChatJudge):
        raise UsageError(f"{judge!r} is no image judge. Write @bpals.judge('my-judge') above a def f(image, finding)")
    if isinstance(judge, ChatJudge) and not order.endpoints:
        raise UsageError("an endpoint is missing. Type: --base-url http://127.0.0.1:8000/v1 (docs/byo-vlm.md)")
    return judge


def _ask(judge: Judge, context: _Context) -> JudgeRun:
    """Try the judge, ask the questions that are open, and write all its answers so far."""
    order, ledger, found = context.order, context.ledger, context.images
    drawn, draw = found.draw(order.limit_images, order.seed), found.describe(order.limit_images, order.seed)
    questions = tuple(judge.questions(found.manifest.vocabulary))
    # Chosen before sharding, so every shard uses the same control images.
    first = found.first(drawn)
    drawn = [image_id for image_id in drawn if order.shard is None or order.shard.holds(image_id)]
    if isinstance(judge, OpenAIJudge):
        judge = _try_endpoint(judge, first, questions, context)
    card = _name_card(judge.card, context)
    judge_id = ledger.enrol(card, questions, found.manifest.dataset)
    ledger.note_observed(judge_id, card.observed)
    done = ledger.done(judge_id)
    skip = ledger.done(judge_id, retry_failed=True) if order.retry_failed else done
    todo = [image_id for image_id in drawn if image_id not in skip]
    plan = Plan(
        judge_id=judge_id,
        questions=questions,
        todo=len(todo),
        endpoints=order.endpoints,
        pace=order.pace,
        known={image_id: sha256 for image_id, sha256 in done.items() if sha256},
        settings={
            "images": str(found.images),
            "seed": order.seed,
            "films_before": len(done),
            "films": len(done.keys() | todo),
            "draw": asdict(draw),
            **({"shard": str(order.shard)} if order.shard else {}),
        },
        environment={"packages": packages(), "commit": commit()[0]},
        model=_served_model(ledger, judge_id),
    )
    if order.verify:
        return _verify(judge, context, plan, card)
    spent = _ask_controls(judge, context, plan, first)
    try:
        state, tally, notices = _ask_about(judge, context, plan, todo, spent, first)
    except (Stopped, JudgeError):
        _write_answers(context, card, "stopped")
        raise
    result = _write_answers(context, card, state)
    return replace(result, tally=tally, notices=(*result.notices, *notices))


def _try_endpoint(
    judge: OpenAIJudge, images: Sequence[Film], questions: Sequence[Question], context: _Context
) -> OpenAIJudge:
    """Show an endpoint a few images before the run begins; warnings are shown, and the card keeps them."""
    # Nothing is done yet that would be worth waiting for: a wrong port is reported at once.
    pace = replace(context.order.pace, patience_s=min(context.order.pace.patience_s, TRIAL_PATIENCE_S))

    async def trial() -> Observed:
        async with open_clients(context.order.endpoints, pace) as open_client:
            return await selftest(judge, images, questions, open_client)

    observed = wait_for(trial())
    unphrased = (notice.message for notice in judge.pack.unphrased(context.images.manifest.vocabulary))
    for sentence in (*unphrased, *observed.warnings):
        context.say(sentence)
    return observed.judge


def _name_card(card: JudgeCard, context: _Context) -> JudgeCard:
    """Return the card with the judge's name in this workspace; how images are prepared is part of its identity."""
    name = context.order.name or judge_name(card.judge)
    refuse_taken_name(context.home, name, card.engine)
    return replace(card, judge=name, preparation={**card.preparation, **context.order.preparation.as_dict()})


def refuse_taken_name(home: Workspace, name: str, engine: str) -> None:
    """Refuse a table's name to a judge that is asked, and the other way round; the ledger rejects other clashes."""
    check_judge_name(name)
    try:
        there = home.judge(name).card.get("engine") if name in home.judge_names() else engine
    except WorkspaceError:  # damaged: writing it again repairs it
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


def _ask_controls(judge: Judge, context: _Context, plan: Plan, images: Sequence[Film]) -> int:
    """Ask once about the control images (no anatomy); return the tokens that it cost."""
    stored = context.ledger.replies(plan.judge_id, control=True)
    done = set(stored["control"])
    if context.order.retry_failed:
        done -= set(stored.filter(pl.col("outcome") == "failed")["control"])
    side_px = max(images[0].width_px, images[0].height_px)
    missing = [(name, image) for name, image in control_images(side_px) if name not in done]
    if not missing:
        return 0
    controls = replace(plan, todo=len(missing), settings={**plan.settings, "controls": len(missing)})
    answers = ask_controls(judge, missing, context.ledger, controls)
    return sum(reply.usage.prompt + reply.usage.output for replies in answers.values() for reply in replies)


def _ask_about(
    judge: Judge, context: _Context, plan: Plan, todo: Sequence[str], spent: int, first: Sequence[Film]
) -> tuple[str, Tally | None, Sequence[Notice]]:
    """Ask about the images in `todo`; notices about them are shown at the end."""
    budget = plan.pace.budget_tokens
    if not todo:
        _note_done(context.ledger, plan)
        return "done", None, ()
    if budget is not None and spent >= budget:
        return "budget", None, ()
    left = plan.pace if budget is None else replace(plan.pace, budget_tokens=budget - spent)
    plan = replace(plan, pace=left)
    tally, read = _judge_images(judge, context, plan, todo, first)
    notices = image_notices(read, tally.changed_films)
    # The self-test has already shown what a run would warn of: another model's name.
    warnings = () if isinstance(judge, OpenAIJudge) else tally.warnings
    for sentence in (*(notice.message for notice in notices), *warnings):
        context.say(sentence)
    return tally.state, tally, notices


def _judge_images(
    judge: Judge, context: _Context, plan: Plan, todo: Sequence[str], first: Sequence[Film]
) -> tuple[Tally, ReadImages]:
    """Judge images where the executor says; the answers are always written here."""
    executor, found = context.order.executor, context.images
    if isinstance(executor, LocalExecutor) and not executor.in_blocks:
        with found.read(todo, workers=executor.processes) as images:
            return run(judge, images, context.ledger, plan, watch=context.watch), images
    share = replace(plan.pace, in_flight=max(1, plan.pace.in_flight // executor.workers))
    open_judge = OpenJudge(
        # What the self-test found out about an endpoint is part of the judge, which is therefore sent as it is.
        judge=context.spec if context.spec is not None and isinstance(judge, ImageJudge) else judge,
        options=context.order.options,
        fingerprint=judge.card.fingerprint,
        plan=replace(plan, pace=share, known={}, settings={}, environment={}),
        trial=tuple(first),
        control=control_answers(context.ledger, plan.judge_id),
    )
    task = BlockTask(work=found.preparation, reads=Reading, begin=open_judge)
    with ImageBlocks(executor, found.index, todo, task, plan.known) as blocks:
        return collect(judge, blocks, context.ledger, plan, watch=context.watch), blocks


def _note_done(ledger: Ledger, plan: Plan) -> None:
    """Record a finished run, unless the latest run of this shard already covers these images."""
    ours = [run for run in ledger.runs(plan.judge_id) if run["plan"].get("shard") == plan.settings.get("shard")]
    last = next((run for run in reversed(ours) if "controls" not in run["plan"]), None)
    done = Draw.read(last["plan"]) if last is not None and last["state"] == "done" else None
    wanted = Draw.read(plan.settings)
    if done is None or (wanted is not None and not done.covers(wanted)):
        ledger.end(ledger.begin(plan.judge_id, plan.as_dict(), plan.environment), "done", {})


def _verify(judge: Judge, context: _Context, plan: Plan, card: JudgeCard) -> JudgeRun:
    """Ask again about images whose answers are stored, compare, and keep the drift with the judge."""
    # An image that failed has nothing to compare with, and may fail again.
    stored_hashes = context.ledger.done(plan.judge_id, retry_failed=True)
    there = sorted(stored_hashes.keys() & set(context.images.index.found))
    count = min(len(there), MOST_VERIFIED, -(-context.order.verify // len(plan.questions)))
    drawn = random.Random(context.order.seed).sample(there, count)  # noqa: S311  a fair sample, not a secret
    with context.images.read(drawn) as reading:
        images = {
            image_id: image
            for image_id, image in reading
            if isinstance(image, Film) and image.sha256 == stored_hashes[image_id]
        }
    if not images:
        raise UsageError("--verify: no stored answer about these images can be asked again. Run the judge first")
    again = ask_again(judge, images, plan)
    stored = context.ledger.replies(plan.judge_id, image_ids=list(images))
    before = list(stored.select(pl.col("outcome").cast(pl.String), "logit").iter_rows())
    drift = measure(before, [reply for image_id in sorted(images) for reply in again[image_id]])
    context.ledger.note_observed(plan.judge_id, {"drift": drift.as_dict()})
    state = next((str(each["state"]) for each in reversed(context.ledger.runs(plan.judge_id))), "done")
    return replace(_write_answers(context, card, state), state="verified", drift=drift)


def _write_answers(context: _Context, card: JudgeCard, state: str) -> JudgeRun:
    return write_ledger_answers(
        context.home, context.images.manifest, context.ledger, card, state, context.images.index.notices
    )


def _write_table(home: Workspace, spec: Spec, order: Order, say: Say) -> JudgeRun:
    """Write scores that were computed elsewhere."""
    manifest = open_manifest(home, order.source, order.mapping)
    known = (manifest.vocabulary, manifest.image_ids)
    scores = call(order.executor, partial(find(spec.kind), spec.target, spec.revision, *known, **order.options))
    for notice in scores.notices:
        say(notice.message)
    card = replace(scores.card, judge=order.name or judge_name(scores.card.judge))
    refuse_taken_name(home, card.judge, card.engine)
    answers = scores.table.with_columns(judge=pl.lit(card.judge))
    extra = {"dataset": manifest.dataset, "state": "done"}
    path = home.write_judge(card.judge, card.as_dict(), answers, None, extra)
    return summarise(card, "done", answers, path, tuple(scores.notices))


def write_ledger_answers(
    home: Workspace,
    manifest: ImageManifest,
    ledger: Ledger,
    card: JudgeCard,
    state: str,
    notices: Sequence[Notice] = (),
) -> JudgeRun:
    """Write all answers that the ledger has of a judge into the workspace, if there are any."""
    judge_id = ledger.judge_id(card.judge)
    observed = next(each["observed"] for each in ledger.cards() if each["judge_id"] == judge_id)
    drift = observed.pop("drift", None)
    card = replace(card, observed=observed)
    answers, texts = ledger.judgments(judge_id, manifest.vocabulary), ledger.film_answers(judge_id)
    extra = {
        "dataset": manifest.dataset,
        "state": state,
        "offsets": _control_offsets(ledger, judge_id),
        "tally": ledger.counts(judge_id),
        "drift": drift,
    }
    path = None
    if answers.height:
        path = home.write_judge(card.judge, card.as_dict(), answers, texts if texts.height else None, extra)
    return summarise(card, state, answers, path, notices)


def _control_offsets(ledger: Ledger, judge_id: int) -> dict[str, list[float | None]]:
    """Return the judge's logits about the control images per subject, if it answered both polarities.

    A polarity is the direction of a question: "is it present?" or "is it absent?".
    """
    found = offsets(ledger.replies(judge_id, control=True))
    return {subject: both for subject, both in found.items() if None not in both}


def summarise(
    card: JudgeCard, state: str, answers: pl.DataFrame, path: Path | None, notices: Sequence[Notice]
) -> JudgeRun:
    """Count a judge's answers by outcome."""
    counted = dict(answers["outcome"].cast(pl.String).value_counts().iter_rows())
    return JudgeRun(
        name=card.judge,
        card=card,
        state=state,
        counts={outcome: counted.get(outcome, 0) for outcome in OUTCOME.categories},
        films=answers["image_id"].n_unique(),
        why=str(answers["why"].drop_nulls().head(1).to_list()[0]) if answers["why"].count() else "",
        sealed=path,
        notices=tuple(notices),
    )


def judge_name(name: str) -> str:
    """Make a name for a file out of a model's: Qwen2.5-VL-7B-Instruct is qwen2.5-vl-7b-instruct."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:80] or "judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJudge:
    """Opens the judge in a worker, and returns what asks it about a block."""

    judge: Judge | Spec
    """A spec is opened where it is used, with its weights; a judge object is pickled to the worker."""
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
                f"the judge in the worker on {platform.node()} answers differently about a control image than the "
                "one here. Look at that machine's device and versions"
            )


def _alike(reply: Reply, outcome: str, logit: float | None) -> bool:
    if reply.outcome != outcome:
        return False
    return reply.logit is None or logit is None or abs(reply.logit - logit) <= TOLERANCE


def control_answers(ledger: Ledger, judge_id: int) -> tuple[tuple[str, float | None], ...]:
    """Read what the judge here answered about the control image; nothing if it failed."""
    replies = ledger.replies(judge_id, control=True)
    rows = [row for row in replies.iter_rows(named=True) if row["control"] == CONTROL]
    if any(row["outcome"] == "failed" for row in rows):
        return ()
    return tuple((str(row["outcome"]), row["logit"]) for row in rows)
