"""Merging: what the shards of a run, or the machines of a group, heard each by itself becomes one workspace.

    merge(["w1", "w2", "w3"], workspace="audit")

The parts are only read. Merging them in another order, twice, or with parts that overlap gives the same answers as one
run: an answer beats a failure, and where two parts say different things the first stays and the clash is reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpals.errors import UsageError
from bpals.featureparts import has_features, merge_features
from bpals.judgerun import JudgeRun, seal_asked
from bpals.ledger import Ledger
from bpals.ledger.merge import Clash
from bpals.lightbox import Named, films_of
from bpals.plural import several
from bpals.sealedparts import card_of, merge_sealed
from bpals.shardends import ends_of, gaps
from bpals.types import Notice, Question
from bpals.workspace import Workspace
from bpals.workspaceledger import is_there, ledger_of, remember_ledger

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
    source = told.remembered("source") or "nih"
    films = films_of(source, told.remembered("mapping"))
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
