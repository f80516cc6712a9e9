"""Fit a probe: a frozen backbone turns every image into features, then linear models answer per finding.

    run_probe("probe:lite0", images="images")

Extracting takes minutes to hours and is cached image by image (`store/features.py`); fitting takes a minute or two
and is repeated. Of the image judges, this one alone reads labels: the probe is fitted on those of other patients, or
with `--targets signal` on what audits say of them (`tasks/nested_targets.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from bpals.errors import UnknownName, UsageError, WorkspaceError
from bpals.images.stream import FeatureSpec, FeatureStream, ImageFeatures, image_features
from bpals.judges.backbone import Backbone, open_backbone, open_extractor
from bpals.judges.linear_probe import LABELS, SIGNAL, ProbeJudge, without_patients
from bpals.judges.runner.progress import Snapshot, State, Tally
from bpals.registry import JUDGES, parse_spec
from bpals.store.features import FeatureCache, ProbePlan, films_in, read_plan
from bpals.store.files import only_one_in, parquet, sha256
from bpals.store.workspace import FinishedJudge, Workspace
from bpals.tasks.datasets import dataset_of, load_source
from bpals.tasks.image_access import (
    IMAGES_PER_WORKER,
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
from bpals.tasks.image_checks import ExtractedImages, Say, check_images
from bpals.tasks.judge import JudgeRun, Order, judge_name, refuse_taken_name, summarise
from bpals.tasks.nested_targets import kept_targets, tables_hash
from bpals.text import several
from bpals.types import KIND, OUTCOME, Dataset, Notice, Refusal, answers_schema

# A worker process does not inherit the function: it imports it by this name.
EXTRACTOR = f"{open_extractor.__module__}:{open_extractor.__qualname__}"
WATCH_EVERY_S = 0.2

Watch = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """Everything that one run works with."""

    home: Workspace
    manifest: ImageManifest
    cache: FeatureCache
    judge: ProbeJudge
    spec: str
    """What was typed."""
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
    """Extract features of every image, resumably, fit the probe, and write its answers into the workspace."""
    home, order, named = Workspace(workspace), order or Order(), parse_spec(spec)
    if JUDGES.load(named.kind).runs != "learn":
        raise UsageError(f"{spec} is no probe. Type: bpals judge run {spec}")
    backbone = open_backbone(named.target, named.revision)
    judge = probe_of(backbone, order.name, targets=str(order.options.get("targets", LABELS)))
    refuse_taken_name(home, judge.name, judge.card.engine)
    where = images_path(home, images)
    manifest = open_manifest(home, order.source, order.mapping)
    found = open_images(home, manifest, where, order.preparation, require_all=order.require_all)
    for notice in found.index.notices:
        say(notice.message)
    cache = FeatureCache(home.path, backbone.name, backbone.sha256, backbone.width)
    run = ProbeRun(home=home, manifest=manifest, cache=cache, judge=judge, spec=spec, watch=watch, say=say)
    feature_spec = FeatureSpec(
        side_px=backbone.side_px, extractor=EXTRACTOR, given={"named": named.target, "revision": named.revision}
    )
    tally, notices = extract_features(run, found, feature_spec, order)
    notices = [*found.index.notices, *notices]
    if tally.state == "interrupted" or order.shard is not None:
        return _not_fitted(run, tally, notices, order)
    drawn = found.draw(order.limit_images, order.seed) if order.limit_images is not None else None
    dataset = load_source(*dataset_of(home))
    extracted = ExtractedImages(images=dataset.images, index=found.index, feature_spec=feature_spec, cache=cache)
    with only_one_in(cache.path, f"another run is fitting on the images of {cache.path}"):
        fitted = fit_probe(run, dataset, drawn)
        checked = _check_images(run, extracted, order)
    return replace(fitted, tally=tally, notices=(*notices, *fitted.notices, *checked))


def probe_of(backbone: Backbone, name: str = "", *, targets: str = LABELS) -> ProbeJudge:
    """Make the judge that is fitted on a backbone's features."""
    if targets not in (LABELS, SIGNAL):
        raise UnknownName.of("kind of target", targets, (LABELS, SIGNAL), where="--targets")
    return ProbeJudge(
        # Another name, so that a workspace can hold both and an audit can compare them.
        name=name or judge_name(f"probe-{backbone.name}" + ("" if targets == LABELS else f"-{targets}")),
        targets=targets,
        backbone=backbone.name,
        sha256=backbone.sha256,
        engine=backbone.engine,
        preparation={"side_px": backbone.side_px, "shape": "square", "interpolation": "lanczos", "rule": 1},
    )


