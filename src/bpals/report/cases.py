"""Cases: the most suspect labels, each with the timeline of its patient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from bpals.report.wording import picture_source, plural, spoken

WINDOW = 21
"""Images of a strip: more would be too narrow to tell apart on a phone."""

OVERALL = 6
PER_FINDING = 2
CANDIDATES = 200
"""Labels of a finding and direction among which cases of different patients are sought."""
MOST_FINDINGS = 40
"""Findings with cases of their own; the rest is in signal.parquet, and the page says so."""
MOST_PICTURES = 150
"""Images on a page: at 256 px they take about 2 MB. Those in question come first, then their neighbours."""

NOT_AT_HAND = "image not at hand"

ReadImages = Callable[[Sequence[str]], Mapping[str, bytes | str]]
"""Image ids -> each as a small PNG or JPEG, or a sentence that says why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One image of a case as the page shows it."""

    caption: str
    source: str
    """A data URI; empty where the image cannot be shown."""
    why: str
    """Why it cannot be shown."""
    in_question: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """One image of a strip."""

    says: str | None
    """None where the dataset is silent."""
    p_present: float | None
    order: int | None
    study: str | None = None
    """Images of one study share one report, and so one label."""
    image_id: str = ""

    @property
    def label(self) -> str:
        """The label in words."""
        return "no label" if self.says is None else f"labelled {self.says}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A patient's images in follow-up order, or as many as fit around the one in question."""

    films: tuple[Film, ...]
    at: int
    """The image in question."""
    earlier: int
    """Images that are not drawn, before and after."""
    later: int

    @property
    def total(self) -> int:
        """All images of the patient."""
        return self.earlier + len(self.films) + self.later

    @property
    def studies(self) -> list[tuple[int, int]]:
        """The first and last image of each study that has several images here."""
        runs, start = [], 0
        for _, run in itertools.groupby(self.films, key=lambda film: film.study):
            films = list(run)
            if len(films) > 1 and films[0].study is not None:
                runs.append((start, start + len(films) - 1))
            start += len(films)
        return runs

    @property
    def undrawn(self) -> list[str]:
        """Say how many images do not fit."""
        sides = ((self.earlier, "earlier image"), (self.later, "later image"))
        return [plural(films, name) for films, name in sides if films]

    @property
    def position(self) -> int:
        """The place of the image in question among all, from 1."""
        return self.earlier + self.at + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One label that is worth a look."""

    image_id: str
    finding: str
    says: str
    trust: float
    low: float | None
    high: float | None
    flag: str
    reasons: tuple[str, ...]
    patient: str | None
    facts: tuple[str, ...]
    """Sex, age and view, where stated."""
    beside: tuple[str, ...]
    """The other findings that are labelled present on this image."""
    strip: Strip | None
    """None where the dataset names no patient."""
    pictures: tuple[Picture, ...] = ()
    """The image in question between its neighbours of the strip; empty where the workspace knows no images."""

    @property
    def shown(self) -> bool:
        """Whether the image in question can be seen."""
        return any(picture.in_question and picture.source for picture in self.pictures)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCases:
    """The most suspect labels of one finding."""

    finding: str
    present: tuple[Case, ...]
    absent: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """The most suspect labels of all, at most one per finding and patient, and those of each finding."""

    present: tuple[Case, ...]
    absent: tuple[Case, ...]
    findings: tuple[FindingCases, ...]
    left_out: int
    """Findings without cases here because there are too many of them."""
    pictures: int = 0
    """Images of the dataset that can be seen here."""


def cases(
    images: pl.DataFrame,
    signal: pl.DataFrame,
    findings: Sequence[str],
    *,
    ranked: bool = False,
    read_images: ReadImages | None = None,
) -> Cases:
    """Choose the flagged labels with the lowest trust, and lay out their timelines.

    `ranked`: without expert knowledge none is flagged, and those with the lowest trust are shown. `read_images` reads
    the images of the chosen labels, where the workspace knows any.
    """
    # An image without a patient is a patient of its own, or all of them would count as one.
    patients = images.select("image_id", patient=pl.coalesce("patient_id", "image_id"))
    eligible = ("unverified", "hard") if ranked else ("likely_mislabelled", "suspect")
    doubted = signal.filter(pl.col("flag").is_in(list(eligible)), pl.col("trust").is_not_null())
    if ranked:
        # All labels are candidates: the few that can be shown are kept before the tables are joined.
        lowest = pl.col("trust").rank("ordinal").over("finding", "says") <= CANDIDATES
        doubted = doubted.filter(lowest)
    flagged = doubted.join(patients, on="image_id").sort("trust", "review_rank", "image_id", "finding")
    per_finding = flagged.unique(["finding", "says", "patient"], keep="first", maintain_order=True)
    per_finding = per_finding.group_by("finding", "says", maintain_order=True).head(PER_FINDING)
    # One odd patient, or one rare finding, would fill the list alone.
    overall = flagged.unique(["says", "finding"], keep="first", maintain_order=True)
    overall = overall.unique(["says", "patient"], keep="first", maintain_order=True)
    overall = overall.group_by("says", maintain_order=True).head(OVERALL)
    # Only the chosen patients are turned into Python objects: the NIH record has 1.5 million rows.
    tables = _CaseTables.of(images, signal, pl.concat([overall.select(per_finding.columns), per_finding]))
    if read_images is not None:
        tables = tables.with_pictures([*overall["image_id"], *per_finding["image_id"]], read_images)

    def pick(table: pl.DataFrame, says: str) -> tuple[Case, ...]:
        rows = table.filter(pl.col("says") == says).sort("trust", "review_rank", "image_id", "finding")
        return tuple(tables.case(row) for row in rows.iter_rows(named=True))

    with_cases = [f for f in findings if f in set(per_finding["finding"])]
    groups = []
    for finding in with_cases[:MOST_FINDINGS]:
        rows = per_finding.filter(pl.col("finding") == finding)
        groups.append(FindingCases(finding=finding, present=pick(rows, "present"), absent=pick(rows, "absent")))
    return Cases(
        present=pick(overall, "present"),
        absent=pick(overall, "absent"),
        findings=tuple(groups),
        left_out=len(with_cases) - len(groups),
        pictures=sum(isinstance(picture, bytes) for picture in (tables.pictures or {}).values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CaseTables:
    """The rows of images and signal that the chosen cases need, and no more."""

    films: Mapping[str, Mapping[str, Any]]
    """Image id -> its row."""
    timelines: Mapping[str, Sequence[str]]
    """Patient -> image ids in follow-up order."""
    claims: Mapping[str, Mapping[str, tuple[str, float | None]]]
    """Image id -> finding -> the label and P(present)."""
    pictures: Mapping[str, bytes | str] | None = None
    """Image id -> the image, or why it cannot be shown; None where the workspace knows no images."""

    @classmethod
    def of(cls, images: pl.DataFrame, signal: pl.DataFrame, chosen: pl.DataFrame) -> _CaseTables:
        """Take the patients of the chosen labels out of the tables."""
        patients = images.join(chosen.select("image_id"), on="image_id", how="semi")["patient_id"].drop_nulls().unique()
        ids = chosen["image_id"].unique()
        wanted = pl.col("patient_id").is_in(patients.implode()) | pl.col("image_id").is_in(ids.implode())
        # Where a dataset gives no order, names decide, so that two runs draw the same strip.
        films = images.filter(wanted).sort("follow_up", "study_id", "image_id", nulls_last=True)
        claims: dict[str, dict[str, tuple[str, float | None]]] = {}
        near = signal.join(films.select("image_id"), on="image_id", how="semi")
        for image_id, finding, says, p_present in near["image_id", "finding", "says", "p_present"].iter_rows():
            claims.setdefault(image_id, {})[finding] = (says, p_present)
        timelines: dict[str, list[str]] = {}
        for image_id, patient in films.filter(pl.col("patient_id").is_not_null())["image_id", "patient_id"].iter_rows():
            timelines.setdefault(patient, []).append(image_id)
        return cls(
            films={row["image_id"]: row for row in films.iter_rows(named=True)},
            timelines=timelines,
            claims=claims,
        )

    def with_pictures(self, chosen: Sequence[str], read_images: ReadImages) -> _CaseTables:
        """Read the chosen images and those beside them in their timelines, as many as a page may hold."""
        beside = [
            self.timelines[patient][at]
            for image_id in chosen
            if (patient := self.films[image_id]["patient_id"]) is not None
            for at in _beside(self.timelines[patient], image_id)
        ]
        return replace(self, pictures=read_images(list(dict.fromkeys([*chosen, *beside]))[:MOST_PICTURES]))

    def case(self, row: Mapping[str, Any]) -> Case:
        """Describe one label."""
        image_id, finding = str(row["image_id"]), str(row["finding"])
        film = self.films[image_id]
        patient = film["patient_id"]
        strip = None if patient is None else self._strip(str(patient), image_id, finding)
        return Case(
            image_id=image_id,
            finding=finding,
            says=str(row["says"]),
            trust=row["trust"],
            low=row["trust_low"],
            high=row["trust_high"],
            flag=str(row["flag"]),
            reasons=tuple(sentence(r) for r in row["reasons"] or ()),
            patient=None if patient is None else str(patient),
            facts=_facts(film),
            beside=self._beside(image_id, finding),
            strip=strip,
            pictures=() if self.pictures is None else tuple(self._pictures(image_id, strip, str(row["says"]))),
        )

    def _pictures(self, image_id: str, strip: Strip | None, says: str) -> Iterator[Picture]:
        """Give the image in question, seen or not, and those of its neighbours that can be seen."""
        near = [(0, image_id, f"labelled {says}")]
        if strip is not None:
            around = range(max(0, strip.at - 1), min(len(strip.films), strip.at + 2))
            near = [(at - strip.at, strip.films[at].image_id, strip.films[at].label) for at in around]
        for step, name, word in near:
            found = (self.pictures or {}).get(name, NOT_AT_HAND)
            if step and isinstance(found, str):
                continue
            place = "this image" if strip is None else f"image {strip.position + step}"
            yield Picture(
                caption=f"{place[0].upper()}{place[1:]}: {word}",
                source=picture_source(found) if isinstance(found, bytes) else "",
                why="" if isinstance(found, bytes) else found,
                in_question=step == 0,
            )

    def _beside(self, image_id: str, finding: str) -> tuple[str, ...]:
        on_film = self.claims[image_id].items()
        return tuple(spoken(name) for name, (says, _) in on_film if says == "present" and name != finding)

    def _strip(self, patient: str, image_id: str, finding: str) -> Strip:
        timeline = self.timelines[patient]
        at = timeline.index(image_id)
        # The image in question stands in the middle, except near an end of the timeline.
        start = max(0, min(at - WINDOW // 2, len(timeline) - WINDOW))
        drawn = timeline[start : start + WINDOW]
        films = []
        for other in drawn:
            says, p_present = self.claims.get(other, {}).get(finding, (None, None))
            row = self.films[other]
            films.append(
                Film(image_id=other, says=says, p_present=p_present, order=row["follow_up"], study=row["study_id"])
            )
        return Strip(films=tuple(films), at=at - start, earlier=start, later=len(timeline) - start - len(drawn))


def _beside(timeline: Sequence[str], image_id: str) -> list[int]:
    """Give the places before and after an image in its timeline."""
    at = timeline.index(image_id)
    return [place for place in (at - 1, at + 1) if 0 <= place < len(timeline)]


def sentence(reason: str) -> str:
    """Take the sentence out of `code: sentence`."""
    _, colon, text = reason.partition(": ")
    return text if colon else reason


def _facts(film: Mapping[str, Any]) -> tuple[str, ...]:
    age = film["age"]
    facts = (film["sex"], None if age is None else f"{age:.0f} years", film["view"])
    return tuple(str(fact) for fact in facts if fact is not None)
