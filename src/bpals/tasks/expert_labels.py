"""What experts give an audit (labels to calibrate on, single reads, labels of a random sample), and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from bpals.errors import UsageError
from bpals.reviews import verdicts
from bpals.signal.trust import Signal
from bpals.text import several
from bpals.types import Dataset, Experts, Notice, Reference, Reviews

_PAIR = ["image_id", "finding"]


def load_experts(use: Mapping[str, Any], dataset: Dataset, own: Reviews | None = None) -> Experts:
    """Read the files that the values of an audit name, and add `own` reads; rows about unknown images are counted."""
    notices: list[Notice] = []
    reference = _labels(use, "calibrate", dataset, notices)
    reviews = None
    if use["reviews"] is not None:
        read = verdicts.load_many(use["reviews"], vocabulary=dataset.vocabulary, split=use["reviews_split"])
        reviews = verdicts.keep_known_images(read, dataset.images)
        notices += reviews.notices
    if own is not None:
        known = _of_dataset(own, dataset)
        notices += known.notices
        reviews = _joined(reviews, known)
    sample = _labels(use, "refit", dataset, notices)
    notices += _used_twice(sample, reference, reviews)
    return Experts(reference=reference, reviews=reviews, random_sample=sample, notices=tuple(notices))


def _of_dataset(own: Reviews, dataset: Dataset) -> Reviews:
    """Keep the workspace's own reads of this dataset's images; all of them may be of another dataset."""
    here = own.table.join(dataset.images.select("image_id"), on="image_id", how="semi", maintain_order="left")
    if here.height == own.table.height:
        return own
    strange = verdicts.unknown_films(", ".join(own.inputs), own.table, dataset.images)
    return replace(own, table=here, notices=(*own.notices, *strange))


def _joined(given: Reviews | None, own: Reviews) -> Reviews | None:
    """Put the reads of a file before those of the workspace; a read that is in both counts once."""
    if given is None or own.table.is_empty():
        return given if own.table.is_empty() else own
    others = given.table.join(own.table, on=[*_PAIR, "reader"], how="anti", maintain_order="left")
    settled = given.settled.join(own.settled, on=_PAIR, how="anti", maintain_order="left")
    return Reviews(
        table=pl.concat([others, own.table]),
        groups=tuple(dict.fromkeys([*given.groups, *own.groups])),
        inputs={**given.inputs, **own.inputs},
        settled=pl.concat([settled, own.settled]),
    )


def _used_twice(sample: Reference | None, reference: Reference | None, reviews: Reviews | None) -> list[Notice]:
    """Count the images of the random sample on which the trust is fitted too."""
    if sample is None:
        return []
    images = set(sample.truth["image_id"])
    fitted = set() if reference is None else set(reference.truth["image_id"])
    fitted |= set() if reviews is None else set(reviews.table["image_id"])
    if not (both := len(images & fitted)):
        return []
    message = (
        f"--refit: the trust is also fitted on {both:,} of its {several(len(images), 'image')}. Such an image counts "
        "twice, and images that were chosen for a fit are seldom a random sample. Draw others"
    )
    return [Notice(code="refit_overlap", count=both, message=message)]


def _labels(use: Mapping[str, Any], option: str, dataset: Dataset, notices: list[Notice]) -> Reference | None:
    """Read the expert labels of one option."""
    if use[option] is None:
        return None
    typed = f"--{option}"
    kind = verdicts.parse(use[option], typed)[0]
    if kind == "boxes":
        raise UsageError(
            f"{typed} boxes: they are presences only, and nothing can be fitted without absences. "
            f"Type: bpals audit {typed} four-findings=PATH"
        )
    labels = verdicts.load(use[option], vocabulary=dataset.vocabulary, split=use[f"{option}_split"], option=typed)
    notices += [*labels.notices, *verdicts.unknown_films(kind, labels.truth, dataset.images)]
    return labels


def describe_fit(
    values: Mapping[str, Any], dataset: Dataset, signal: Signal, experts: Experts
) -> tuple[dict[str, Any], list[Notice]]:
    """Write down for `run.json` what was fitted on expert labels, and name what could not be."""
    calibration, reference = None, experts.reference
    fitted_on = reference or experts.reviews
    if fitted_on is not None and signal.calibration is not None and signal.findings:
        calibration = {
            "reference": "reviews" if reference is None else reference.kind,
            "split": values["reviews_split" if reference is None else "calibrate_split"]["value"],
            "pairs": signal.calibration.height,
            "images": signal.calibration["image_id"].n_unique(),
            "crossfit": "by patient",
            "findings": {name: dict(fit) for name, fit in signal.findings.items()},
            "members": _members(dataset, experts, signal),
            "inputs": dict(fitted_on.inputs),
            "method": "partly pooled logistic regression, and richer ones weighed by patients that they have not seen",
        }
    entries = {
        "calibration": calibration,
        "reviews": _reviews_entry(experts.reviews, values["reviews_split"]["value"], signal),
        "refit": _refit_entry(experts.random_sample, values["refit_split"]["value"], signal),
    }
    return entries, [*_unfitted(reference, signal), *_unshifted(experts.random_sample, signal), *_unlearnt(signal)]


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
    """Say for which findings the expert labels could fit nothing, because no judge answered."""
    if reference is None:
        return []
    notices = []
    for finding, pairs in reference.truth.group_by("finding", maintain_order=True).len().iter_rows():
        if finding not in signal.findings:
            labels = several(pairs, "expert label")
            message = (
                f"{reference.kind}: nothing was fitted for {finding}: none of its {labels} has an answer of a judge"
            )
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


def _unlearnt(signal: Signal) -> list[Notice]:
    """Say that the single reads were too few to learn where readers split."""
    told = signal.hardness
    if not told or told.get("findings"):
        return []
    return [Notice(code="too_few_reads", count=told["pairs"], message=f"--reviews: {told['words']}")]
