"""`bpals review progress`: how far a reading study is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bpals.cli.scoretables import sheet
from bpals.plural import several
from bpals.studyprogress import study_progress

WIDTH = 110
"""Columns of a table that is written to a file or a pipe, where COLUMNS does not say how many."""
APART = 2
"""Blanks between two columns."""
VERSION = slice(len("sha256:"), len("sha256:") + 12)
"""What is shown of a signal's hash."""

Row = Mapping[str, Any]


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


def _print(told: Row) -> None:
    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console = Console(highlight=False, width=WIDTH)
    for line in _sentences(told):
        print(line)
    shown = [_errors(told["errors"])]
    shown.append(_agreement("Readers of the same pair (95 %)", told["agreement"], "finding", "films"))
    shown.append(_agreement("Each reader, reading a film again (95 %)", told["within"], "first", "repeats"))
    shown.append(_agreement("Each reader and the consensus (95 %)", told["against"], "first", "films"))
    shown.append(_lessons(told["lessons"]))
    for title, (head, *rows) in shown:
        if rows:
            console.print(*_fitting(title, head, rows, console.width))


def _sentences(told: Row) -> list[str]:
    counted = told["counts"]
    first = (
        f"{several(counted['readings'], 'reading')} and {several(counted['repeats'], 'repeat')} by "
        f"{several(counted['readers'], 'reader')}; {several(counted['reads'], 'read')} of "
        f"{several(counted['pairs'], 'pair')} on {several(counted['films'], 'film')} vote"
    )
    if counted["unaudited"]:
        first += f", {counted['unaudited']:,} about findings that are not audited do not"
    lines = [first]
    if told["pace"]:
        whole = told["pace"][0]
        seconds = "less than a second" if whole["median_s"] < 1 else f"{whole['median_s']:.0f} s"
        lines.append(
            f"{several(round(whole['per_hour']), 'film')} an hour of active time, half of them within {seconds}"
        )
    if told["series"]:
        last = told["series"][-1]
        ends = [last[name] for name in ("random", "random_low", "random_high")]
        at_random = "" if None in ends else "; at random it would be {:.1f} ({:.1f} to {:.1f})".format(*ends)
        lines.append(f"{several(last['found'], 'error')} found in {several(last['reads'], 'reading')}{at_random}")
    least = told["least"]
    if told["errors"]:
        lines.append(
            f"an error rate is told from {least['films']} films on that were drawn at random, unless its interval is "
            f"wider than {least['width']:g}; agreement from films of {least['patients']} patients on"
        )
    return [*lines, told["stopping"]["words"]]


def _errors(rows: Sequence[Row]) -> tuple[str, list[list[str]]]:
    head = [
        "finding",
        "pairs\nread",
        "settled",
        "wrong",
        "said\npresent",
        "said\nabsent",
        "films at\nrandom",
        "rate (95 %)",
    ]
    names = ("pairs", "settled", "confirmed", "present", "absent")
    return "Errors confirmed, and the error rate of all claims", [
        head,
        *(
            [row["finding"], *(f"{row[name]:,}" for name in names), f"{row['films'] or 0:,}", _rate(row)]
            for row in rows
        ),
    ]


def _rate(row: Row) -> str:
    if not row["enough"]:
        return f"too few reads\nyet ({row['films'] or 0:,})"
    return f"{row['rate']:.3f}\n{row['low']:.3f} to {row['high']:.3f}"


def _agreement(title: str, rows: Sequence[Row], who: str, what: str) -> tuple[str, list[list[str]]]:
    head = [who if who == "finding" else "reader", "pairs", "alike", "positive", "negative", "kappa", "AC1", "alpha"]
    names = ("agreement", "positive", "negative", "fleiss" if who == "finding" else "kappa", "ac1", "alpha")
    body = []
    for row in rows:
        figures = [_figure(row, name) for name in names]
        few = [f"too few\n{what} ({row['patients']:,})", *(["-"] * (len(names) - 1))]
        body.append([str(row[who]), f"{row['n']:,}", *(figures if row["enough"] else few)])
    return title, [head, *body]


def _figure(row: Row, name: str) -> str:
    if row[name] is None:
        return "-"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.2f}" if low is None else f"{row[name]:.2f}\n{low:.2f} to {high:.2f}"


def _lessons(rows: Sequence[Row]) -> tuple[str, list[list[str]]]:
    head = ["lesson", "readings", "reads", "findings\nchanged", "trusts\nchanged", "flags\nchanged", "signal"]
    return "What was read became a new signal", [
        head,
        *(
            [
                row["at"][:16].replace("T", " "),
                *(f"{n:,}" for n in (row["readings"], row["reads"], len(row["findings"]))),
                *(f"{row['changed'][name]:,}" for name in ("trust", "flag")),
                row["version"][VERSION],
            ]
            for row in rows
        ),
    ]


def _fitting(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Table]:
    """Make one table, or several under each other that repeat the first column where all columns are too wide."""
    texts = list(zip(head, *rows, strict=True))
    wide = [max(len(line) for text in column for line in text.split("\n")) + APART for column in texts]
    starts = [1]
    used = wide[0]
    for at in range(1, len(head)):
        if at > starts[-1] and used + wide[at] > width:
            starts.append(at)
            used = wide[0]
        used += wide[at]
    tables = []
    for begin, end in pairwise([*starts, len(head)]):
        table = sheet(title if begin == 1 else "", [head[0]], head[begin:end])
        for row in rows:
            table.add_row(row[0], *row[begin:end])
        tables.append(table)
    return tables
