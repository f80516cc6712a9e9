"""Probing: a frozen backbone looks at every film, then a linear probe answers: what `bpals judge run probe:` does.

    run_probe("probe:lite0", images="films")

Looking takes minutes to hours and is kept film by film (`featurecache`); learning takes a minute or two and is done
anew. Here alone among the image judges the claims are read: the probe is told those of other patients.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from bpals.errors import UsageError, WorkspaceError
from bpals.images.checks import CHECKS, ONE_GREY, Checked, Gallery, check, one_grey, refused_films
from bpals.images.collection import Shelf
from bpals.images.defects import FEWEST, SAMPLE, Copies, Sample, looked_at_copies
from bpals.images.ocr import Lettered, spelt
from bpals.images.stream import THUMBNAIL_PX, Look, Looking, Seen, looked
from bpals.judges.backbone import Backbone, open_backbone
from bpals.judges.linear_probe import ProbeJudge, without_patients
from bpals.judges.record import fold_of
from bpals.judges.runner.progress import Snapshot, State, Tally
from bpals.numeric import patients
from bpals.registry import JUDGES, parse_spec
from bpals.store.features import FeatureCache, ProbePlan, films_in, read_plan
from bpals.store.files import only_one_in, parquet, sha256
from bpals.store.workspace import FinishedJudge, ImageChecks, Workspace, open_image_checks, summary, write_image_checks
from bpals.tasks.datasets import dataset_of, load_source
from bpals.tasks.image_access import (
    FILMS_A_WORKER,
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
from bpals.tasks.judge import JudgeRun, Order, ended, refuse_taken, slug
from bpals.text import several
from bpals.types import FILM_CHECKS, KIND, OUTCOME, Dataset, Notice, Refusal, answers_schema

FOLDS = 5
RULE = 2
"""Counts up when the same films would be checked otherwise, or the record would say otherwise."""
LEARNT: Mapping[str, tuple[str, ...]] = {
    "inverted": ("inverted",),
    "turned": ("turned",),
    "cropped": ("cropped",),
    "view": ("view_score", "view_marked"),
    "unlike": ("unlike",),
}
"""Each check that learns from the films, or reads words on them, and where it says anything."""

ALTERED, WRITTEN = "altered copies", "words on films"
"""The two stages that take long."""

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]
"""Told a stage, how many of its films are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmReport:
    """What was found out about the films."""

    sealed: ImageChecks
    notices: tuple[Notice, ...]

    @property
    def sentence(self) -> str:
        """Count the films by what is odd about them."""
        return summary(self.sealed.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Films that a backbone looked at: where they lie, how they were looked at, and what was seen."""

    images: pl.DataFrame
    """IMAGES."""
    shelf: Shelf
    look: Look
    cache: FeatureCache


def check_films(
    home: Workspace,
    looked: Looked,
    *,
    ocr: bool = False,
    workers: int | None = None,
    say: Say = lambda _sentence: None,
    progress: Progress = lambda _stage, _done, _films: None,
) -> FilmReport:
    """Check every film that was looked at, and seal what was found; nothing is done twice for the same films."""
    films = _films(looked)
    key = _key(looked, films, ocr=ocr)
    try:
        there = open_image_checks(home.path)
    except WorkspaceError:  # sealed anew below
        there = None
    if there is not None and there.record.get("key") == key:
        return FilmReport(sealed=there, notices=_notices(there.record))
    gallery = gallery_of(looked)
    sample = sample_of(gallery, looked, workers=workers, say=say, progress=progress)
    lettered = _spelt(looked.shelf, gallery.table, workers, say, progress) if ocr else None
    with threadpool_limits(1):
        checked = check(gallery, sample, lettered)
    table = pl.concat([checked.films, refused_films(films.filter(pl.col("row").is_null()))])
    table = films.select("image_id").join(table, on="image_id", how="left", maintain_order="left")
    told = {"key": key, "backbone": looked.cache.path.name, "rule": RULE, **_told(table, checked, ocr=ocr)}
    sealed = write_image_checks(home.path, table.select(FILM_CHECKS.names()), told)
    return FilmReport(sealed=sealed, notices=_notices(sealed.record))


def _key(looked: Looked, films: pl.DataFrame, *, ocr: bool) -> str:
    """Hash everything that could change what is found."""
    whole = hashlib.sha256(f"{RULE} {looked.cache.path.name} {ocr} {looked.look.side_px}".encode())
    for row in films.select("image_id", "sha256", "code", "patient", "view").iter_rows():
        whole.update(repr(row).encode())
    return whole.hexdigest()


def _films(looked: Looked) -> pl.DataFrame:
    """List the films of the dataset that were looked at, those that could not be seen among them."""
    named = looked.images.select("image_id", "view", patient=patients(looked.images))
    return named.join(looked.cache.films(), on="image_id", how="inner", maintain_order="left")


def gallery_of(looked: Looked) -> Gallery:
    """Gather what was seen of every film."""
    seen = _films(looked).filter(pl.col("row").is_not_null())
    pixels = np.frombuffer(b"".join(seen["thumbnail"].to_list()), np.uint8)
    thumbnails = pixels.reshape(-1, THUMBNAIL_PX, THUMBNAIL_PX)
    grey = one_grey(thumbnails)
    return Gallery(
        table=seen,
        thumbnails=thumbnails,
        features=looked.cache.features(seen["image_id"].to_list()),
        fold=fold_of(seen["patient"].to_numpy().astype(np.str_), FOLDS),
        blank=grey >= ONE_GREY,
        one_grey=grey,
    )


def sample_of(
    gallery: Gallery,
    looked: Looked,
    *,
    workers: int | None = None,
    say: Say = lambda _sentence: None,
    progress: Progress = lambda _stage, _done, _films: None,
) -> Sample | None:
    """Make altered copies of a few hundred films, one of a patient, drawn by a hash of their ids; None of too few."""
    usable = gallery.table.with_columns(
        place=pl.int_range(pl.len()), draw=pl.col("image_id").map_elements(_lot, return_dtype=pl.String)
    ).filter(pl.Series(~gallery.blank))
    if usable.height < FEWEST:
        return None
    drawn = usable.sort("draw").unique("patient", keep="first", maintain_order=True).head(SAMPLE)
    if drawn.height < FEWEST:
        return None
    say(f"altered copies of {drawn.height:,} films are looked at, to learn what wrong ones look like")
    place = {image_id: (at, sha) for image_id, at, sha in drawn.select("image_id", "place", "sha256").iter_rows()}
    copies: dict[int, Copies] = {}
    with looked_at_copies(looked.shelf, list(place), looked.look, workers=workers) as reading:
        progress(ALTERED, 0, len(place))
        for done, (image_id, made) in enumerate(reading, start=1):
            progress(ALTERED, done, len(place))
            at, sha = place[image_id]
            # A file that was changed since is another film than the one that was seen.
            if isinstance(made, Copies) and made.sha256 == sha:
                copies[at] = made
    if len(copies) < FEWEST:
        return None
    places = np.array(sorted(copies), dtype=np.int64)
    return Sample(places=places, copies=np.stack([copies[at].features for at in places.tolist()]))


def _lot(image_id: str) -> str:
    return hashlib.sha256(f"film checks {image_id}".encode()).hexdigest()


def _spelt(shelf: Shelf, seen: pl.DataFrame, workers: int | None, say: Say, progress: Progress) -> dict[str, Lettered]:
    """Read what is written on every film."""
    say(f"reading what is written on {several(seen.height, 'film')}")
    words: dict[str, Lettered] = {}
    with spelt(shelf, seen["image_id"].to_list(), workers=workers) as reading:
        progress(WRITTEN, 0, seen.height)
        for done, (image_id, read) in enumerate(reading, start=1):
            progress(WRITTEN, done, seen.height)
            if isinstance(read, Lettered):
                words[image_id] = read
    return words


def _told(table: pl.DataFrame, checked: Checked, *, ocr: bool) -> dict[str, Any]:
    """Write down what was found, and how well the checks told altered copies from films."""
    fired = Counter(table["checks"].explode().drop_nulls().to_list())
    learnt = {}
    if checked.detection is not None:
        learnt = {
            name: {"found": said.found, "copies": said.copies, "alarms": said.alarms, "films": said.films}
            for name, said in checked.detection.checks.items()
        }
    viewed = checked.viewed
    pairs = _pairs(table)
    return {
        "films": table.height,
        "checked": table["checks"].count(),
        "refused": table["refused"].count(),
        "fired": {name: fired[name] for name in CHECKS},
        "near_duplicate_pairs": len(pairs),
        "pairs_of_two_patients": len(pairs) - int(pairs.sum()),
        "learnt": learnt,
        "silent": list(checked.silent),
        "not_looked_for": _not_looked_for(table),
        "view": None if viewed is None else {"auroc": round(viewed.auroc, 4), "films": viewed.recorded},
        "ocr": ocr,
    }


def _pairs(table: pl.DataFrame) -> pl.Series:
    """Give each pair of a film and the one that is most like it once: whether both are of one patient."""
    both = pl.col("image_id", "near_duplicate_of")
    pairs = table.filter(pl.col("near_duplicate_of").is_not_null()).select(
        pl.min_horizontal(both).alias("one"), pl.max_horizontal(both).alias("two"), "same_patient"
    )
    return pairs.unique(["one", "two"])["same_patient"]


def _not_looked_for(table: pl.DataFrame) -> list[str]:
    """Name the checks that must be learnt, and say nothing of any of these films."""
    return [name for name, columns in LEARNT.items() if not any(table[column].count() for column in columns)]


def _notices(record: Mapping[str, Any]) -> tuple[Notice, ...]:
    notices = []
    if not record["learnt"]:
        words = (
            f"fewer than {FEWEST} patients' films were seen: whether one is inverted, turned or cropped, shows another "
            "view than is recorded, or is unlike the others is not said"
        )
        notices.append(Notice(code="few_films_to_check", count=record["films"], message=words))
    for name in record["silent"]:
        its = record["learnt"][name]
        words = f"the check {name} finds {its['found']:,} of {its['copies']:,} copies of these films: it is not heard"
        notices.append(Notice(code="check_not_heard", count=its["copies"], message=words))
    return tuple(notices)


EYE = "bpals.judges.backbone:open_eye"
WATCH_EVERY_S = 0.2

Watch = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """Everything that one run works with."""

    home: Workspace
    films: Named
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
    """Look at every film of the dataset, resumably, learn from them, and seal what the probe says in the workspace."""
    home, wish, named = Workspace(workspace), order or Order(), parse_spec(spec)
    if JUDGES.load(named.kind).runs != "learn":
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
    probing = Probing(home=home, films=films, cache=cache, judge=judge, spec=spec, watch=watch, say=say)
    look = Look(side_px=backbone.side_px, eye=EYE, given={"named": named.target, "revision": named.revision})
    tally, odd = look_films(probing, box, look, wish)
    odd = [*box.shelf.notices, *odd]
    if tally.state == "interrupted" or wish.shard is not None:
        return _unsealed(probing, tally, odd, wish)
    only = box.draw(wish.limit_images, wish.seed) if wish.limit_images is not None else None
    dataset = load_source(*dataset_of(home))
    looked_at = Looked(images=dataset.images, shelf=box.shelf, look=look, cache=cache)
    with only_one_in(cache.path, f"another run is learning from the films of {cache.path}"):
        sealed = seal_probe(probing, dataset, only)
        checked = _checked(probing, looked_at, wish)
    return replace(sealed, tally=tally, notices=(*odd, *sealed.notices, *checked))


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
    every = box.draw(wish.limit_images, wish.seed)
    drawn = [image_id for image_id in every if wish.shard is None or wish.shard.holds(image_id)]
    plan = ProbePlan(
        judge=probing.judge.name, spec=probing.spec, films=len(every), part=len(drawn), shard=str(wish.shard or "")
    )
    plan.keep(probing.cache.path)
    before = probing.cache.films("code")
    kept = before.filter(pl.col("code").is_null()) if wish.retry_failed else before
    done = set(kept["image_id"].to_list())
    todo = [image_id for image_id in drawn if image_id not in done]
    if not todo:
        return Tally(films_all=0, state="done"), []
    workers = wish.workers if wish.workers is not None else 1 if len(todo) <= FILMS_A_WORKER else os.cpu_count()
    seen: Oddities
    if wish.executor.in_blocks:
        task = BlockTask(work=look, reads=Looking, begin=_Collect)
        with ImageBlocks(wish.executor, box.shelf, todo, task) as blocks:
            tally, seen = _keep(probing, itertools.chain.from_iterable(blocks), len(todo)), blocks
    else:
        with looked(box.shelf, todo, look, workers=workers) as looking:
            tally, seen = _keep(probing, looking, len(todo)), looking
    odd = odd_films(seen, 0)
    for notice in odd:
        probing.say(notice.message)
    return tally, odd


def seal_probe(probing: Probing, dataset: Dataset, only: Sequence[str] | None = None) -> JudgeRun:
    """Learn from every film of the dataset that was seen, or from some, and seal what the probe says of them.

    What was sealed of the same films, labels and probe stands: learning again would give it to the last bit.
    """
    home = probing.home
    asked = dataset.images.select("image_id")
    if only is not None:
        asked = asked.filter(pl.col("image_id").is_in(list(only)))
    notices = without_patients(dataset.images)
    judge = replace(probing.judge, by_patient=not notices)
    for notice in notices:
        probing.say(notice.message)
    key = _features_key(probing, judge, dataset, asked)
    if (there := _sealed(home, judge.name)) is not None and there.record.get("learnt_from") == key:
        probing.say("nothing is new: the same films, labels and probe as when it was sealed")
        return ended(judge.card, "done", there.answers(), there.path / f"{there.name}.json", notices)
    answers = _learnt(probing, judge, dataset, asked)
    sealed = None
    if answers.height:
        extra = {"dataset": dataset.name, "state": "done", "learnt_from": key}
        sealed = home.write_judge(judge.name, judge.card.as_dict(), answers, None, extra)
    return ended(judge.card, "done", answers, sealed, notices)


def _features_key(probing: Probing, judge: ProbeJudge, dataset: Dataset, asked: pl.DataFrame) -> str:
    """Hash everything that could change what the probe says: who it is, what was seen, and what it is told."""
    # A film's file and the backbone, which is part of who the judge is, make its features: where they lie does not.
    films = probing.cache.films("sha256", "code", "why").drop("row", "block")
    tables = (
        asked.join(films, on="image_id", how="inner", maintain_order="left"),
        asked.join(dataset.images, on="image_id", how="inner", maintain_order="left"),
        dataset.claims.join(asked, on="image_id", how="semi", maintain_order="left"),
    )
    words = (judge.card.fingerprint, *dataset.vocabulary.findings, *(sha256(parquet(table)) for table in tables))
    return sha256("\n".join(words).encode())


def _sealed(home: Workspace, name: str) -> FinishedJudge | None:
    """Open what was sealed before; what is damaged counts as nothing, and is sealed anew."""
    try:
        return home.judge(name) if name in home.judge_names() else None
    except WorkspaceError:
        return None


def _learnt(probing: Probing, judge: ProbeJudge, dataset: Dataset, asked: pl.DataFrame) -> pl.DataFrame:
    """Learn, and answer for every film; those that could not be seen are failed."""
    features = probing.cache.features(asked["image_id"].to_list())
    probing.say(f"learning from {several(len(features.image_ids), 'film')}")
    began_s = time.monotonic()

    def progress(share: float) -> None:
        left_s = (time.monotonic() - began_s) * (1 - share) / share if share else None
        probing.watch(Snapshot(stage=f"learning, {share:.0%} done", eta_s=left_s))

    said = judge.read(dataset.images, dataset.claims, probing.films.vocabulary, features, progress=progress)
    return pl.concat([said, _failed(probing, asked)])


def _checked(probing: Probing, looked_at: Looked, wish: Order) -> tuple[Notice, ...]:
    """Check the films themselves, from the same pass; the same ones are not checked twice."""
    began_s: dict[str, float] = {}

    def progress(stage: str, done: int, films: int) -> None:
        since_s = time.monotonic() - began_s.setdefault(stage, time.monotonic())
        left_s = since_s * (films - done) / done if done else None
        probing.watch(Snapshot(stage=stage, films_done=done, films_all=films, eta_s=left_s))

    ocr = bool(wish.options.get("ocr"))
    report = check_films(probing.home, looked_at, ocr=ocr, workers=wish.workers, say=probing.say, progress=progress)
    for sentence in (*(notice.message for notice in report.notices), report.sentence):
        probing.say(sentence)
    return report.notices


class _Collect:
    """Takes what was seen of a block as it is."""

    def __call__(self, images: Images, _block: Block) -> list[tuple[str, Seen | Refusal]]:
        return list(images)


def _keep(probing: Probing, looking: Iterable[tuple[str, Seen | Refusal]], todo: int) -> Tally:
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
            writer.flush_if_due()
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
    notices, count = list(odd), films_in(probing.cache.path)
    plan = read_plan(probing.cache.path)
    if wish.shard is not None and tally.state == "done":
        looked = several(count, f"film of part {wish.shard} was", f"films of part {wish.shard} were")
        message = (
            f"{looked} looked at. Bring the parts together with bpals judge merge, "
            "then run the probe there without --shard: it learns from all of them"
        )
        notices.append(Notice(code="probe_part", count=count, message=message))
        probing.say(message)
    run = ended(probing.judge.card, tally.state, answers, None, notices)
    return replace(run, films=tally.films_done, tally=tally, looked=(count, max(count, plan.part if plan else 0)))
