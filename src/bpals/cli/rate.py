"""`bpals rate`: the dataset's label error rate from reads, and `bpals rate plan`: what to read for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.table import Table

from bpals.cli import terminal
from bpals.cli.terminal import AS_JSON, AUDIT, WORKSPACE, Row, number, sheet, takes
from bpals.errors import UsageError
from bpals.reviews.verdicts import VERDICT_WORDS
from bpals.tasks.rate import Plan, Rates, plan_rate, write_list
from bpals.tasks.rate import rate as estimate_rates
from bpals.text import several

PURPOSE = "Tell the dataset's label error rate per finding, with intervals, from reads of pairs drawn at random."
OF_THIS_DATASET = (
    "The rate is of this dataset's labels, as these readers see the images: not of other hospitals, and not free of "
    "the readers' own errors."
)
MOSTLY_ABSENCES = (
    "Labels of absence are many and mostly right, so the rate of both is near theirs; look at the rate of presences "
    "before you train on them."
)
ONE_LOOK, AT_ANY_TIME = "95 % interval", "95 % at any time"
KINDS = {"all": "both", "present": "presence", "absent": "absence"}
WIDTH = 110
"""Columns of a table that is written to a file or a pipe."""
SEED = Annotated[int, typer.Option(help="Where drawing starts; a plan that is added to keeps its seed.", min=0)]

app = typer.Typer(name="rate", help=PURPOSE, add_completion=False, invoke_without_command=True)


@app.callback(invoke_without_command=True, epilog="Example: bpals rate --reviews reads.csv --group-by sex")
def rate(  # noqa: PLR0913  an option of the command is a parameter
    context: typer.Context,
    reviews: Annotated[
        list[Path] | None,
        takes("FILE", "The reads: image_id, finding, reader, verdict, inclusion. May be given again."),
    ] = None,
    workspace: WORKSPACE = AUDIT,
    group_by: Annotated[list[str] | None, takes("COLUMN", "Also by sex, age or view. May be given again.")] = None,
    simple_random: Annotated[
        bool, typer.Option("--simple-random", help="Every pair of a finding had the same chance to be read.")
    ] = False,
    any_time: Annotated[
        bool,
        typer.Option("--any-time", help="Print the interval that holds however often you look, not that for one look."),
    ] = False,
    out: Annotated[Path | None, takes("FILE", "Also write the reads with the chance of each being drawn.")] = None,
    as_json: AS_JSON = False,
    seed: SEED = 0,
) -> None:
    """Tell the dataset's label error rate per finding, with intervals, from reads of pairs drawn at random."""
    if context.invoked_subcommand is not None:
        return
    reads = terminal.given_files(reviews)
    if reads is None:
        raise UsageError(
            "there is nothing to rate. Type: bpals rate --reviews FILE, or first: bpals rate plan --reads 300"
        )
    found = estimate_rates(workspace, reviews=reads, group_by=group_by or (), simple_random=simple_random, seed=seed)
    if any_time and found.rates["anytime_low"].null_count() == found.rates.height:
        raise UsageError(
            "--any-time needs reads in the order of a list of `bpals rate plan`. Leave it out, or type: bpals rate plan"
        )
    if out is not None:
        terminal.write_text(found.reviews.write_csv(), out, "--out")
    if as_json:
        record = {"rates": found.rates.to_dicts(), "meta": found.meta, "notes": [note.message for note in found.notes]}
        print(json.dumps(record, indent=1, allow_nan=False))
    else:
        terminal.print_tables(tables(found.rates, any_time=any_time), WIDTH)
        print(*meaning(found, any_time=any_time), sep="\n")
    terminal.print_notes(note.message for note in found.notes)


@app.command("plan", epilog="Example: bpals rate plan --findings Pneumothorax,Hernia --reads 300 --out reads.csv")
def plan(
    workspace: WORKSPACE = AUDIT,
    findings: Annotated[str, takes("A,B", "Which findings to read; by default all.")] = "",
    reads: Annotated[
        int | None, typer.Option(metavar="N", help="How many pairs to read of each finding.", min=1)
    ] = None,
    width: Annotated[
        float | None, takes("W", "Instead: as many as an interval of this width takes, such as 0.03.")
    ] = None,
    out: Annotated[Path, takes("FILE", "The reading list to write.")] = Path("reads.csv"),
    as_json: AS_JSON = False,
    seed: SEED = 0,
) -> None:
    """Draw pairs to be read, and say which width how many reads buy; the key stays in the workspace, unseen."""
    if out.exists():
        raise UsageError(f"{out} is there already, and may hold verdicts. Name another with --out FILE")
    with terminal.progress("reading the audit") as show:
        made = plan_rate(
            workspace,
            findings=[word for word in findings.split(",") if word.strip()],
            reads=reads,
            width=width,
            seed=seed,
            progress=show,
        )
    if made.reading_list.height:
        write_list(made, out)
    if as_json:
        record = {"reads": made.reads, "listed": made.reading_list.height, "widths": made.widths.to_dicts()}
        record["guessed"] = list(made.guessed)
        print(json.dumps({**record, "list": str(out) if made.reading_list.height else None}, indent=1))
        return
    terminal.print_tables([widths(made)], WIDTH)
    if caution := rate_caution(made):
        print(caution)
    print(next_step(made, str(out), str(workspace)))


