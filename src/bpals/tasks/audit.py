"""`bpals audit`: a source gives labels, judges that cannot see them answer, and the signal weighs both.

`audit` below is the whole order of events. Its output is a workspace, which is ignored unless complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from threadpoolctl import threadpool_limits

from bpals.errors import UsageError
from bpals.judges.record import RecordJudge, read_record
from bpals.registry import SIGNALS
from bpals.report.cases import ReadImages
from bpals.report.page import Page, render
from bpals.signal.layout import groups_of, lay_out
from bpals.signal.trust import Signal
from bpals.store.workspace import Staging, Workspace
from bpals.tasks import run_record
from bpals.tasks.chosen_judges import Chosen, choose, measure, without_signal
from bpals.tasks.datasets import AUTO, DEFAULT_SOURCE, NONE, choose_calibration, load_source
from bpals.text import several
from bpals.types import Dataset, Experts, Notice, Reviews, judgments_schema

Progress = Callable[[str, float], None]
"""Called with the present step and the share of the audit that is done."""

DEFAULTS: Mapping[str, tuple[Any, str]] = {
    "source": (DEFAULT_SOURCE, "the embedded NIH record needs no download"),
    "mapping": (None, "the NIH record needs none"),
    "workspace": ("audit", "./audit, in the current directory"),
    "judges": ("all", "the metadata judge and every finished judge of the workspace"),
    "prior": ("auto", "the expert calibration that comes with bpals, where it was fitted for the dataset"),
    "calibrate": (None, "no expert labels were given"),
    "calibrate_split": ("all", "every expert label of the reference"),
    "reviews": (None, "no individual reader's verdicts were given"),
    "reviews_split": ("all", "every read of the file"),
    "no_reviews": (False, "the reads of this workspace are used"),
    "refit": (None, "no random sample of the audited images was given"),
    "refit_split": ("all", "every expert label of the sample"),
}
"""The value of each option that is not given, and the reason that run.json shows."""

SIGNAL_METHOD = "judges-2"
"""The signal that an audit computes, by the name of its entry point. It pools the judges; 2 is the method's version."""

RECORD_ANSWERS = "judgments/record.parquet"
GROUP_ANSWERS = "group-judgments.parquet"
"""The metadata judge's answers about groups. Outside judgments/, because a judge of that name would clash with it."""

FEW_IMAGES = 1000
"""Below it the metadata judge hardly does better than the prevalence of each finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished audit."""

    workspace: Path
    signal: pl.DataFrame
    """One row per label, with its trust, flag and reasons."""
    groups: pl.DataFrame | None
    """The same for groups such as nodule or mass, if experts label groups."""
    record: Mapping[str, Any]
    """The content of `run.json`: what was read, decided and written."""

    @property
    def report(self) -> Path:
        """The page to open in a browser."""
        return self.workspace / "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of the metadata judge."""

    claims: pl.DataFrame
    """About every label: JUDGMENTS."""
    groups: pl.DataFrame | None = None
    """About the groups that experts label, if they label any."""
    features: npt.NDArray[np.float32] | None = None
    """The inputs of the metadata judge, one row per image; kept for experts, because their fit may use them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsavedAudit:
    """An audit whose signal is computed and not written yet."""

    dataset: Dataset
    chosen: Chosen
    experts: Experts
    signal: Signal
    notices: tuple[Notice, ...]

    def described(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write down what was read and decided, for `run.json`."""
        fitted: dict[str, Any] = {}
        unfitted: list[Notice] = []
        if self.experts.given or self.experts.random_sample is not None:
            # Imported here, because an audit without experts needs no reader of their files.
            from bpals.tasks.expert_labels import describe_fit

            fitted, unfitted = describe_fit(values, self.dataset, self.signal, self.experts)
        noticed = [*unfitted, *self.notices]
        record = run_record.described(values, self.dataset, self.signal, self.experts, noticed) | fitted
        checks = None if self.chosen.checks is None else self.chosen.checks.record
        return record | {"judges": self.chosen.entries(self.signal), "films": checks}

    def write(self, staging: Staging) -> None:
        """Write the tables of the signal."""
        staging.write_table("signal.parquet", self.signal.table)
        if self.signal.groups is not None:
            staging.write_table("groups.parquet", self.signal.groups)
        if self.signal.calibration is not None:
            staging.write_table("calibration.parquet", self.signal.calibration)

    def page(self, record: Mapping[str, Any], home: Workspace) -> bytes:
        """Write the report, with images where the workspace knows them."""
        page = Page(
            dataset=self.dataset,
            signal=self.signal.table,
            groups=self.signal.groups,
            run=record,
            read_images=_image_reader(home),
        )
        return render(page).encode()


