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

from bpals.errors import UsageError
from bpals.featureparts import has_features, merge_features
from bpals.judgerun import JudgeRun, seal_asked
from bpals.ledger import Ledger
from bpals.ledger.merge import Clash
from bpals.lightbox import Named, name_films
from bpals.sealedparts import card_of, merge_sealed
from bpals.shard import Shard
from bpals.types import Notice, Question
from bpals.workspace import Workspace
from bpals.workspaceledger import is_there, ledger_of, remember_ledger

MERGING = "judge merge"
"""What merging calls its lock."""
MOST_LISTED = 1000
"""Clashes that are kept to be listed; the others are counted."""

Watch = Callable[[str, int], None]
"""Told of a judge and how many of its films were looked at in one part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedJudge:
    """What became of one judge."""

    run: JudgeRun
    new: int
    """Films, and controls, that came; for scores of a table, pairs."""
    known: int
    """Those that were here already."""


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
    films = _name_films(home, found)
    merged, counted = Merged(), dict[str, tuple[int, int]]()
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


def _name_films(home: Workspace, parts: Sequence[Workspace]) -> Named:
    """Name the films of the dataset that the target is about, or else that of the first part which says it."""
    if home.remembered("source") is None:
        said = next((part for part in parts if part.remembered("source")), None)
        if said is not None:
            home.remember(**{fact: said.remembered(fact) for fact in ("source", "mapping", "images")})
    return name_films(home, None, None)


def _take(
    part: Workspace,
    target: Ledger,
    films: Named,
    merged: Merged,
    counted: dict[str, tuple[int, int]],
    watch: Watch,
) -> None:
    """Bring over every judge of one part, some films at a time."""
    with Ledger.open(ledger_of(part), readonly=True, must_exist=True) as source:
        for card in source.cards():
            questions = source.questions(card["judge_id"])
            judge_id = _enrol(part, target, films, card, questions)
            numbers = target.take_runs(judge_id, source.stored_runs(card["judge_id"]))
            new, known = counted.get(card["judge"], (0, 0))
            last, some = source.stored_films(card["judge_id"], 0)
            while some:
                taken = target.take_films(judge_id, some, numbers)
                new, known = new + taken.new, known + taken.known
                merged.note(taken.clashes or [])
                watch(card["judge"], new + known)
                last, some = source.stored_films(card["judge_id"], last)
            counted[card["judge"]] = (new, known)


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
    counts: tuple[int, int],
    merged: Merged,
) -> MergedJudge:
    """Seal a judge whose parts have come, and say which are missing or unfinished."""
    ends = _ends(target.runs(known["judge_id"]))
    notices = list(_gaps(known["judge"], ends))
    merged.notices += notices
    state = next((state for state in ends.values() if state != "done"), "unfinished" if notices else "done")
    run = seal_asked(home, films, target, card_of(known), state, notices)
    return MergedJudge(run=run, new=counts[0], known=counts[1])


def _ends(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Say how the latest run of each shard ended, by the time it began; the empty shard is a run of everything."""
    ends: dict[str, str] = {}
    for run in sorted(runs, key=lambda each: str(each["began"])):
        state = str(run["state"])
        ends[str(run["plan"].get("shard", ""))] = "killed" if state == "running" else state
    return ends


def _gaps(judge: str, ends: Mapping[str, str]) -> Iterator[Notice]:
    """Name the shards that did not come, and those that came before they were done."""
    if not all(ends):  # somebody asked about everything
        return
    of = {Shard.parse(shard).of for shard in ends}
    if len(of) > 1:
        return
    missing = [str(Shard(part, n)) for n in of for part in range(1, n + 1) if str(Shard(part, n)) not in ends]
    if missing:
        words = f"judge {judge!r}: {len(missing):,} shards are not among these: {', '.join(missing[:8])}"
        yield Notice(code="shards_missing", count=len(missing), message=words)
    if left := [f"{shard} ({state})" for shard, state in ends.items() if state != "done"]:
        words = f"judge {judge!r}: {len(left):,} shards were not done: {', '.join(left[:8])}. Run them again, and merge"
        yield Notice(code="shards_unfinished", count=len(left), message=words)


def _only_sealed(parts: Sequence[Workspace], asked: Mapping[str, object]) -> dict[str, list[Path]]:
    """Name the judges that no ledger holds, such as tables, each with the parts that have it sealed."""
    found: dict[str, list[Path]] = {}
    for part in parts:
        for name in part.judge_names():
            if name not in asked:
                found.setdefault(name, []).append(part.path)
    return found
