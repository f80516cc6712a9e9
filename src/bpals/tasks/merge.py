"""Merging: the judges of several workspaces, such as the shards of a run, become one workspace.

    merge(["w1", "w2", "w3"], workspace="audit")

The parts are only read. Merging them in another order, twice, or with overlap gives the same answers as one run:
an answer beats a failure. Where two parts differ, the first stays and the clash is reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import UsageError, WorkspaceError
from bpals.store.features import FOLDER, ProbePlan, read_plan
from bpals.store.files import replace_file
from bpals.store.ledger import Ledger
from bpals.store.ledger.ledger import is_there, ledger_of, remember_ledger
from bpals.store.ledger.transfer import Clash, answer_words
from bpals.store.shards import Draw, Shard
from bpals.store.workspace import Workspace
from bpals.tasks.datasets import dataset_of
from bpals.tasks.image_access import ImageManifest, manifest_of
from bpals.tasks.judge import JudgeRun, summarise, write_ledger_answers
from bpals.text import several
from bpals.types import JudgeCard, Notice, Question

MERGING = "judge merge"  # the name of the lock: a refused second writer reads it
MOST_LISTED = 1000  # clashes that are kept to be listed; the others are counted
MOST_NAMED = 8  # shards that a sentence names
SHORT = len("sha256:") + 8  # characters of a hash in a sentence
WHOLE = ""  # the shard of a run that was not divided
_RANK = "_rank"

Watch = Callable[[str, int], None]
"""Called with a judge and how many of its images one part has brought so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedJudge:
    """One judge after merging."""

    run: JudgeRun
    new: int  # images that came
    known: int  # images that were here already


@dataclass(slots=True)
class Merged:
    """The result of merging."""

    judges: list[MergedJudge] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)  # the first MOST_LISTED
    clashing: int = 0  # how many there are
    notices: list[Notice] = field(default_factory=list)

    def note(self, clashes: Sequence[Clash]) -> None:
        """Count clashes, and keep the first ones."""
        self.clashing += len(clashes)
        self.clashes += clashes[: MOST_LISTED - len(self.clashes)]


def merge(
    parts: Sequence[str | os.PathLike[str]],
    *,
    workspace: str | os.PathLike[str],
    ledger: str | None = None,
    watch: Watch = lambda _judge, _films: None,
) -> Merged:
    """Bring the judges of several workspaces into one, and write them there as finished judges."""
    home, found = Workspace(workspace), [Workspace(part) for part in parts]
    for part in found:
        _refuse_part(part, home)
    merged, counted = Merged(), dict[str, int]()
    films = _name_films(home, found, merged)
    address = ledger_of(home, ledger)
    with_ledger = [part for part in found if is_there(ledger_of(part))]
    if with_ledger:
        with Ledger.open(address) as target, target.lock(MERGING):
            remember_ledger(home, address)
            for part in with_ledger:
                _take(part, target, films, merged, counted, watch)
            for card in target.cards():
                if card["judge"] in counted:
                    merged.judges.append(_finish(home, films, target, card, counted[card["judge"]], merged))
    for name in dict.fromkeys(name for part in found for name in part.judge_names() if name not in counted):
        merged.judges.append(_merge_tables(home, films, name, found, merged))
    notices, clashes = _merge_features(home.path, [part.path for part in found])
    merged.notices += notices
    merged.note(clashes)
    return merged


def _refuse_part(part: Workspace, home: Workspace) -> None:
    if part.path.resolve() == home.path.resolve():
        raise UsageError(f"{part.path} cannot be merged into itself. Name another folder with --workspace DIR")
    features = any((part.path / FOLDER).glob("*/*.parquet"))
    if not is_there(ledger_of(part)) and not part.judge_names() and not features:
        raise UsageError(
            f"{part.path} holds no judge: there is no ledger and no finished judge. "
            "Leave it out, or run its shard again: bpals judge run SPEC --shard i/n --workspace DIR"
        )


