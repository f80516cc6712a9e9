"""The record of a run: what `run.json` says about what an audit read, decided and replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from bpals.errors import WorkspaceError
from bpals.signal.trust import Signal
from bpals.store.files import commit, packages
from bpals.store.workspace import Workspace
from bpals.text import several
from bpals.types import Dataset, Experts, Notice, Reference, Reviews
from bpals.version import VERSION

SIGNAL = "signal.parquet"
"""The table whose hash names a version of the signal."""


def history(home: Workspace) -> list[dict[str, Any]]:
    """Name every version of the signal that a workspace had, the one that is about to be replaced last."""
    run = _before(home)
    if SIGNAL not in run.get("files", {}):
        return []
    read = run.get("reviews") or {}
    reads = {"reads": read.get("reads", 0), "inputs": read.get("inputs", {})}
    learned = {"lesson": run["lesson"]} if "lesson" in run else {}
    made = {"version": run["files"][SIGNAL]["sha256"], "command": run["command"], "bpals": run["bpals"]}
    return [*run.get("history", []), {**made, **reads, **learned}]


def left_out(home: Workspace, use: Mapping[str, Any]) -> list[Notice]:
    """Name the expert files that the audit before this one used: dropping them by accident would go unnoticed."""
    values = _before(home).get("values", {})
    used = {name: values.get(name, {}).get("value") for name in ("calibrate", "reviews", "refit")}
    gone = [
        f"--{name} {each}"
        for name, value in used.items()
        if value is not None and use[name] is None
        for each in ([value] if isinstance(value, str) else value)
    ]
    if not gone:
        return []
    message = f"the audit before this one used experts, and this one does not. To use them again, add: {' '.join(gone)}"
    return [Notice(code="experts_left_out", count=len(gone), message=message)]


def _before(home: Workspace) -> Mapping[str, Any]:
    """Read the run record of the audit that is here; empty where there is none that can be read."""
    try:
        return home.run
    except WorkspaceError:
        return {}


def described(
    values: Mapping[str, Any],
    dataset: Dataset,
    signal: Signal,
    experts: Experts,
    noticed: Sequence[Notice],
) -> dict[str, Any]:
    """Write down what was read and decided."""
    head, dirty = commit()
    calibration, reference = None, experts.reference
    fitted_on = reference or experts.reviews
    if fitted_on is not None and signal.calibration is not None and signal.findings:
        calibration = {
            "reference": "reviews" if reference is None else reference.kind,
            "split": values["reviews_split" if reference is None else "calibrate_split"]["value"],
            "pairs": signal.calibration.height,
            "crossfit": "by patient",
            "findings": {name: dict(fit) for name, fit in signal.findings.items()},
            "members": _members(dataset, experts, signal),
            "inputs": dict(fitted_on.inputs),
            "method": "ridge logistic regression, design and penalty chosen by cross-validation over patients",
        }
    unfitted = [*_unfitted(reference, signal), *_unshifted(experts.random_sample, signal), *_unlearnt(signal)]
    notices = [*dataset.notices, *experts.notices, *unfitted, *noticed]
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
    """Name the findings that follow a fitted group: experts did not read them apart, so none is certified."""
    fitted = [group for group in experts.groups_within(dataset.vocabulary) if group.name in signal.findings]
    return {member: group.name for group in fitted for member in group.members if member not in signal.findings}


def _reviews_entry(reviews: Reviews | None, split: str, signal: Signal) -> dict[str, Any] | None:
    """Write down the single reads that were used, and what was fitted on them."""
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
    """Say for which findings the expert labels could fit nothing: all say the same, or no judge answered."""
    if reference is None:
        return [
            Notice(
                code="unfitted",
                count=errors,
                message=f"--reviews: nothing was learned about {finding}: of its reads {_too_few(errors)}",
            )
            for finding, errors in signal.untaught.items()
        ]
    notices = []
    sides = reference.truth.group_by("finding", maintain_order=True).agg(pl.len(), pl.col("present").mean())
    for finding, pairs, share in sides.iter_rows():
        if finding in signal.findings:
            continue
        why = {0.0: "none is present", 1.0: "none is absent"}.get(share, "none has an answer of a judge")
        if finding in signal.untaught:
            why = _too_few(signal.untaught[finding])
        message = f"{reference.kind}: nothing was fitted for {finding}: of its {several(pairs, 'expert label')} {why}"
        notices.append(Notice(code="unfitted", count=pairs, message=message))
    return notices


def _unshifted(sample: Reference | None, signal: Signal) -> list[Notice]:
    """Say which findings the random sample did not shift: only what was fitted can be shifted."""
    if sample is None:
        return []
    notices = []
    sides = sample.truth.group_by("finding", maintain_order=True).agg(pl.len(), pl.col("present").mean())
    for finding, pairs, share in sides.iter_rows():
        if finding in signal.shifts:
            continue
        all_alike = {0.0: "absent", 1.0: "present"}.get(share)
        labels = several(pairs, "label is", "labels are all")
        why = f"its {labels} {all_alike}" if all_alike else "nothing was fitted for it"
        notices.append(Notice(code="unshifted", count=pairs, message=f"--refit: {finding} was not shifted: {why}"))
    return notices


def _too_few(errors: int) -> str:
    # Here, because only expert labels need the fit: an audit without them does not load it.
    from bpals.signal.calibrate import ENOUGH_ERRORS

    where = "outside the fifth of the patients that has the most"
    return f"{several(errors, 'contradicts', 'contradict')} the dataset {where}, and {ENOUGH_ERRORS} are needed"


def _unlearnt(signal: Signal) -> list[Notice]:
    """Say that the single reads were too few to learn where readers split."""
    told = signal.hardness
    if not told or told.get("findings"):
        return []
    return [Notice(code="too_few_reads", count=told["pairs"], message=f"--reviews: {told['words']}")]


def _flag_rules(signal: Signal) -> dict[str, Any]:
    """Lay the flags' cuts out by finding and direction."""
    laid: dict[str, Any] = {}
    for rule in signal.rules:
        cuts = {name: rule[name] for name in ("likely_below", "low_below", "words")}
        laid.setdefault(rule["finding"], {})[rule["says"]] = cuts
    return laid


def _dependence(signal: Signal) -> dict[str, Any]:
    """Write down which judges are correlated, and how far they err together on what experts read."""
    groups = signal.judge_groups
    if groups is None or not groups.names:
        return {}
    return {
        "families": [sorted(name for its in group for name in groups.names[its.name]) for group in groups.members],
        "effective": round(groups.effective, 3),
        "errors": dict(signal.dependence),
    }


def _certificates(signal: Signal) -> list[dict[str, Any]]:
    """List what is promised of the flags, finding by finding and direction by direction."""
    return [
        {"finding": rule["finding"], "says": rule["says"], **certificate}
        for rule in signal.rules
        for certificate in rule.get("certificates", ())
    ]