def audit(  # noqa: PLR0913  an option of the command is a parameter
    source: str | None = None,
    *,
    mapping: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    judges: str | Sequence[str] | None = None,
    prior: str | os.PathLike[str] | None = None,
    calibrate: str | None = None,
    calibrate_split: str | None = None,
    reviews: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    reviews_split: str | None = None,
    refit: str | None = None,
    refit_split: str | None = None,
    no_reviews: bool = False,
    progress: Progress = lambda _what, _share: None,
) -> Run:
    """Audit a dataset's labels: give every label a trust, with its evidence.

    `source` is `nih`, `nih:FILE` or `table:FILE`; `mapping` describes a table; `judges` names the judges to use;
    `prior` is the expert calibration to start from: `none`, the name of one that comes with bpals, or a file;
    `calibrate` is KIND=PATH, expert labels to fit the trust on, and `calibrate_split` which of them; `reviews` is one
    file of single reads, or several, and `reviews_split` which of them; `refit` is KIND=PATH, expert labels of a random
    sample of the audited images, to fit how common errors are here. The workspace's own reads are used too, unless
    `no_reviews` is True. With no argument: the dataset that this workspace is about, or else the embedded NIH record,
    into ./audit.
    """
    started = time.monotonic()
    home = Workspace(workspace or DEFAULTS["workspace"][0])
    given = {
        "source": source,
        "mapping": None if mapping is None else os.fspath(mapping),
        "workspace": None if workspace is None else os.fspath(workspace),
        "judges": judges if judges is None or isinstance(judges, str) else list(judges),
        "prior": None if prior is None else os.fspath(prior),
        "calibrate": calibrate,
        "calibrate_split": calibrate_split,
        "reviews": _paths_as_text(reviews),
        "reviews_split": reviews_split,
        "refit": refit,
        "refit_split": refit_split,
        "no_reviews": no_reviews or None,
    }
    values = _values(given, home)
    settings = {name: entry["value"] for name, entry in values.items()}
    with home.writing() as staging:
        progress("reading the dataset", 0.0)
        chosen = choose(home, settings["judges"])
        dataset = load_source(settings["source"], settings["mapping"])
        experts = with_prior(_experts(home, settings, dataset), settings["prior"], dataset, chosen)
        answers = _ask(chosen.record, dataset, experts, progress)
        unsaved = weigh(dataset, chosen, answers, experts, progress)
        record = unsaved.described(values)
        record |= {"history": run_record.history(home), "changed": run_record.changed(home, unsaved.signal.table)}
        progress("writing the tables", 0.85)
        _write_inputs(staging, dataset, answers)
        del answers  # 1.5 million rows of the NIH record: the report needs the memory
        unsaved.write(staging)
        progress("writing the report", 0.92)
        record["seconds"] = round(time.monotonic() - started, 1)
        staging.write("report.html", unsaved.page(record, home))
        finished = staging.finish(record)
    if source is not None:
        # The next audit here is of the same dataset, unless another is named.
        home.remember_dataset(settings["source"], settings["mapping"], unsaved.dataset.fingerprint)
    progress("done", 1.0)
    return Run(workspace=home.path, signal=unsaved.signal.table, groups=unsaved.signal.groups, record=finished)


def _image_reader(home: Workspace) -> ReadImages | None:
    """Give what reads the images of the report; None where no command told the workspace where they are."""
    if home.remembered("images") is None:
        return None
    # Imported here, because an audit without images does not need it.
    from bpals.tasks.image_access import report_images

    return lambda image_ids: report_images(home, image_ids)


