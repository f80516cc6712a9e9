"""`bpals calibration`: expert calibrations as files of figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bpals.cli import terminal
from bpals.cli.terminal import AS_JSON, takes
from bpals.signal.prior import ExpertCalibration
from bpals.tasks import calibration
from bpals.tasks.datasets import load_calibration
from bpals.tasks.run_record import prior_entry
from bpals.text import several

app = terminal.group(
    "calibration",
    "Make, show and check expert calibrations: what an audit may start from (bpals audit --prior).",
    "bpals calibration show nih-experts-1",
)

NAME = Annotated[str, typer.Argument(metavar="NAME|FILE", help="One that comes with bpals, or a file.")]


@app.command(
    "fit",
    epilog='Example: bpals calibration fit --reviews reads.csv --terms "our own reads" --name my-readers-1',
)
def fit(  # noqa: PLR0913  an option of the command is a parameter
    name: Annotated[str, typer.Option(metavar="NAME", help="What to call it: small letters, digits, - and _.")],
    terms: Annotated[str, typer.Option(metavar="TEXT", help="Under which terms the expert labels may be used.")],
    reference: Annotated[
        list[str] | None, takes("KIND=PATH", "Expert labels, as in bpals audit --calibrate. Repeatable.")
    ] = None,
    split: Annotated[str, takes("val|test|all", "Which rows of labels that have splits.")] = "all",
    reviews: Annotated[
        list[Path] | None, takes("PATH", "Single reads; the majority of at least two counts. Repeatable.")
    ] = None,
    commercial_use: Annotated[
        bool, typer.Option("--commercial-use", help="Say that the labels may be used commercially.")
    ] = False,
    source: Annotated[str | None, typer.Option(help="nih (embedded), nih:FILE or table:FILE.")] = None,
    mapping: Annotated[str | None, takes("FILE.toml|NAME", "How to read a table.")] = None,
    out: Annotated[Path | None, takes("FILE", "Where to write it; NAME.json here by default.")] = None,
    as_json: AS_JSON = False,
) -> None:
    """Fit a calibration on expert labels and write it to a file. The file holds figures, and no label."""
    with terminal.progress() as show:
        done = calibration.fit(
            reference or [],
            name=name,
            terms=terms,
            split=split,
            reviews=reviews or [],
            commercial_use=commercial_use,
            source=source,
            mapping=mapping,
            out=out,
            progress=show,
        )
    terminal.print_notes(notice.message for notice in done.notices)
    if as_json:
        print(json.dumps(prior_entry(done.calibration), indent=1, ensure_ascii=False))
        return
    _print(done.calibration)
    print(f"Written: {done.path}")
    print(f"To use it: bpals audit --prior {done.path}")


@app.command("show", epilog="Example: bpals calibration show nih-experts-1")
def show(name: NAME, as_json: AS_JSON = False) -> None:
    """Show what a calibration was fitted on, finding by finding, and under which terms."""
    found = load_calibration(name)
    if as_json:
        print(json.dumps(prior_entry(found), indent=1, ensure_ascii=False))
    else:
        _print(found)


@app.command("check", epilog="Example: bpals calibration check my-readers-1.json --source nih")
def check(
    name: NAME,
    source: Annotated[str | None, typer.Option(help="Also check that it is for this dataset.")] = None,
    mapping: Annotated[str | None, takes("FILE.toml|NAME", "How to read a table.")] = None,
) -> None:
    """Check a calibration's format, version and hash, and with --source its dataset and findings."""
    found = calibration.check(name, source, mapping)
    print(f"{found.name}: sound, {several(found.labels, 'label')} of {several(found.read_images, 'image')}")


def _print(found: ExpertCalibration) -> None:
    table = Table(
        title=f"{found.name}: {found.labels:,} expert labels of {found.read_images:,} images ({found.dataset})",
        pad_edge=False,
    )
    for name in ("finding", "labels", "presences", "label errors", "views"):
        table.add_column(name, justify="left" if name in ("finding", "views") else "right")
    for name, fit in {**found.findings.subjects, **found.of_groups.subjects}.items():
        views = ", ".join(f"{view or '?'} {count:,}" for view, count in fit.views.items())
        table.add_row(name, f"{fit.labels:,}", f"{fit.presences:,}", f"{fit.errors:,}", views)
    terminal.print_tables([table])
    print(f"Its truth: {found.about['truth']}.")
    print(f"Terms of the labels: {found.about['terms']}. Commercial use: {found.about['commercial_use']}.")
    for citation in found.about["citations"]:
        print(f"Cite: {citation}")
    print(f"Made with {found.about['made_with']}; sha256 {found.sha256[:16]}")
