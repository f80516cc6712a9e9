"""Relearning: what experts said since the audit becomes trust, flags and an order of reading, and no judge is asked.

learned = relearn("audit", reads)
learned.version     which signal this is: the sha256 of signal.parquet
learned.changed     how many claims have another trust, flag or place
teach(lesson)       the same, and the queue that follows from it: what a reading room does in another process

The sealed answers of the judges and the dataset stay as they are; the steps are those of an audit, from the weighing
on. So it takes seconds, and gives what `bpals audit --reviews` gives for the same reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import WorkspaceError
from bpals.judges.record import read_record
from bpals.room.desk.study import Study
from bpals.store.workspace import Sealed, Workspace
from bpals.tasks import run_record
from bpals.tasks.audit import GROUP_ANSWERS, RECORD_ANSWERS, Answers, Progress, Weighed, weigh
from bpals.tasks.datasets import load_source
from bpals.tasks.panel import Experts, choose, load_experts
from bpals.tasks.reading_list import draw_cases
from bpals.tasks.run_record import SIGNAL
from bpals.types import Dataset, Notice, Reviews, judgments_schema

FIRST = 500
"""The part of the queue whose change is counted."""
SAME = 1e-9
"""Trusts nearer to each other than this are one."""

_PAIR = ["image_id", "finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relearned:
    """What came of it."""

    version: str
    """Of the signal: sha256 of signal.parquet."""
    before: str
    """The version that it replaced."""
    reads: int
    pairs: int
    changed: Mapping[str, int]
    """`trust`, `flag`, `review_rank`: claims with another one; `first`: how many of the first 500 to read are new."""
    fitted: Mapping[str, Mapping[str, Any]]
    """Findings and groups that the reads taught: how many reviewed pairs, how many of them wrong, how fitted."""
    untaught: Mapping[str, int]
    """Findings of which too few claims were contradicted to learn from -> how many were."""
    notices: tuple[Notice, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a reading room has to learn from, and what its queue may hold; it can be sent to another process."""

    workspace: Path
    reviews: Reviews
    """What teaches: the reads of all studies of the ledger, and those that were imported."""
    study: Study
    films: frozenset[str] | None = None
    """Those that can be shown, where not all can."""
    read: Reviews | None = None
    """What is not offered again, where that is not all that teaches: the reads of the study itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """The new signal, and the queue that follows from it."""

    learned: Relearned
    cases: pl.DataFrame
    """CASES of the reading list, drawn from the new signal."""


def teach(lesson: Lesson) -> Taught:
    """Relearn, and draw the queue anew."""
    learned = relearn(lesson.workspace, lesson.reviews)
    read = lesson.reviews if lesson.read is None else lesson.read
    cases = draw_cases(lesson.workspace, lesson.study, read, films=lesson.films)
    return Taught(learned=learned, cases=cases)


def version(workspace: str | os.PathLike[str]) -> str:
    """Name the signal that is in a workspace now, without reading it."""
    return str(Workspace(workspace).run["files"][SIGNAL]["sha256"])


def relearn(
    workspace: str | os.PathLike[str],
    reviews: Reviews,
    *,
    progress: Progress = lambda _what, _share: None,
) -> Relearned:
    """Weigh the sealed answers of a workspace's audit anew with these reads, and seal what comes of it.

    Expert labels and reads that the audit was given stay heard; a read that is in both counts once.
    """
    started = time.monotonic()
    home = Workspace(workspace)
    with home.writing() as staging:
        progress("reading the audit", 0.0)
        sealed = home.open()
        dataset = _dataset(home, sealed)
        # Whom the audit heard, and these reads too.
        experts = load_experts({name: entry["value"] for name, entry in sealed.run["values"].items()}, dataset, reviews)
        answers, unasked = _answers(sealed, dataset, experts)
        # Those that the audit heard: a judge that was sealed since then waits for the next audit.
        chosen = choose(home, [entry["judge"] for entry in sealed.run["judges"]])
        if experts.given and chosen.record is not None:
            record = read_record(dataset.images, dataset.claims, dataset.vocabulary)
            answers = replace(answers, features=record.evidence)
        weighed = weigh(dataset, chosen, answers, experts, progress)
        weighed = replace(weighed, notices=(*weighed.notices, *unasked))
        record = weighed.described(sealed.run["values"])
        record |= {"command": "bpals review", "history": run_record.history(home)}
        progress("writing the tables", 0.85)
        for name in ("images.parquet", "claims.parquet", RECORD_ANSWERS, GROUP_ANSWERS):
            if sealed.has(name):
                staging.keep(sealed, name)
        weighed.write(staging)
        record["seconds"] = round(time.monotonic() - started, 1)
        staging.write("report.html", weighed.page(record))
        before = sealed.table(SIGNAL, *_PAIR, "trust", "flag", "review_rank")
        changed = _changed(before, weighed.signal.table)
        record["lesson"] = _lesson(reviews, weighed, changed, before)
        run = staging.seal(record)
    progress("done", 1.0)
    return _told(run, sealed, weighed, changed, time.monotonic() - started)


def lessons_of(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the lessons that made a workspace's signal, the first one first, by its `run.json`."""
    versions = [*run.get("history", []), {"version": run["files"][SIGNAL]["sha256"], "lesson": run.get("lesson")}]
    return [{"version": each["version"], **each["lesson"]} for each in versions if each.get("lesson")]


