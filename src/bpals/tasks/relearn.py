"""Relearning: reads since the audit become trust, flags and an order of reading, and no judge is asked again.

learned = relearn("audit", reads)
learned.version     which signal this is: the sha256 of signal.parquet
learned.changed     how many labels have another trust, flag or place
teach(...)          the same, and the queue that follows from it: what a reading room does in another process

The finished answers of the judges and the dataset stay as they are; the steps are those of an audit, from the weighing
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
from bpals.numeric import PAIR
from bpals.room.desk.study import Study
from bpals.store.workspace import FinishedAudit, Workspace
from bpals.tasks import run_record
from bpals.tasks.audit import GROUP_ANSWERS, RECORD_ANSWERS, Answers, Progress, UnsavedAudit, weigh, with_prior
from bpals.tasks.chosen_judges import choose
from bpals.tasks.datasets import load_source
from bpals.tasks.expert_labels import load_experts
from bpals.tasks.reading_list import draw_cases
from bpals.tasks.run_record import SIGNAL
from bpals.types import Dataset, Experts, Notice, Reviews, judgments_schema

FIRST = 500  # the part of the queue whose change is counted
SAME = 1e-9  # trusts nearer to each other than this are one


@dataclass(frozen=True, slots=True, kw_only=True)
class Relearned:
    """What came of it."""

    version: str  # of the signal: sha256 of signal.parquet
    before: str  # the version that it replaced
    reads: int
    pairs: int
    changed: Mapping[str, int]
    """`trust`, `flag`, `review_rank`: claims with another one; `first`: how many of the first 500 to read are new."""
    fitted: Mapping[str, Mapping[str, Any]]
    """Findings and groups that the reads taught: how many reviewed pairs, how many of them wrong, how fitted."""
    notices: tuple[Notice, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """The new signal, and the queue that follows from it."""

    learned: Relearned
    cases: pl.DataFrame  # CASES of the reading list, drawn from the new signal


def teach(
    workspace: Path, reviews: Reviews, study: Study, *, films: frozenset[str] | None = None, read: Reviews | None = None
) -> Taught:
    """Relearn from the reads of all studies, and draw a study's queue anew; a room does it in another process.

    `films` names those that can be shown, where not all can; `read` the study's own reads, which are not offered again,
    where those are not all reads.
    """
    learned = relearn(workspace, reviews)
    return Taught(learned=learned, cases=draw_cases(workspace, study, reviews if read is None else read, films=films))


def version(workspace: str | os.PathLike[str]) -> str:
    """Name the signal that is in a workspace now, without reading it."""
    return str(Workspace(workspace).run["files"][SIGNAL]["sha256"])


def relearn(
    workspace: str | os.PathLike[str], reviews: Reviews, *, progress: Progress = lambda _what, _share: None
) -> Relearned:
    """Weigh the judges' answers of a workspace's audit anew with these reads, and write what comes of it.

    Expert labels and reads that the audit was given still count; a read that is in both counts once.
    """
    started = time.monotonic()
    home = Workspace(workspace)
    with home.writing() as staging:
        progress("reading the audit", 0.0)
        audit = home.open()
        dataset = _dataset(home, audit)
        # What the audit was given, and these reads too.
        experts = load_experts({name: entry["value"] for name, entry in audit.run["values"].items()}, dataset, reviews)
        # Those that the audit used: a judge that was finished since then waits for the next audit.
        chosen = choose(home, [entry["judge"] for entry in audit.run["judges"]])
        # An audit before 0.6 had no such option, and none is slipped under it.
        started_from = audit.run["values"].get("prior", {"value": "none"})["value"]
        experts = with_prior(experts, started_from, dataset, chosen)
        answers, unasked = _answers(audit, dataset, experts)
        if experts.given and chosen.record is not None:
            metadata = read_record(dataset.images, dataset.claims, dataset.vocabulary)
            answers = replace(answers, features=metadata.features)
        unsaved = weigh(dataset, chosen, answers, experts, progress)
        unsaved = replace(unsaved, notices=(*unsaved.notices, *unasked))
        record = unsaved.described(audit.run["values"])
        record |= {"command": "bpals review", "history": run_record.history(home)}
        record["changed"] = run_record.changed(home, unsaved.signal.table)
        progress("writing the tables", 0.85)
        for name in ("images.parquet", "claims.parquet", RECORD_ANSWERS, GROUP_ANSWERS):
            if audit.has(name):
                staging.keep(audit, name)
        unsaved.write(staging)
        record["seconds"] = round(time.monotonic() - started, 1)
        staging.write("report.html", unsaved.page(record, home))
        before = audit.table(SIGNAL, *PAIR, "trust", "flag", "review_rank")
        changed = _changed(before, unsaved.signal.table)
        record["lesson"] = _lesson(reviews, unsaved, changed, before)
        run = staging.finish(record)
    progress("done", 1.0)
    read = run["reviews"] or {}
    return Relearned(
        version=run["files"][SIGNAL]["sha256"],
        before=audit.run["files"][SIGNAL]["sha256"],
        reads=read.get("reads", 0),
        pairs=read.get("pairs", 0),
        changed=changed,
        fitted={name: dict(fit) for name, fit in unsaved.signal.findings.items()},
        notices=tuple(Notice(**notice) for notice in run["notices"]),
        seconds=round(time.monotonic() - started, 1),
    )


def lessons_of(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the lessons that made a workspace's signal, the first one first, from its `run.json`."""
    versions = [*run.get("history", []), {"version": run["files"][SIGNAL]["sha256"], "lesson": run.get("lesson")}]
    return [{"version": each["version"], **each["lesson"]} for each in versions if each.get("lesson")]


