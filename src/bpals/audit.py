"""The audit on one screen: a source makes claims, judges that cannot see them answer, a signal weighs both.

Everything is written into a workspace that is whole or does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from threadpoolctl import threadpool_limits

from bpals.errors import UnknownName, UsageError
from bpals.judges import timeline
from bpals.judges.record import RecordJudge
from bpals.panel import choose, without_signal
from bpals.provenance import commit, packages
from bpals.report.page import Page, render
from bpals.score import references
from bpals.signal.trust import Signal, estimate
from bpals.signal.voices import Panel
from bpals.sources import nih, table
from bpals.sources.mapping import SHIPPED
from bpals.types import Dataset, Notice, Reference, judgments_schema
from bpals.version import VERSION
from bpals.workspace import Staging, Workspace

Progress = Callable[[str, float], None]
"""Called with what is being done and how much of the whole audit is behind."""

DEFAULTS: Mapping[str, tuple[Any, str]] = {
    "source": ("nih", "the embedded NIH record needs no download"),
    "mapping": (None, "the NIH record needs none"),
    "workspace": ("audit", "beside you, in ./audit"),
    "judges": ("all", "the record judge and every sealed judge of the workspace"),
    "calibrate": (None, "no expert labels were given"),
    "calibrate_split": ("all", "every expert label of the reference"),
}
"""What an audit does when it is not told: the value, and why."""

FEW_FILMS = 1000
"""Below it the judge's answers are hardly better than what is usual for each finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished audit."""

    workspace: Path
    signal: pl.DataFrame
    """One row a claim, with its trust, flag and reasons."""
    groups: pl.DataFrame | None
    """The same for groups such as nodule or mass, where expert labels speak of them."""
    record: Mapping[str, Any]
    """What `run.json` says: what was read, decided and written."""

    @property
    def report(self) -> Path:
        """The page to open in a browser."""
        return self.workspace / "report.html"


def audit(
    source: str | None = None,
    *,
    mapping: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    judges: str | Sequence[str] | None = None,
    calibrate: str | None = None,
    calibrate_split: str | None = None,
    progress: Progress = lambda _what, _share: None,
) -> Run:
    """Audit a dataset's labels: give every claim a trust, with its evidence.

    `source` is `nih`, `nih:FILE` or `table:FILE`; `mapping` describes a table; `judges` names the judges to use;
    `calibrate` is KIND=PATH, expert labels to fit the trust on, and `calibrate_split` which of them. With none of it:
    the dataset that the workspace's judges were asked about, or else the embedded NIH record, into ./audit.
    """
    started = time.monotonic()
    given = {
        "source": source,
        "mapping": None if mapping is None else os.fspath(mapping),
        "workspace": None if workspace is None else os.fspath(workspace),
        "judges": judges if judges is None or isinstance(judges, str) else list(judges),
        "calibrate": calibrate,
        "calibrate_split": calibrate_split,
    }
    home = Workspace(workspace or DEFAULTS["workspace"][0])
    values = _values(given, home)
    use = {name: entry["value"] for name, entry in values.items()}
    with home.writing() as staging:
        progress("reading the dataset", 0.0)
        chosen = choose(home, use["judges"])
        dataset = load_source(use["source"], use["mapping"])
        reference = _load_calibration(use, dataset)
        panel, notices = chosen.seat(dataset, reference)
        judgments = _ask(chosen.record, dataset, progress)
        signal = _weigh(dataset, (chosen.record, judgments), panel, reference, progress)
        notices += without_signal(signal, dataset.vocabulary.findings)
        record = _record(values, dataset, signal, reference, notices) | {"judges": chosen.entries(signal)}
        progress("writing the tables", 0.85)
        _write_tables(staging, dataset, judgments, signal)
        del judgments
        progress("writing the report", 0.92)
        record["seconds"] = round(time.monotonic() - started, 1)
        page = Page(dataset=dataset, signal=signal.table, groups=signal.groups, run=record)
        staging.write("report.html", render(page).encode())
        sealed = staging.seal(record)
    progress("done", 1.0)
    return Run(workspace=home.path, signal=signal.table, groups=signal.groups, record=sealed)


def _ask(judge: RecordJudge | None, dataset: Dataset, progress: Progress) -> pl.DataFrame:
    """Ask the record judge about every claim; without one there is no answer."""
    if judge is None:
        return pl.DataFrame(schema=judgments_schema(dataset.vocabulary))
    return judge.read(
        dataset.images,
        dataset.claims,
        dataset.vocabulary,
        progress=lambda share: progress("asking the record judge", 0.05 + 0.45 * share),
    )


def _weigh(
    dataset: Dataset,
    record: tuple[RecordJudge | None, pl.DataFrame],
    panel: Panel,
    reference: Reference | None,
    progress: Progress,
) -> Signal:
    """Weigh claims and answers; with expert labels, ask the record judge about their groups too."""
    judge, judgments = record
    evidence = group_judgments = None
    if reference is not None and judge is not None:
        evidence = timeline.read_record(dataset.images, dataset.claims, dataset.vocabulary).evidence
        if groups := reference.groups_within(dataset.vocabulary):
            group_judgments = judge.read_groups(
                dataset.images,
                dataset.claims,
                dataset.vocabulary,
                groups,
                progress=lambda share: progress("asking about groups", 0.5 + 0.25 * share),
            )
    progress("weighing claims and answers", 0.75)
    with threadpool_limits(1):
        return estimate(dataset, judgments, reference, evidence=evidence, group_judgments=group_judgments, panel=panel)


