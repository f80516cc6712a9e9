"""Merging: what the shards of a run, or the machines of a group, heard each by itself becomes one workspace.

    merge(["w1", "w2", "w3"], workspace="audit")

The parts are only read. Merging them in another order, twice, or with parts that overlap gives the same answers as one
run: an answer beats a failure, and where two parts say different things the first stays and the clash is reported.
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
from bpals.store.files import sync_folder, write_durably
from bpals.store.ledger import Ledger
from bpals.store.ledger.ledger import is_there, ledger_of, remember_ledger
from bpals.store.ledger.transfer import Clash
from bpals.store.shards import Draw, Shard
from bpals.store.workspace import SealedJudge, Workspace, open_judge
from bpals.tasks.datasets import dataset_of
from bpals.tasks.image_access import Named, films_of
from bpals.tasks.judge import JudgeRun, ended, seal_asked
from bpals.text import several
from bpals.types import JudgeCard, Notice, Question

_RANK = "_rank"


def merge_sealed(
    home: Workspace, films: Named, name: str, parts: Sequence[Path]
) -> tuple[JudgeRun, int, int, list[Clash]]:
    """Bring the sealed answers of one judge together: the run, its new and known films, and what clashes."""
    here = [home.path] if name in home.judge_names() else []
    sealed = [open_judge(path, name) for path in (*here, *parts)]
    for other in sealed:
        _refuse_other(sealed[0], other, films)
    before = sealed[0].answers("image_id")["image_id"].n_unique() if here else 0
    answers, clashes = _joined(name, [each.answers() for each in sealed], "finding")
    said = [table for each in sealed if (table := each.film_answers()) is not None]
    about_films, more = _joined(name, said, "topic") if said else (None, [])
    record = sealed[0].record
    extra = {key: value for key, value in record.items() if key not in ("format", "card", "counts", "files")}
    path = home.seal_judge(name, record["card"], answers, about_films, extra)
    state = str(record.get("state", "done"))
    run = ended(card_of(record["card"]), state, answers, path, ())
    return run, run.films - before, before, [*clashes, *more]


def _refuse_other(first: SealedJudge, other: SealedJudge, films: Named) -> None:
    """Refuse another judge of the same name, and another dataset."""
    where = other.path.parent
    if (dataset := other.record.get("dataset", films.dataset)) != films.dataset:
        raise UsageError(
            f"{where}: judge {other.name!r} is about the dataset {dataset!r}, and {films.dataset!r} is merged. "
            "Merge it into a workspace of its own: --workspace DIR"
        )
    old, new = card_of(first.card).identity, card_of(other.card).identity
    if differs := [f"{field} was {old[field]!r}, is {new[field]!r}" for field in old if old[field] != new[field]]:
        raise UsageError(
            f"{where}: judge {other.name!r} is another one than in {first.path.parent}: {'; '.join(differs)}. "
            "Two judges are never mixed under one name. Seal one under another name (--name), or leave it out"
        )


def card_of(given: Mapping[str, Any]) -> JudgeCard:
    """Read a card as it is written in a record or in a ledger's list."""
    known = {name: given[name] for name in JudgeCard.__dataclass_fields__ if name in given}
    return JudgeCard(**{**known, "polarities": tuple(known.get("polarities", ()))})


def _joined(judge: str, tables: Sequence[pl.DataFrame], subject: str) -> tuple[pl.DataFrame, list[Clash]]:
    """Join tables by film and subject: an answer beats a failure, else the first stays."""
    key = ["image_id", subject]
    if all(table.equals(tables[0]) for table in tables):
        return tables[0], []
    ranked = pl.concat([table.with_columns(pl.lit(number).alias(_RANK)) for number, table in enumerate(tables)])
    failed = pl.col("outcome").cast(pl.String) == "failed"
    kept = ranked.sort(failed, _RANK, maintain_order=True).unique(key, keep="first", maintain_order=True)
    said = ranked.filter(~failed).join(kept.filter(~failed), on=key, suffix="_kept")
    same = (pl.col("outcome") == pl.col("outcome_kept")) & pl.col("p_present").eq_missing(pl.col("p_present_kept"))
    columns = ("outcome", "p_present", "outcome_kept", "p_present_kept")
    differ = said.filter(~same).sort(_RANK, *key).select(*(pl.col(name).cast(pl.String) for name in key), *columns)
    clashes = [
        Clash(judge=judge, image_id=image_id, subject=about, here=_words(kept, q), there=_words(outcome, p))
        for image_id, about, outcome, p, kept, q in differ.iter_rows()
    ]
    return kept.drop(_RANK).sort(*key), clashes


def _words(outcome: str, p: float | None) -> str:
    return outcome if p is None else f"{outcome} {p:.6g}"


