"""The audit on one screen: a source makes claims, judges that cannot see them answer, a signal weighs both.

Everything is written into a workspace that is whole or does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from threadpoolctl import threadpool_limits

from bpals.judges.record import RecordJudge, read_record
from bpals.registry import SIGNALS
from bpals.report.page import Page, render
from bpals.reviews.verdicts import Files, as_typed
from bpals.signal.layout import groups_of, lay_out
from bpals.signal.trust import Signal
from bpals.store.workspace import Staging, Workspace
from bpals.tasks import run_record
from bpals.tasks.datasets import DEFAULT_SOURCE, load_source
from bpals.tasks.panel import Chosen, Experts, choose, load_experts, measure, without_signal
from bpals.text import several
from bpals.types import Dataset, Notice, Reviews, judgments_schema

Progress = Callable[[str, float], None]
"""Called with what is being done and how much of the whole audit is behind."""

DEFAULTS: Mapping[str, tuple[Any, str]] = {
    "source": (DEFAULT_SOURCE, "the embedded NIH record needs no download"),
    "mapping": (None, "the NIH record needs none"),
    "workspace": ("audit", "beside you, in ./audit"),
    "judges": ("all", "the record judge and every sealed judge of the workspace"),
    "calibrate": (None, "no expert labels were given"),
    "calibrate_split": ("all", "every expert label of the reference"),
    "reviews": (None, "no single reads were given"),
    "reviews_split": ("all", "every read of the file"),
    "no_reviews": (False, "what was read in this workspace is heard"),
    "refit": (None, "no random sample of the audited films was given"),
    "refit_split": ("all", "every expert label of the sample"),
}
"""What an audit does when it is not told: the value, and why."""

METHOD = "judges-2"
"""The signal that an audit computes; its entry point has this name."""

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
    features: npt.NDArray[np.float32] | None = None
    """What it sees of each image; kept where experts speak, because their fit may use it too."""


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
        told = run_record.described(values, self.dataset, self.signal, self.experts, self.notices)
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
    no_reviews: bool = False,
    progress: Progress = lambda _what, _share: None,
) -> Run:
    """Audit a dataset's labels: give every claim a trust, with its evidence.

    `source` is `nih`, `nih:FILE` or `table:FILE`; `mapping` describes a table; `judges` names the judges to use;
    `calibrate` is KIND=PATH, expert labels to fit the trust on, and `calibrate_split` which of them; `reviews` is a
    file of single reads, or several, and `reviews_split` which of them; `refit` is KIND=PATH, expert labels of a random
    sample of the audited films, to fit how common errors are here. What was read in the workspace's own reading room,
    or imported there, is heard too, unless `no_reviews` is True. With none of it: the dataset that the workspace's
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
        "no_reviews": no_reviews or None,
    }
    home = Workspace(workspace or DEFAULTS["workspace"][0])
    values = _values(given, home)
    use = {name: entry["value"] for name, entry in values.items()}
    with home.writing() as staging:
        progress("reading the dataset", 0.0)
        chosen = choose(home, use["judges"])
        dataset = load_source(use["source"], use["mapping"])
        own = _own_reads(home, dataset) if home.keeps_ledger and not no_reviews else None
        experts = _told_of(load_experts(use, dataset, own), own)
        experts = replace(experts, notices=(*run_record.left_out(home, use), *experts.notices))
        answers = _ask(chosen.record, dataset, experts, progress)
        weighed = weigh(dataset, chosen, answers, experts, progress)
        record = weighed.described(values) | {"history": run_record.history(home)}
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
        home.remember_dataset(use["source"], use["mapping"], weighed.dataset.fingerprint)
    progress("done", 1.0)
    return Run(workspace=home.path, signal=signal.table, groups=signal.groups, record=sealed)


def _own_reads(home: Workspace, dataset: Dataset) -> Reviews:
    """Read what the workspace keeps; only here a database is loaded, so that an audit without one does not wait."""
    own: Reviews = import_module("bpals.reviews.ledger_reads").own_reads(home, dataset.vocabulary)
    return own


def _told_of(experts: Experts, own: Reviews | None) -> Experts:
    """Say that the workspace's own reads were heard, and how to leave them out."""
    if own is None or own.table.is_empty():
        return experts
    pairs = several(own.settled.height, "pair that was", "pairs that were")
    settled = f", and {pairs} settled" if own.settled.height else ""
    reads = several(own.table.height, "read that this workspace keeps was", "reads that this workspace keeps were")
    message = f"{reads} heard{settled}. To leave such reads out, type: bpals audit --no-reviews"
    notice = Notice(code="own_reviews", count=own.table.height, message=message)
    return replace(experts, notices=(notice, *experts.notices))


def _ask(judge: RecordJudge | None, dataset: Dataset, experts: Experts, progress: Progress) -> Answers:
    """Ask the record judge about every claim, and about the groups that experts speak of; without one is no answer."""
    if judge is None:
        return Answers(claims=pl.DataFrame(schema=judgments_schema(dataset.vocabulary)))
    tables = dataset.images, dataset.claims, dataset.vocabulary
    record = read_record(*tables)
    claims = judge.read(
        *tables, record=record, progress=lambda share: progress("asking the record judge", 0.05 + 0.45 * share)
    )
    features = record.evidence if experts.given else None
    if not (groups := experts.groups_within(dataset.vocabulary)):
        return Answers(claims=claims, features=features)
    about = judge.read_groups(
        *tables, groups, record=record, progress=lambda share: progress("asking about groups", 0.5 + 0.25 * share)
    )
    return Answers(claims=claims, groups=about, features=features)


def weigh(dataset: Dataset, chosen: Chosen, answers: Answers, experts: Experts, progress: Progress) -> Weighed:
    """Weigh claims, answers and what experts say; nobody is asked or trained."""
    panel, notices = chosen.read_panel(dataset)
    progress("weighing claims and answers", 0.75)
    with threadpool_limits(1):
        groups = groups_of(dataset.vocabulary, experts.reference, experts.reviews)
        laid = lay_out(dataset, answers.claims, panel, groups, answers.groups)
        signal: Signal = SIGNALS.load(METHOD).estimate(
            laid,
            experts.reference,
            skill=measure(laid, experts.reference),
            reviews=experts.reviews,
            random_sample=experts.random_sample,
            features=answers.features,
        )
    notices += [*without_signal(signal, dataset.vocabulary.findings), *_few(chosen.record, dataset)]
    return Weighed(dataset=dataset, chosen=chosen, experts=experts, signal=signal, notices=tuple(notices))


def load_signal(workspace: str | os.PathLike[str] = "audit") -> pl.DataFrame:
    """Read the signal of a finished audit; a half-written or damaged one is refused."""
    return Workspace(workspace).open().table("signal.parquet")


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


def _few(judge: RecordJudge | None, dataset: Dataset) -> list[Notice]:
    """Warn where the record is too small for its judge to learn much from."""
    films = dataset.images.height
    if judge is None or films >= FEW_FILMS:
        return []
    few = several(films, "film is little", "films are few")
    words = f"{few} for the record judge, which learns from what is there: read each trust with care"
    return [Notice(code="few_films", count=films, message=words)]


def _write_answers(staging: Staging, dataset: Dataset, answers: Answers) -> None:
    """Write what the signal is made of: the films, the claims, and what the record judge answered."""
    staging.write_table("images.parquet", dataset.images)
    staging.write_table("claims.parquet", dataset.claims)
    if not answers.claims.is_empty():
        staging.write_table(RECORD_ANSWERS, answers.claims)
    if answers.groups is not None:
        staging.write_table(GROUP_ANSWERS, answers.groups)
