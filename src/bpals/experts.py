"""What experts said, read from disk for an audit: adjudicated labels, single reads, and a random sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bpals.errors import UsageError
from bpals.findings import Group, Vocabulary
from bpals.score import references
from bpals.types import Dataset, Notice, Reference, Reviews


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


def load_experts(use: Mapping[str, Any], dataset: Dataset) -> Experts:
    """Read what the values of an audit name; what experts say of films that are not here is counted."""
    notices: list[Notice] = []
    reference = _labels(use, "calibrate", dataset, notices)
    reviews = None
    if use["reviews"] is not None:
        read = references.load_reads(use["reviews"], vocabulary=dataset.vocabulary, split=use["reviews_split"])
        reviews = references.of_films(read, dataset.images)
        notices += reviews.notices
    if use["refit"] is not None and reference is None and reviews is None:
        raise UsageError(
            f"--refit {use['refit']} only shifts what was fitted, and nothing was. Type: bpals audit --calibrate "
            f"KIND=PATH --refit {use['refit']}"
        )
    sample = _labels(use, "refit", dataset, notices)
    return Experts(reference=reference, reviews=reviews, random_sample=sample, notices=tuple(notices))


def _labels(use: Mapping[str, Any], option: str, dataset: Dataset, notices: list[Notice]) -> Reference | None:
    """Read the expert labels of one option."""
    if use[option] is None:
        return None
    kind = references.parse(use[option])[0]
    if kind == "boxes":
        raise UsageError(
            f"--{option} boxes: they are presences only, and nothing can be fitted without absences. "
            f"Type: bpals audit --{option} four-findings=PATH"
        )
    labels = references.load(use[option], vocabulary=dataset.vocabulary, split=use[f"{option}_split"])
    notices += [*labels.notices, *references.unknown_films(kind, labels.truth, dataset.images)]
    return labels
