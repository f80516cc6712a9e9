"""`bpals judge compare`: two judges of a workspace compared, in one call.

found = compare("qwen", "chexnet", workspace="audit", reference="four-findings=expert")
found.judges        their cards, their questions by outcome, their cost
found.quality       each against the labels and against experts, with paired differences
found.dependence    how often they call alike, and how often they err together
found.behaviour     yes-rate, polarity, reliance on the image
found.films         every image that both judged, the one on which they differ most first
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from bpals.errors import TruthError, UsageError
from bpals.findings import Group
from bpals.report.comparison_page import render_comparison
from bpals.score import pairwise
from bpals.score.intervals import Resamples, Resampling
from bpals.score.pairwise import Pairs, Row, behaviour, dependence, join, quality
from bpals.store.files import commit
from bpals.store.workspace import Workspace
from bpals.tasks.image_access import thumbnails
from bpals.tasks.judge_card import JudgeRecord, Labels, experts_of, judge_of, labels_of
from bpals.tasks.score import reference_names
from bpals.text import several
from bpals.types import Notice, Reference
from bpals.version import VERSION

Progress = Callable[[str, float], None]
"""Called with the present step and the share of the comparison that is done."""

LABELS = "labels"
"""The yardstick that every dataset has; against it a figure means agreement, not quality."""
SHOWN = 12
"""Images shown on the page, and patients listed."""
SIDE_PX = 320
"""Of an image on the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where two judges differ, and who was right."""

    a: str
    b: str
    judges: list[Row]
    """One row per judge: its card, its questions by outcome, its cost and its drift, null where unknown."""
    common: Row
    """The images, patients and pairs that both were asked about, and the pairs that both answered."""
    quality: list[Row]
    """One row per yardstick and finding, and their mean."""
    dependence: list[Row]
    """The same; `effective_judges` is null where `no_signal` names a judge, `a` or `b`."""
    behaviour: list[Row]
    """One row per judge and finding, and their mean."""
    gaps: Mapping[str, float]
    """The mean gap between the ranks that the two give an image, finding by finding."""
    films: pl.DataFrame
    """Every image that both judged, with the finding on which their ranks differ most, the widest gap first."""
    patients: pl.DataFrame
    """The patients on whom they differ most."""
    notes: list[Notice] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Write it out for a program, with the first images only."""
        tables = ("a", "b", "judges", "common", "quality", "dependence", "behaviour", "gaps", "meta")
        return {
            **{name: getattr(self, name) for name in tables},
            "films": self.films.head(SHOWN).to_dicts(),
            "patients": self.patients.to_dicts(),
            "notes": [note.message for note in self.notes],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgesOnImages:
    """Two judges on the same images, with every yardstick."""

    judges: tuple[JudgeRecord, JudgeRecord]
    labels: Labels
    references: Mapping[str, Reference]
    films: pl.DataFrame
    pairs: Mapping[str, list[Pairs]]
    """Yardstick -> the pairs of each finding that it knows; the labels come first."""

    @property
    def notes(self) -> list[Notice]:
        """What was left out, counted."""
        known = self.labels.images.select("image_id")
        found = []
        for judge in self.judges:
            strange = judge.answers.join(known, on="image_id", how="anti")["image_id"].n_unique()
            images = several(strange, "image")
            words = f"{judge.name} was asked about {images} that the dataset does not have: left out"
            found += [Notice(code="foreign_films", count=strange, message=words)] if strange else []
        return found + [note for reference in self.references.values() for note in reference.notices]

    @property
    def common(self) -> Row:
        """Count what both were asked about, and what both answered."""
        asked = [pairs.table for pairs in self.pairs[LABELS]]
        films = pl.concat([table.select("image_id", "patient") for table in asked]).unique()
        return {
            "films": films.height,
            "patients": films["patient"].n_unique(),
            "pairs": sum(table.height for table in asked),
            "answered": sum(pairs.answered.height for pairs in self.pairs[LABELS]),
        }

    def behaviour(self, resampling: Resampling, resamples: Resamples) -> list[Row]:
        """Say how each judge answers, whatever the truth."""
        draw = np.random.default_rng([resampling.seed, 1])
        findings = self.labels.vocabulary.findings
        return [row for judge in self.judges for row in behaviour(judge.side, findings, self.films, resamples, draw)]

    def named(self, table: pl.DataFrame) -> pl.DataFrame:
        """Call patients by their names again."""
        names = self.films.select("patient", "name").unique()
        return table.join(names, on="patient", maintain_order="left").drop("patient").rename({"name": "patient"})

    def verdicts(self, films: pl.DataFrame) -> pl.DataFrame:
        """Add what the experts say of the finding that is shown, null where they did not read it."""
        read = [
            reference.truth.select("image_id", "finding", experts="present") for reference in self.references.values()
        ]
        if not read:
            return films.with_columns(experts=pl.lit(None, pl.Boolean))
        first = pl.concat(read).unique(["image_id", "finding"], keep="first")
        return films.join(first, on=["image_id", "finding"], how="left", maintain_order="left")


def compare(
    a: str,
    b: str,
    *,
    workspace: str | os.PathLike[str] = "audit",
    reference: str | Sequence[str] = (),
    split: str = "all",
    resampling: Resampling | None = None,
    progress: Progress = lambda _what, _share: None,
) -> Comparison:
    """Compare two finished judges on the pairs that both were asked; `record` is the metadata judge of the audit."""
    if a == b:
        raise UsageError(f"{a} beside itself shows nothing. Name two judges: bpals judge compare {a} OTHER")
    drawn = resampling or Resampling()
    specs = [reference] if isinstance(reference, str) else list(reference)
    progress("reading the judges", 0.0)
    beside = _lay(Workspace(workspace), (a, b), specs, split)
    progress("who is right", 0.2)
    right = [row for name, pairs in beside.pairs.items() for row in quality(pairs, name)]
    progress("who is wrong together", 0.5)
    resamples = Resamples.of(np.arange(beside.films["patient"].n_unique()), drawn)
    together = [row for name, pairs in beside.pairs.items() for row in dependence(pairs, name, resamples)]
    progress("how each answers", 0.6)
    ways = beside.behaviour(drawn, resamples)
    progress("where they differ", 0.9)
    apart = pairwise.gaps(beside.pairs[LABELS])
    return Comparison(
        a=a,
        b=b,
        judges=[judge.row for judge in beside.judges],
        common=beside.common,
        quality=right,
        dependence=pairwise.only_with_signal(together, right),
        behaviour=ways,
        gaps=pairwise.by_finding(apart),
        films=beside.verdicts(beside.named(pairwise.by_film(apart))),
        patients=beside.named(pairwise.by_patient(apart, SHOWN)),
        notes=beside.notes,
        meta=_meta(os.fspath(workspace), beside, specs, split, drawn),
    )


def comparison_page(
    found: Comparison, *, workspace: str | os.PathLike[str] = "audit", images: str | os.PathLike[str] | None = None
) -> str:
    """Write the comparison as one HTML page, with the images at hand on which the two differ most."""
    widest = found.films.with_row_index("place", offset=1)
    image_ids = widest["image_id"].to_list()
    here = thumbnails(Workspace(workspace), image_ids, side_px=SIDE_PX, images=images, most=SHOWN)
    chosen = widest.filter(pl.col("image_id").is_in(list(here))) if here else widest.head(SHOWN)
    shown = [{**film, "picture": here.get(film["image_id"])} for film in chosen.to_dicts()]
    return render_comparison({**found.as_dict(), "films": shown})


def _lay(home: Workspace, names: tuple[str, str], specs: Sequence[str], split: str) -> _JudgesOnImages:
    """Lay two judges side by side on the pairs that both were asked."""
    judges = judge_of(home, names[0]), judge_of(home, names[1])
    labels = labels_of(home)
    loaded = dict(zip(reference_names(specs), [experts_of(spec, labels, split) for spec in specs], strict=True))
    films = labels.films_of(judges)
    if films.is_empty():
        first = judges[0].answers["image_id"].head(1).to_list()
        raise UsageError(
            f"none of the images that {' and '.join(names)} judged (first: {', '.join(first) or 'none'}) is in "
            f"{labels.title}. Name the workspace of their dataset with --workspace DIR"
        )
    a, b = (judge.side for judge in judges)
    yardsticks = {LABELS: _claimed(labels, films)} | {name: _read(each, films) for name, each in loaded.items()}
    pairs = {name: [join(group, a, b, truth) for group, truth in its] for name, its in yardsticks.items()}
    for name, its in pairs.items():
        if any(each.table.height for each in its):
            continue
        if name == LABELS:
            raise UsageError(
                f"{a.name} and {b.name} have no pair in common: they were asked about other images or findings. "
                f"Ask both about the same: bpals judge run SPEC --name {b.name}"
            )
        read = loaded[name].truth["image_id"]
        raise TruthError(
            f"of {several(read.n_unique(), 'image')} of {name} none was judged by both {a.name} and {b.name} "
            f"(first: {read[0]}). Name a reference on their images, or leave --reference out"
        )
    return _JudgesOnImages(judges=judges, labels=labels, references=loaded, films=films, pairs=pairs)


def _claimed(labels: Labels, films: pl.DataFrame) -> list[tuple[Group, pl.DataFrame]]:
    """Give the labels of each image, finding by finding; null where there is none or it is uncertain."""
    truth = {"present": True, "absent": False, "uncertain": None}
    known = labels.claims.with_columns(
        truth=pl.col("says").cast(pl.String).replace_strict(truth, return_dtype=pl.Boolean)
    )
    parts = known.partition_by("finding", as_dict=True)
    where = films.select("image_id", "patient")
    return [
        (
            Group(name=finding, members=(finding,)),
            where.join(parts[(finding,)].select("image_id", "truth"), on="image_id", how="left", maintain_order="left")
            if (finding,) in parts
            else where.with_columns(truth=pl.lit(None, pl.Boolean)),
        )
        for finding in labels.vocabulary.findings
    ]


def _read(reference: Reference, films: pl.DataFrame) -> list[tuple[Group, pl.DataFrame]]:
    """Give the experts' truth, finding by finding or group by group."""
    groups = {group.name: group for group in reference.groups}
    truth = reference.truth.join(films, on="image_id", how="inner", maintain_order="left")
    return [
        (
            groups.get(finding, Group(name=finding, members=(finding,))),
            truth.filter(pl.col("finding") == finding).select("image_id", "patient", truth="present"),
        )
        for finding in reference.truth["finding"].unique(maintain_order=True)
    ]


def _meta(
    workspace: str, beside: _JudgesOnImages, specs: Sequence[str], split: str, resampling: Resampling
) -> dict[str, Any]:
    """Say how it was made, so that it can be made again."""
    words = ["bpals", "judge", "compare", *(judge.name for judge in beside.judges), "--workspace", workspace]
    words += [word for spec in specs for word in ("--reference", spec)] + (["--split", split] if specs else [])
    words += ["--bootstrap", str(resampling.draws), "--seed", str(resampling.seed)]
    head, dirty = commit()
    return {
        "bpals": VERSION,
        "commit": head,
        "dirty": dirty,
        "command": shlex.join(words),
        "dataset": beside.labels.title,
        "references": list(specs),
        "split": split,
        "bootstrap": resampling.draws,
        "seed": resampling.seed,
        "inputs": {
            name: sha256 for reference in beside.references.values() for name, sha256 in reference.inputs.items()
        },
    }