def extract_features(
    run: ProbeRun, found: DatasetImages, feature_spec: FeatureSpec, order: Order
) -> tuple[Tally, list[Notice]]:
    """Extract the features that the cache lacks; Ctrl-C ends it, and loses nothing."""
    every = found.draw(order.limit_images, order.seed)
    ours = [image_id for image_id in every if order.shard is None or order.shard.holds(image_id)]
    shard = str(order.shard or "")
    ProbePlan(judge=run.judge.name, spec=run.spec, films=len(every), part=len(ours), shard=shard).keep(run.cache.path)
    cached = run.cache.films("code")
    kept = cached.filter(pl.col("code").is_null()) if order.retry_failed else cached
    done = set(kept["image_id"].to_list())
    todo = [image_id for image_id in ours if image_id not in done]
    if not todo:
        return Tally(films_all=0, state="done"), []
    read: ReadImages
    if order.executor.in_blocks:
        task = BlockTask(work=feature_spec, reads=FeatureStream, begin=_Collect)
        with ImageBlocks(order.executor, found.index, todo, task) as blocks:
            tally, read = _cache_features(run, itertools.chain.from_iterable(blocks), len(todo)), blocks
    else:
        workers = (
            order.workers if order.workers is not None else 1 if len(todo) <= IMAGES_PER_WORKER else os.cpu_count()
        )
        with image_features(found.index, todo, feature_spec, workers=workers) as extracting:
            tally, read = _cache_features(run, extracting, len(todo)), extracting
    notices = image_notices(read, 0)
    for notice in notices:
        run.say(notice.message)
    return tally, notices


class _Collect:
    """Returns the features of a block as they are."""

    def __call__(self, images: Images, _block: Block) -> list[tuple[str, ImageFeatures | Refusal]]:
        return list(images)


