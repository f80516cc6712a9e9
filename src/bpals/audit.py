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
from bpals.experts import Experts, load_experts
from bpals.judges import timeline
from bpals.judges.record import RecordJudge
from bpals.panel import Chosen, choose, without_signal
from bpals.provenance import commit, packages
from bpals.report.page import Page, render
from bpals.score.manyreads import Files, as_typed
from bpals.signal.calibrate import ENOUGH_ERRORS
from bpals.signal.trust import Signal, estimate
from bpals.sources import nih, table
from bpals.sources.mapping import SHIPPED
from bpals.types import Dataset, Notice, Reference, Reviews, judgments_schema
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
    "reviews": (None, "no single reads were given"),
    "reviews_split": ("all", "every read of the file"),
    "refit": (None, "no random sample of the audited films was given"),
    "refit_split": ("all", "every expert label of the sample"),
}
"""What an audit does when it is not told: the value, and why."""

RECORD_ANSWERS = "judgments/record.parquet"
GROUP_ANSWERS = "group-judgments.parquet"
"""What the record judge says of groups: beside the judges' tables, so that no judge can be called so."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the record judge answered."""

    claims: pl.DataFrame
    """About every claim: JUDGMENTS."""
    groups: pl.DataFrame | None = None
    """About the groups that experts speak of, where they speak of any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A signal that is not written yet, with what it was made of."""

    dataset: Dataset
    chosen: Chosen
    experts: Experts
    signal: Signal
    notices: tuple[Notice, ...]

    def described(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write down what was read and decided, for `run.json`."""
        told = _record(values, self.dataset, self.signal, self.experts, self.notices)
        films = None if self.chosen.films is None else self.chosen.films.record
        return told | {"judges": self.chosen.entries(self.signal), "films": films}

    def write(self, staging: Staging) -> None:
        """Write the tables of the signal."""
        staging.write_table("signal.parquet", self.signal.table)
        if self.signal.groups is not None:
            staging.write_table("groups.parquet", self.signal.groups)
        if self.signal.calibration is not None:
            staging.write_table("calibration.parquet", self.signal.calibration)

    def page(self, record: Mapping[str, Any]) -> bytes:
        """Write the report."""
        made = Page(dataset=self.dataset, signal=self.signal.table, groups=self.signal.groups, run=record)
        return render(made).encode()


def audit(  # noqa: PLR0913  an option of the command is a parameter
    source: str | None = None,
    *,
    mapping: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    judges: str | Sequence[str] | None = None,
    calibrate: str | None = None,
    calibrate_split: str | None = None,
    reviews: Files | None = None,
    reviews_split: str | None = None,
    refit: str | None = None,
    refit_split: str | None = None,
    progress: Progress = lambda _what, _share: None,
) -> Run:
    """Audit a dataset's labels: give every claim a trust, with its evidence.

    `source` is `nih`, `nih:FILE` or `table:FILE`; `mapping` describes a table; `judges` names the judges to use;
    `calibrate` is KIND=PATH, expert labels to fit the trust on, and `calibrate_split` which of them; `reviews` is a
    file of single reads, or several, and `reviews_split` which of them; `refit` is KIND=PATH, expert labels of a random
    sample of the audited films, to fit how common errors are here. With none of it: the dataset that the workspace's
    judges were asked about, or else the embedded NIH record, into ./audit.
    """
    started = time.monotonic()
    given = {
        "source": source,
        "mapping": None if mapping is None else os.fspath(mapping),
        "workspace": None if workspace is None else os.fspath(workspace),
        "judges": judges if judges is None or isinstance(judges, str) else list(judges),
        "calibrate": calibrate,
        "calibrate_split": calibrate_split,
        "reviews": as_typed(reviews),
        "reviews_split": reviews_split,
        "refit": refit,
        "refit_split": refit_split,
    }
    home = Workspace(workspace or DEFAULTS["workspace"][0])
    values = _values(given, home)
    use = {name: entry["value"] for name, entry in values.items()}
    with home.writing() as staging:
        progress("reading the dataset", 0.0)
        chosen = choose(home, use["judges"])
        dataset = load_source(use["source"], use["mapping"])
        experts = load_experts(use, dataset)
        answers = _ask(chosen.record, dataset, experts, progress)
        weighed = weigh(dataset, chosen, answers, experts, progress)
        record = weighed.described(values)
        progress("writing the tables", 0.85)
        _write_answers(staging, dataset, answers)
        del answers
        weighed.write(staging)
        progress("writing the report", 0.92)
        record["seconds"] = round(time.monotonic() - started, 1)
        staging.write("report.html", weighed.page(record))
        sealed = staging.seal(record)
    signal = weighed.signal
    if source is not None:
        # The next audit here is of the same dataset, unless another is named.
        home.remember_dataset(use["source"], use["mapping"])
    progress("done", 1.0)
    return Run(workspace=home.path, signal=signal.table, groups=signal.groups, record=sealed)


def _ask(judge: RecordJudge | None, dataset: Dataset, experts: Experts, progress: Progress) -> Answers:
    """Ask the record judge about every claim, and about the groups that experts speak of; without one is no answer."""
    if judge is None:
        return Answers(claims=pl.DataFrame(schema=judgments_schema(dataset.vocabulary)))
    claims = judge.read(
        dataset.images,
        dataset.claims,
        dataset.vocabulary,
        progress=lambda share: progress("asking the record judge", 0.05 + 0.45 * share),
    )
    if not (groups := experts.groups_within(dataset.vocabulary)):
        return Answers(claims=claims)
    about = judge.read_groups(
        dataset.images,
        dataset.claims,
        dataset.vocabulary,
        groups,
        progress=lambda share: progress("asking about groups", 0.5 + 0.25 * share),
    )
    return Answers(claims=claims, groups=about)


def weigh(dataset: Dataset, chosen: Chosen, answers: Answers, experts: Experts, progress: Progress) -> Weighed:
    """Weigh claims, answers and what experts say; nobody is asked or trained."""
    panel, notices = chosen.seat(dataset, experts.reference)
    evidence = None
    if experts.given and chosen.record is not None:
        evidence = timeline.read_record(dataset.images, dataset.claims, dataset.vocabulary).evidence
    progress("weighing claims and answers", 0.75)
    with threadpool_limits(1):
        signal = estimate(
            dataset,
            answers.claims,
            experts.reference,
            evidence=evidence,
            group_judgments=answers.groups,
            panel=panel,
            reviews=experts.reviews,
            random_sample=experts.random_sample,
        )
    notices += [*without_signal(signal, dataset.vocabulary.findings), *_few(chosen.record, dataset)]
    return Weighed(dataset=dataset, chosen=chosen, experts=experts, signal=signal, notices=tuple(notices))


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


def _values(given: Mapping[str, Any], home: Workspace) -> dict[str, dict[str, Any]]:
    """Say of every value whether it was passed or defaulted, and why; judges here were asked about one dataset."""
    values = {}
    for name, passed in given.items():
        default, reason = DEFAULTS[name]
        if name in ("source", "mapping") and given["source"] is None and (kept := home.remembered(name)):
            default, reason = kept, "the dataset of this workspace"
        if passed is None:
            values[name] = {"value": default, "given": "defaulted", "reason": reason}
        else:
            values[name] = {"value": passed, "given": "passed", "reason": ""}
    return values


def _record(
    values: Mapping[str, Any],
    dataset: Dataset,
    signal: Signal,
    experts: Experts,
    noticed: Sequence[Notice],
) -> dict[str, Any]:
    """Write down what the audit read and decided."""
    head, dirty = commit()
    calibration, reference = None, experts.reference
    taught = reference or experts.reviews
    if taught is not None and signal.calibration is not None and signal.findings:
        calibration = {
            "reference": "reviews" if reference is None else reference.kind,
            "split": values["reviews_split" if reference is None else "calibrate_split"]["value"],
            "pairs": signal.calibration.height,
            "crossfit": "by patient",
            "findings": {name: dict(fit) for name, fit in signal.findings.items()},
            "members": _members(dataset, experts, signal),
            "inputs": dict(taught.inputs),
            "method": "ridge logistic regression, design and penalty chosen by cross-validation over patients",
        }
    untaught = [*_unfitted(reference, signal), *experts.unshifted(signal.shifts), *_unlearnt(signal)]
    notices = [*dataset.notices, *experts.notices, *untaught, *noticed]
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
        "reviews": _reviews_entry(experts.reviews, values["reviews_split"]["value"], signal),
        "refit": _refit_entry(experts.random_sample, values["refit_split"]["value"], signal),
        "flags": _flag_rules(signal),
        "certificates": _certificates(signal),
        "dependence": _dependence(signal),
        "notices": [asdict(notice) for notice in notices],
    }


def _members(dataset: Dataset, experts: Experts, signal: Signal) -> dict[str, str]:
    """Name the findings that follow a fitted group: nobody read them apart, so nothing is certified of them."""
    fitted = [group for group in experts.groups_within(dataset.vocabulary) if group.name in signal.findings]
    return {member: group.name for group in fitted for member in group.members if member not in signal.findings}


def _reviews_entry(reviews: Reviews | None, split: str, signal: Signal) -> dict[str, Any] | None:
    """Write down the single reads that were used, and what they taught."""
    if reviews is None:
        return None
    return {
        "split": split,
        "reads": reviews.table.height,
        "pairs": reviews.table.select("image_id", "finding").n_unique(),
        "readers": len(reviews.readers),
        "inputs": dict(reviews.inputs),
        "hardness": dict(signal.hardness),
        "confusion": {
            finding: {reader: errs.round(4).tolist() for reader, errs in its.items()}
            for finding, its in signal.readers.items()
        },
    }


def _refit_entry(sample: Reference | None, split: str, signal: Signal) -> dict[str, Any] | None:
    """Write down the random sample that was given, and what it added to the logits of each finding."""
    if sample is None:
        return None
    return {
        "reference": sample.kind,
        "split": split,
        "films": sample.truth["image_id"].n_unique(),
        "pairs": sample.truth.height,
        "inputs": dict(sample.inputs),
        "shifts": {
            name: {"present": round(present, 4), "absent": round(absent, 4)}
            for name, (present, absent) in signal.shifts.items()
        },
    }


def _unfitted(reference: Reference | None, signal: Signal) -> list[Notice]:
    """Say of which findings the expert labels could fit nothing: all of them say the same, or no judge answered."""
    if reference is None:
        return [
            Notice(
                code="unfitted",
                count=errors,
                message=f"--reviews: nothing was learned about {finding}: {errors} of its claims were contradicted, "
                f"and {ENOUGH_ERRORS} are needed",
            )
            for finding, errors in signal.untaught.items()
        ]
    notices = []
    sides = reference.truth.group_by("finding", maintain_order=True).agg(pl.len(), pl.col("present").mean())
    for finding, pairs, share in sides.iter_rows():
        if finding in signal.findings:
            continue
        why = {0.0: "all are absent", 1.0: "all are present"}.get(share, "no judge answered about them")
        if finding in signal.untaught:
            why = f"{signal.untaught[finding]} contradict the dataset: {ENOUGH_ERRORS} are needed to learn from"
        message = f"{reference.kind}: nothing was fitted for {finding}, of whose {pairs:,} expert labels {why}"
        notices.append(Notice(code="unfitted", count=pairs, message=message))
    return notices


def _unlearnt(signal: Signal) -> list[Notice]:
    """Say that the single reads were too few to teach where readers split."""
    told = signal.hardness
    if not told or told.get("findings"):
        return []
    return [Notice(code="too_few_reads", count=told["pairs"], message=f"--reviews: {told['words']}")]


def _few(judge: RecordJudge | None, dataset: Dataset) -> list[Notice]:
    """Warn where the record is too small for its judge to learn much from."""
    films = dataset.images.height
    if judge is None or films >= FEW_FILMS:
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


def _dependence(signal: Signal) -> dict[str, Any]:
    """Write down which judges are one witness, and how far they err together on what experts read."""
    kin = signal.families
    if kin is None or not kin.names:
        return {}
    return {
        "families": [sorted(name for voice in family for name in kin.names[voice.judge]) for family in kin.members],
        "effective": round(kin.effective, 3),
        "errors": dict(signal.dependence),
    }


def _certificates(signal: Signal) -> list[dict[str, Any]]:
    """List what is promised of the flags, finding by finding and direction by direction."""
    return [
        {"finding": rule["finding"], "says": rule["says"], **certificate}
        for rule in signal.rules
        for certificate in rule.get("certificates", ())
    ]


def _write_answers(staging: Staging, dataset: Dataset, answers: Answers) -> None:
    """Write what the signal is made of: the films, the claims, and what the record judge answered."""
    staging.write_table("images.parquet", dataset.images)
    staging.write_table("claims.parquet", dataset.claims)
    if not answers.claims.is_empty():
        staging.write_table(RECORD_ANSWERS, answers.claims)
    if answers.groups is not None:
        staging.write_table(GROUP_ANSWERS, answers.groups)
