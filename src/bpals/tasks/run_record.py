"""The record of a run: what `run.json` says about what an audit read, decided and replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from bpals.errors import WorkspaceError
from bpals.numeric import PAIR
from bpals.signal.prior import SELDOM
from bpals.signal.trust import Signal
from bpals.store.files import commit, packages
from bpals.store.workspace import FinishedAudit, Workspace
from bpals.types import Dataset, Experts, Notice
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
    return [*run.get("history", []), {**made, **reads, **learned, **_findings_of(run)}]


def _findings_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Keep of an audit what the next report compares with; nothing of one before 0.6, whose flags meant less."""
    if "stated" not in run:
        return {}
    confirmed = {says: entry["confirmed"] for says, entry in run["stated"].items()}
    return {"prior": (run.get("prior") or {}).get("name"), "confirmed": confirmed}


def changed(home: Workspace, signal: pl.DataFrame) -> dict[str, Any] | None:
    """Count the labels that have another flag than in the audit that is about to be replaced, by finding and by flag.

    None where there is no audit to compare with: none at all, a damaged one, or one before 0.6, whose flags meant less.
    """
    run = _before(home)
    if "stated" not in run:
        return None
    try:
        before = FinishedAudit(path=home.path, run=run).table(SIGNAL, *PAIR, "flag")
    except WorkspaceError:
        return None
    now = signal.select(*PAIR, now=pl.col("flag").cast(pl.String))
    before = before.with_columns(pl.col("finding", "flag").cast(pl.String))
    # Two audits of one dataset have the same rows in the same order, and need no join.
    same = before.height == now.height and (before["image_id"] == now["image_id"]).all()
    same = same and (before["finding"] == now["finding"].cast(pl.String)).all()
    both = (
        before.with_columns(now["now"])
        if same
        else before.join(now.with_columns(pl.col("finding").cast(pl.String)), on=PAIR)
    )
    moved = both.filter(pl.col("flag") != pl.col("now"))
    counts = {name: dict(both.group_by(name).len().iter_rows()) for name in ("flag", "now")}
    rules = run.get("flags") or {}
    return {
        "labels": both.height,
        "flag": moved.height,
        "flags": {
            flag: [counts["flag"].get(flag, 0), counts["now"].get(flag, 0)]
            for flag in sorted(counts["flag"] | counts["now"])
        },
        "findings": {
            finding: {"flag": labels, "confirmed": _confirmed_share(rules, finding)}
            for finding, labels in sorted(moved.group_by("finding").len().iter_rows())
        },
    }


def _confirmed_share(rules: Mapping[str, Any], finding: str) -> float | None:
    """Give the share of a finding's presences that readers would confirm, as an audit stated it."""
    entry = rules.get(finding, {}).get("present", {}).get("confirmed")
    return None if entry is None else float(entry["share"])


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


def _before(home: Workspace) -> dict[str, Any]:
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
    """Write down what was read and decided; what was fitted on expert labels here is left to `describe_fit`."""
    head, dirty = commit()
    notices = [*dataset.notices, *experts.notices, *noticed]
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
        "prior": prior_entry(experts.prior, dataset),
        "calibration": None,
        "reviews": None,
        "refit": None,
        "verdicts": _verdicts(signal.table),
        "flags": _flag_rules(signal),
        "stated": _stated(signal, dataset),
        "certificates": _certificates(signal),
        "dependence": _dependence(signal),
        "notices": [asdict(notice) for notice in notices],
    }


FEW_PRESENCES = 30
"""A finding with fewer presences read is named: the trust of its presences rests on other findings."""


def prior_entry(found: Any, dataset: Dataset | None = None) -> dict[str, Any] | None:
    """Write down which expert calibration an audit started from (`signal.prior.ExpertCalibration`).

    With a dataset it also says where the calibration extrapolates there.
    """
    if found is None:
        return None
    subjects = {**found.findings.subjects, **found.of_groups.subjects}
    entry = {
        "name": found.name,
        "sha256": found.sha256,
        "labels": found.labels,
        "images": found.read_images,
        "truth": found.about["truth"],
        "terms": found.about["terms"],
        "commercial_use": found.about["commercial_use"],
        "citations": list(found.about["citations"]),
        "findings": {
            name: {
                "labels": fit.labels,
                "presences": fit.presences,
                "errors": fit.errors,
                "views": dict(fit.views),
            }
            for name, fit in subjects.items()
        },
    }
    return entry if dataset is None else entry | {"extrapolates": _extrapolates(found, dataset)}


def _extrapolates(found: Any, dataset: Dataset) -> dict[str, Any]:
    """Name the findings of which few presences were read, and for each view those that were seldom read on it."""
    subjects = found.findings.subjects
    views = sorted(dataset.images["view"].drop_nulls().unique().to_list())
    seldom = {
        view: [name for name, fit in subjects.items() if fit.views.get(view, 0) < SELDOM * max(fit.labels, 1)]
        for view in views
    }
    few = [name for name, fit in subjects.items() if fit.presences < FEW_PRESENCES]
    return {"views": {view: names for view, names in seldom.items() if names}, "few_presences": few}


def _verdicts(signal: pl.DataFrame) -> dict[str, int]:
    """Count the labels that people settled, by who did and by what came of it."""
    settled = signal.filter(pl.col("verdict").is_not_null())
    words = (("verdict_by", "readers"), ("verdict_by", "adjudicated"), ("flag", "confirmed"), ("flag", "rejected"))
    return {word: int((settled[column] == word).sum()) for column, word in words}


def _flag_rules(signal: Signal) -> dict[str, Any]:
    """Lay the flags' cuts out by finding and direction, with the share of labels that readers would confirm."""
    laid: dict[str, Any] = {}
    for rule in signal.rules:
        kept = ("basis", "trusted_from", "certified_from", "likely_below", "certified_below", "stated", "words")
        cuts = {name: rule[name] for name in kept}
        confirmed = _confirmed([cuts["stated"]])
        laid.setdefault(rule["finding"], {})[rule["says"]] = cuts | {"confirmed": confirmed}
    return laid


def _stated(signal: Signal, dataset: Dataset) -> dict[str, Any]:
    """Add up over findings what the trusts say of each flag; a group counts no label a second time."""
    whole: dict[str, Any] = {}
    for says in ("present", "absent"):
        rules = [
            rule["stated"]
            for rule in signal.rules
            if rule["says"] == says and rule["finding"] in dataset.vocabulary.findings
        ]
        flags = dict.fromkeys(flag for stated in rules for flag in stated)
        by_flag = {flag: _mean([stated[flag] for stated in rules if flag in stated]) for flag in flags}
        whole[says] = {"flags": by_flag, "confirmed": _confirmed(rules)}
    return whole


def _confirmed(rules: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Give the share of labels that readers would confirm by their trusts; None where nobody knows."""
    wrong = _mean([entry for stated in rules for entry in stated.values()])
    if wrong is None:
        return None
    ends = {"share": "wrong", "low": "high", "high": "low"}
    return {"labels": wrong["labels"]} | {name: round(1 - wrong[end], 4) for name, end in ends.items()}


def _mean(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Average shares of wrong labels over sets of labels, each by its size; the ends likewise, so rather too wide."""
    labels = sum(entry["labels"] for entry in entries)
    if not labels:
        return None
    shares = {
        name: round(sum(entry[name] * entry["labels"] for entry in entries) / labels, 4)
        for name in ("wrong", "low", "high")
    }
    return {"labels": labels} | shares


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
