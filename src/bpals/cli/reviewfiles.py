"""`bpals review export` and `bpals review import`: reviews as files of other tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from bpals.cli.progress import bar
from bpals.plural import several
from bpals.reviewfiles import FORMATS, as_json, export_reviews, import_reviews
from bpals.types import Notice

WORKSPACE = Annotated[Path, typer.Option(help="The folder of the audit.")]
LEDGER = Annotated[
    str | None, typer.Option("--ledger", metavar="URL", help="A ledger on PostgreSQL, instead of the workspace's own.")
]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]
FORMAT = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"


def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new file, or for dicom-sr a new folder.")],
    format_: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help=f"{FORMAT}; .csv and .parquet tell it by themselves.")
    ] = None,
    workspace: WORKSPACE = Path("audit"),
    images: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The films, where the workspace does not know them.")
    ] = None,
    ledger: LEDGER = None,
    as_json_: AS_JSON = False,
) -> None:
    """Write every review to a file: one row a reader, film, finding and phase. Nothing is overwritten."""
    with bar() as drawn:
        task = drawn.add_task("starting", total=1.0)
        told = export_reviews(
            workspace,
            out,
            format=format_,
            images=images,
            ledger=ledger,
            progress=lambda what, share: drawn.update(task, description=what, completed=share),
        )
    if as_json_:
        record = {"path": str(told.path), "reviews": told.reviews, "files": told.files}
        print(json.dumps({**record, "notices": [notice.message for notice in told.notices]}, indent=1))
    else:
        reports = f", {told.files:,} reports" if told.files > 1 else ""
        print(f"{several(told.reviews, 'review')} in {told.path}{reports}")
    _note(told.notices)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export, or any sheet with one row a read.")],
    format_: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help=f"{FORMAT}; by default its content tells.")
    ] = None,
    reader: Annotated[str | None, typer.Option(metavar="NAME", help="Who read, where the file names nobody.")] = None,
    workspace: WORKSPACE = Path("audit"),
    ledger: LEDGER = None,
    as_json_: AS_JSON = False,
) -> None:
    """Bring the reads of a file into the workspace, all or none; what was brought in before stays as it is."""
    with bar() as drawn:
        task = drawn.add_task("starting", total=1.0)
        told = import_reviews(
            workspace,
            file,
            format=format_,
            reader=reader,
            ledger=ledger,
            progress=lambda what, share: drawn.update(task, description=what, completed=share),
        )
    if as_json_:
        print(json.dumps(as_json(told), indent=1, ensure_ascii=False))
    else:
        new = told.reviews
        fresh, known = several(new.height, "is", "are"), several(told.already, "was", "were")
        print(f"{several(told.read, 'read')} in {file}: {fresh} new, {known} here already")
        if new.height:
            print(f"films: {new['image_id'].n_unique():,}, readers: {new['reader'].n_unique():,}")
    _note(told.notices)


def _note(notices: Iterable[Notice]) -> None:
    for notice in notices:
        print(f"note: {notice.message}", file=sys.stderr)
