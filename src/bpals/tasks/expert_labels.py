"""What experts give an audit: labels to calibrate on, single reads, and labels of a random sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from bpals.errors import UsageError
from bpals.reviews import verdicts
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
    if use["refit"] is not None and reference is None and reviews is None:
        raise UsageError(
            f"--refit {use['refit']} only shifts what was fitted, and nothing was. Type: bpals audit --calibrate "
            f"KIND=PATH --refit {use['refit']}"
        )
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
