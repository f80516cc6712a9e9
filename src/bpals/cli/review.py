"""`bpals review`: what an expert should read next, and the room to read it in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bpals.cli.reads import given_files
from bpals.cli.reviewaccount import app as account
from bpals.cli.reviewfiles import export, import_
from bpals.cli.reviewprogress import progress
from bpals.cli.reviewserve import serve, verify_log
from bpals.errors import UsageError
from bpals.plural import several
from bpals.readinglist import ReadingList, reading_list
from bpals.score.keys import write_sheet
from bpals.signal.queue import Draw
from bpals.signal.value import Worth

app = typer.Typer(
    name="review",
    help="Send experts where their reading pays.",
    epilog="Example: bpals review next --n 50 --out list.csv",
    no_args_is_help=True,
)


@app.callback()
def _before_any_command() -> None:
    """Send experts where their reading pays."""


app.command("serve", epilog="Example: bpals review serve --workspace audit --images films")(serve)
app.add_typer(account)
app.command("verify-log", epilog="Example: bpals review verify-log --workspace audit")(verify_log)
app.command("progress", epilog="Example: bpals review progress --workspace audit --json")(progress)
app.command("export", epilog="Example: bpals review export --format label-studio --out tasks.json")(export)
app.command("import", epilog="Example: bpals review import readers.csv --workspace audit")(import_)


@app.command("next", epilog="Example: bpals review next --workspace audit --n 50 --out list.csv")
def next_(  # noqa: PLR0913  an option of the command is a parameter
    workspace: Annotated[Path, typer.Option(help="The folder of the audit.")] = Path("audit"),
    n: Annotated[int, typer.Option("--n", metavar="N", help="How many pairs.")] = 50,
    findings: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these findings; by default all of the audit.")
    ] = None,
    gain: Annotated[
        list[str] | None,
        typer.Option(metavar="FINDING=X", help="What an error of a finding is worth, beside 1. May be given again."),
    ] = None,
    reviews: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Reads that there are: what was read is not offered again. May be given again."
        ),
    ] = None,
    random_share: Annotated[float, typer.Option(metavar="X", help="Share that is drawn at random, unmarked.")] = 0.2,
    readers_per_pair: Annotated[int, typer.Option(metavar="K", help="Offer a pair until K have read it.")] = 1,
    all_films: Annotated[bool, typer.Option("--all-films", help="Several films of a patient may be offered.")] = False,
    seed: Annotated[int, typer.Option(help="Where the drawing starts.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a sheet for the reader to fill in, and FILE's key beside it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON, for a program.")] = False,
) -> None:
    """Draw the pairs that an expert should read next: most by value, a share at random, in one unmarked order."""
    listed = reading_list(
        workspace,
        n=n,
        findings=None if findings is None else [word.strip() for word in findings.split(",")],
        reviews=given_files(reviews),
        worth=Worth(gains=_gains(gain or [])),
        draw=Draw(
            random_share=random_share, seed=seed, one_per_patient=not all_films, readers_per_pair=readers_per_pair
        ),
    )
    key = None if out is None else write_sheet(listed.table, out)
    if as_json:
        print(json.dumps(listed.table.to_dicts(), indent=1, allow_nan=False))
    elif out is None:
        _print(listed)
    else:
        pairs = several(listed.table.height, "pair")
        print(f"{pairs} in {out}, to be filled in: reader, and verdict YES, NO or HEDGE")
        print(f"the chances of being drawn in {key}: keep it beside the sheet and from the reader")
    for notice in listed.notices:
        print(f"note: {notice.message}", file=sys.stderr)


def _print(listed: ReadingList) -> None:
    for film, finding in listed.table.select("image_id", "finding").iter_rows():
        print(f"{film}  {finding}")


def _gains(words: list[str]) -> dict[str, float]:
    gains = {}
    for word in words:
        name, mark, number = word.rpartition("=")
        try:
            gains[name] = float(number)
        except ValueError:
            mark = ""
        if not mark:
            raise UsageError(f"--gain {word}: it takes a finding and a number. Type: --gain Pneumothorax=3")
    return gains
