"""The first signal: from claims and judgments, and expert labels where there are any, to trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.chronology import patients
from bpals.errors import UsageError
from bpals.findings import Group
from bpals.signal import calibrate
from bpals.signal.combine import combine
from bpals.signal.pairs import Matrix, Pairs, lay_out, logit, with_groups
from bpals.signal.rows import Part, Wrong, write
from bpals.signal.voices import Panel
from bpals.types import SKILL, Dataset, Reference

FEWEST_PATIENTS = 10
"""Fewer reviewed patients cannot be cross-fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """The signal and what it rests on."""

    table: pl.DataFrame
    groups: pl.DataFrame | None = None
    calibration: pl.DataFrame | None = None
    """The pairs that were used, with the fold that left them out."""
    findings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each calibrated finding or group: how it was fitted."""
    rules: Sequence[Mapping[str, Any]] = ()
    skill: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SKILL))
    """How well each judge tells, where a panel was given: findings, then groups."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Judge -> its effective weight: its share of the judges' absolute standardised weights, mean over findings."""
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Judge -> finding -> that share."""


Evidence = npt.NDArray[np.floating[Any]]
"""The features of the films, from the record judge: a row a film."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """What was asked of the judges beside the record's answers about the findings."""

    evidence: Evidence | None
    group_judgments: pl.DataFrame | None
    panel: Panel | None


def estimate(
    dataset: Dataset,
    judgments: pl.DataFrame,
    reference: Reference | None = None,
    *,
    evidence: Evidence | None = None,
    group_judgments: pl.DataFrame | None = None,
    panel: Panel | None = None,
) -> Signal:
    """Say how far to trust each claim; with a reference, fitted on it and cross-fitted by patient.

    `judgments` are the record judge's. `panel` are the image judges, which correct it where they have a signal.
    `evidence` and `group_judgments` serve the fit: what a judge saw of each film, and what it says of the groups.
    """
    pairs = lay_out(dataset.images, dataset.claims, judgments, dataset.vocabulary)
    part, made = _judged(pairs, panel, dataset)
    if reference is not None:
        return _calibrated(
            part, made, dataset, reference, _Heard(evidence=evidence, group_judgments=group_judgments, panel=panel)
        )
    table, rules = write(part, dataset.images, None if panel is None else panel.devices, wrong=None)
    return replace(made, table=table, rules=rules)


def _judged(pairs: Pairs, panel: Panel | None, dataset: Dataset) -> tuple[Part, Signal]:
    """Take the judges at their word: the record's, corrected by the panel's; and say what each of them is worth."""
    nobody = np.zeros(pairs.states.shape, dtype=bool)
    part = Part(
        pairs=pairs,
        record=pairs,
        voices=(),
        moved=nobody,
        p_present=pairs.p_present,
        spread=pairs.spread,
        fitted=nobody,
        reviewed=nobody,
        notes={},
    )
    made = Signal(table=pl.DataFrame())
    if panel is None:
        return part, made
    voices, skill = panel.heed(pairs)
    done = combine(pairs, voices, patients(dataset.images), panel.fold)
    part = replace(
        part,
        pairs=done.pairs,
        voices=voices,
        moved=done.moved,
        p_present=done.pairs.p_present,
        spread=done.pairs.spread,
    )
    return part, replace(made, skill=skill, weights=done.effective, shares=done.shares)


def _calibrated(part: Part, made: Signal, dataset: Dataset, reference: Reference, heard: _Heard) -> Signal:
    """Fit findings and groups on the reference; the members of a group follow it."""
    truth = _known_truth(dataset, reference)
    named = set(truth["finding"].unique())
    groups = [group for group in reference.groups_within(dataset.vocabulary) if group.name in named]
    context = _context(part.pairs, dataset, heard.evidence)
    fold = calibrate.fold_of_patient(patients(dataset.images))
    devices = None if heard.panel is None else heard.panel.devices
    part, fits = _fit_part(part, truth, context, fold, reference.kind)
    rules: list[dict[str, Any]] = []
    if groups:
        together, judged = _grouped(part, groups, dataset, heard)
        group_part, group_fits = _fit_part(together, truth, context, fold, reference.kind)
        fits |= group_fits
        group_table, rules = write(group_part, dataset.images, devices, wrong=_wrong(group_part, truth))
        made = replace(made, groups=group_table, skill=pl.concat([made.skill, judged.skill]))
        part = _follow(part, group_part, groups, fits)
    if not fits:
        raise UsageError(
            f"--calibrate {reference.kind}: nothing can be fitted on it: of no finding that was judged here does it "
            "hold presences and absences. Give other expert labels, or audit without --calibrate"
        )
    table, finding_rules = write(part, dataset.images, devices, wrong=_wrong(part, truth))
    used = truth.with_columns(fold=pl.Series(fold[truth["row"].to_numpy()], dtype=pl.Int32))
    used = used.filter(pl.col("finding").is_in(list(fits)))
    return replace(
        made,
        table=table,
        calibration=used.select("image_id", "finding", "present", "fold"),
        findings=fits,
        rules=[*finding_rules, *rules],
    )


def _grouped(part: Part, groups: Sequence[Group], dataset: Dataset, heard: _Heard) -> tuple[Part, Signal]:
    """Let the judges speak of groups as of findings."""
    record = with_groups(part.record, groups, heard.group_judgments)
    panel = None if heard.panel is None else heard.panel.of_groups(part.record, groups)
    return _judged(record, panel, dataset)


