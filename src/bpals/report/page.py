"""The page: an audit as one HTML file that a person wants to read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from bpals.report.cases import Case, Cases, cases
from bpals.report.films import odd_films
from bpals.report.judges import devices, judges
from bpals.report.layout import fill
from bpals.report.provenance import provenance
from bpals.report.scorecard import scorecard_context
from bpals.report.subgroups import DIMENSIONS, subgroups
from bpals.report.tally import Tally, reasons, tally
from bpals.report.wording import spoken
from bpals.types import Dataset

SHOWN_AS_DOTS = 0.015
"""A trust below this would be a hundred empty dots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the report shows."""

    dataset: Dataset
    signal: pl.DataFrame
    groups: pl.DataFrame | None
    """The rows of `groups.parquet`, where the audit was calibrated on a reference that speaks of groups."""
    run: Mapping[str, Any]
    scores: Sequence[Mapping[str, Any]] = ()
    """Rows of the scorecard; the report has a section for them where there are any."""
    reliability: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the dataset's record lets a judge see of its patients."""

    patients: int | None
    """None where the dataset names no patient."""
    single: int
    """Patients with one film."""
    most: int
    """Films of the patient who has most."""
    median: float
    nameless: int
    """Films without a patient, in a dataset that names patients."""
    ordered: bool
    """False where the films of a patient have no order."""
    studies: bool
    """True where studies of several films are named."""


def render(page: Page) -> str:
    """Write the report."""
    dataset, signal = page.dataset, page.signal
    counted = tally(signal, dataset.vocabulary.findings, len(dataset.images))
    shown = cases(dataset.images, signal, dataset.vocabulary.findings)
    found = subgroups(dataset.images, signal)
    origin = provenance(page.run, dataset)
    return fill(
        "report.html",
        dataset=dataset,
        short=dataset.title.partition(" (")[0],
        version=origin.version,
        tally=counted,
        record=_record(dataset.images),
        subgroups=found,
        missing=[name for key, name in DIMENSIONS.items() if key not in {s.key for s in found}],
        cases=shown,
        example=_example(shown),
        reasons={says: reasons(signal, says) for says in ("present", "absent")},
        devices=devices(signal),
        odd_films=odd_films(signal),
        judges=judges(origin.judges),
        calibration=page.run.get("calibration"),
        reviews=page.run.get("reviews"),
        refit=page.run.get("refit"),
        uncertified=_uncertified(page.run, counted),
        groups=_groups(page.groups),
        origin=origin,
        **scorecard_context(page.scores, page.reliability),
    )


def _record(images: pl.DataFrame) -> Record:
    named = images.filter(pl.col("patient_id").is_not_null())
    films: list[int] = named.group_by("patient_id").len("films")["films"].to_list()
    return Record(
        patients=len(films) or None,
        single=films.count(1),
        most=max(films, default=0),
        median=statistics.median(films) if films else 0,
        nameless=len(images) - len(named),
        ordered=named["follow_up"].null_count() < len(named),
        studies=bool(named["study_id"].drop_nulls().is_duplicated().any()),
    )


def _example(shown: Cases) -> Case | None:
    """Choose the claim that explains a trust: with a timeline that tells a story and a trust that dots can show."""
    listed = [*shown.present, *shown.absent, *(case for f in shown.findings for case in (*f.present, *f.absent))]
    told = (case for case in listed if case.strip and len(case.strip.films) > 4)
    return next((case for case in told if SHOWN_AS_DOTS < case.trust < 0.5), next(iter(listed), None))


def _uncertified(run: Mapping[str, Any], counted: Tally) -> dict[str, Any] | None:
    """Say why no claim of a fitted audit is called likely mislabelled, and what it would take; None where some is."""
    sides = {"presences": counted.present, "absences": counted.absent}
    none = [name for name, side in sides.items() if side.claims and not side.flags["likely_mislabelled"]]
    if not run.get("calibration") or not none:
        return None
    short = {"presences": "present", "absences": "absent"}
    asked = [
        each
        for each in run.get("certificates") or ()
        if each["promise"] == "precision" and each["cut"] is None and each["says"] in [short[name] for name in none]
    ]
    nearest = min((each for each in asked if each["more"]), key=lambda each: int(each["more"]), default=None)
    takes = "a judge that tells more, not more reviews alone"
    if nearest is not None:
        takes = f"about {nearest['more']:,} more reviewed claims of {spoken(nearest['finding'])} {nearest['says']}"
    return {"says": none, "takes": takes}


def _groups(groups: pl.DataFrame | None) -> Tally | None:
    if groups is None or groups.is_empty():
        return None
    names = groups["finding"].cast(pl.String).unique(maintain_order=True).to_list()
    return tally(groups, names, groups["image_id"].n_unique())