def _name_films(home: Workspace, parts: Sequence[Workspace], merged: Merged) -> ImageManifest:
    """Name the images of the dataset that all parts and the target share; a part of another dataset is refused."""
    named = next((each for each in (home, *parts) if each.remembered("source")), home)
    source, mapping = dataset_of(named)
    films = manifest_of(source, mapping)
    for part in parts:
        if part.remembered("fingerprint") is None:
            words = f"{part.path} does not say what its dataset was: taken for {_dataset(named, films.fingerprint)}"
            merged.notices.append(Notice(code="dataset_untold", count=1, message=words))
        elif part.remembered("fingerprint") != films.fingerprint:
            raise UsageError(_two_datasets(part, named, films.fingerprint))
    kept = {fact: named.remembered(fact) for fact in ("mapping", "images")}
    home.remember(source=source, fingerprint=films.fingerprint, **kept)
    return films


def _two_datasets(part: Workspace, named: Workspace, now: str) -> str:
    """Say that a part is about another dataset than the one that is merged, or about one that has changed since."""
    if part is named:
        return (
            f"{part.path} is about {_dataset(part)}, which is {now[:SHORT]} now: the table or its mapping has changed. "
            "Run its shard again as it is now: only new images are asked about"
        )
    return (
        f"{part.path} is about {_dataset(part)}, and {named.path} about {_dataset(named, now)}: two datasets are never "
        f"mixed. Run its shard again with the --source and --mapping of {named.path}: only new images are "
        "asked about. Or merge it into a workspace of its own: --workspace DIR"
    )


def _dataset(home: Workspace, fingerprint: str | None = None) -> str:
    """Name a dataset by its table, its mapping and its hash: the remembered one, or the one that was read."""
    mapping, read = home.remembered("mapping"), fingerprint or home.remembered("fingerprint") or ""
    described = f" with {mapping}" if mapping else ""
    return f"{home.remembered('source') or 'nih'}{described} ({read[:SHORT]})"


def _take(
    part: Workspace,
    target: Ledger,
    films: ImageManifest,
    merged: Merged,
    counted: dict[str, int],
    watch: Watch,
) -> None:
    """Bring over every judge of one part, some images at a time."""
    with Ledger.open(ledger_of(part), readonly=True, must_exist=True) as source:
        for card in source.cards():
            questions = source.questions(card["judge_id"])
            judge_id = _enrol(part, target, films, card, questions)
            # Runs come before their images: each image names its run.
            numbers = target.take_runs(judge_id, source.stored_runs(card["judge_id"]))
            new, looked = counted.get(card["judge"], 0), 0
            last, some = source.stored_films(card["judge_id"], 0)
            while some:
                came, clashes = target.take_films(judge_id, some, numbers)
                new, looked = new + came, looked + sum(not film.control for film in some)
                merged.note(clashes)
                watch(card["judge"], looked)
                last, some = source.stored_films(card["judge_id"], last)
            counted[card["judge"]] = new


def _enrol(
    part: Workspace, target: Ledger, films: ImageManifest, known: Mapping[str, Any], questions: Sequence[Question]
) -> int:
    """Give the judge's number in the target; another judge of the same name, or another dataset, is refused."""
    card = card_of(known)
    differs = target.differing(card, questions, known["dataset"])
    _refuse_other(f"{part.path}: judge {card.judge!r}", known["dataset"], films, target.where, differs)
    judge_id = target.enrol(card, questions, known["dataset"])
    # The first observation stays, as with answers; new facts are added.
    here = next(each["observed"] for each in target.cards() if each["judge_id"] == judge_id)
    if fresh := {fact: value for fact, value in known["observed"].items() if fact not in here}:
        target.note_observed(judge_id, fresh)
    return judge_id


def _finish(
    home: Workspace,
    films: ImageManifest,
    target: Ledger,
    known: Mapping[str, Any],
    new: int,
    merged: Merged,
) -> MergedJudge:
    """Write a judge whose parts have come, and say which parts are missing or unfinished."""
    ends = ends_of(target.runs(known["judge_id"]))
    notices = gaps(known["judge"], ends, home.path)
    state = next((end.state for end in ends.values() if end.state != "done"), "unfinished" if notices else "done")
    if foreign := sorted(target.done(known["judge_id"]).keys() - set(films.image_ids)):
        those = several(len(foreign), "image is", "images are")
        words = f"judge {known['judge']!r}: {those} not in the dataset, first {foreign[0]}: kept, and not audited"
        notices.append(Notice(code="films_elsewhere", count=len(foreign), message=words))
    merged.notices += notices
    run = write_ledger_answers(home, films, target, card_of(known), state, notices)
    return MergedJudge(run=run, new=new, known=target.counts(known["judge_id"])["films"] - new)


