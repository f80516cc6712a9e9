"""`bpals rate`: the dataset's label error rate from reads, and `bpals rate plan`: what to read for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bpals.cli import ratetables
from bpals.cli.progress import bar
from bpals.cli.reads import given_files
from bpals.errors import UsageError
from bpals.rating import Rates, plan_rate, write_list
from bpals.rating import rate as tell_rates

WIDTH = 110
"""Columns of a table that is written to a file or a pipe."""

WORKSPACE = Annotated[Path, typer.Option(help="The folder of the audit.")]
SEED = Annotated[int, typer.Option(help="Where drawing starts; a plan that is added to keeps its seed.", min=0)]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]

app = typer.Typer(
    name="rate",
    help="Tell the dataset's label error rate per finding, with intervals, from reads of pairs drawn at random.",
    epilog="Example: bpals rate --reviews reads.csv --group-by sex",
    invoke_without_command=True,
)


@app.callback(invoke_without_command=True)
def rate(  # noqa: PLR0913  an option of the command is a parameter
    context: typer.Context,
    reviews: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="The reads: image_id, finding, reader, verdict, inclusion. May be given again."
        ),
    ] = None,
    workspace: WORKSPACE = Path("audit"),
    group_by: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Also by sex, age or view. May be given again.")
    ] = None,
    simple_random: Annotated[
        bool, typer.Option("--simple-random", help="Every pair of a finding had the same chance to be read.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the reads with the chance of each being drawn.")
    ] = None,
    as_json: AS_JSON = False,
    seed: SEED = 0,
) -> None:
    """Tell the dataset's label error rate per finding, with intervals, from reads of pairs drawn at random."""
    if context.invoked_subcommand is not None:
        return
    reads = given_files(reviews)
    if reads is None:
        raise UsageError(
            "there is nothing to rate. Type: bpals rate --reviews FILE, or first: bpals rate plan --reads 300"
        )
    told = tell_rates(workspace, reviews=reads, group_by=group_by or (), simple_random=simple_random, seed=seed)
    if out is not None:
        _write(told, out)
    if as_json:
        record = {"rates": told.rates.to_dicts(), "meta": told.meta, "notes": [note.message for note in told.notes]}
        print(json.dumps(record, indent=1, allow_nan=False))
    else:
        _print(told)
    for note in told.notes:
        print(f"note: {note.message}", file=sys.stderr)


@app.command("plan", epilog="Example: bpals rate plan --findings Pneumothorax,Hernia --reads 300 --out reads.csv")
def plan(
    workspace: WORKSPACE = Path("audit"),
    findings: Annotated[str, typer.Option(metavar="A,B", help="Which findings to read; by default all.")] = "",
    reads: Annotated[
        int | None, typer.Option(metavar="N", help="How many pairs to read of each finding.", min=1)
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(metavar="W", help="Instead: as many as an interval of this width takes, such as 0.03."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The reading list to write.")] = Path("reads.csv"),
    as_json: AS_JSON = False,
    seed: SEED = 0,
) -> None:
    """Draw pairs to be read, and say which width how many reads buy; the key stays in the workspace, unseen."""
    if out.exists():
        raise UsageError(f"{out} is there already, and may hold verdicts. Name another with --out FILE")
    with bar() as drawn:
        task = drawn.add_task("reading the audit", total=1.0)
        made = plan_rate(
            workspace,
            findings=[word for word in findings.split(",") if word.strip()],
            reads=reads,
            width=width,
            seed=seed,
            progress=lambda what, share: drawn.update(task, description=what, completed=share),
        )
    if made.reading_list.height:
        write_list(made, out)
    if as_json:
        record = {"reads": made.reads, "listed": made.reading_list.height, "widths": made.widths.to_dicts()}
        record["guessed"] = list(made.guessed)
        print(json.dumps({**record, "list": str(out) if made.reading_list.height else None}, indent=1))
        return
    _console().print(ratetables.widths(made))
    if caution := ratetables.caution(made):
        print(caution)
    print(ratetables.next_step(made, str(out), str(workspace)))


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _print(told: Rates) -> None:
    for table in ratetables.tables(told.rates):
        _console().print(table)
    for line in ratetables.meaning(told):
        print(line)


def _write(told: Rates, file: Path) -> None:
    try:
        file.write_text(told.reviews.write_csv(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}. Name another with --out FILE") from None
