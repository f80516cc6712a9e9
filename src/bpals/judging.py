"""Asking an image judge about a dataset's films, and sealing what it said: what `bpals judge run` does, in one call.

    run_judge("table:scores.parquet@chexnet")                   scores computed elsewhere
    run_judge(my_judge, images="films")                         a function under @bpals.judge
    run_judge("openai:MODEL", images="films", order=Order(endpoints=(Endpoint(url=...),)))

Only the names of the films and of the findings are taken from the dataset: no claim is read here.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from bpals.awayjudging import Job, ask_away, done_away
from bpals.draw import Draw
from bpals.errors import JudgeError, Stopped, UsageError, WorkspaceError
from bpals.judgeorder import Order
from bpals.judgerun import JudgeRun, ended, seal_asked
from bpals.judges import controls
from bpals.judges.drift import ask_again, measure
from bpals.judges.openai import OpenAIJudge
from bpals.judges.protocol import ChatJudge, ImageJudge
from bpals.judges.run import Plan, ask_controls, lines, run
from bpals.judges.selftest import Observed, selftest
from bpals.judges.snapshot import Snapshot, Tally
from bpals.judges.waiting import wait_for
from bpals.judgestatus import end_killed
from bpals.ledger import Ledger
from bpals.ledger.relay import for_a_run
from bpals.lightbox import Lightbox, Oddities, name_films, odd_films, open_lightbox
from bpals.provenance import commit, packages
from bpals.registry import Spec, find, parse_spec
from bpals.sealedjudge import check_judge_name
from bpals.types import Film, JudgeCard, Notice, Question
from bpals.workspace import Workspace
from bpals.workspaceledger import ledger_of, remember_ledger

TRIAL_PATIENCE_S = 10.0
"""How long a server may be silent while it is tried out."""
MOST_VERIFIED = 1000
"""Films that are asked about again, at most: they are all in memory."""

Judge = ImageJudge | ChatJudge
Watch = Callable[[Snapshot], None]
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
    if spec is not None and spec.kind == "table":
        return _seal_table(home, (spec.target, spec.revision), wish, say)
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
        if spec.kind == "probe":
            raise UsageError(
                f"{judge} learns from the dataset's labels. Call bpals.run_probe, or bpals judge run {judge}"
            )
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
        async with lines(desk.wish.endpoints, pace) as open_line:
            return await selftest(judge, films, questions, open_line)

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
    missing = [(name, film) for name, film in controls.films(side_px) if name not in kept]
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
    films: Oddities
    if desk.wish.engine is not None:
        job = Job(judge=judge, spec=desk.spec, options=desk.wish.options, plan=plan, ledger=desk.ledger, trial=first)
        tally, films = ask_away(desk.wish.engine, job, desk.box, todo, desk.watch)
    else:
        with desk.box.read(todo, workers=desk.wish.workers) as reading:
            tally, films = run(judge, reading, desk.ledger, plan, watch=desk.watch), reading
    notices = odd_films(films, tally.changed_films)
    # The self-test has already said what a run would warn of: another model's name.
    warnings = () if isinstance(judge, OpenAIJudge) else tally.warnings
    for sentence in (*(notice.message for notice in notices), *warnings):
        desk.say(sentence)
    return tally.state, tally, notices


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


def _seal_table(home: Workspace, file: tuple[str, str], wish: Order, say: Say) -> JudgeRun:
    """Seal scores that were computed elsewhere."""
    films = name_films(home, wish.source, wish.mapping)
    read = partial(find("table"), *file, films.vocabulary, films.image_ids, **wish.options)
    scores = read() if wish.engine is None else done_away(wish.engine, read)
    for notice in scores.notices:
        say(notice.message)
    card = replace(scores.card, judge=wish.name or slug(scores.card.judge))
    refuse_taken(home, card.judge, card.engine)
    answers = scores.table.with_columns(judge=pl.lit(card.judge))
    extra = {"dataset": films.dataset, "state": "done"}
    sealed = home.seal_judge(card.judge, card.as_dict(), answers, None, extra)
    return ended(card, "done", answers, sealed, tuple(scores.notices))


def slug(name: str) -> str:
    """Make a name for a file out of a model's: Qwen2.5-VL-7B-Instruct is qwen2.5-vl-7b-instruct."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:80] or "judge"