def _merge_tables(
    home: Workspace, films: ImageManifest, name: str, parts: Sequence[Workspace], merged: Merged
) -> MergedJudge:
    """Join the finished answers of a judge that no ledger holds, such as a table."""
    here = [home] if name in home.judge_names() else []
    judges = [each.judge(name) for each in (*here, *(part for part in parts if name in part.judge_names()))]
    first = card_of(judges[0].card).identity
    for other in judges:
        card, dataset = card_of(other.card).identity, other.record.get("dataset", films.dataset)
        differs = [f"{fact} was {first[fact]!r}, is {card[fact]!r}" for fact in first if first[fact] != card[fact]]
        _refuse_other(f"{other.path.parent}: judge {name!r}", dataset, films, str(judges[0].path.parent), differs)
    before = judges[0].answers("image_id")["image_id"].n_unique() if here else 0
    answers, clashes = _joined(name, [each.answers() for each in judges], "finding")
    merged.note(clashes)
    tables = [table for each in judges if (table := each.film_answers()) is not None]
    about_films, clashes = _joined(name, tables, "topic") if tables else (None, [])
    merged.note(clashes)
    record = judges[0].record
    extra = {key: value for key, value in record.items() if key not in ("format", "card", "counts", "files")}
    path = home.write_judge(name, record["card"], answers, about_films, extra)
    run = summarise(card_of(record["card"]), str(record.get("state", "done")), answers, path, ())
    return MergedJudge(run=run, new=run.films - before, known=before)


def _refuse_other(judge: str, dataset: str, films: ImageManifest, home: str, differs: Sequence[str]) -> None:
    """Refuse a judge of another dataset, and another judge of the same name."""
    if dataset != films.dataset:
        raise UsageError(
            f"{judge} is about the dataset {dataset!r}, and {films.dataset!r} is merged. "
            "Merge it into a workspace of its own: --workspace DIR"
        )
    if differs:
        raise UsageError(
            f"{judge} differs from the one in {home}: {'; '.join(differs)}. "
            "Two judges are never mixed under one name. Run one under another name (--name), or leave it out"
        )


def _joined(judge: str, tables: Sequence[pl.DataFrame], subject: str) -> tuple[pl.DataFrame, list[Clash]]:
    """Join tables by image and subject: an answer beats a failure, else the first stays."""
    key = ["image_id", subject]
    if all(table.equals(tables[0]) for table in tables):
        return tables[0], []
    # The rank is the order of the parts: where both answered, the lower one stays.
    ranked = pl.concat([table.with_columns(pl.lit(number).alias(_RANK)) for number, table in enumerate(tables)])
    failed = pl.col("outcome").cast(pl.String) == "failed"
    kept = ranked.sort(failed, _RANK, maintain_order=True).unique(key, keep="first", maintain_order=True)
    answered = ranked.filter(~failed).join(kept.filter(~failed), on=key, suffix="_kept")
    same = (pl.col("outcome") == pl.col("outcome_kept")) & pl.col("p_present").eq_missing(pl.col("p_present_kept"))
    columns = ("outcome", "p_present", "outcome_kept", "p_present_kept")
    differ = answered.filter(~same).sort(_RANK, *key).select(*(pl.col(name).cast(pl.String) for name in key), *columns)
    clashes = [
        Clash(judge, image_id, about, here=answer_words(kept, q), there=answer_words(outcome, p))
        for image_id, about, outcome, p, kept, q in differ.iter_rows()
    ]
    return kept.drop(_RANK).sort(*key), clashes


