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
    prior: Annotated[
        str | None,
        takes("none|NAME|FILE", "Expert calibration to start from; by default the one for the dataset, if any."),
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
            prior=prior,
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
    known = _known(run.record)
    columns = KNOWN if known else RANKED
    # It fits 80 columns: no blank at the edges, and headings of two lines.
    table = Table(title=f"{run.record['source']['title']}\n{counted}", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name == "finding" else "right")
    levels = [run.signal] if run.groups is None or not known else [run.signal, run.groups]
    for level in levels:
        for row in _summary(level).iter_rows(named=True):
            rule = run.record["flags"].get(row["finding"], {}).get("present", {})
            table.add_row(*_cells(row, rule, known=known))
        table.add_section()
    terminal.print_tables([table])
    for line in _meaning(run, known=known):
        print(line)
    if changed := _changed(run.record.get("changed")):
        print(changed)
    print(f"Report: {run.report}")
    print(f"Signal: {run.workspace / 'signal.parquet'}")
    here = f"--workspace {shlex.quote(str(run.workspace))}"
    print(f"To read what is most in doubt: bpals review next {here} --out list.csv")
    most = run.signal.filter(pl.col("says") == "present")["finding"].cast(pl.String).value_counts(sort=True)
    which = f"--findings {shlex.quote(most['finding'][0])} " if most.height else ""
    print(f"To learn how many labels are wrong: bpals rate plan {here} {which}--reads 200 --out reads.csv")


KNOWN = ("finding", "present", "readers\nconfirm", "likely\nmislabelled", "trusted", "missed?")
RANKED = ("finding", "present", "median\ntrust", "hard", "absent", "median\ntrust", "hard")


def _known(record: Mapping[str, Any]) -> bool:
    """Say whether anything is known of how often labels are right: from a calibration, or from reads here."""
    return any(rule["basis"] != "none" for sides in record["flags"].values() for rule in sides.values())


def _cells(row: Row, rule: Row, *, known: bool) -> list[str]:
    """Write one finding's line; what nobody knows is a dash."""
    name, present = row["finding"], f"{row['present']:,}"
    if not known:
        absent = [terminal.number(row["median_absent"], 2), f"{row['hard_absent']:,}"]
        return [name, present, terminal.number(row["median"], 2), f"{row['hard']:,}", f"{row['absent']:,}", *absent]
    share = rule.get("confirmed")
    if share is None:
        return [name, present, "-", "-", "-", "-"]
    confirm = f"{share['share']:.0%} ({100 * share['low']:.0f}-{100 * share['high']:.0f})"
    return [name, present, confirm, *(f"{row[each]:,}" for each in ("likely_mislabelled", "trusted", "missed"))]


def _meaning(run: Run, *, known: bool) -> Iterator[str]:
    """Say what the numbers rest on, and what they are not."""
    record = run.record
    if known:
        yield from _calibrated(run)
    else:
        yield _ranked(record)
    members: dict[str, str] = (record["calibration"] or {}).get("members") or {}
    if members and record["prior"] is None:
        groups = ", ".join(dict.fromkeys(members.values()))
        yield (
            f"{', '.join(members)}: read only as part of {groups}. Their trusts come from other findings and stay "
            "within that of the group. Only the group can be certified."
        )
    if refit := record["refit"]:
        yield _refitted(refit)
    if films := record["films"]:
        yield f"{summary(films)}."
    if reviews := record["reviews"]:
        reads = several(reviews["reads"], "single read was", "single reads were")
        yield f"{reads} used, readers: {reviews['readers']} (docs/hard.md)."
    flags = run.signal["flag"].cast(pl.String)
    rejected, confirmed = (int((flags == flag).sum()) for flag in ("rejected", "confirmed"))
    if rejected or confirmed:
        settled = several(rejected + confirmed, "label")
        yield f"People settled {settled}: {rejected:,} rejected, {confirmed:,} confirmed, whatever their trust."


def _calibrated(run: Run) -> Iterator[str]:
    """Say what a trust was calibrated by, where that extrapolates, and what the columns count."""
    record = run.record
    prior, here = record["prior"], record["calibration"]
    sources = []
    if prior:
        sources.append(f"{prior['name']}: {several(prior['labels'], 'expert label')} of {prior['images']:,} images")
    if here:
        sources.append(f"{several(here['pairs'], 'expert label')} given here")
    truth = prior["truth"].partition(", ")[0] if prior else "what the experts who were asked would say"
    yield f"Calibrated by {', and '.join(sources)}. A trust is the chance that the label is {truth}."
    if prior and (where := _extrapolation(prior["extrapolates"])):
        yield f"It extrapolates to {where}: intervals are wider there."
    enriched = "are enriched" if prior else "may be enriched"
    yield (
        "`readers confirm`: the share of presences that readers would confirm (95 % interval), on images like those "
        f"that were read, which {enriched}. It is no error rate of the dataset (docs/calibration.md)."
    )
    yield "`trusted`, `likely mislabelled` count presences; `missed?` counts absences that are likely mislabelled."
    if untrusted := _untrusted(run.signal):
        yield (
            f"No presence of {untrusted} is `trusted`: for none is the trust high and sure enough. That is a result, "
            "not a fault."
        )
    if held := _certified(record["certificates"]):
        yield held


def _untrusted(signal: pl.DataFrame) -> str:
    """Name the findings that have presences and none that is trusted."""
    present = signal.filter(pl.col("says") == "present").group_by(
        pl.col("finding").cast(pl.String), maintain_order=True
    )
    trusted = present.agg(trusted=(pl.col("flag") == "trusted").any())
    names = trusted.filter(~pl.col("trusted"))["finding"].to_list()
    return "any finding" if len(names) == trusted.height else ", ".join(names)


MOST_MOVED = 3
"""Findings that are named because most of their labels have another flag."""


def _changed(changed: Row | None) -> str:
    """Say how many labels have another flag than in the audit that this one replaced; empty where there was none."""
    if changed is None:
        return ""
    if not changed["flag"]:
        return "Since the last audit here: no label has another flag."
    counts = {name: entry["flag"] for name, entry in changed["findings"].items()}
    most = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_MOVED]
    named = ", ".join(f"{name} {counts[name]:,}" for name in most)
    return (
        f"Since the last audit here: {changed['flag']:,} of {several(changed['labels'], 'label')} have another flag; "
        f"most moved: {named}."
    )


