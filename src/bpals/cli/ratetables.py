"""How error rates look in a terminal, and the words that say what they mean and do not mean."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.table import Table

from bpals.cli.scoretables import number, sheet
from bpals.plural import several
from bpals.rating import Plan, Rates

Row = dict[str, Any]

OF_THIS_DATASET = (
    "The rate is of this dataset's claims, as these readers see the films: not of other hospitals, and not free of the "
    "readers' own errors."
)
MOSTLY_ABSENCES = (
    "Claims of absence are many and mostly right, so the rate of both is near theirs; look at the rate of presences "
    "before you train on them."
)


def tables(rates: pl.DataFrame) -> list[Table]:
    """Every table: the rates, the groups of patients, and what readers' doubts and errors do to them."""
    rows = rates.to_dicts()
    whole = [row for row in rows if row["group_by"] is None]
    columns = dict.fromkeys(row["group_by"] for row in rows if row["group_by"])
    groups = [_groups(column, [row for row in rows if row["group_by"] == column]) for column in columns]
    drawn = [_rates(whole), *groups]
    doubtful = [row for row in whole if row["says"] == "all" and (row["unsettled"] or row["corrected"] is not None)]
    return [*drawn, _doubts(doubtful)] if doubtful else drawn


def _rates(rows: list[Row]) -> Table:
    numbers = ("claims", "read", "wrong", "error rate", "95 % interval", "at any time")
    table = sheet("Share of claims that readers reject", ["finding", "claims of"], numbers)
    for row in rows:
        if row["says"] == "all":
            table.add_section()
        name = row["finding"] if row["says"] == "all" else ""
        kind = {"all": "both", "present": "presence", "absent": "absence"}[row["says"]]
        table.add_row(
            name, kind, *_counts(row), _percent(row["rate"]), _span(row), _span(row, "anytime_low", "anytime_high")
        )
    return table


def _groups(column: str, rows: list[Row]) -> Table:
    numbers = ("claims", "read", "wrong", "error rate", "95 % interval", "at any time")
    table = sheet(f"By {column}", ["finding", column], numbers)
    last = None
    for row in rows:
        if row["finding"] != last:
            table.add_section()
        name = row["finding"] if row["finding"] != last else ""
        spans = _span(row), _span(row, "anytime_low", "anytime_high")
        table.add_row(name, row["group"], *_counts(row), _percent(row["rate"]), *spans)
        last = row["finding"]
    return table


def _doubts(rows: list[Row]) -> Table:
    numbers = ("unsettled", "with them", "twice", "sens.", "spec.", "corrected", "95 % interval")
    table = sheet("What readers were unsure of, and their own errors", ["finding"], numbers)
    for row in rows:
        skill = [number(row[name], 2) for name in ("sensitivity", "specificity")]
        table.add_row(
            row["finding"], f"{row['unsettled']:,}", _span(row, "low_if_right", "high_if_wrong"),
            "-" if row["read_twice"] is None else f"{row['read_twice']:,}", *skill, _percent(row["corrected"]),
            _span(row, "corrected_low", "corrected_high"),
        )  # fmt: skip
    return table


def meaning(told: Rates) -> list[str]:
    """Say what the numbers are, and what they are not."""
    rows = told.rates.filter(pl.col("group_by").is_null(), pl.col("says") == "all").to_dicts()
    lines = [OF_THIS_DATASET, MOSTLY_ABSENCES]
    if any(row["anytime_low"] is not None for row in rows):
        lines.append(
            "Stop reading when you like only by the last column; the 95 % interval holds for one look, fixed before."
        )
    if unread := [row["finding"] for row in rows if row["unread_share"] > 0]:
        lines.append(
            f"No read settled anything in a part of the claims of {', '.join(unread)}; "
            "the interval allows for any rate there."
        )
    if told.rates["corrected"].null_count() == told.rates.height:
        lines.append(
            "Readers' own errors are not corrected: that takes 30 pairs of a finding or more, read by two readers."
        )
    return lines


def widths(plan: Plan) -> Table:
    """Show which width how many reads are expected to buy."""
    reads = plan.widths["reads"].unique().sort().to_list()
    title = "Expected width of the 95 % interval, by reads a finding; `expected` is the mean of 1 - trust"
    table = sheet(title, ["finding"], ("expected", *map(str, reads)))
    for (finding,), part in plan.widths.group_by("finding", maintain_order=True):
        got = dict(part.select("reads", "width").iter_rows())
        cells = [_percent(got[n]) if n in got else "-" for n in reads]
        table.add_row(str(finding), _percent(part["expected_rate"][0]), *cells)
    return table


def caution(plan: Plan) -> str:
    """Say what the expected rate is worth where no expert label taught the trust; nothing where it did."""
    if not plan.guessed:
        return ""
    return (
        f"No expert label taught the trust of {', '.join(plan.guessed)}: there `expected` says how badly claims fit "
        "their surroundings, mostly far more than are wrong. So these widths are too wide, and --width asks for too "
        "many reads. The rate itself does not rest on it: bpals rate tells the true width after any number of reads."
    )


def next_step(plan: Plan, file: str, workspace: str) -> str:
    """Say what was written and what to type when it is filled in."""
    if not plan.reading_list.height:
        return f"Nothing new to read: {several(plan.reads, 'read a finding was', 'reads a finding were')} drawn before."
    pairs = several(plan.reading_list.height, "pair")
    before = " and once more --reviews for each list of before" if plan.batch > 1 else ""
    return (
        f"{file}: {pairs} to read, in this order. Fill in 'verdict' (present, absent, "
        "uncertain or unreadable) and 'reader', without looking at the labels.\n"
        f"Then type: bpals rate --reviews {file} --workspace {workspace}{before}"
    )


def _counts(row: Row) -> list[str]:
    return [f"{row[name]:,}" for name in ("claims", "read", "wrong")]


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    digits = 1 if share >= 0.0995 else 2
    return f"{100 * share:.{digits}f} %"


def _span(row: Row, low: str = "low", high: str = "high") -> str:
    return "-" if row[low] is None else f"{_percent(row[low])} to {_percent(row[high])}"