def _cache_features(run: ProbeRun, extracted: Iterable[tuple[str, ImageFeatures | Refusal]], todo: int) -> Tally:
    """Write features to the cache, block by block, until all are there or somebody interrupts."""
    began_s, next_s, done, refused = time.monotonic(), 0.0, 0, 0
    state: State = "done"

    def snapshot() -> Snapshot:
        elapsed_s = time.monotonic() - began_s
        rate = done / elapsed_s if elapsed_s > 0 else 0.0
        return Snapshot(
            films_done=done,
            films_all=todo,
            refused_films=refused,
            pairs_per_s=rate * len(run.manifest.vocabulary.findings),
            eta_s=(todo - done) / rate if rate else None,
            elapsed_s=elapsed_s,
        )

    with _stop_on_signal() as stop, run.cache.writing() as writer:
        for image_id, image in extracted:
            if isinstance(image, Refusal):
                writer.refuse(image_id, image)
                refused += 1
            else:
                writer.put(image)
            done += 1
            writer.flush_if_due()
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + WATCH_EVERY_S
                run.watch(snapshot())
            if stop.is_set() and done < todo:
                state = "interrupted"
                break
    last = snapshot()
    return Tally(**{name: getattr(last, name) for name in Snapshot.__dataclass_fields__}, state=state)


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Set an event at the first SIGINT or SIGTERM; the second ends the run at once."""
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


def fit_probe(run: ProbeRun, dataset: Dataset, drawn: Sequence[str] | None = None) -> JudgeRun:
    """Fit on every image with cached features, or on those drawn, and write the answers into the workspace.

    Reuses existing answers if the inputs are unchanged: fitting is deterministic.
    """
    asked = dataset.images.select("image_id")
    if drawn is not None:
        asked = asked.filter(pl.col("image_id").is_in(list(drawn)))
    notices = without_patients(dataset.images)
    judge = replace(run.judge, by_patient=not notices)
    for notice in notices:
        run.say(notice.message)
    key = _inputs_key(run, judge, dataset, asked)
    if (finished := _finished(run.home, judge.name)) is not None and finished.record.get("learnt_from") == key:
        run.say("nothing is new: the same images, labels and probe as before")
        return summarise(judge.card, "done", finished.answers(), finished.path / f"{finished.name}.json", notices)
    answers = pl.concat([_fitted_answers(run, judge, dataset, asked), failed_answers(run, asked)])
    path = None
    if answers.height:
        extra = {"dataset": dataset.name, "state": "done", "learnt_from": key}
        path = run.home.write_judge(judge.name, judge.card.as_dict(), answers, None, extra)
    return summarise(judge.card, "done", answers, path, notices)


def _inputs_key(run: ProbeRun, judge: ProbeJudge, dataset: Dataset, asked: pl.DataFrame) -> str:
    """Hash everything that could change the answers: the probe, the images, the labels."""
    # The image file and the backbone (in the judge's card) determine the features; their row and block do not matter,
    # so they are dropped.
    files = run.cache.films("sha256", "code", "why").drop("row", "block")
    tables = (
        asked.join(files, on="image_id", how="inner", maintain_order="left"),
        asked.join(dataset.images, on="image_id", how="inner", maintain_order="left"),
        dataset.claims.join(asked, on="image_id", how="semi", maintain_order="left"),
    )
    # Targets come from audits of the whole dataset, also of images without pixels.
    whole = (tables_hash(dataset),) if judge.targets == SIGNAL else ()
    hashes = (sha256(parquet(table)) for table in tables)
    words = (judge.card.fingerprint, *dataset.vocabulary.findings, *hashes, *whole)
    return sha256("\n".join(words).encode())


def _finished(home: Workspace, name: str) -> FinishedJudge | None:
    """Open the answers of an earlier run; damaged ones count as none, and are written again."""
    try:
        return home.judge(name) if name in home.judge_names() else None
    except WorkspaceError:
        return None


def _fitted_answers(run: ProbeRun, judge: ProbeJudge, dataset: Dataset, asked: pl.DataFrame) -> pl.DataFrame:
    """Fit, and answer for every image with features."""
    features = run.cache.features(asked["image_id"].to_list())
    targets = None
    if judge.targets == SIGNAL:
        targets = kept_targets(run.home, dataset, judge.folds, say=run.say, progress=_shown(run, "making targets"))
    run.say(f"fitting on {several(len(features.image_ids), 'image')}")
    return judge.read(
        dataset.images,
        dataset.claims,
        run.manifest.vocabulary,
        features,
        targets=targets,
        progress=_shown(run, "fitting"),
    )


def _shown(run: ProbeRun, stage: str) -> Callable[[float], None]:
    """Make the function that shows how far a stage is, and how long it will still take."""
    began_s = time.monotonic()

    def progress(share: float) -> None:
        left_s = (time.monotonic() - began_s) * (1 - share) / share if share else None
        run.watch(Snapshot(stage=f"{stage}, {share:.0%} done", eta_s=left_s))

    return progress


def failed_answers(run: ProbeRun, asked: pl.DataFrame) -> pl.DataFrame:
    """Return one failed row per finding of each image that could not be read: a failure is no evidence."""
    vocabulary = run.manifest.vocabulary
    refused = run.cache.films("code", "why").filter(pl.col("code").is_not_null())
    images = asked.join(refused.select("image_id", "why"), on="image_id", how="inner", maintain_order="left")
    findings = pl.DataFrame({"finding": pl.Series(vocabulary.findings, dtype=vocabulary.enum)})
    rows = images.join(findings, how="cross").with_columns(
        judge=pl.lit(run.judge.name), kind=pl.lit("image", dtype=KIND), outcome=pl.lit("failed", dtype=OUTCOME)
    )
    return rows.select(
        pl.col(name).cast(dtype) if name in rows.columns else pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in answers_schema(vocabulary).items()
    )


def _check_images(run: ProbeRun, extracted: ExtractedImages, order: Order) -> tuple[Notice, ...]:
    """Check the images themselves, on the same features."""
    began_s: dict[str, float] = {}

    def progress(stage: str, done: int, images: int) -> None:
        since_s = time.monotonic() - began_s.setdefault(stage, time.monotonic())
        left_s = since_s * (images - done) / done if done else None
        run.watch(Snapshot(stage=stage, films_done=done, films_all=images, eta_s=left_s))

    ocr = bool(order.options.get("ocr"))
    report = check_images(run.home, extracted, ocr=ocr, workers=order.workers, say=run.say, progress=progress)
    for sentence in (*(notice.message for notice in report.notices), report.sentence):
        run.say(sentence)
    return report.notices


def _not_fitted(run: ProbeRun, tally: Tally, notices: Sequence[Notice], order: Order) -> JudgeRun:
    """Return a result without a fit: the run was interrupted, or is one shard."""
    answers = pl.DataFrame(schema=answers_schema(run.manifest.vocabulary))
    notices, count = list(notices), films_in(run.cache.path)
    plan = read_plan(run.cache.path)
    if order.shard is not None and tally.state == "done":
        message = (
            f"the features of {several(count, 'image')} of part {order.shard} are cached. Bring the parts together "
            "with bpals judge merge, then run the probe there without --shard: it is fitted on all of them"
        )
        notices.append(Notice(code="probe_part", count=count, message=message))
        run.say(message)
    result = summarise(run.judge.card, tally.state, answers, None, notices)
    return replace(result, films=tally.films_done, tally=tally, looked=(count, max(count, plan.part if plan else 0)))
