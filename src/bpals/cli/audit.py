"""`bpals audit`: how far to trust each label of a dataset, from one command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.table import Table

from bpals.cli import terminal
from bpals.cli.terminal import AS_JSON, AUDIT, NEW_WORKSPACE, Row, takes
from bpals.store.workspace import summary
from bpals.tasks.audit import Run
from bpals.tasks.audit import audit as run_audit
from bpals.text import several


def audit(  # noqa: PLR0913  an option of the command is a parameter
    source: Annotated[str | None, typer.Option(help="nih (embedded), nih:FILE or table:FILE.")] = None,
    mapping: Annotated[
        str | None, takes("FILE.toml|NAME", "How to read a table: a file, or chexpert, padchest, vindr, nih.")
    ] = None,
    workspace: NEW_WORKSPACE = AUDIT,
    judges: Annotated[
        str | None, takes("NAME,NAME", "Use these judges only; by default record and every finished one.")
    ] = None,
    calibrate: Annotated[
        str | None, takes("KIND=PATH", "Fit on expert labels: four-findings=PATH, all-findings=PATH, table=FILE.")
    ] = None,
    calibrate_split: Annotated[str | None, takes("val|test|all", "Which of the expert labels; all by default.")] = None,
    reviews: Annotated[
        list[Path] | None,
        takes(
            "PATH",
            "Single reads, one row per read: trust is fitted on them, and where readers would split. Repeatable.",
        ),
    ] = None,
    reviews_split: Annotated[str | None, takes("val|test|all", "Which of the reads; all by default.")] = None,
    refit: Annotated[
        str | None,
        takes("KIND=PATH", "Expert labels of images drawn at random from those audited: fits how common errors are."),
    ] = None,
    refit_split: Annotated[str | None, typer.Option(help="Which rows of the sample: val, test or all.")] = None,
    no_reviews: Annotated[
        bool, typer.Option("--no-reviews", help="Leave out the reads of this workspace and those imported there.")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Give every label of a dataset a trust, with a report. With no option: the embedded NIH ChestX-ray14 record."""
    with terminal.progress() as show:
        run = run_audit(
            source,
            mapping=mapping,
            workspace=workspace,
            judges=judges,
            calibrate=calibrate,
            calibrate_split=calibrate_split,
            reviews=terminal.given_files(reviews),
            reviews_split=reviews_split,
            refit=refit,
            refit_split=refit_split,
            no_reviews=no_reviews,
            progress=show,
        )
    terminal.print_notes(notice["message"] for notice in run.record["notices"])
    if as_json:
        print(json.dumps(run.record, indent=1, ensure_ascii=False))
    else:
        _print(run)


def _print(run: Run) -> None:
    """Print what was found, in a table and a few lines, and what to do next."""
    counted = f"{several(run.record['images'], 'image')}, {several(run.signal.height, 'label')}"
    table = Table(title=f"{run.record['source']['title']}: {counted}")
    for name in ("finding", "says present", "median trust", "likely mislabelled", "suspect", "hard", "missed?"):
        table.add_column(name, justify="left" if name == "finding" else "right")
    members: dict[str, str] = (run.record["calibration"] or {}).get("members") or {}
    for row in _summary(run.signal).iter_rows(named=True):
        table.add_row(*_cells(row, follows=row["finding"] in members))
    if run.groups is not None:
        table.add_section()
        for row in _summary(run.groups).iter_rows(named=True):
            table.add_row(*_cells(row, follows=False))
    terminal.print_tables([table])
    for line in _meaning(run, members):
        print(line)
    print("The flags count presences; `missed?` counts absences that are likely mislabelled.")
    print(f"Report: {run.report}")
    print(f"Signal: {run.workspace / 'signal.parquet'}")
    here = f"--workspace {shlex.quote(str(run.workspace))}"
    print(f"To read what is most in doubt: bpals review next {here} --out list.csv")
    print(f"To learn how many labels are wrong: bpals rate plan {here} --reads 200")


def _cells(row: Row, *, follows: bool) -> list[str]:
    """Write one finding's line; what cannot be said of one that follows a group is a dash."""
    median = "-" if row["median"] is None else f"{row['median']:.2f}"
    likely, missed = ("-", "-") if follows else (f"{row[name]:,}" for name in ("likely_mislabelled", "missed"))
    return [row["finding"], f"{row['present']:,}", median, likely, f"{row['suspect']:,}", f"{row['hard']:,}", missed]


def _meaning(run: Run, members: dict[str, str]) -> Iterator[str]:
    """Say what the numbers rest on."""
    record = run.record
    if record["calibration"] is None:
        yield _unfitted(record)
    else:
        yield _certified(record["certificates"])
        fitted = {*record["calibration"]["findings"], *members}
        if others := [name for name in _summary(run.signal)["finding"] if name not in fitted]:
            yield (
                f"No expert label was fitted to {', '.join(others)}: there a fixed share is flagged, the labels that "
                "fit the record least, which says nothing of how many are wrong."
            )
    if members:
        groups = ", ".join(dict.fromkeys(members.values()))
        yield f"-: {', '.join(members)} follow {groups}, which experts read as one: only the group can be certified."
    if refit := record["refit"]:
        yield _refitted(refit)
    if films := record["films"]:
        yield f"{summary(films)}."
    if reviews := record["reviews"]:
        reads = several(reviews["reads"], "single read was", "single reads were")
        yield f"{reads} used, readers: {reviews['readers']} (docs/hard.md)."


def _unfitted(record: Mapping[str, Any]) -> str:
    """Say what a trust is that no expert label was fitted to."""
    given = record["values"]["calibrate"]["value"] is not None or record["reviews"] is not None
    pixels = any(judge["kind"] == "image" and judge.get("effective_weight") != 0 for judge in record["judges"])
    why = "Nothing was fitted on the expert labels, as the notes say" if given else "No expert label was used"
    what = "the rest of the record and what image judges see" if pixels else "the rest of the record"
    return (
        f"{why}: a trust says how well a label fits {what} (docs/limits.md). The flags are a fixed share of each "
        "finding, which says nothing of how many are wrong."
    )


def _refitted(refit: Row) -> str:
    """Say what the random sample moved."""
    images = several(refit["films"], "image")
    if not refit["shifts"]:
        return f"--refit: {images} shifted nothing, as the notes say (docs/signal.md)."
    moved = ", ".join(
        f"{name} (present {by['present']:+.2f}, absent {by['absent']:+.2f})" for name, by in refit["shifts"].items()
    )
    return f"How common errors are was refitted on {images}; added to logits: {moved} (docs/signal.md)."


def _certified(certificates: list[Row]) -> str:
    """Say what is certified of the likely mislabelled labels, and of which images."""
    shown = [each for each in certificates if each["promise"] == "precision" and each["cut"] is not None]
    if not shown:
        takes = "more reviews, how many run.json says"
        if not any(each["more"] for each in certificates if each["promise"] == "precision"):
            takes = "more reviews would not do it, but a judge that tells more"
        return (
            "Of the findings that experts read nothing is certified, so none of their labels is called likely "
            f"mislabelled; this says nothing of how many are wrong. To certify some: {takes}."
        )
    held = ", ".join(f"{each['finding']} {each['says']} {each['level']:.0%}" for each in shown)
    return (
        f"Of likely mislabelled labels at least so many are wrong, on images like those that experts read: {held}. "
        "Images that somebody chose to be read have more errors than others: see --refit, and docs/flags.md."
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


app = terminal.alone(audit, "bpals audit --source table:my.csv --mapping my.toml --workspace audit")
