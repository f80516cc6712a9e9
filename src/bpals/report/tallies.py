"""A signal counted: by finding and flag, by reason, and by patient group with intervals over patients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from bpals.report.wording import FLAGS, SETTLED_FLAGS, share, share_interval

BINS = 20
"""Bars of a histogram of trust: 0.05 wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The labels of one finding that say one thing."""

    claims: int = 0
    flags: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(FLAGS, 0))
    low: float | None = None
    """A quarter of the labels are trusted less than this."""
    median: float | None = None
    high: float | None = None
    """A quarter of the labels are trusted more than this."""
    p_median: float | None = None
    bins: tuple[int, ...] = (0,) * BINS

    @property
    def doubted(self) -> int:
        """Labels flagged as likely mislabelled or suspect."""
        return self.flags["likely_mislabelled"] + self.flags["suspect"]

    def share_of(self, first: int, last: int) -> float | None:
        """Share of the judged labels whose trust lies in these bars."""
        judged = sum(self.bins)
        return sum(self.bins[first:last]) / judged if judged else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Presences, absences, and where the dataset does not commit itself."""

    present: Side
    absent: Side
    uncertain: Side

    @property
    def settled(self) -> dict[str, int]:
        """Labels that people rejected, and those that they confirmed."""
        return {flag: self.present.flags[flag] + self.absent.flags[flag] for flag in SETTLED_FLAGS}

    @property
    def claims(self) -> int:
        """All labels."""
        return self.present.claims + self.absent.claims + self.uncertain.claims


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingTally(Sides):
    """One finding, counted."""

    finding: str
    films: int

    @property
    def silent(self) -> int:
        """Images without a label."""
        return max(0, self.films - self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally(Sides):
    """A whole signal, counted."""

    films: int
    findings: tuple[FindingTally, ...]
    """In the order of the vocabulary."""

    @property
    def silent(self) -> int:
        """Pairs without a label."""
        return sum(f.silent for f in self.findings)

    @property
    def flags(self) -> dict[str, int]:
        """All labels by flag."""
        sides = (self.present, self.absent, self.uncertain)
        return {flag: sum(s.flags[flag] for s in sides) for flag in FLAGS}

    def of(self, finding: str) -> FindingTally:
        """The tally of one finding."""
        return next(f for f in self.findings if f.finding == finding)

    @property
    def by_trust(self) -> list[FindingTally]:
        """The findings, those with the least trusted presences first, those without any last."""
        return sorted(self.findings, key=lambda f: (f.present.median is None, f.present.median or 0.0, f.finding))


def tally(signal: pl.DataFrame, findings: Sequence[str], films: int) -> Tally:
    """Count a signal, finding by finding and over all."""
    by_finding = _sides(signal, ["finding", "says"])
    overall = _sides(signal, ["says"])
    kinds = ("present", "absent", "uncertain")
    rows = [
        FindingTally(finding=finding, films=films, **{says: by_finding.get((finding, says), Side()) for says in kinds})
        for finding in findings
    ]
    sides = {says: overall.get((says,), Side()) for says in kinds}
    return Tally(films=films, findings=tuple(rows), **sides)


def _sides(signal: pl.DataFrame, keys: list[str]) -> dict[tuple[Any, ...], Side]:
    trust = pl.col("trust")
    counted = signal.group_by(keys).agg(
        claims=pl.len(),
        low=trust.quantile(0.25, "linear"),
        median=trust.median(),
        high=trust.quantile(0.75, "linear"),
        p_median=pl.col("p_present").median(),
        **{flag: (pl.col("flag") == flag).sum() for flag in FLAGS},
    )
    # A trust of exactly 1 belongs into the last bar.
    bar = (trust * BINS).floor().clip(0, BINS - 1).cast(pl.Int32)
    # An unjudged label has no trust, and no bar.
    bars = signal.filter(trust.is_not_null()).group_by([*keys, bar.alias("bar")]).len()
    heights: dict[tuple[Any, ...], list[int]] = {}
    for *named, at, n in bars.iter_rows():
        heights.setdefault(tuple(named), [0] * BINS)[at] = n
    sides = {}
    for row in counted.iter_rows(named=True):
        of = tuple(row.pop(key) for key in keys)
        flags = {flag: row.pop(flag) for flag in FLAGS}
        sides[of] = Side(flags=flags, bins=tuple(heights.get(of, [0] * BINS)), **row)
    return sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason of flagged labels, and how many have it."""

    code: str
    sentence: str
    """The most frequent sentence of that code."""
    claims: int


def reasons(signal: pl.DataFrame, says: str, at_most: int = 6) -> list[Reason]:
    """Count the reasons of the flagged labels, the most frequent first."""
    flagged = signal.filter(pl.col("flag").is_in(["likely_mislabelled", "suspect"]), pl.col("says") == says)
    parts = pl.col("reasons").str.splitn(": ", 2).struct.rename_fields(["code", "sentence"])
    sentences = (
        flagged.select(pl.col("reasons").explode())
        .drop_nulls()
        .select(parts.struct.unnest())
        # Every label of a calibrated audit has one of these: they tell nothing of why it is flagged.
        .filter(~pl.col("code").is_in(["calibrated", "reviewed"]))
        .group_by("code", "sentence")
        .len("claims")
        .sort("code", "claims", "sentence", descending=[False, True, False])
    )
    codes = (
        sentences.group_by("code", maintain_order=True)
        .agg(pl.col("sentence").first(), pl.col("claims").sum())
        .sort("claims", "code", descending=[True, False])
        .head(at_most)
    )
    return [
        Reason(code=code, sentence=code if sentence is None else sentence, claims=claims)
        for code, sentence, claims in codes.iter_rows()
    ]


DIMENSIONS = {"age": "Age", "sex": "Sex", "view": "View"}
UNKNOWN = "not stated"
OTHER = "other"
AGE_BREAKS = (18, 40, 60, 80)
AGE_BANDS = ("under 18", "18\N{EN DASH}39", "40\N{EN DASH}59", "60\N{EN DASH}79", "80 and over")
SEXES = {"M": "male", "Male": "male", "F": "female", "Female": "female"}
MOST_LEVELS = 6
FEWEST_CLUSTERS = 30
"""Groups of fewer patients are not drawn beside larger ones: their intervals would dwarf the rest."""

Z = 1.959964
"""The normal quantile of a 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One patient group and one direction of label."""

    name: str
    claims: int
    clusters: int
    """Patients; images where the dataset names no patient."""
    flagged: int
    share: float
    low: float
    high: float
    ratio: float | None
    """Flagged labels over what this group's mix of findings would give anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgroup:
    """One way to divide the patients, with the flags of presences and of absences."""

    key: str
    name: str
    present: tuple[Level, ...]
    absent: tuple[Level, ...]
    small: tuple[str, ...]
    """Groups that are not drawn because they have too few patients."""
    sentences: tuple[str, ...]


def subgroups(images: pl.DataFrame, signal: pl.DataFrame) -> list[Subgroup]:
    """Share of labels flagged as likely mislabelled or suspect, by age band, sex and view, where they are stated."""
    films = _films(images, signal)
    found = []
    for key, name in DIMENSIONS.items():
        if images[key].null_count() == len(images):
            continue
        (present, few), (absent, fewer) = (_levels(films, key, says) for says in ("present", "absent"))
        sentences = tuple(_sentence(what, lv) for what, lv in (("Presences", present), ("Absences", absent)) if lv)
        small = tuple(dict.fromkeys(level.name for level in (*few, *fewer)))
        found.append(Subgroup(key=key, name=name, present=present, absent=absent, small=small, sentences=sentences))
    return found


def wilson(flagged: float, effective_n: float) -> tuple[float, float]:
    """Give the 95 % interval of a share; it stays inside 0 and 1 and never has zero width."""
    # Wilson's interval: the usual one has no width where nothing, or everything, is flagged.
    z2 = Z * Z / effective_n
    middle = flagged + z2 / 2
    half = math.sqrt(z2 * (flagged * (1 - flagged) + z2 / 4))
    return max(0.0, (middle - half) / (1 + z2)), min(1.0, (middle + half) / (1 + z2))


def _films(images: pl.DataFrame, signal: pl.DataFrame) -> pl.DataFrame:
    """One row per image and direction: its judged labels, those flagged, and how many its findings let expect.

    Labels that people settled are left out.
    """
    flagged = pl.col("flag").is_in(["likely_mislabelled", "suspect"])
    # What people settled is in doubt no more, and they chose what they read.
    judged = signal.filter(~pl.col("flag").is_in(["unjudged", *SETTLED_FLAGS])).select(
        "image_id", "finding", "says", flagged=flagged
    )
    rates = judged.group_by("finding", "says").agg(expected=pl.col("flagged").mean())
    levels = images.select(
        "image_id",
        cluster=pl.coalesce("patient_id", "image_id"),
        age=_band(pl.col("age")),
        sex=pl.col("sex").replace(SEXES).fill_null(UNKNOWN),
        view=pl.col("view").fill_null(UNKNOWN),
    )
    return (
        judged.join(rates, on=["finding", "says"])
        .group_by("image_id", "says")
        .agg(n=pl.len(), y=pl.col("flagged").sum(), e=pl.col("expected").sum())
        .join(levels, on="image_id")
    )


def _band(age: pl.Expr) -> pl.Expr:
    band = pl.lit(AGE_BANDS[-1])
    for end, name in reversed(list(zip(AGE_BREAKS, AGE_BANDS, strict=False))):
        band = pl.when(age < end).then(pl.lit(name)).otherwise(band)
    return pl.when(age.is_null()).then(pl.lit(UNKNOWN)).otherwise(band)


def _levels(films: pl.DataFrame, key: str, says: str) -> tuple[tuple[Level, ...], tuple[Level, ...]]:
    """Add up the groups of one division, those to draw and those too small; a patient is one cluster in each."""
    side = films.filter(pl.col("says") == says)
    # Ages are bands already; a dataset may have dozens of views, of which the rare ones are put together.
    common = side[key].value_counts(sort=True).head(MOST_LEVELS)[key] if key != "age" else side[key].unique()
    name = pl.when(pl.col(key).is_in(common.to_list())).then(pl.col(key)).otherwise(pl.lit(OTHER))
    clusters = side.group_by(name.alias("name"), "cluster").agg(pl.col("n", "y", "e").sum())
    n, y = pl.col("n").cast(pl.Float64), pl.col("y").cast(pl.Float64)
    scatter = ((y - y.sum() / n.sum() * n) ** 2).sum()
    totals = clusters.group_by("name").agg(pl.col("n", "y", "e").sum(), clusters=pl.len(), scatter=scatter)
    levels = sorted((_level(row) for row in totals.iter_rows(named=True)), key=lambda level: _order(key, level))
    large = tuple(level for level in levels if level.clusters >= FEWEST_CLUSTERS)
    return (large or tuple(levels)), tuple(level for level in levels if large and level not in large)


def _level(row: dict[str, float | str]) -> Level:
    clusters, n, y, e = int(row["clusters"]), int(row["n"]), int(row["y"]), float(row["e"])
    flagged = y / n
    variance = float(row["scatter"]) / n**2 * (clusters / (clusters - 1) if clusters > 1 else 1)
    # No scatter between patients is no proof of certainty: then each patient counts as one observation.
    effective_n = flagged * (1 - flagged) / variance if variance > 0 else clusters
    low, high = wilson(flagged, effective_n)
    ratio = y / e if e > 0 else None
    return Level(
        name=str(row["name"]), claims=n, clusters=clusters, flagged=y, share=flagged, low=low, high=high, ratio=ratio
    )


def _order(key: str, level: Level) -> tuple[int, float, str]:
    last = {OTHER: 1, UNKNOWN: 2}.get(level.name, 0)
    by = AGE_BANDS.index(level.name) if key == "age" and not last else -level.claims if key == "view" else 0
    return last, by, level.name


def _sentence(what: str, levels: Sequence[Level]) -> str:
    """Say in words whether the most and the least doubted group are apart."""
    stated = [lv for lv in levels if lv.clusters >= FEWEST_CLUSTERS and lv.name not in (OTHER, UNKNOWN)]
    if len(stated) < 2:
        return f"{what}: too few patients in too few groups to compare."
    most, least = max(stated, key=lambda lv: lv.share), min(stated, key=lambda lv: lv.share)
    # Overlapping intervals are a strict test: a difference that passes it is worth a sentence.
    if most.low <= least.high:
        return f"{what}: no clear difference; the intervals overlap."
    sentence = (
        f"{what} are doubted most in the group \N{LEFT DOUBLE QUOTATION MARK}{most.name}\N{RIGHT DOUBLE QUOTATION MARK}"
        f" ({share(most.share)}, {share_interval(most.low, most.high)}) and least in"
        f" \N{LEFT DOUBLE QUOTATION MARK}{least.name}\N{RIGHT DOUBLE QUOTATION MARK} ({share(least.share)})."
    )
    if most.ratio is None or least.ratio is None or least.share == 0 or least.ratio == 0:
        return sentence
    # A group with more of the doubtful findings is doubted more often, without a worse label anywhere.
    raw, mixed = f"{most.share / least.share:.1f}", f"{most.ratio / least.ratio:.1f}"
    if raw == mixed:
        return f"{sentence} That is {raw} times as often, also with the same mix of findings."
    return f"{sentence} That is {raw} times as often; with the same mix of findings, {mixed} times."
