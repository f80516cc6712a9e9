"""The share of a dataset's claims that readers reject: by finding, over all findings, and by group of patients.

Made of reads of pairs that were drawn at random with known chances. It is the rate of this dataset, whose claims are
counted, not of a population it may have come from; and it is the readers' word, unless it is corrected for theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from bpals.signal.coverage import Interval, Strata, interval
from bpals.signal.monitoring import watch
from bpals.signal.readerskill import Corrected, correct, together
from bpals.signal.readings import cells, place, settle, tally
from bpals.types import Notice

ALL = "all"
OVERALL = "all findings"
KINDS = ("present", "absent")

RATES = pl.Schema(
    {
        "finding": pl.String(),  # `all findings` pools those that were read
        "group_by": pl.String(),  # the column of images that makes the groups; null for all films
        "group": pl.String(),
        "says": pl.String(),  # all claims, or those of presence or absence
        "claims": pl.Int64(),  # in the dataset
        "read": pl.Int64(),  # pairs that were drawn at random and settled by reads
        "wrong": pl.Int64(),  # of them, those whose claim the readers reject
        "rate": pl.Float64(),  # share of the claims that is wrong; null where none was read
        "low": pl.Float64(),  # 95 % interval
        "high": pl.Float64(),
        "unsettled": pl.Int64(),  # pairs that readers split on, hedged on or could not read: not in `read`
        "low_if_right": pl.Float64(),  # lower end if every unsettled claim were right
        "high_if_wrong": pl.Float64(),  # upper end if every one were wrong
        "unread_share": pl.Float64(),  # share of the claims in strata of which no read is there
        "anytime_low": pl.Float64(),  # holds however often you look; null without a plan
        "anytime_high": pl.Float64(),
        "corrected": pl.Float64(),  # the rate with the readers' own errors taken out; null where it cannot be
        "corrected_low": pl.Float64(),
        "corrected_high": pl.Float64(),
        "sensitivity": pl.Float64(),  # of one reader, as the double reads tell
        "specificity": pl.Float64(),
        "read_twice": pl.Int64(),  # pairs with two settled reads or more
        "why_not_corrected": pl.String(),  # in words; null where it is corrected, and for groups
    }
)
"""One row a finding, group and kind of claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """How reads are to be understood."""

    level: float = 0.95
    simple_random: bool = False
    """Every pair of a finding had the same chance to be read, whatever `inclusion` says."""
    seed: int = 0


def rates(
    reads: pl.DataFrame, stratified: pl.DataFrame, *, by: Sequence[str] = (), rating: Rating | None = None
) -> tuple[pl.DataFrame, list[Notice]]:
    """Tell the error rates: REVIEWS and the claims as `stratify` or `draw` give them, to a table like RATES.

    `by` names columns of `stratified` beside its own, such as `sex`: patients' groups.
    """
    how = rating or Rating()
    placed, notices = place(settle(reads), stratified)
    told, more = cells(placed, simple_random=how.simple_random, seed=how.seed)
    read = told.filter(pl.col("looked").any().over("finding"))
    findings = read["finding"].unique(maintain_order=True).to_list()
    rows = []
    skills: dict[str, tuple[int, Corrected]] = {}
    for finding in findings:
        own = read.filter(pl.col("finding") == finding)
        skills[finding] = (own.height, correct(own, how.seed))
        rows += _rows(own, finding, by, how, skills[finding][1])
    if len(findings) > 1:
        rows += _rows(read, OVERALL, by, how, together(skills, how.seed))
    return pl.DataFrame(rows, schema=RATES, orient="row"), [*notices, *more]


def _rows(
    told: pl.DataFrame, finding: str, by: Sequence[str], how: Rating, skill: Corrected
) -> list[dict[str, object]]:
    """Make the rows of one finding: all claims, each kind of claim, each group."""
    cell = ["finding", "cell"]
    key: dict[str, object] = {"finding": finding, "group_by": None, "group": None}
    whole = _row(tally(told, cell), key | {"says": ALL}, how)
    rows = [whole | _watched(told, how) | _skill(skill)]
    for kind in KINDS:
        part = told.filter(pl.col("says") == kind)
        rows.append(_row(tally(part, cell), key | {"says": kind}, how) | _watched(part, how))
    for column in by:
        named = told.with_columns(pl.col(column).cast(pl.String).fill_null("unknown"))
        for group in named[column].unique().sort():
            part = named.filter(pl.col(column) == group)
            its = key | {"group_by": column, "group": group, "says": ALL}
            rows.append(_row(tally(part, cell), its, how) | _watched(part, how))
    return [row for row in rows if row["claims"]]


def _row(counts: pl.DataFrame, key: dict[str, object], how: Rating) -> dict[str, object]:
    """Put numbers to one row from the counts of its cells."""
    size, read, wrong, unsettled = (counts[name].to_numpy() for name in ("size", "read", "wrong", "unsettled"))
    told = interval(Strata.of(size, read, wrong), how.level)
    least, most = told, told
    if unsettled.any():
        least = interval(Strata.of(size, read + unsettled, wrong), how.level)
        most = interval(Strata.of(size, read + unsettled, wrong + unsettled), how.level)
    claims = int(size.sum())
    return {
        **key,
        "claims": claims,
        "read": int(read.sum()),
        "wrong": int(wrong.sum()),
        **_ends(told),
        "unsettled": int(unsettled.sum()),
        "low_if_right": min(told.low, least.low),
        "high_if_wrong": max(told.high, most.high),
        "unread_share": float(size[read == 0].sum() / max(1, claims)),
    }


def _ends(told: Interval) -> dict[str, object]:
    return {"rate": told.rate, "low": told.low, "high": told.high}


def _watched(told: pl.DataFrame, how: Rating) -> dict[str, object]:
    """Add the interval that holds at any time, where a plan says in which order pairs were to be read.

    A group's pairs are a list of their own: whatever fell to it, they are in random order within the whole list.
    """
    if how.simple_random or not told["planned"].all():
        return {}
    steps = watch(told, level=how.level)
    return {"anytime_low": steps["low"][-1], "anytime_high": steps["high"][-1]} if steps.height else {}


def _skill(found: Corrected) -> dict[str, object]:
    return {
        "corrected": found.rate,
        "corrected_low": found.low,
        "corrected_high": found.high,
        "sensitivity": found.sensitivity,
        "specificity": found.specificity,
        "read_twice": found.twice,
        "why_not_corrected": found.why_not or None,
    }