def has_features(home: Path) -> bool:
    """Say whether films were looked at in a workspace."""
    return any((home / FOLDER).glob("*/*.parquet"))


def merge_features(home: Path, parts: Sequence[Path]) -> tuple[list[Notice], list[Clash]]:
    """Copy the sealed blocks of every backbone that are not here yet; say of how many films, and what clashes."""
    notices, clashes = list[Notice](), list[Clash]()
    for name in sorted({folder.name for part in parts for folder in (part / FOLDER).glob("*") if folder.is_dir()}):
        folder = home / FOLDER / name
        new = sum(_copy(part / FOLDER / name, folder) for part in parts)
        films = _films(folder)
        count = films["image_id"].n_unique()
        plan, differing = _plan(folder, [part / FOLDER / name for part in parts])
        notices += differing
        words = (
            f"{name}: {several(count, 'film has', 'films have')} been looked at "
            f"({several(new, 'block of them is', 'blocks of them are')} new here). To learn from them: "
            f"bpals judge run {'probe:BACKBONE' if plan is None else plan.spec} --workspace {home}"
        )
        notices.append(Notice(code="features_merged", count=count, message=words))
        clashes += _clashes(name, films)
    return notices, clashes


def _copy(source: Path, target: Path) -> int:
    """Copy blocks, the numbers of each before its table, which makes it count; give how many were new."""
    copied = 0
    for table in sorted(source.glob("*.parquet")):
        numbers = table.with_suffix(".npy")
        # A block is called by the hash of what it holds: one that is here is the same.
        if (target / table.name).exists() or not numbers.exists():
            continue
        try:
            target.mkdir(parents=True, exist_ok=True)
            for file in (numbers, table):
                part = target / f".{file.name}.part"
                write_durably(part, file.read_bytes())
                part.replace(target / file.name)
                sync_folder(target)
        except OSError as error:
            raise WorkspaceError(f"{table} cannot be copied to {target}: {error.strerror}. Make room") from None
        copied += 1
    return copied


def _plan(target: Path, sources: Sequence[Path]) -> tuple[ProbePlan | None, list[Notice]]:
    """Keep the largest plan of the parts, as one of all of them; say where they were not of the same films."""
    here, there = read_plan(target), [plan.whole for source in sources if (plan := read_plan(source)) is not None]
    largest = max(there, key=lambda plan: (plan.films, plan.spec), default=None)
    if largest is None or (here is not None and here.films >= largest.films):
        return here, []
    largest.keep(target)
    drawn = sorted({plan.films for plan in there} | ({here.films} if here is not None else set()), reverse=True)
    if len(drawn) == 1:
        return largest, []
    each = " and ".join(several(films, "film") for films in drawn)
    words = f"{target.name}: the parts were drawn differently: {each}. The run of the probe looks at what is missing"
    return largest, [Notice(code="features_drawn", count=len(drawn), message=words)]


def _films(folder: Path) -> pl.DataFrame:
    columns = {"image_id": pl.String(), "sha256": pl.String()}
    blocks = (pl.read_parquet(file, columns=list(columns)) for file in sorted(folder.glob("*.parquet")))
    return pl.concat([pl.DataFrame(schema=columns), *blocks])


def _clashes(name: str, films: pl.DataFrame) -> Iterator[Clash]:
    """Name the films that were seen in two places, and are two files."""
    several = films.drop_nulls().unique().group_by("image_id").agg(pl.col("sha256").sort()).sort("image_id")
    for image_id, hashes in several.filter(pl.col("sha256").list.len() > 1).iter_rows():
        yield Clash(judge=name, image_id=image_id, subject="", here=hashes[0], there=hashes[1])


