"""Probing: a frozen backbone looks at every film, then a linear probe answers: what `bpals judge run probe:` does.

    run_probe("probe:lite0", images="films")

Looking takes minutes to hours and is kept film by film (`featurecache`); learning takes a minute or two and is done
anew. Here alone among the image judges the claims are read: the probe is told those of other patients.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from bpals.audit import load_source
from bpals.awayfilms import LookingAway
from bpals.errors import UsageError
from bpals.featurecache import FeatureCache
from bpals.filmchecks import Looked, check_films
from bpals.films.looking import Look, Looking, looked
from bpals.judgeorder import Order
from bpals.judgerun import JudgeRun, ended
from bpals.judges.backbone import Backbone, open_backbone
from bpals.judges.probe import ProbeJudge, without_patients
from bpals.judges.snapshot import Snapshot, State, Tally
from bpals.judging import refuse_taken, slug
from bpals.lightbox import FILMS_A_WORKER, Lightbox, Named, name_films, odd_films, open_lightbox
from bpals.registry import parse_spec
from bpals.types import KIND, OUTCOME, Notice, Refusal, answers_schema
from bpals.workspace import Workspace

EYE = "bpals.judges.backbone:open_eye"
WATCH_EVERY_S = 0.2

Watch = Callable[[Snapshot], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """Everything that one run works with."""

    home: Workspace
    films: Named
    cache: FeatureCache
    judge: ProbeJudge
    watch: Watch = lambda _snapshot: None
    say: Say = lambda _sentence: None


def run_probe(
    spec: str = "probe:lite0",
    *,
    images: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] = "audit",
    order: Order | None = None,
    watch: Watch = lambda _snapshot: None,
    say: Say = lambda _sentence: None,
) -> JudgeRun:
    """Look at every film of the dataset, resumably, learn from them, and seal what the probe says in the workspace."""
    home, wish, named = Workspace(workspace), order or Order(), parse_spec(spec)
    if named.kind != "probe":
        raise UsageError(f"{spec} is no probe. Type: bpals judge run {spec}")
    backbone = open_backbone(named.target, named.revision)
    judge = probe_of(backbone, wish.name)
    refuse_taken(home, judge.name, judge.card.engine)
    where = images if images is not None else home.remembered("images")
    if where is None:
        raise UsageError("where are the films? Type: --images PATH (a folder, a tar or a zip)")
    films = name_films(home, wish.source, wish.mapping)
    box = open_lightbox(home, films, where, wish.preparation, require_all=wish.require_all)
    for notice in box.shelf.notices:
        say(notice.message)
    cache = FeatureCache(home.path, backbone.name, backbone.sha256, backbone.width)
    probing = Probing(home=home, films=films, cache=cache, judge=judge, watch=watch, say=say)
    look = Look(side_px=backbone.side_px, eye=EYE, given={"named": named.target, "revision": named.revision})
    tally, odd = look_films(probing, box, look, wish)
    odd = [*box.shelf.notices, *odd]
    if tally.state == "interrupted" or wish.shard is not None:
        return _unsealed(probing, tally, odd, wish)
    only = box.draw(wish.limit_images, wish.seed) if wish.limit_images is not None else None
    sealed = seal_probe(probing, only)
    return replace(sealed, tally=tally, notices=(*odd, *sealed.notices, *_checked(probing, box, look, wish)))


def probe_of(backbone: Backbone, name: str = "") -> ProbeJudge:
    """Make the judge that learns on top of a backbone."""
    return ProbeJudge(
        name=name or slug(f"probe-{backbone.name}"),
        backbone=backbone.name,
        sha256=backbone.sha256,
        engine=backbone.engine,
        preparation={"side_px": backbone.side_px, "shape": "square", "interpolation": "lanczos", "rule": 1},
    )


def look_films(probing: Probing, box: Lightbox, look: Look, wish: Order) -> tuple[Tally, list[Notice]]:
    """Look at the films that nobody has looked at yet, and keep what was seen; Ctrl-C ends it, and loses nothing."""
    drawn = box.draw(wish.limit_images, wish.seed)
    drawn = [image_id for image_id in drawn if wish.shard is None or wish.shard.holds(image_id)]
    before = probing.cache.films("code")
    kept = before.filter(pl.col("code").is_null()) if wish.retry_failed else before
    done = set(kept["image_id"].to_list())
    todo = [image_id for image_id in drawn if image_id not in done]
    if not todo:
        return Tally(films_all=0, state="done"), []
    workers = wish.workers if wish.workers is not None else 1 if len(todo) <= FILMS_A_WORKER else os.cpu_count()
    passage: Looking | LookingAway = (
        looked(box.shelf, todo, look, workers=workers)
        if wish.engine is None
        else LookingAway(wish.engine, box.shelf, todo, look)
    )
    with passage as looking:
        tally = _keep(probing, looking, len(todo))
    odd = odd_films(looking, 0)
    for notice in odd:
        probing.say(notice.message)
    return tally, odd


def seal_probe(probing: Probing, only: Sequence[str] | None = None) -> JudgeRun:
    """Learn from every film of the dataset that was seen, or from some, and seal what the probe says of them."""
    home, judge, vocabulary = probing.home, probing.judge, probing.films.vocabulary
    dataset = load_source(home.remembered("source") or "nih", home.remembered("mapping"))
    asked = dataset.images.select("image_id")
    if only is not None:
        asked = asked.filter(pl.col("image_id").is_in(list(only)))
    features = probing.cache.features(asked["image_id"].to_list())
    count = len(features.image_ids)
    notices = without_patients(dataset.images)
    judge = replace(judge, by_patient=not notices)
    for notice in notices:
        probing.say(notice.message)
    probing.say(f"learning from {count:,} films")

    def progress(share: float) -> None:
        probing.watch(Snapshot(films_done=int(share * count), films_all=count))

    said = judge.read(dataset.images, dataset.claims, vocabulary, features, progress=progress)
    answers = pl.concat([said, _failed(probing, asked)])
    card = judge.card
    sealed = None
    if answers.height:
        extra = {"dataset": dataset.name, "state": "done"}
        sealed = home.seal_judge(judge.name, card.as_dict(), answers, None, extra)
    return ended(card, "done", answers, sealed, notices)


def _checked(probing: Probing, box: Lightbox, look: Look, wish: Order) -> tuple[Notice, ...]:
    """Check the films themselves, from the same pass; the same ones are not checked twice."""
    dataset = load_source(probing.home.remembered("source") or "nih", probing.home.remembered("mapping"))
    looked_at = Looked(images=dataset.images, shelf=box.shelf, look=look, cache=probing.cache)
    ocr = bool(wish.options.get("ocr"))
    report = check_films(probing.home, looked_at, ocr=ocr, workers=wish.workers, say=probing.say)
    for sentence in (report.sentence, *(notice.message for notice in report.notices)):
        probing.say(sentence)
    return report.notices


def _keep(probing: Probing, looking: Looking | LookingAway, todo: int) -> Tally:
    """Keep what is seen, block by block, until all is seen or somebody interrupts."""
    began_s, next_s, done, refused = time.monotonic(), 0.0, 0, 0
    state: State = "done"

    def snapshot() -> Snapshot:
        elapsed_s = time.monotonic() - began_s
        rate = done / elapsed_s if elapsed_s > 0 else 0.0
        return Snapshot(
            films_done=done,
            films_all=todo,
            refused_films=refused,
            pairs_per_s=rate * len(probing.films.vocabulary.findings),
            eta_s=(todo - done) / rate if rate else None,
            elapsed_s=elapsed_s,
        )

    with _stoppable() as stop, probing.cache.writing() as writer:
        for image_id, film in looking:
            if isinstance(film, Refusal):
                writer.refuse(image_id, film)
                refused += 1
            else:
                writer.put(film)
            done += 1
            writer.seal_if_due()
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + WATCH_EVERY_S
                probing.watch(snapshot())
            if stop.is_set() and done < todo:
                state = "interrupted"
                break
    last = snapshot()
    return Tally(**{name: getattr(last, name) for name in Snapshot.__dataclass_fields__}, state=state)


@contextlib.contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Note the first SIGINT or SIGTERM instead of dying of it; the second ends the run at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(probing: Probing, asked: pl.DataFrame) -> pl.DataFrame:
    """Give a failed row a finding of each film that could not be seen: a failure is no evidence."""
    vocabulary = probing.films.vocabulary
    refused = probing.cache.films("code", "why").filter(pl.col("code").is_not_null())
    films = asked.join(refused.select("image_id", "why"), on="image_id", how="inner", maintain_order="left")
    findings = pl.DataFrame({"finding": pl.Series(vocabulary.findings, dtype=vocabulary.enum)})
    rows = films.join(findings, how="cross").with_columns(
        judge=pl.lit(probing.judge.name), kind=pl.lit("image", dtype=KIND), outcome=pl.lit("failed", dtype=OUTCOME)
    )
    schema = answers_schema(vocabulary)
    return rows.select(
        pl.col(name).cast(dtype) if name in rows.columns else pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in schema.items()
    )


def _unsealed(probing: Probing, tally: Tally, odd: Sequence[Notice], wish: Order) -> JudgeRun:
    """Say how far looking is; nothing is learnt from a part of the films that somebody else will complete."""
    answers = pl.DataFrame(schema=answers_schema(probing.films.vocabulary))
    notices = list(odd)
    if wish.shard is not None and tally.state == "done":
        count = probing.cache.films("row").height
        message = (
            f"{count:,} films of part {wish.shard} were looked at. Bring the parts together with bpals judge merge, "
            "then run the probe there without --shard: it learns from all of them"
        )
        notices.append(Notice(code="probe_part", count=count, message=message))
        probing.say(message)
    run = ended(probing.judge.card, tally.state, answers, None, notices)
    return replace(run, films=tally.films_done, tally=tally)
