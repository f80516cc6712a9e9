"""The page of an audit: one HTML file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from bpals.report.cases import Case, Cases, cases
from bpals.report.tallies import DIMENSIONS, Tally, reasons, subgroups, tally
from bpals.report.templating import fill
from bpals.report.wording import NONE, count, interval, of, probability, provenance, share, spoken
from bpals.types import Dataset

EXAMPLES = 3
"""Images that are named for each check."""
NAMES = {
    "blank": "Blank",
    "inverted": "Inverted",
    "turned": "Turned",
    "cropped": "Cropped",
    "near_duplicate": "Near-duplicates",
    "view": "View",
    "lateral": "Lateral",
    "unlike": "Unlike the others",
    "text": "Text burnt in",
}


def odd_films(signal: pl.DataFrame) -> dict[str, Any] | None:
    """Count the images that were checked and that are odd, and name some per check; None where none was checked."""
    # The checks are the same in every row of an image: one row of each is enough.
    films = signal.filter(pl.col("film_checks").is_not_null()).unique("image_id", keep="first", maintain_order=True)
    if films.is_empty():
        return None
    odd = films.filter(pl.col("film_checks").list.len() > 0).select("image_id", "film_checks", "reasons")
    rows = []
    for check, name in NAMES.items():
        its = odd.filter(pl.col("film_checks").list.contains(check))
        examples = []
        for image_id, given in its.select("image_id", "reasons").head(EXAMPLES).iter_rows():
            words = next((reason for reason in given if reason.startswith(f"film_{check}: ")), "")
            examples.append(f"{image_id}: {words.partition(': ')[2]}")
        if examples:
            rows.append((name, its.height, "; ".join(examples)))
    return {"checked": films.height, "odd": odd.height, "rows": rows}


TRAINED = {"yes": "It was trained on these labels, so it weighs less", "no": "It was not trained on these labels"}
UNKNOWN = "Whether it was trained on these labels is not known; it weighs as if it was not"
HELD_OUT = "It was trained on these labels, but of other patients only"
YARDSTICKS = {"experts": "experts' reads", "claims": "the dataset's labels"}
FACTS = ("model", "revision", "engine", "pack", "preparation", "settings", "observed", "sealed")
"""What a card may say beyond name, licence and training, in the order of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """One judge of the audit."""

    name: str
    kind: str
    title: str
    trained: str
    facts: tuple[tuple[str, Any], ...]
    answered: str
    signal: str
    weight: str
    skill: tuple[tuple[str, ...], ...]
    """One row per finding: finding, yardstick, images, presences, AUROC, interval, signal, share of the weight."""


def judges(listed: Sequence[Mapping[str, Any]]) -> tuple[Judge, ...]:
    """Read the judges of a run record; what it leaves out is shown as left out."""
    return tuple(_judge(entry) for entry in listed)


def devices(signal: pl.DataFrame) -> dict[str, int] | None:
    """Count the images with support devices, without, and unknown; None where no judge was asked."""
    # Unknown everywhere means that no judge was asked, not that nothing was found.
    if (signal["devices"] == "unknown").all():
        return None
    films = signal.select("image_id", pl.col("devices").cast(pl.String)).unique()
    counted = dict(films.group_by("devices").len().iter_rows())
    return {word: counted.get(word, 0) for word in ("present", "absent", "unknown")}


def _judge(entry: Mapping[str, Any]) -> Judge:
    licence = str(entry.get("licence") or "licence not stated")
    if entry.get("commercial_use") == "no":
        licence += ", no commercial use"
    version = f"version {entry['version']}" if entry.get("version") else "version not stated"
    trained = TRAINED.get(str(entry.get("trained_on_target")), UNKNOWN)
    # Trained on these labels, but of other patients: it cannot repeat what it has not seen.
    if entry.get("trained_on_target") == "yes" and entry.get("held_out"):
        trained = HELD_OUT
    evidence = str(entry.get("evidence") or "")
    rows = [row for row in entry.get("skill") or () if isinstance(row, Mapping)]
    return Judge(
        name=str(entry.get("judge", "?")),
        kind=str(entry.get("kind", "?")),
        title=", ".join((f"{entry.get('kind', '?')} judge", version, licence)),
        trained=f"{trained}: {evidence}" if evidence else f"{trained}.",
        facts=tuple((name, entry[name]) for name in FACTS if entry.get(name)),
        answered=_answered(entry.get("counts")),
        signal=f"{sum(bool(row.get('signal')) for row in rows)} of {len(rows)}" if rows else NONE,
        # A run record of an older version has no weight: a dash, not 0 %.
        weight=share(entry["effective_weight"]) if isinstance(entry.get("effective_weight"), float) else NONE,
        skill=tuple(_skill(row) for row in rows),
    )


