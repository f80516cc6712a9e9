"""The page of an audit: one HTML file."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from bpals.report.cases import Case, Cases, ReadImages, cases
from bpals.report.tallies import DIMENSIONS, FindingTally, Tally, reasons, subgroups, tally
from bpals.report.templating import fill
from bpals.report.wording import (
    FLAGS,
    NONE,
    count,
    interval,
    listed,
    of,
    plural,
    probability,
    provenance,
    share,
    share_interval,
    spoken,
)
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


def judges(entries: Sequence[Mapping[str, Any]]) -> tuple[Judge, ...]:
    """Read the judges of a run record; what it leaves out is shown as left out."""
    return tuple(_judge(entry) for entry in entries)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of labels with its interval; None where nobody knows."""

    share: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def words(self) -> str:
        """The interval, as people read it."""
        return "" if self.low is None or self.high is None else share_interval(self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of how often labels are right, and from whom."""

    first_line: str
    truth: str
    like: str
    """Which images its shares hold for."""
    extrapolates: str
    """Where it was hardly read; empty where nowhere."""
    extrapolates_briefly: str
    """The same without the names of the findings."""
    alike: str
    """Which findings were read as a group only; empty where none."""
    confirmed: Mapping[str, Share | None]
    """For presences and absences: the share that readers would confirm."""
    wrong: Mapping[str, str]
    """Flag -> the share of wrong labels among those that carry it, in words."""
    fitted: tuple[tuple[str, ...], ...]
    """What the calibration was fitted on: one row per finding."""
    rules: Mapping[str, Any]

    def rejected(self, finding: str, says: str) -> Share:
        """Give the share of a finding's labels that readers would reject."""
        entry = (self.rules.get(finding) or {}).get(says) or {}
        share = entry.get("confirmed")
        if share is None:
            return Share()
        return Share(share=1 - share["share"], low=1 - share["high"], high=1 - share["low"])

    def order(self, findings: Sequence[FindingTally]) -> list[FindingTally]:
        """Sort findings: those whose presences readers would reject most come first."""
        rejected = {each.finding: self.rejected(each.finding, "present").share for each in findings}
        return sorted(findings, key=lambda f: (-(rejected[f.finding] or 0.0), f.finding))


def knowledge(run: Mapping[str, Any]) -> Knowledge | None:
    """Gather what experts tell about the labels; None where nobody was asked, or an older bpals wrote the record."""
    rules = {name: sides for name, sides in (run.get("flags") or {}).items() if isinstance(sides, Mapping)}
    bases = [rule.get("basis") for sides in rules.values() for rule in sides.values() if isinstance(rule, Mapping)]
    if not any(basis in ("calibrated", "certified") for basis in bases):
        return None
    prior, here, stated = run.get("prior"), run.get("calibration"), run.get("stated") or {}
    truth = str(prior["truth"]) if prior else "what the experts who read here would say"
    whole = {says: (stated.get(says) or {}) for says in ("present", "absent")}
    return Knowledge(
        first_line=_first_line(prior, here, truth),
        truth=truth,
        like=_like(prior, here),
        extrapolates=_extrapolates((prior or {}).get("extrapolates") or {}),
        extrapolates_briefly=_extrapolates((prior or {}).get("extrapolates") or {}, named=False),
        alike="" if prior else _alike((here or {}).get("members") or {}),
        confirmed={says: _share(entry.get("confirmed")) for says, entry in whole.items()},
        wrong={flag: _wrong_words(whole, flag) for flag in FLAGS},
        fitted=tuple(_fitted(name, entry) for name, entry in ((prior or {}).get("findings") or {}).items()),
        rules=rules,
    )


MOST_MOVED = 3
"""Findings that are named because most of their labels have another flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is new since the audit that this one replaces."""

    sentences: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    """Flag, labels before, labels now."""
    findings: tuple[tuple[str, ...], ...]
    """Finding, labels with another flag, the share of presences that readers would confirm: before and now."""


def changes(run: Mapping[str, Any]) -> Changes | None:
    """Say what is new since the last audit; None where there was none, or it cannot be compared."""
    before = (run.get("history") or [{}])[-1]
    if "confirmed" not in before:
        return None
    moved = run.get("changed") or {}
    counts, findings = moved.get("flags") or {}, moved.get("findings") or {}
    most = sorted(findings, key=lambda name: (-findings[name]["flag"], name))
    sentences = [*_changed_knowledge(run, before), *_changed_flags(moved, most)]
    shares = {name: _confirmed_presences(run.get("flags") or {}, name) for name in most}
    return Changes(
        sentences=tuple(sentences) or ("Nothing that this page states.",),
        flags=tuple((FLAGS[flag], *map(count, counts[flag])) for flag in FLAGS if any(counts.get(flag, ()))),
        findings=tuple(
            (spoken(name), count(findings[name]["flag"]), share(findings[name].get("confirmed")), share(shares[name]))
            for name in most
        ),
    )


def _changed_flags(moved: Mapping[str, Any], most: Sequence[str]) -> list[str]:
    """Say how many labels have another flag, and which findings they are of."""
    if not moved.get("flag"):
        return ["No label has another flag."] if moved else []
    named = listed([f"{spoken(name)} ({count(moved['findings'][name]['flag'])})" for name in most[:MOST_MOVED]])
    labels = f"{count(moved['flag'])} of {plural(moved['labels'], 'label')}"
    return [f"Another flag: {labels} ({of(moved['flag'], moved['labels'])}). Findings that moved most: {named}."]


def _confirmed_presences(flags: Mapping[str, Any], finding: str) -> float | None:
    entry = ((flags.get(finding) or {}).get("present") or {}).get("confirmed")
    return None if entry is None else entry["share"]


def _changed_knowledge(run: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Say which calibration, how many reads and which shares are others than before."""
    found = []
    names = {name: entry or "none" for name, entry in (("before", before["prior"]), ("now", _prior_name(run)))}
    if names["before"] != names["now"]:
        found.append(f"Calibration: {names['now']} (was {names['before']}).")
    reads = (run.get("reviews") or {}).get("reads", 0)
    if reads != before["reads"]:
        found.append(f"Single reads used: {count(reads)} (were {count(before['reads'])}).")
    for says, noun in (("present", "presences"), ("absent", "absences")):
        old, new = before["confirmed"][says], ((run.get("stated") or {}).get(says) or {}).get("confirmed")
        if old and new and old != new:
            now, was = (f"{share(each['share'])} ({share_interval(each['low'], each['high'])})" for each in (new, old))
            found.append(f"Readers would confirm {now} of the {noun}; it was {was}.")
    return found


def _prior_name(run: Mapping[str, Any]) -> str | None:
    return (run.get("prior") or {}).get("name")


def _first_line(prior: Mapping[str, Any] | None, here: Mapping[str, Any] | None, truth: str) -> str:
    """Say what the truth of a trust is, and who told it."""
    sources = [] if prior is None else [f"{prior['name']} ({plural(prior['labels'], 'expert label')})"]
    if here is not None:
        sources.append(f"{plural(here['pairs'], 'expert label')} given here ({here['reference']})")
    by = f" Calibrated by {listed(sources)}." if sources else ""
    return f"The truth here is {truth}.{by}"


def _like(prior: Mapping[str, Any] | None, here: Mapping[str, Any] | None) -> str:
    """Name the images that were read: what is said holds on images like them."""
    read = [count(each["images"]) for each in (prior, here) if each is not None and each.get("images")]
    which = f"the {listed(read)} that were read" if read else "those that were read"
    # Who calibrates on their own reads may have drawn them at random.
    return f"{which}, which {'are' if prior else 'may be'} enriched"


def _extrapolates(where: Mapping[str, Any], *, named: bool = True) -> str:
    """Name the views and the findings of which little was read."""
    parts = [f"{view} images of {_some(names)}" for view, names in (where.get("views") or {}).items()]
    if few := where.get("few_presences"):
        names = f" ({listed([spoken(name) for name in few])})" if named else ""
        parts.append(f"{plural(len(few), 'finding')} of which few presences were read{names}")
    return listed(parts)


def _some(names: Sequence[str]) -> str:
    return listed([spoken(name) for name in names]) if len(names) < 4 else plural(len(names), "finding")


def _alike(members: Mapping[str, str]) -> str:
    """Say which findings were read as part of a group only."""
    if not members:
        return ""
    groups = listed(list(dict.fromkeys(members.values())))
    return (
        f"{listed([spoken(name) for name in members])}: experts read them only as part of {groups}. Their figures "
        "come from other findings and stay below that of the group. Only the group can be certified."
    )


def _share(entry: Mapping[str, Any] | None) -> Share | None:
    return None if entry is None else Share(share=entry["share"], low=entry["low"], high=entry["high"])


def _wrong_words(whole: Mapping[str, Mapping[str, Any]], flag: str) -> str:
    """Write which share of the labels with a flag is wrong by their trusts, for presences and absences."""
    parts = []
    for says, name in (("present", "presences"), ("absent", "absences")):
        if entry := (whole[says].get("flags") or {}).get(flag):
            parts.append(f"{share(entry['wrong'])} of the {name} ({share_interval(entry['low'], entry['high'])})")
    return f"by their trusts wrong: {listed(parts)}" if parts else ""


def _fitted(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    views = ", ".join(f"{view or '?'} {count(number)}" for view, number in (entry.get("views") or {}).items())
    return (spoken(name), *(count(entry.get(key) or 0) for key in ("labels", "presences", "errors")), views)


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
    read_images: ReadImages | None = None
    """Reads the images that the page shows; None where the workspace knows none."""
    scores: Sequence[Mapping[str, Any]] = ()
    """Rows of the scorecard; the report has a section for them where there are any."""
    reliability: Sequence[Mapping[str, Any]] = ()


def render(page: Page) -> str:
    """Write the report."""
    dataset, signal = page.dataset, page.signal
    counted = tally(signal, dataset.vocabulary.findings, len(dataset.images))
    known = knowledge(page.run)
    shown = cases(
        dataset.images, signal, dataset.vocabulary.findings, ranked=known is None, read_images=page.read_images
    )
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
        pictures=shown.pictures,
        pictured=page.read_images is not None,
        commonest=_commonest(counted),
        example=_example(shown),
        reasons={says: reasons(signal, says) for says in ("present", "absent")},
        devices=devices(signal),
        odd_films=odd_films(signal),
        judges=judges(origin.judges),
        calibration=page.run.get("calibration"),
        reviews=page.run.get("reviews"),
        refit=page.run.get("refit"),
        prior=page.run.get("prior"),
        changed=changes(page.run),
        known=known,
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


def _commonest(counted: Tally) -> str:
    """Name the finding with the most presences, as a command takes it."""
    most = max(counted.findings, key=lambda each: each.present.claims, default=None)
    return "" if most is None else shlex.quote(most.finding)


def _example(shown: Cases) -> Case | None:
    """Choose the label that explains a trust: with a long timeline, and a trust that dots can show."""
    chosen = [*shown.present, *shown.absent, *(case for f in shown.findings for case in (*f.present, *f.absent))]
    # A trust above a half would explain an unremarkable label; the first case of all is better than none.
    drawn = [case for case in chosen if case.strip and len(case.strip.films) > 4 and SHOWN_AS_DOTS < case.trust < 0.5]
    seen = (case for case in drawn if case.shown)
    return next(seen, next(iter(drawn or chosen), None))


def _groups(groups: pl.DataFrame | None) -> Tally | None:
    if groups is None or groups.is_empty():
        return None
    names = groups["finding"].cast(pl.String).unique(maintain_order=True).to_list()
    return tally(groups, names, groups["image_id"].n_unique())
