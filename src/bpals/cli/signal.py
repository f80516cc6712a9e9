"""`bpals signal`: the signal of an audit for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bpals.cli import terminal
from bpals.cli.terminal import AS_JSON, AUDIT, WORKSPACE, takes
from bpals.tasks.review_files import export_signal
from bpals.text import several

app = terminal.group("signal", "Take the signal of an audit to other tools.", "bpals signal export --out signal.csv")


@app.command("export", epilog="Example: bpals signal export --format label-studio --n 200 --out tasks.json")
def export(
    out: Annotated[Path, takes("FILE", "A new file.")],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", help="csv, parquet, fiftyone or label-studio; .csv and .parquet tell it."
        ),
    ] = None,
    findings: Annotated[str | None, takes("A,B", "Only these findings; by default all of the audit.")] = None,
    flags: Annotated[str | None, takes("A,B", "Only labels with these flags.")] = None,
    n: Annotated[int | None, typer.Option("--n", metavar="N", help="Only the N images to read first.")] = None,
    workspace: WORKSPACE = AUDIT,
    as_json: AS_JSON = False,
) -> None:
    """Write labels with their trust, flag and reasons to a file. Nothing is overwritten."""
    done = export_signal(
        workspace,
        out,
        format=format_,
        findings=None if findings is None else [word.strip() for word in findings.split(",")],
        flags=None if flags is None else [word.strip() for word in flags.split(",")],
        n=n,
    )
    if as_json:
        print(json.dumps({"path": str(done.path), "labels": done.labels}, indent=1))
    else:
        print(f"{several(done.labels, 'label')} in {done.path}")
    terminal.print_notes(notice.message for notice in done.notices)