WHOLE = ""
"""The shard of a run that was not divided."""
MOST_NAMED = 8
"""Shards that are named in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEnd:
    """How the latest run of a shard ended."""

    state: str
    draw: Draw | None
    """What it was to ask about, with the other shards; none in ledgers of before it was written down."""


def ends_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, ShardEnd]:
    """Say how each shard ended, by the time its runs began; where a whole run, or all of n shards, did all, only it."""
    ends: dict[str, ShardEnd] = {}
    for run in sorted(runs, key=lambda each: str(each["began"])):
        plan, state = run["plan"], "killed" if run["state"] == "running" else str(run["state"])
        shard = str(plan.get("shard", WHOLE))
        if "controls" not in plan:
            ends[shard] = ShardEnd(state=state, draw=Draw.read(plan))
        elif shard not in ends:  # its controls were asked about, and none of its films
            ends[shard] = ShardEnd(state="unfinished", draw=Draw.read(plan))
    for some in _wholes(ends):
        if all(end.state == "done" for end in some.values()) and _cover(some, ends):
            return some
    return ends


def _wholes(ends: Mapping[str, ShardEnd]) -> Iterator[dict[str, ShardEnd]]:
    """Give each set of shards that are a whole run together."""
    if WHOLE in ends:
        yield {WHOLE: ends[WHOLE]}
    for n in sorted({Shard.parse(shard).of for shard in ends if shard}):
        if not _missing(ends, n):
            yield {shard: ends[shard] for shard in _named(n)}


def _cover(some: Mapping[str, ShardEnd], ends: Mapping[str, ShardEnd]) -> bool:
    """Say whether shards that were drawn alike asked about all that any shard was to ask about."""
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
    """Say where shards were drawn or divided differently, did not come, or came before they were done."""
    return [*_drawn_differently(judge, ends, home), *_not_whole(judge, ends)]


def _drawn_differently(judge: str, ends: Mapping[str, ShardEnd], home: Path) -> Iterator[Notice]:
    drawn = _draws(ends)
    if len(drawn) < 2:
        return
    named = len({draw.names for draw in drawn}) > 1
    each = [f"{', '.join(shards[:MOST_NAMED])}: {draw.words(named=named)}" for draw, shards in drawn.items()]
    words = (
        f"judge {judge!r}: the parts were drawn differently: {' and '.join(each)}. Run them alike (--limit-images, "
        f"--seed, and the same films) and merge again, or ask here about what is missing: "
        f"bpals judge run SPEC --images PATH --workspace {home}"
    )
    yield Notice(code="shards_drawn", count=len(drawn), message=words)


def _not_whole(judge: str, ends: Mapping[str, ShardEnd]) -> Iterator[Notice]:
    if WHOLE in ends:  # somebody asked about everything
        return
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


MERGING = "judge merge"
"""What merging calls its lock."""
MOST_LISTED = 1000
"""Clashes that are kept to be listed; the others are counted."""
SHORT = len("sha256:") + 8
"""Characters of a hash in a sentence."""

Watch = Callable[[str, int], None]
"""Told of a judge and how many of its films were looked at in one part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedJudge:
    """What became of one judge."""

    run: JudgeRun
    new: int
    """Films that came ..."""
    known: int
    """... and films that were here already: together all that there are now."""


@dataclass(slots=True)
class Merged:
    """What merging came to."""

    judges: list[MergedJudge] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    """The first of them."""
    clashing: int = 0
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
    """Bring the judges of several workspaces into one, and seal them there."""
    home, found = Workspace(workspace), [Workspace(part) for part in parts]
    for part in found:
        _refuse_part(part, home)
    merged, counted = Merged(), dict[str, int]()
    films = _name_films(home, found, merged)
    address = ledger_of(home, ledger)
    asked = [part for part in found if is_there(ledger_of(part))]
    if asked:
        with Ledger.open(address) as target, target.lock(MERGING):
            remember_ledger(home, address)
            for part in asked:
                _take(part, target, films, merged, counted, watch)
            for card in target.cards():
                if card["judge"] in counted:
                    merged.judges.append(_sealed(home, films, target, card, counted[card["judge"]], merged))
    for name, parts_of in _only_sealed(found, counted).items():
        run, new, known, clashes = merge_sealed(home, films, name, parts_of)
        merged.judges.append(MergedJudge(run=run, new=new, known=known))
        merged.note(clashes)
    notices, clashes = merge_features(home.path, [part.path for part in found])
    merged.notices += notices
    merged.note(clashes)
    return merged


def _refuse_part(part: Workspace, home: Workspace) -> None:
    if part.path.resolve() == home.path.resolve():
        raise UsageError(f"{part.path} is to be merged into itself. Name another folder with --workspace DIR")
    if not is_there(ledger_of(part)) and not part.judge_names() and not has_features(part.path):
        raise UsageError(
            f"{part.path} holds no judge: there is no ledger and no sealed judge. "
            "Leave it out, or run its shard again: bpals judge run SPEC --shard i/n --workspace DIR"
        )


def _name_films(home: Workspace, parts: Sequence[Workspace], merged: Merged) -> Named:
    """Name the films of the dataset that all parts, and the target, are about; a part of another one is refused."""
    told = next((each for each in (home, *parts) if each.remembered("source")), home)
    source, mapping = dataset_of(told)
    films = films_of(source, mapping)
    for part in parts:
        if part.remembered("fingerprint") is None:
            words = f"{part.path} does not say what its dataset was: taken for {_dataset(told, films.fingerprint)}"
            merged.notices.append(Notice(code="dataset_untold", count=1, message=words))
        elif part.remembered("fingerprint") != films.fingerprint:
            raise UsageError(_two_datasets(part, told, films.fingerprint))
    kept = {fact: told.remembered(fact) for fact in ("mapping", "images")}
    home.remember(source=source, fingerprint=films.fingerprint, **kept)
    return films


