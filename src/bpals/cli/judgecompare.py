"""`bpals judge compare A B`: where two judges differ, on what they are wrong together, and who was right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bpals.cli import comparetables
from bpals.cli.progress import bar
from bpals.comparing import Comparison, comparison_page
from bpals.comparing import compare as run_comparison
from bpals.errors import UsageError
from bpals.score.resamples import Resampling

WIDTH = 120
"""Columns of a table that is written to a file or a pipe."""


def compare(  # noqa: PLR0913  an option of the command is a parameter
    a: Annotated[str, typer.Argument(help="A judge of the workspace; `record` is the one that reads the record.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    workspace: Annotated[Path, typer.Option(help="The folder of the audit.")] = Path("audit"),
    reference: Annotated[
        list[str] | None, typer.Option(metavar="KIND=PATH", help="Expert labels, as in `bpals score`. May be repeated.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which rows of the reference: val, test or all.")] = "all",
    images: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where the films are; by default where `judge run` found them.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page; by default compare-A-B.html in the workspace.")
    ] = None,
    bootstrap: Annotated[int, typer.Option(metavar="N", help="Resamples of patients for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Where the resampling starts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, for a program.")] = False,
) -> None:
    """Compare two judges: who is right, how often they are wrong together, and the films on which they differ most."""
    with bar() as drawn:
        task = drawn.add_task("reading the judges", total=1.0)
        found = run_comparison(
            a,
            b,
            workspace=workspace,
            reference=reference or (),
            split=split,
            resampling=Resampling(draws=bootstrap, seed=seed),
            progress=lambda what, share: drawn.update(task, description=what, completed=share),
        )
        drawn.update(task, description="writing the page", completed=0.95)
        page = html or workspace / f"compare-{a}-{b}.html"
        _write(comparison_page(found, workspace=workspace, images=images), page)
    if as_json:
        print(json.dumps(found.as_dict(), indent=1, allow_nan=False))
    else:
        _print(found)
        print(f"Page: {page}")
    for note in found.notes:
        print(f"note: {note.message}", file=sys.stderr)


def _write(text: str, page: Path) -> None:
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{page} cannot be written: {error.strerror}. Name another with --html FILE") from None


def _print(found: Comparison) -> None:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=WIDTH)
    print(f"A = {found.a}, B = {found.b}\n")
    print(f"{comparetables.headline(found)}\n")
    for table in comparetables.tables(found):
        console.print(table)