def _extrapolation(where: Row) -> str:
    """Name the views and findings that were seldom read."""
    views = [f"{view} images of {several(len(names), 'finding')}" for view, names in where["views"].items()]
    few = where["few_presences"]
    rare = [f"findings with few presences read ({', '.join(few)})"] if few else []
    return ", and to ".join([*views, *rare])


def _ranked(record: Mapping[str, Any]) -> str:
    """Say what a trust is where no expert knowledge is used, and how to get some."""
    given = record["values"]["calibrate"]["value"] is not None or record["reviews"] is not None
    pixels = any(judge["kind"] == "image" and judge.get("effective_weight") != 0 for judge in record["judges"])
    why = "Nothing was fitted on the expert labels, as the notes say" if given else "No expert label was used"
    what = "the rest of the record and what image judges see" if pixels else "the rest of the record"
    return (
        f"{why}: labels are ranked only. A trust says how well a label fits {what}, not how often it is right; none "
        "is called trusted or mislabelled. Read some, and audit again: every read counts (docs/calibration.md)."
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
    """Say what is certified of the likely mislabelled labels, and of which images; empty where nothing is."""
    shown = [each for each in certificates if each["promise"] == "precision" and each["cut"] is not None]
    held = ", ".join(f"{each['finding']} {each['says']} {each['level']:.0%}" for each in shown)
    return (
        f"Certified on images like those read here, at least so many of the likely mislabelled are wrong: {held} "
        "(docs/flags.md)."
        if held
        else ""
    )


def _summary(signal: pl.DataFrame) -> pl.DataFrame:
    """Count a finding's labels by flag."""
    present, absent, flag = pl.col("says") == "present", pl.col("says") == "absent", pl.col("flag")
    return (
        signal.group_by("finding")
        .agg(
            present=present.sum(),
            absent=absent.sum(),
            median=pl.col("trust").filter(present).median(),
            median_absent=pl.col("trust").filter(absent).median(),
            missed=(absent & (flag == "likely_mislabelled")).sum(),
            hard_absent=(absent & (flag == "hard")).sum(),
            **{name: (present & (flag == name)).sum() for name in ("likely_mislabelled", "trusted", "hard")},
        )
        .sort("finding")
    )


app = terminal.alone(audit, "bpals audit --source table:my.csv --mapping my.toml --workspace audit")