def card_of(given: Mapping[str, Any]) -> JudgeCard:
    """Read a card as it is written in a record or in a ledger's list."""
    known = {name: given[name] for name in JudgeCard.__dataclass_fields__ if name in given}
    return JudgeCard(**{**known, "polarities": tuple(known.get("polarities", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEnd:
    """How the latest run of a shard ended."""

    state: str
    draw: Draw | None  # the images of all shards together; none in ledgers that are older than this record


def ends_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, ShardEnd]:
    """Say how the latest run of each shard ended; where a whole run, or all of n shards, did everything, only that."""
    ends: dict[str, ShardEnd] = {}
    # By time, not by number: merged ledgers number the runs of their parts in the order of merging.
    for run in sorted(runs, key=lambda each: str(each["began"])):
        # A killed run never wrote its end.
        plan, state = run["plan"], "killed" if run["state"] == "running" else str(run["state"])
        shard = str(plan.get("shard", WHOLE))
        if "controls" not in plan:
            ends[shard] = ShardEnd(state=state, draw=Draw.read(plan))
        elif shard not in ends:  # a run of its controls only: no image was asked about
            ends[shard] = ShardEnd(state="unfinished", draw=Draw.read(plan))
    for some in _wholes(ends):
        if all(end.state == "done" for end in some.values()) and _cover(some, ends):
            return some
    return ends


def _wholes(ends: Mapping[str, ShardEnd]) -> Iterator[dict[str, ShardEnd]]:
    """Give each set of shards that together make a whole run."""
    if WHOLE in ends:
        yield {WHOLE: ends[WHOLE]}
    for n in sorted({Shard.parse(shard).of for shard in ends if shard}):
        if not _missing(ends, n):
            yield {shard: ends[shard] for shard in _named(n)}


def _cover(some: Mapping[str, ShardEnd], ends: Mapping[str, ShardEnd]) -> bool:
    """Say whether these shards were drawn alike and cover the images of every other shard."""
    drawn, wanted = _draws(some), _draws(ends)
    return len(drawn) < 2 and all(draw.covers(each) for draw in drawn for each in wanted)


def _draws(ends: Mapping[str, ShardEnd]) -> dict[Draw, list[str]]:
    """Give every draw with its shards."""
    found: dict[Draw, list[str]] = {}
    for shard, end in sorted(ends.items()):
        if end.draw is not None:
            found.setdefault(end.draw, []).append(shard or "the run without --shard")
    return found


def _named(n: int) -> list[str]:
    return [str(Shard(part, n)) for part in range(1, n + 1)]


def _missing(ends: Mapping[str, ShardEnd], n: int) -> list[str]:
    return [shard for shard in _named(n) if shard not in ends]


def gaps(judge: str, ends: Mapping[str, ShardEnd], home: Path) -> list[Notice]:
    """Report shards that were drawn or divided differently, are missing, or did not finish."""
    notices = list[Notice]()
    drawn = _draws(ends)
    if len(drawn) > 1:
        named = len({draw.names for draw in drawn}) > 1
        each = [f"{', '.join(shards[:MOST_NAMED])}: {draw.words(named=named)}" for draw, shards in drawn.items()]
        words = (
            f"judge {judge!r}: the parts were drawn differently: {' and '.join(each)}. Run them alike (--limit-images, "
            f"--seed, and the same images) and merge again, or ask here about what is missing: "
            f"bpals judge run SPEC --images PATH --workspace {home}"
        )
        notices.append(Notice(code="shards_drawn", count=len(drawn), message=words))
    return notices if WHOLE in ends else [*notices, *_not_whole(judge, ends)]  # an undivided run asked about everything


def _not_whole(judge: str, ends: Mapping[str, ShardEnd]) -> Iterator[Notice]:
    numbers = sorted({Shard.parse(shard).of for shard in ends})
    missing = {n: _missing(ends, n) for n in numbers}
    if len(numbers) > 1 and all(missing.values()):
        each = " and ".join(f"{n:,} ({', '.join(gone[:MOST_NAMED])} missing)" for n, gone in missing.items())
        words = f"judge {judge!r}: the parts were divided differently: into {each}. Run those that are missing of one"
        yield Notice(code="shards_divided", count=len(numbers), message=words)
    elif len(numbers) == 1 and (gone := missing[numbers[0]]):
        those = several(len(gone), "shard is", "shards are")
        words = f"judge {judge!r}: {those} not among these: {', '.join(gone[:MOST_NAMED])}"
        yield Notice(code="shards_missing", count=len(gone), message=words)
    if left := [f"{shard} ({end.state})" for shard, end in ends.items() if end.state != "done"]:
        those, them = several(len(left), "shard was", "shards were"), "it" if len(left) == 1 else "them"
        words = f"judge {judge!r}: {those} not done: {', '.join(left[:MOST_NAMED])}. Run {them} again, and merge"
        yield Notice(code="shards_unfinished", count=len(left), message=words)


def _merge_features(home: Path, parts: Sequence[Path]) -> tuple[list[Notice], list[Clash]]:
    """Copy the blocks of every backbone that are not here yet; say of how many images, and what clashes."""
    notices, clashes = list[Notice](), list[Clash]()
    for name in sorted({folder.name for part in parts for folder in (part / FOLDER).glob("*") if folder.is_dir()}):
        folder = home / FOLDER / name
        new = sum(_copy(part / FOLDER / name, folder) for part in parts)
        films = _films(folder)
        count = films["image_id"].n_unique()
        plan, differing = _plan(folder, [part / FOLDER / name for part in parts])
        notices += differing
        words = (
            f"{name}: {several(count, 'image has', 'images have')} been looked at "
            f"({several(new, 'block of them is', 'blocks of them are')} new here). To fit the probe: "
            f"bpals judge run {'probe:BACKBONE' if plan is None else plan.spec} --workspace {home}"
        )
        notices.append(Notice(code="features_merged", count=count, message=words))
        clashes += _clashes(name, films)
    return notices, clashes


def _copy(source: Path, target: Path) -> int:
    """Copy blocks, each table last because it makes the block count; give how many were new."""
    copied = 0
    for table in sorted(source.glob("*.parquet")):
        numbers = table.with_suffix(".npy")
        # A block is named by the hash of its content: one of the same name is the same.
        if (target / table.name).exists() or not numbers.exists():
            continue
        try:
            target.mkdir(parents=True, exist_ok=True)
            for file in (numbers, table):
                replace_file(target, file.name, file.read_bytes())
        except OSError as error:
            raise WorkspaceError(f"{table} cannot be copied to {target}: {error.strerror}. Make room") from None
        copied += 1
    return copied


def _plan(target: Path, sources: Sequence[Path]) -> tuple[ProbePlan | None, list[Notice]]:
    """Keep the largest plan of the parts, as one of all of them; say where they differ."""
    here, there = read_plan(target), [plan.whole for source in sources if (plan := read_plan(source)) is not None]
    largest = max(there, key=lambda plan: (plan.films, plan.spec), default=None)
    if largest is None or (here is not None and here.films >= largest.films):
        return here, []
    largest.keep(target)
    drawn = sorted({plan.films for plan in there} | ({here.films} if here is not None else set()), reverse=True)
    if len(drawn) == 1:
        return largest, []
    each = " and ".join(several(films, "image") for films in drawn)
    words = f"{target.name}: the parts were drawn differently: {each}. The run of the probe looks at what is missing"
    return largest, [Notice(code="features_drawn", count=len(drawn), message=words)]


def _films(folder: Path) -> pl.DataFrame:
    columns = {"image_id": pl.String(), "sha256": pl.String()}
    blocks = (pl.read_parquet(file, columns=list(columns)) for file in sorted(folder.glob("*.parquet")))
    return pl.concat([pl.DataFrame(schema=columns), *blocks])


def _clashes(name: str, films: pl.DataFrame) -> Iterator[Clash]:
    """Name the images whose files differ between two places."""
    hashed = films.drop_nulls().unique().group_by("image_id").agg(pl.col("sha256").sort()).sort("image_id")
    for image_id, hashes in hashed.filter(pl.col("sha256").list.len() > 1).iter_rows():
        yield Clash(judge=name, image_id=image_id, subject="", here=hashes[0], there=hashes[1])