def _paths_as_text(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> str | list[str] | None:
    """Return one path or several as text, as run.json keeps them."""
    if files is None or isinstance(files, str | os.PathLike):
        return None if files is None else os.fspath(files)
    return [os.fspath(each) for each in files]


def _values(given: Mapping[str, Any], home: Workspace) -> dict[str, dict[str, Any]]:
    """Return for every option its value, whether it was given, and why not; a workspace is about one dataset."""
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


def _experts(home: Workspace, settings: Mapping[str, Any], dataset: Dataset) -> Experts:
    """Read what experts say: in the files that are named, and in the workspace's own ledger."""
    own, notices = None, run_record.left_out(home, settings)
    if home.keeps_ledger and not settings["no_reviews"]:
        # Imported here, because it brings a database that most audits do not need.
        from bpals.reviews.ledger_reads import own_reads

        own = own_reads(home, dataset.vocabulary)
        notices += _own_reviews(own)
    if own is None and all(settings[option] is None for option in ("calibrate", "reviews", "refit")):
        return Experts(notices=tuple(notices))
    # Imported here, because an audit without experts needs no reader of their files.
    from bpals.tasks.expert_labels import load_experts

    experts = load_experts(settings, dataset, own)
    return replace(experts, notices=(*notices, *experts.notices))


def with_prior(experts: Experts, name: str, dataset: Dataset, chosen: Chosen) -> Experts:
    """Add the expert calibration that the fit starts from; it reads what the metadata judge says, so it needs that."""
    if name not in {AUTO, NONE} and chosen.record is None:
        raise UsageError(
            f"--prior {name}: a calibration reads what the metadata judge says, and it was not chosen. Add record to "
            "--judges, or type: --prior none"
        )
    if name != NONE and chosen.record is not None:
        found, notices = choose_calibration(name, dataset, experts)
        experts = replace(experts, prior=found, notices=(*experts.notices, *notices))
    if experts.random_sample is not None and not experts.given and experts.prior is None:
        raise UsageError(
            "--refit only shifts what was fitted, and nothing was. Add one of: --calibrate KIND=PATH, --reviews PATH, "
            "--prior NAME"
        )
    return experts


def _own_reviews(own: Reviews) -> list[Notice]:
    """Return the notice that the workspace's own reads were used, and how to leave them out."""
    if own.table.is_empty():
        return []
    pairs = several(own.settled.height, "pair that was", "pairs that were")
    settled = f", and {pairs} settled" if own.settled.height else ""
    reads = several(own.table.height, "read of this workspace was", "reads of this workspace were")
    message = f"{reads} used{settled}. To leave them out, type: bpals audit --no-reviews"
    return [Notice(code="own_reviews", count=own.table.height, message=message)]


def _ask(judge: RecordJudge | None, dataset: Dataset, experts: Experts, progress: Progress) -> Answers:
    """Ask the metadata judge about every label, and about the groups that experts label."""
    if judge is None:
        return Answers(claims=pl.DataFrame(schema=judgments_schema(dataset.vocabulary)))
    tables = dataset.images, dataset.claims, dataset.vocabulary
    record = read_record(*tables)
    claims = judge.read(
        *tables, record=record, progress=lambda share: progress("asking the metadata judge", 0.05 + 0.45 * share)
    )
    features = record.features if experts.given else None
    if not (groups := experts.groups_within(dataset.vocabulary)):
        return Answers(claims=claims, features=features)
    groups += [group for group in (experts.prior.groups if experts.prior else ()) if group not in groups]
    group_answers = judge.read_groups(
        *tables, groups, record=record, progress=lambda share: progress("asking about groups", 0.5 + 0.25 * share)
    )
    return Answers(claims=claims, groups=group_answers, features=features)


def weigh(dataset: Dataset, chosen: Chosen, answers: Answers, experts: Experts, progress: Progress) -> UnsavedAudit:
    """Compute the signal from labels, answers and experts; no judge is asked, and none is trained."""
    panel, notices = chosen.answers_about(dataset)
    progress("computing the signal", 0.75)
    # The signal has threads of its own; a second pool under each of them is slower on few cores.
    with threadpool_limits(1):
        groups = groups_of(dataset.vocabulary, experts.reference, experts.reviews)
        groups += [group for group in (experts.prior.groups if experts.prior else ()) if group not in groups]
        laid = lay_out(dataset, answers.claims, panel, groups, answers.groups)
        signal: Signal = SIGNALS.load(SIGNAL_METHOD).estimate(
            laid,
            experts.reference,
            skill=measure(laid, experts.reference),
            reviews=experts.reviews,
            random_sample=experts.random_sample,
            features=answers.features,
            prior=experts.prior,
        )
    notices += [*without_signal(signal, dataset.vocabulary.findings), *_warnings(chosen.record, dataset)]
    return UnsavedAudit(dataset=dataset, chosen=chosen, experts=experts, signal=signal, notices=tuple(notices))


def load_signal(workspace: str | os.PathLike[str] = "audit") -> pl.DataFrame:
    """Read the signal of a finished audit; a half-written or damaged one is refused."""
    return Workspace(workspace).open().table("signal.parquet")


def _warnings(judge: RecordJudge | None, dataset: Dataset) -> list[Notice]:
    """Warn where the trust rests on little: no patient is named, or few images for the metadata judge."""
    images = dataset.images.height
    notices = []
    if images and dataset.images["patient_id"].null_count() == images:
        words = (
            "the dataset names no patient: the metadata judge sees no image before or after, and intervals may be "
            'too narrow. If the table has such a column, name it in the mapping: [columns] patient = "COLUMN"'
        )
        notices.append(Notice(code="no_patient_column", count=images, message=words))
    if judge is not None and images < FEW_IMAGES:
        few = several(images, "image is too little", "images are few")
        words = f"{few} for the metadata judge, which learns from the dataset's own table. Treat each trust with care"
        notices.append(Notice(code="few_films", count=images, message=words))
    return notices


def _write_inputs(staging: Staging, dataset: Dataset, answers: Answers) -> None:
    """Write the tables that the signal is made of: images, claims, and the metadata judge's answers."""
    staging.write_table("images.parquet", dataset.images)
    staging.write_table("claims.parquet", dataset.claims)
    if not answers.claims.is_empty():
        staging.write_table(RECORD_ANSWERS, answers.claims)
    if answers.groups is not None:
        staging.write_table(GROUP_ANSWERS, answers.groups)
