"""What experts said, read from disk for an audit: adjudicated labels, single reads, and a random sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from bpals.errors import UsageError
from bpals.findings import Group, Vocabulary
from bpals.plural import several
from bpals.score import references
from bpals.score.manyreads import load_many
from bpals.types import Dataset, Notice, Reference, Reviews

_PAIR = ["image_id", "finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Labels to calibrate on, single reads, labels of a random sample, and what was noticed in reading them."""

    reference: Reference | None
    reviews: Reviews | None
    random_sample: Reference | None
    notices: tuple[Notice, ...]

    @property
    def given(self) -> bool:
        """Whether any expert was heard."""
        return self.reference is not None or self.reviews is not None

    def groups_within(self, vocabulary: Vocabulary) -> list[Group]:
        """Name the groups that they speak of and all of whose members a dataset audits."""
        said = [] if self.reference is None else self.reference.groups_within(vocabulary)
        read = [] if self.reviews is None else self.reviews.groups_within(vocabulary)
        return [*said, *(group for group in read if group not in said)]

    def unshifted(self, shifted: Collection[str]) -> list[Notice]:
        """Say of which findings the random sample moved nothing: only what was fitted can be shifted."""
        if self.random_sample is None:
            return []
        notices = []
        sides = self.random_sample.truth.group_by("finding", maintain_order=True).agg(
            pl.len(), pl.col("present").mean()
        )
        for finding, pairs, share in sides.iter_rows():
            if finding in shifted:
                continue
            all_alike = {0.0: "absent", 1.0: "present"}.get(share)
            labels = several(pairs, "label is", "labels are all")
            why = f"its {labels} {all_alike}" if all_alike else "nothing was fitted for it"
            message = f"--refit: {finding} was not shifted: {why}"
            notices.append(Notice(code="unshifted", count=pairs, message=message))
        return notices


def load_experts(use: Mapping[str, Any], dataset: Dataset, own: Reviews | None = None) -> Experts:
    """Read what the values of an audit name, and add `own` reads; what is about films that are not here is counted."""
    notices: list[Notice] = []
    reference = _labels(use, "calibrate", dataset, notices)
    reviews = None
    if use["reviews"] is not None:
        read = load_many(use["reviews"], vocabulary=dataset.vocabulary, split=use["reviews_split"])
        reviews = references.of_films(read, dataset.images)
        notices += reviews.notices
    if own is not None:
        here = _of_films(own, dataset)
        notices += here.notices
        reviews = _together(reviews, here)
    if use["refit"] is not None and reference is None and reviews is None:
        raise UsageError(
            f"--refit {use['refit']} only shifts what was fitted, and nothing was. Type: bpals audit --calibrate "
            f"KIND=PATH --refit {use['refit']}"
        )
    sample = _labels(use, "refit", dataset, notices)
    notices += _taught_before(sample, reference, reviews)
    return Experts(reference=reference, reviews=reviews, random_sample=sample, notices=tuple(notices))


def _of_films(own: Reviews, dataset: Dataset) -> Reviews:
    """Keep the workspace's own reads of films that are here; all of them may be of another dataset."""
    here = own.table.join(dataset.images.select("image_id"), on="image_id", how="semi", maintain_order="left")
    if here.height == own.table.height:
        return own
    strange = references.unknown_films(", ".join(own.inputs), own.table, dataset.images)
    return replace(own, table=here, notices=(*own.notices, *strange))


def _together(given: Reviews | None, own: Reviews) -> Reviews | None:
    """Put the reads of a file before those of the workspace; what is in both counts once."""
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


def _taught_before(sample: Reference | None, reference: Reference | None, reviews: Reviews | None) -> list[Notice]:
    """Count the films of the random sample that also teach: they would count twice."""
    if sample is None:
        return []
    films = set(sample.truth["image_id"])
    taught = set() if reference is None else set(reference.truth["image_id"])
    taught |= set() if reviews is None else set(reviews.table["image_id"])
    if not (both := len(films & taught)):
        return []
    message = (
        f"--refit: of its {several(len(films), 'film')} {several(both, 'is', 'are')} also among those that the trust "
        "is fitted on. Such a film counts twice, and films that were chosen to be fitted on are seldom a random "
        "sample: draw others"
    )
    return [Notice(code="refit_overlap", count=both, message=message)]


def _labels(use: Mapping[str, Any], option: str, dataset: Dataset, notices: list[Notice]) -> Reference | None:
    """Read the expert labels of one option."""
    if use[option] is None:
        return None
    typed = f"--{option}"
    kind = references.parse(use[option], typed)[0]
    if kind == "boxes":
        raise UsageError(
            f"{typed} boxes: they are presences only, and nothing can be fitted without absences. "
            f"Type: bpals audit {typed} four-findings=PATH"
        )
    labels = references.load(use[option], vocabulary=dataset.vocabulary, split=use[f"{option}_split"], option=typed)
    notices += [*labels.notices, *references.unknown_films(kind, labels.truth, dataset.images)]
    return labels
