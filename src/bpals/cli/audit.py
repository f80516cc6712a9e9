"""`bpals audit`: trust for every claim of a dataset, from one command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.table import Table

from bpals.audit import Run
from bpals.audit import audit as run_audit
from bpals.cli.progress import bar


def audit(  # noqa: PLR0913  an option of the command is a parameter
    source: Annotated[str | None, typer.Option(help="nih (embedded), nih:FILE or table:FILE.")] = None,
    mapping: Annotated[
        str | None,
        typer.Option(metavar="FILE.toml|NAME", help="How to read a table: a file, or chexpert, padchest, vindr, nih."),
    ] = None,
    workspace: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("audit"),
    judges: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Use these judges only; by default record and every sealed one."),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="KIND=PATH", help="Fit on expert labels: four-findings=PATH, all-findings=PATH, table=FILE."
        ),
    ] = None,
    calibrate_split: Annotated[
        str | None, typer.Option(metavar="val|test|all", help="Which of the expert labels; all by default.")
    ] = None,
    reviews: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Single reads, one row a read: they teach trust, and where readers would split."
        ),
    ] = None,
    reviews_split: Annotated[
        str | None, typer.Option(metavar="val|test|all", help="Which of the reads; all by default.")
    ] = None,
    refit: Annotated[
        str | None,
        typer.Option(
            metavar="KIND=PATH",
            help="Expert labels of films drawn at random from those audited: fits how common errors are.",
        ),
    ] = None,
    refit_split: Annotated[str | None, typer.Option(help="Which rows of the sample: val, test or all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run record as JSON, for a program.")] = False,
) -> None:
    """Give every label of a dataset a trust, with a report. With no option: the embedded NIH ChestX-ray14 record."""
    with bar() as drawn:
        task = drawn.add_task("starting", total=1.0)
        run = run_audit(
            source,
            mapping=mapping,
            workspace=workspace,
            judges=judges,
            calibrate=calibrate,
            calibrate_split=calibrate_split,
            reviews=reviews,
            reviews_split=reviews_split,
            refit=refit,
            refit_split=refit_split,
            progress=lambda what, share: drawn.update(task, description=what, completed=share),
        )
    for notice in run.record["notices"]:
        print(f"note: {notice['message']}", file=sys.stderr)
    if as_json:
        print(json.dumps(run.record, indent=1, ensure_ascii=False))
    else:
        _tell(run)


def _tell(run: Run) -> None:
    """Print what was found, in a table and four lines."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100)
    table = Table(
        title=f"{run.record['source']['title']}: {run.record['images']:,} films, {run.signal.height:,} claims"
    )
    for name in ("finding", "says present", "median trust", "likely mislabelled", "suspect", "hard", "missed?"):
        table.add_column(name, justify="left" if name == "finding" else "right")
    for row in _summary(run.signal).iter_rows(named=True):
        median = "-" if row["median"] is None else f"{row['median']:.2f}"
        counts = (f"{row[name]:,}" for name in ("likely_mislabelled", "suspect", "hard", "missed"))
        table.add_row(row["finding"], f"{row['present']:,}", median, *counts)
    console.print(table)
    if run.record["calibration"] is None:
        print("No expert label was used: a trust says how well a label fits the rest of the record (docs/limits.md).")
    else:
        print(_promised(run.record["certificates"]))
    if told := run.record["reviews"]:
        print(f"{told['reads']:,} single reads were heard, readers: {told['readers']} (docs/hard.md).")
    print("The flags count presences; `missed?` counts absences that are likely mislabelled.")
    print(f"Report: {run.report}")
    print(f"Signal: {run.workspace / 'signal.parquet'}")


def _promised(certificates: list[dict[str, Any]]) -> str:
    """Say what is certified of the likely mislabelled claims, and of which films."""
    shown = [each for each in certificates if each["promise"] == "precision" and each["cut"] is not None]
    if not shown:
        return "Nothing is certified of likely mislabelled claims: run.json says how many more reviews it takes."
    held = ", ".join(f"{each['finding']} {each['says']} {each['level']:.0%}" for each in shown)
    return (
        f"Of likely mislabelled claims at least so many are wrong, on films like those that experts read: {held}. "
        "Such films have more errors than others: see --refit, and docs/flags.md."
    )


def _summary(signal: pl.DataFrame) -> pl.DataFrame:
    """Count a finding's presences by flag, and its likely missed absences."""
    present, flag = pl.col("says") == "present", pl.col("flag")
    return (
        signal.group_by("finding")
        .agg(
            present=present.sum(),
            median=pl.col("trust").filter(present).median(),
            missed=((pl.col("says") == "absent") & (flag == "likely_mislabelled")).sum(),
            **{name: (present & (flag == name)).sum() for name in ("likely_mislabelled", "suspect", "hard")},
        )
        .sort("finding")
    )