def _lesson(
    reviews: Reviews, unsaved: UnsavedAudit, changed: Mapping[str, int], before: pl.DataFrame
) -> dict[str, Any]:
    """Write down what a lesson was given and what it changed, for whoever asks later."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "readings": reviews.table.select("image_id", "reader").n_unique(),
        "reads": reviews.table.height,
        "pairs": reviews.table.select(PAIR).n_unique(),
        "changed": dict(changed),
        "findings": _changed_findings(before, unsaved.signal.table),
    }


def _dataset(home: Workspace, audit: FinishedAudit) -> Dataset:
    """Read the dataset again; it must be the one that was audited."""
    use = audit.run["values"]
    source, mapping = home.remembered("source"), home.remembered("mapping")
    dataset = load_source(*((source, mapping) if source else (use["source"]["value"], use["mapping"]["value"])))
    if dict(dataset.inputs) != audit.run["source"]["inputs"]:
        raise WorkspaceError(
            f"{home.path} is an audit of {', '.join(audit.run['source']['inputs'])}, which has changed since then. "
            f"Type: bpals audit --workspace {home.path}"
        )
    return dataset


def _answers(audit: FinishedAudit, dataset: Dataset, experts: Experts) -> tuple[Answers, list[Notice]]:
    """Take the metadata judge's finished answers; where it was not asked about a group, its members' answers add up."""
    claims = pl.DataFrame(schema=judgments_schema(dataset.vocabulary))
    if not audit.has(RECORD_ANSWERS):
        return Answers(claims=claims), []
    claims = audit.table(RECORD_ANSWERS)
    wanted = {group.name for group in experts.groups_within(dataset.vocabulary)}
    groups = audit.table(GROUP_ANSWERS) if audit.has(GROUP_ANSWERS) else None
    asked = set() if groups is None else set(groups["finding"].cast(pl.String).unique())
    if wanted <= asked:
        return Answers(claims=claims, groups=groups if wanted else None), []
    message = (
        f"the metadata judge was not asked about {', '.join(sorted(wanted - asked))}: its answers about the members "
        "stand in. bpals audit --reviews FILE asks it"
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
    changes = {row["finding"]: {"trust": row["trust"], "flag": row["flag"]} for row in counted.iter_rows(named=True)}
    return {finding: counts for finding, counts in changes.items() if any(counts.values())}


def _changed(before: pl.DataFrame, after: pl.DataFrame) -> dict[str, int]:
    """Count the claims whose trust, flag or place is another one."""
    first = before.filter(pl.col("review_rank") <= FIRST).join(
        after.filter(pl.col("review_rank") <= FIRST).select(PAIR), on=PAIR, how="anti"
    )
    return {
        "claims": after.height,
        "trust": int(_moved(before, after).sum()),
        "flag": int((before["flag"] != after["flag"]).sum()),
        "review_rank": int((before["review_rank"] != after["review_rank"]).sum()),
        "first": first.height,
    }
