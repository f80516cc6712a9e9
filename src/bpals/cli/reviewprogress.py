"""`bpals review progress`: how far a reading study is."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bpals.studyprogress import study_progress

WIDTH = 110
"""Columns of a table that is written to a file or a pipe."""


def progress(
    workspace: Annotated[Path, typer.Option(help="The folder of the audit.")] = Path("audit"),
    study: Annotated[str | None, typer.Option(metavar="NAME", help="Which study; by default the last.")] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="URL", help="A ledger on PostgreSQL, instead of the workspace's own."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
) -> None:
    """Say how far a study is: errors confirmed, the error rate, pace, agreement, and what is still needed."""
    told = study_progress(workspace, study=study, ledger=ledger)
    if as_json:
        print(json.dumps(told, indent=1, allow_nan=False))
        return
    _print(told)
    for notice in told["notices"]:
        print(f"note: {notice}", file=sys.stderr)


def _print(told: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=WIDTH)
    for line in _sentences(told):
        print(line)
    if told["errors"]:
        console.print(_errors(told["errors"]))
    if told["agreement"]:
        console.print(_agreement("Readers of the same pair", told["agreement"], "finding", "fleiss"))
    for title, name in (("Each reader, reading a film again", "within"), ("Each reader and the consensus", "against")):
        if told[name]:
            console.print(_agreement(title, told[name], "first", "kappa"))


def _sentences(told: Mapping[str, Any]) -> list[str]:
    counted = told["counts"]
    first = (
        f"{counted['readings']:,} readings and {counted['repeats']:,} repeats by {counted['readers']:,} readers; "
        f"{counted['reads']:,} reads of {counted['pairs']:,} pairs on {counted['films']:,} films vote, "
        f"{counted['unaudited']:,} are about findings that are not audited"
    )
    lines = [first]
    if told["pace"]:
        whole = told["pace"][0]
        lines.append(
            f"{whole['per_hour']:.0f} films an hour of active time, half of them within {whole['median_s']:.0f} s"
        )
    if told["series"]:
        last = told["series"][-1]
        random = "" if last["random"] is None else f"; at random it would have been {last['random']:.0f}"
        lines.append(f"errors found: {last['found']:,} in {last['reads']:,} readings{random}")
    needed = told["needed"]
    if needed["widest"] is not None:
        more = "" if needed["more_readings"] is None else f": about {needed['more_readings']:,} more readings"
        lines.append(
            f"the least known rate is that of {needed['finding']}, to within {needed['widest']:.3f}; "
            f"{needed['target']:g} is wanted{more}"
        )
    return [*lines, told["stopping"]["words"]]


def _errors(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Errors confirmed, and the error rate of all claims")
    table.add_column("finding")
    for name in ("pairs read", "settled", "wrong", "of presences", "of absences", "rate (95 %)", "sample"):
        table.add_column(name, justify="right")
    for row in rows:
        told = [row[name] for name in ("pairs", "settled", "confirmed", "present", "absent")]
        rate = "" if row["rate"] is None else f"{row['rate']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        table.add_row(row["finding"], *(f"{n:,}" for n in told), rate, f"{row['sample'] or 0:,}")
    return table


def _agreement(title: str, rows: Sequence[Mapping[str, Any]], who: str, kappa: str) -> Table:
    table = Table(title=title)
    table.add_column(who if who == "finding" else "reader")
    for name in ("pairs", "alike", "kappa", "AC1", "alpha", "positive", "negative"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = [_figure(row, name) for name in ("agreement", kappa, "ac1", "alpha", "positive", "negative")]
        table.add_row(str(row[who]), f"{row['n']:,}", *figures)
    return table


def _figure(row: Mapping[str, Any], name: str) -> str:
    if row[name] is None:
        return ""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.2f}" if low is None else f"{row[name]:.2f} ({low:.2f}-{high:.2f})"