def load_signal(workspace: str | os.PathLike[str] = "audit") -> pl.DataFrame:
    """Read the signal of a finished audit; a half-written or damaged one is refused."""
    return Workspace(workspace).open().table("signal.parquet")


def load_source(spec: str, mapping: str | None = None) -> Dataset:
    """Read the dataset that a spec names: `nih`, `nih:FILE` or `table:FILE` with a mapping."""
    kind, _, path = spec.partition(":")
    if kind == "nih":
        if mapping is not None:
            raise UsageError(
                f"--mapping {mapping} is for tables; the NIH record needs none. "
                f"Type: bpals audit --source table:FILE --mapping {mapping}"
            )
        return nih.load(path or None)
    if kind == "table":
        if not path or mapping is None:
            raise UsageError(
                f"--source {spec} needs a file and a mapping. "
                f"Type: bpals audit --source table:FILE --mapping FILE.toml (or {', '.join(SHIPPED)})"
            )
        return table.load(path, mapping)
    if Path(spec).is_file():
        raise UsageError(f"--source {spec} is a file. Type: bpals audit --source table:{spec} --mapping FILE.toml")
    raise UnknownName.of("source", spec, ("nih", "nih:FILE", "table:FILE"), where="--source")


def _load_calibration(use: Mapping[str, Any], dataset: Dataset) -> Reference | None:
    """Read the expert labels to calibrate on."""
    if use["calibrate"] is None:
        return None
    if references.parse(use["calibrate"])[0] == "boxes":
        raise UsageError(
            "--calibrate boxes: they are presences only, and nothing can be fitted without absences. "
            "Type: bpals audit --calibrate four-findings=PATH"
        )
    return references.load(use["calibrate"], vocabulary=dataset.vocabulary, split=use["calibrate_split"])


def _values(given: Mapping[str, Any], home: Workspace) -> dict[str, dict[str, Any]]:
    """Say of every value whether it was passed or defaulted, and why; judges here were asked about one dataset."""
    values = {}
    for name, passed in given.items():
        default, reason = DEFAULTS[name]
        if name in ("source", "mapping") and given["source"] is None and (kept := home.remembered(name)):
            default, reason = kept, "the judges of this workspace were asked about it"
        if passed is None:
            values[name] = {"value": default, "given": "defaulted", "reason": reason}
        else:
            values[name] = {"value": passed, "given": "passed", "reason": ""}
    return values


def _record(
    values: Mapping[str, Any],
    dataset: Dataset,
    signal: Signal,
    reference: Reference | None,
    noticed: Sequence[Notice],
) -> dict[str, Any]:
    """Write down what the audit read and decided."""
    head, dirty = commit()
    calibration = None
    if reference is not None and signal.calibration is not None:
        calibration = {
            "reference": reference.kind,
            "split": values["calibrate_split"]["value"],
            "pairs": signal.calibration.height,
            "crossfit": "by patient",
            "findings": {name: dict(fit) for name, fit in signal.findings.items()},
            "inputs": dict(reference.inputs),
            "method": "ridge logistic regression, design and penalty chosen by cross-validation over patients",
        }
    notices = [*dataset.notices, *(reference.notices if reference else ()), *noticed, *_few(dataset)]
    return {
        "bpals": VERSION,
        "command": "bpals audit",
        "source": {"name": dataset.name, "title": dataset.title, "inputs": dict(dataset.inputs)},
        "images": dataset.images.height,
        "claims": dataset.claims.height,
        "unaudited": dict(dataset.unaudited),
        "values": values,
        "commit": head,
        "dirty": dirty,
        "packages": packages(),
        "calibration": calibration,
        "flags": _flag_rules(signal),
        "notices": [asdict(notice) for notice in notices],
    }


def _few(dataset: Dataset) -> list[Notice]:
    """Warn where the record is too small to learn much from."""
    films = dataset.images.height
    if films >= FEW_FILMS:
        return []
    words = f"{films:,} films are few for the record judge, which learns from them: read each trust with care"
    return [Notice(code="few_films", count=films, message=words)]


def _flag_rules(signal: Signal) -> dict[str, Any]:
    """Lay the flags' cuts out by finding and direction."""
    laid: dict[str, Any] = {}
    for rule in signal.rules:
        cuts = {name: rule[name] for name in ("likely_below", "low_below", "words")}
        laid.setdefault(rule["finding"], {})[rule["says"]] = cuts
    return laid


def _write_tables(staging: Staging, dataset: Dataset, judgments: pl.DataFrame, signal: Signal) -> None:
    """Write every table of the workspace."""
    staging.write_table("images.parquet", dataset.images)
    staging.write_table("claims.parquet", dataset.claims)
    if not judgments.is_empty():
        staging.write_table("judgments/record.parquet", judgments)
    staging.write_table("signal.parquet", signal.table)
    if signal.groups is not None:
        staging.write_table("groups.parquet", signal.groups)
    if signal.calibration is not None:
        staging.write_table("calibration.parquet", signal.calibration)