def _two_datasets(part: Workspace, told: Workspace, now: str) -> str:
    """Say that a part is about another dataset than the one that is merged, or about one that has changed since."""
    if part is told:
        return (
            f"{part.path} is about {_dataset(part)}, which is {now[:SHORT]} now: the table or its mapping has changed. "
            "Run its shard again as it is now: only films that are new are asked about"
        )
    return (
        f"{part.path} is about {_dataset(part)}, and {told.path} about {_dataset(told, now)}: two datasets are never "
        f"mixed. Run its shard again with the --source and --mapping of {told.path}: only films that are new are asked "
        "about. Or merge it into a workspace of its own: --workspace DIR"
    )


def _dataset(told: Workspace, fingerprint: str | None = None) -> str:
    """Name a dataset by its table, its mapping and its hash: the one that is remembered, or the one that is read."""
    mapping, read = told.remembered("mapping"), fingerprint or told.remembered("fingerprint") or ""
    described = f" with {mapping}" if mapping else ""
    return f"{told.remembered('source') or 'nih'}{described} ({read[:SHORT]})"


def _take(
    part: Workspace,
    target: Ledger,
    films: Named,
    merged: Merged,
    counted: dict[str, int],
    watch: Watch,
) -> None:
    """Bring over every judge of one part, some films at a time."""
    with Ledger.open(ledger_of(part), readonly=True, must_exist=True) as source:
        for card in source.cards():
            questions = source.questions(card["judge_id"])
            judge_id = _enrol(part, target, films, card, questions)
            numbers = target.take_runs(judge_id, source.stored_runs(card["judge_id"]))
            new, looked = counted.get(card["judge"], 0), 0
            last, some = source.stored_films(card["judge_id"], 0)
            while some:
                taken = target.take_films(judge_id, some, numbers)
                new, looked = new + taken.new, looked + sum(not film.control for film in some)
                merged.note(taken.clashes or [])
                watch(card["judge"], looked)
                last, some = source.stored_films(card["judge_id"], last)
            counted[card["judge"]] = new


def _enrol(
    part: Workspace, target: Ledger, films: Named, known: Mapping[str, Any], questions: Sequence[Question]
) -> int:
    """Give the judge's number in the target; another judge of the same name, or another dataset, is refused."""
    card = card_of(known)
    if known["dataset"] != films.dataset:
        raise UsageError(
            f"{part.path}: judge {card.judge!r} was asked about the dataset {known['dataset']!r}, and "
            f"{films.dataset!r} is merged. Merge it into a workspace of its own: --workspace DIR"
        )
    if differs := target.differing(card, questions, known["dataset"]):
        raise UsageError(
            f"{part.path}: judge {card.judge!r} is another one than in {target.where}: {'; '.join(differs)}. "
            "Two judges are never mixed under one name. Ask the one under another name (--name), or leave it out"
        )
    judge_id = target.enrol(card, questions, known["dataset"])
    # What was seen of the judge first stays; what is new is added.
    here = next(each["observed"] for each in target.cards() if each["judge_id"] == judge_id)
    if fresh := {fact: value for fact, value in known["observed"].items() if fact not in here}:
        target.note_observed(judge_id, fresh)
    return judge_id


def _sealed(
    home: Workspace,
    films: Named,
    target: Ledger,
    known: Mapping[str, Any],
    new: int,
    merged: Merged,
) -> MergedJudge:
    """Seal a judge whose parts have come, and say which are missing or unfinished."""
    ends = ends_of(target.runs(known["judge_id"]))
    notices = gaps(known["judge"], ends, home.path)
    state = next((end.state for end in ends.values() if end.state != "done"), "unfinished" if notices else "done")
    if strangers := sorted(target.done(known["judge_id"]).keys() - set(films.image_ids)):
        those = several(len(strangers), "film is", "films are")
        words = f"judge {known['judge']!r}: {those} not in the dataset, first {strangers[0]}: kept, and not audited"
        notices.append(Notice(code="films_elsewhere", count=len(strangers), message=words))
    merged.notices += notices
    run = seal_asked(home, films, target, card_of(known), state, notices)
    return MergedJudge(run=run, new=new, known=target.counts(known["judge_id"])["films"] - new)


def _only_sealed(parts: Sequence[Workspace], asked: Mapping[str, object]) -> dict[str, list[Path]]:
    """Name the judges that no ledger holds, such as tables, each with the parts that have it sealed."""
    found: dict[str, list[Path]] = {}
    for part in parts:
        for name in part.judge_names():
            if name not in asked:
                found.setdefault(name, []).append(part.path)
    return found