def tables(rates: pl.DataFrame, *, any_time: bool = False) -> list[Table]:
    """Every table: the rates, the groups of patients, and what readers' doubts and errors do to them."""
    rows = rates.to_dicts()
    whole = [row for row in rows if row["group_by"] is None]
    columns = dict.fromkeys(row["group_by"] for row in rows if row["group_by"])
    kinds = [(KINDS[row["says"]], row) for row in whole]
    drawn = [_rates("Share of labels that readers reject", "labels of", kinds, any_time=any_time)]
    for column in columns:
        groups = [(row["group"], row) for row in rows if row["group_by"] == column]
        drawn.append(_rates(f"By {column}", column, groups, any_time=any_time))
    doubtful = [row for row in whole if row["says"] == "all" and (row["unsettled"] or row["corrected"] is not None)]
    return [*drawn, _doubts(doubtful)] if doubtful else drawn


def _rates(title: str, kind: str, rows: list[tuple[str, Row]], *, any_time: bool) -> Table:
    """One line per row, each with its kind; a finding is named once."""
    interval, low, high = (AT_ANY_TIME, "anytime_low", "anytime_high") if any_time else (ONE_LOOK, "low", "high")
    table = sheet(title, ["finding", kind], ("labels", "read", "wrong", "error rate", interval))
    last = None
    for name, row in rows:
        if row["finding"] != last:
            table.add_section()
        counts = [f"{row[name]:,}" for name in ("claims", "read", "wrong")]
        figures = _percent(row["rate"]), _span(row, low, high)
        table.add_row("" if row["finding"] == last else row["finding"], name, *counts, *figures)
        last = row["finding"]
    return table


def _doubts(rows: list[Row]) -> Table:
    numbers = ("unsettled", "with them", "twice", "sens.", "spec.", "corrected", ONE_LOOK)
    table = sheet("What readers were unsure of, and their own errors", ["finding"], numbers)
    for row in rows:
        skill = [number(row[name], 2) for name in ("sensitivity", "specificity")]
        table.add_row(
            row["finding"], f"{row['unsettled']:,}", _span(row, "low_if_right", "high_if_wrong"),
            "-" if row["read_twice"] is None else f"{row['read_twice']:,}", *skill, _percent(row["corrected"]),
            _span(row, "corrected_low", "corrected_high"),
        )  # fmt: skip
    return table


def meaning(found: Rates, *, any_time: bool = False) -> list[str]:
    """Say what the numbers are, and what they are not."""
    rows = found.rates.filter(pl.col("group_by").is_null(), pl.col("says") == "all").to_dicts()
    lines = [OF_THIS_DATASET, MOSTLY_ABSENCES]
    if any_time:
        lines.append(
            "This interval holds at every look: read on or stop as you like. The usual one is mostly narrower."
        )
    elif any(row["anytime_low"] is not None for row in rows):
        lines.append(
            "The 95 % interval holds for one look, after as many reads as you fixed before. To look again and again, "
            "and stop when you like: --any-time."
        )
    if unread := [row["finding"] for row in rows if row["unread_share"] > 0]:
        lines.append(
            f"No read settled anything in a part of the labels of {', '.join(unread)}; "
            "the interval allows for any rate there."
        )
    if found.rates["corrected"].null_count() == found.rates.height:
        lines.append(
            "Readers' own errors are not corrected: that takes 30 pairs of a finding or more, read by two readers."
        )
    return lines


def widths(plan: Plan) -> Table:
    """Show which width how many reads are expected to buy."""
    reads = plan.widths["reads"].unique().sort().to_list()
    title = "Expected width of the 95 % interval, by reads per finding; `expected` is the mean of 1 - trust"
    table = sheet(title, ["finding"], ("expected", *map(str, reads)))
    for (finding,), part in plan.widths.group_by("finding", maintain_order=True):
        got = dict(part.select("reads", "width").iter_rows())
        cells = [_percent(got[n]) if n in got else "-" for n in reads]
        table.add_row(str(finding), _percent(part["expected_rate"][0]), *cells)
    return table


def rate_caution(plan: Plan) -> str:
    """Say what the expected rate is worth where the trust was not fitted on expert labels; nothing where it was."""
    if not plan.guessed:
        return ""
    return (
        f"No expert label stands behind the trust of {', '.join(plan.guessed)}: there `expected` says how badly "
        "labels fit their surroundings, mostly far more than are wrong. So these widths are too wide, and --width "
        "asks for too many reads. The rate itself does not rest on it: bpals rate tells the true width after any "
        "number of reads."
    )


def next_step(plan: Plan, file: str, workspace: str) -> str:
    """Say what was written and what to type when it is filled in."""
    if not plan.reading_list.height:
        before = several(plan.reads, "read per finding was", "reads per finding were")
        return f"Nothing new to read: {before} drawn before."
    pairs = several(plan.reading_list.height, "pair")
    before = " and once more --reviews for each list of before" if plan.batch > 1 else ""
    return (
        f"{file}: {pairs} to read, in this order. Fill in 'verdict' ({VERDICT_WORDS}) and "
        "'reader', without looking at the labels.\n"
        f"Then type: bpals rate --reviews {file} --workspace {workspace}{before}"
    )


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    # From 9.95 % on, one digit: with two it would print as 10.00.
    return f"{100 * share:.{1 if share >= 0.0995 else 2}f} %"


def _span(row: Row, low: str = "low", high: str = "high") -> str:
    return "-" if row[low] is None else f"{_percent(row[low])} to {_percent(row[high])}"