def _lesson(reviews: Reviews, weighed: Weighed, changed: Mapping[str, int], before: pl.DataFrame) -> dict[str, Any]:
    """Write down what a lesson heard and what it changed, for whoever asks later."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "readings": reviews.table.select("image_id", "reader").n_unique(),
        "reads": reviews.table.height,
        "pairs": reviews.table.select(_PAIR).n_unique(),
        "changed": dict(changed),
        "findings": _changed_findings(before, weighed.signal.table),
        "untaught": dict(weighed.signal.untaught),
    }


def _dataset(home: Workspace, sealed: Sealed) -> Dataset:
    """Read the dataset again; it must be the one that was audited."""
    use = sealed.run["values"]
    source, mapping = home.remembered("source"), home.remembered("mapping")
    dataset = load_source(*((source, mapping) if source else (use["source"]["value"], use["mapping"]["value"])))
    if dict(dataset.inputs) != sealed.run["source"]["inputs"]:
        raise WorkspaceError(
            f"{home.path} is an audit of {', '.join(sealed.run['source']['inputs'])}, which has changed since then. "
            f"Type: bpals audit --workspace {home.path}"
        )
    return dataset


def _answers(sealed: Sealed, dataset: Dataset, experts: Experts) -> tuple[Answers, list[Notice]]:
    """Take the record judge's sealed answers; where it was not asked about a group, its members' answers add up."""
    claims = pl.DataFrame(schema=judgments_schema(dataset.vocabulary))
    if not sealed.has(RECORD_ANSWERS):
        return Answers(claims=claims), []
    claims = sealed.table(RECORD_ANSWERS)
    wanted = {group.name for group in experts.groups_within(dataset.vocabulary)}
    groups = sealed.table(GROUP_ANSWERS) if sealed.has(GROUP_ANSWERS) else None
    asked = set() if groups is None else set(groups["finding"].cast(pl.String).unique())
    if wanted <= asked:
        return Answers(claims=claims, groups=groups if wanted else None), []
    message = (
        f"the record judge was not asked about {', '.join(sorted(wanted - asked))}: what it says of the members stands "
        "in. bpals audit --reviews FILE asks it"
    )
    return Answers(claims=claims), [Notice(code="groups_unasked", count=len(wanted - asked), message=message)]


def _moved(before: pl.DataFrame, after: pl.DataFrame) -> pl.Series:
    """Say which claims have another trust; an audit's rows keep their order."""
    moved = (before["trust"] - after["trust"]).abs() > SAME
    return moved.fill_null(value=False) | (before["trust"].is_null() != after["trust"].is_null())


def _changed_findings(before: pl.DataFrame, after: pl.DataFrame) -> dict[str, dict[str, int]]:
    """Count by finding the claims whose trust or flag is another one; findings without any are left out."""
    both = before.select(
        pl.col("finding").cast(pl.String), trust=_moved(before, after), flag=before["flag"] != after["flag"]
    )
    counted = both.group_by("finding", maintain_order=True).agg(pl.col("trust", "flag").sum())
    told = {row["finding"]: {"trust": row["trust"], "flag": row["flag"]} for row in counted.iter_rows(named=True)}
    return {finding: changes for finding, changes in told.items() if any(changes.values())}


def _changed(before: pl.DataFrame, after: pl.DataFrame) -> dict[str, int]:
    """Count the claims whose trust, flag or place is another one."""
    first = before.filter(pl.col("review_rank") <= FIRST).join(
        after.filter(pl.col("review_rank") <= FIRST).select(_PAIR), on=_PAIR, how="anti"
    )
    return {
        "claims": after.height,
        "trust": int(_moved(before, after).sum()),
        "flag": int((before["flag"] != after["flag"]).sum()),
        "review_rank": int((before["review_rank"] != after["review_rank"]).sum()),
        "first": first.height,
    }


def _told(run: Mapping[str, Any], sealed: Sealed, weighed: Weighed, changed: dict[str, int], took: float) -> Relearned:
    read = run["reviews"] or {}
    return Relearned(
        version=run["files"][SIGNAL]["sha256"],
        before=sealed.run["files"][SIGNAL]["sha256"],
        reads=read.get("reads", 0),
        pairs=read.get("pairs", 0),
        changed=changed,
        fitted={name: dict(fit) for name, fit in weighed.signal.findings.items()},
        untaught=dict(weighed.signal.untaught),
        notices=tuple(Notice(**notice) for notice in run["notices"]),
        seconds=round(took, 1),
    )