def _answered(counts: Any) -> str:
    """Write how many of its pairs a judge answered; the metadata judge is asked anew each time, and not counted."""
    if not isinstance(counts, Mapping):
        return NONE
    asked = sum(counts.values())
    return f"{count(counts.get('answered', 0))} ({of(counts.get('answered', 0), asked)})"


def _skill(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        spoken(str(row["finding"])),
        YARDSTICKS.get(str(row["against"]), str(row["against"])),
        count(row["n"]),
        count(row["positives"]),
        NONE if row["auroc"] is None else f"{row['auroc']:.3f}",
        interval(row["low"], row["high"]),
        "signal" if row["signal"] else "no signal" if row["auroc"] is not None else "too few to tell",
        NONE if row.get("weight") is None else probability(row["weight"]),
    )


SHOWN_AS_DOTS = 0.015
"""A trust below this would be a hundred empty dots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the report shows."""

    dataset: Dataset
    signal: pl.DataFrame
    groups: pl.DataFrame | None
    """The rows of `groups.parquet`, where experts labelled groups."""
    run: Mapping[str, Any]
    scores: Sequence[Mapping[str, Any]] = ()
    """Rows of the scorecard; the report has a section for them where there are any."""
    reliability: Sequence[Mapping[str, Any]] = ()


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
        **_scorecard(page),
    )


def _scorecard(page: Page) -> dict[str, Any]:
    """Give the part about experts what it shows; an audit alone has none, and does not load it."""
    if not page.scores and not page.reliability:
        return {"boards": [], "reliabilities": []}
    from bpals.report.scorecard_page import scorecard_context

    return scorecard_context(page.scores, page.reliability)


def _record(images: pl.DataFrame) -> dict[str, Any]:
    """Say what the dataset's table says about its patients, and how many images they have."""
    named = images.filter(pl.col("patient_id").is_not_null())
    counts: list[int] = named.group_by("patient_id").len("images")["images"].to_list()
    return {
        # None where the dataset names no patient.
        "patients": len(counts) or None,
        "single": counts.count(1),
        "most": max(counts, default=0),
        "median": statistics.median(counts) if counts else 0,
        "nameless": len(images) - len(named),
        "ordered": named["follow_up"].null_count() < len(named),
        # Whether studies of several images are named.
        "studies": bool(named["study_id"].drop_nulls().is_duplicated().any()),
    }


def _example(shown: Cases) -> Case | None:
    """Choose the label that explains a trust: with a long timeline, and a trust that dots can show."""
    listed = [*shown.present, *shown.absent, *(case for f in shown.findings for case in (*f.present, *f.absent))]
    drawn = (case for case in listed if case.strip and len(case.strip.films) > 4)
    # A trust above a half would explain an unremarkable label; the first case of all is better than none.
    return next((case for case in drawn if SHOWN_AS_DOTS < case.trust < 0.5), next(iter(listed), None))


def _uncertified(run: Mapping[str, Any], counted: Tally) -> dict[str, Any] | None:
    """Say why no label of a fitted audit is called likely mislabelled, and what it takes; None where some is."""
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
    # `more` is null where no number of reviews would do: then a better judge is the only way.
    nearest = min((each for each in asked if each["more"]), key=lambda each: int(each["more"]), default=None)
    takes = "a better judge, not more reviews alone"
    if nearest is not None:
        takes = f"about {nearest['more']:,} more reviewed labels of {spoken(nearest['finding'])} {nearest['says']}"
    return {"says": none, "takes": takes}


def _groups(groups: pl.DataFrame | None) -> Tally | None:
    if groups is None or groups.is_empty():
        return None
    names = groups["finding"].cast(pl.String).unique(maintain_order=True).to_list()
    return tally(groups, names, groups["image_id"].n_unique())