def _known_truth(dataset: Dataset, reference: Reference) -> pl.DataFrame:
    """Keep the reference's pairs whose film is in the dataset, with the film's row."""
    rows = dataset.images.select("image_id", "patient_id").with_row_index("row")
    truth = reference.truth.join(rows, on="image_id", how="inner", maintain_order="left")
    readers = truth.select(pl.coalesce("patient_id", "image_id")).n_unique()
    if readers < FEWEST_PATIENTS:
        raise UsageError(
            f"--calibrate {reference.kind}: {readers} of its patients are in this dataset, and cross-fitting by "
            f"patient needs {FEWEST_PATIENTS}. Give more expert labels, or audit without --calibrate"
        )
    return truth


def _context(pairs: Pairs, dataset: Dataset, evidence: Evidence | None) -> calibrate.Context:
    """Gather what the designs may use."""
    said = np.nan_to_num(pairs.states)
    views = dataset.images["view"].drop_nulls().value_counts().sort(["count", "view"], descending=[True, False])
    rarer = views["view"].to_list()[1:2]
    view = dataset.images["view"].is_in(rarer).fill_null(value=False).to_numpy().astype(float)
    return calibrate.Context(
        no_finding=(said.sum(axis=1) == 0).astype(float)[:, None],
        view=view[:, None],
        logits=logit(np.nan_to_num(pairs.p_present, nan=0.5)),
        states=said,
        evidence=np.zeros((len(said), 0)) if evidence is None else evidence.astype(float),
    )


def _fit_part(
    part: Part, truth: pl.DataFrame, context: calibrate.Context, fold: npt.NDArray[np.int64], kind: str
) -> tuple[Part, dict[str, dict[str, Any]]]:
    """Calibrate each finding that the truth speaks of."""
    p_present, spread = part.p_present.copy(), part.spread.copy()
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    notes, fits = dict(part.notes), {}
    for column, finding in enumerate(part.pairs.findings):
        its = truth.filter(pl.col("finding") == finding)
        rows = its["row"].to_numpy().astype(np.int64)
        answered = ~np.isnan(part.pairs.p_present[rows, column])
        its, rows = its.filter(answered), rows[answered]
        if its.is_empty() or its["present"].n_unique() < 2:
            continue
        done = calibrate.calibrate(
            part.pairs,
            finding,
            context,
            calibrate.Reviewed(rows=rows, present=its["present"].to_numpy(), fold=fold[rows]),
        )
        p_present[:, column], spread[:, column] = done.p_present, done.spread
        fitted[:, column], reviewed[rows, column] = ~np.isnan(done.p_present), True
        notes[finding] = f"calibrated: fitted on {done.n} expert labels of {finding} ({kind})"
        fits[finding] = {"n": done.n, "errors": done.errors, "design": done.design, "penalty": done.penalty}
    return replace(part, p_present=p_present, spread=spread, fitted=fitted, reviewed=reviewed, notes=notes), fits


def _follow(part: Part, groups: Part, named: Sequence[Group], fits: Mapping[str, Any]) -> Part:
    """Give the members of a calibrated group their parts of its probability."""
    p_present, spread, notes = part.p_present.copy(), part.spread.copy(), dict(part.notes)
    fitted, reviewed = part.fitted.copy(), part.reviewed.copy()
    for column, group in enumerate(named):
        if group.name not in fits:
            continue
        members = [part.pairs.column(name) for name in group.members]
        shares = _shares(part.pairs.p_present[:, members], part.pairs.states[:, members] == 1)
        for share, place, member in zip(shares.T, members, group.members, strict=True):
            if member in fits:
                continue
            # Where the group has no answer the member keeps its own, and where it has none itself it gets none.
            its = groups.fitted[:, column] & ~np.isnan(part.pairs.p_present[:, place])
            p_present[its, place] = (share * groups.p_present[:, column])[its]
            spread[its, place] = groups.spread[its, column]
            fitted[:, place] |= its
            reviewed[:, place] |= groups.reviewed[:, column] & its
            labels = f"{fits[group.name]['n']} expert labels"
            notes[member] = f"group: follows from {group.name}, which was fitted on {labels}"
    return replace(part, p_present=p_present, spread=spread, fitted=fitted, reviewed=reviewed, notes=notes)


def _shares(p_present: Matrix, claimed: npt.NDArray[np.bool_]) -> Matrix:
    """Divide a group among its members as the judges divide it; a claimed member shares with the claimed ones only.

    The experts said whether the group is there, not which member: in that, the dataset's word is taken.
    """
    known = np.nan_to_num(p_present)
    rivals = np.where(claimed, known, 0.0).sum(axis=1, keepdims=True)
    total = np.where(claimed, rivals, known.sum(axis=1, keepdims=True))
    return np.asarray(known / np.maximum(total, 1e-12))


def _wrong(part: Part, truth: pl.DataFrame) -> Wrong:
    """List, for each calibrated finding, one reviewed film a patient and whether its claim is wrong."""
    listed = {}
    for column, finding in enumerate(part.pairs.findings):
        its = truth.filter(pl.col("finding") == finding)
        if finding not in part.notes or its.is_empty():
            continue
        said = part.pairs.states[its["row"].to_numpy(), column]
        its = its.with_columns(said=pl.Series(said)).filter(pl.col("said").is_in([0.0, 1.0]))
        shuffled = its[np.random.default_rng(1).permutation(its.height)]
        once = shuffled.with_columns(patient=pl.coalesce("patient_id", "image_id"))
        once = once.unique(["patient", "said"], keep="first", maintain_order=True).sort("row")
        listed[finding] = (once["row"].to_numpy().astype(np.int64), (once["said"] != once["present"]).to_numpy())
    return listed
