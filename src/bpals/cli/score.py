"""`bpals score`: the scorecard of a signal against radiologist labels."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bpals.cli import scoretables
from bpals.cli.progress import bar
from bpals.errors import UsageError
from bpals.report.scorecard import render_scorecard
from bpals.score.resamples import Resampling
from bpals.scoring import Scorecard, scorecard

WIDTH = 100
"""Columns of a table that is written to a file or a pipe."""


def score(  # noqa: PLR0913  an option of the command is a parameter
    workspace: Annotated[Path, typer.Option(help="The folder of the audit.")] = Path("audit"),
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=PATH",
            help="Expert labels: four-findings=PATH, all-findings=PATH, table=FILE or boxes. May be given again.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which rows of the reference: val, test or all.")] = "all",
    only_judged: Annotated[
        bool, typer.Option(help="Keep to films that every image judge answered, and give each judge its own row.")
    ] = False,
    readers: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A file with one row a reader: score single readers beside bpals."),
    ] = None,
    min_readers: Annotated[
        int | None,
        typer.Option(metavar="K", help="all-findings by reader: present if at least K say so, not the majority."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON, for a program.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables, for a README.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with the plots.")] = None,
    bootstrap: Annotated[int, typer.Option(metavar="N", help="Resamples of patients for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Where the resampling starts.")] = 0,
) -> None:
    """Score the trust of an audit against radiologist labels, beside other ways of finding label errors."""
    if as_json and as_markdown:
        raise UsageError("--json and --markdown both want the output. Type one of them")
    with bar() as drawn:
        task = drawn.add_task("reading the audit", total=1.0)
        card = scorecard(
            workspace,
            reference=reference or (),
            split=split,
            only_judged=only_judged,
            readers=readers,
            min_readers=min_readers,
            resampling=Resampling(draws=bootstrap, seed=seed),
            progress=lambda what, share: drawn.update(task, description=f"scoring {what}", completed=share),
        )
    if html is not None:
        _write_page(card, html)
    if as_json:
        print(json.dumps([*card.rows, *card.boxes, *card.readers, *card.agreement], indent=1, allow_nan=False))
    elif as_markdown:
        print(scoretables.markdown(card), end="")
    else:
        _print_tables(card)
    _print_notes(card)


def _write_page(card: Scorecard, file: Path) -> None:
    meta = {**card.meta, "notes": [note.message for note in card.notes]}
    readers = scoretables.shown(card.readers)
    page = render_scorecard(
        card.rows,
        card.reliability,
        meta,
        boxes=card.boxes,
        readers=readers,
        agreement=scoretables.agreement(card.agreement),
    )
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}. Name another with --html FILE") from None


def _print_tables(card: Scorecard) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    for table in scoretables.tables(card):
        console.print(table)


def _print_notes(card: Scorecard) -> None:
    """Say what was left out, beside the output and not in it."""
    for note in card.notes:
        print(f"note: {note.message}", file=sys.stderr)
