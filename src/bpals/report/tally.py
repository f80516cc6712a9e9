"""The tally: how many claims there are, how far they are trusted, and what was flagged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from bpals.report.wording import FLAGS

BINS = 20
"""Bars of a histogram of trust: 0.05 wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The claims of one finding that say one thing."""

    claims: int = 0
    flags: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(FLAGS, 0))
    low: float | None = None
    """A quarter of the claims are trusted less than this."""
    median: float | None = None
    high: float | None = None
    """A quarter of the claims are trusted more than this."""
    p_median: float | None = None
    bins: tuple[int, ...] = (0,) * BINS

    @property
    def doubted(self) -> int:
        """Claims flagged as likely mislabelled or suspect."""
        return self.flags["likely_mislabelled"] + self.flags["suspect"]

    def share_of(self, first: int, last: int) -> float | None:
        """Share of the judged claims whose trust lies in these bars."""
        judged = sum(self.bins)
        return sum(self.bins[first:last]) / judged if judged else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingTally:
    """One finding: its presences, its absences, and where the dataset does not commit itself."""

    finding: str
    present: Side
    absent: Side
    uncertain: Side
    silent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A whole signal, counted."""

    films: int
    findings: tuple[FindingTally, ...]
    """In the order of the vocabulary."""
    present: Side
    absent: Side
    uncertain: Side

    @property
    def claims(self) -> int:
        """All claims."""
        return self.present.claims + self.absent.claims + self.uncertain.claims

    @property
    def silent(self) -> int:
        """Pairs about which the dataset says nothing."""
        return sum(f.silent for f in self.findings)

    @property
    def flags(self) -> dict[str, int]:
        """All claims by flag."""
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
    rows = []
    for finding in findings:
        present, absent, uncertain = (
            by_finding.get((finding, says), Side()) for says in ("present", "absent", "uncertain")
        )
        claimed = present.claims + absent.claims + uncertain.claims
        rows.append(
            FindingTally(
                finding=finding, present=present, absent=absent, uncertain=uncertain, silent=max(0, films - claimed)
            )
        )
    return Tally(
        films=films,
        findings=tuple(rows),
        present=overall.get(("present",), Side()),
        absent=overall.get(("absent",), Side()),
        uncertain=overall.get(("uncertain",), Side()),
    )


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
    bar = (trust * BINS).floor().clip(0, BINS - 1).cast(pl.Int32)
    bars = signal.filter(trust.is_not_null()).group_by([*keys, bar.alias("bar")]).len()
    heights: dict[tuple[Any, ...], list[int]] = {}
    for *named, at, n in bars.iter_rows():
        heights.setdefault(tuple(named), [0] * BINS)[at] = n
    sides = {}
    for row in counted.iter_rows(named=True):
        of = tuple(row[key] for key in keys)
        sides[of] = Side(
            claims=row["claims"],
            flags={flag: row[flag] for flag in FLAGS},
            low=row["low"],
            median=row["median"],
            high=row["high"],
            p_median=row["p_median"],
            bins=tuple(heights.get(of, [0] * BINS)),
        )
    return sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason that stands behind flagged claims, and how many."""

    code: str
    sentence: str
    """The most frequent sentence of that code."""
    claims: int


def reasons(signal: pl.DataFrame, says: str, at_most: int = 6) -> list[Reason]:
    """Count what stands behind the flagged claims, the most frequent reason first."""
    flagged = signal.filter(pl.col("flag").is_in(["likely_mislabelled", "suspect"]), pl.col("says") == says)
    parts = pl.col("reasons").str.splitn(": ", 2).struct.rename_fields(["code", "sentence"])
    sentences = (
        flagged.select(pl.col("reasons").explode())
        .drop_nulls()
        .select(parts.struct.unnest())
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
