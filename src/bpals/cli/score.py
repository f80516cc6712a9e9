"""`bpals score`: the scorecard of a signal against radiologist labels."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from bpals.cli.terminal import alone, bar
from bpals.errors import UsageError
from bpals.report.scorecard_page import render_scorecard
from bpals.reviews.agreement import MAJORITY, MEAN, OTHERS
from bpals.score.intervals import Resampling
from bpals.tasks.score import LABEL, SIGNAL, Scorecard, scorecard
from bpals.text import several

Row = dict[str, Any]
Told = tuple[str, list[str], list[list[str]]]

METHODS = {
    "bpals": "bpals",
    "cleanlab": "cleanlab",
    "self_confidence": "self-confidence",
    "label_only": "label only",
    "prevalence": "prevalence only",
    "random": "random",
    "oracle": "oracle",
}
TOGETHER = ("pairs", "positive", "negative", "Fleiss kappa", "alpha", "AC1")
BESIDE = ("pairs", "most readers", "the label", "bpals")
COMPARED = ("bpals", "self_confidence", "cleanlab", "prevalence")


def tables(card: Scorecard) -> list[Table]:
    """Every table of a scorecard, for the terminal."""
    drawn = []
    for reference, split in dict.fromkeys((row["reference"], row["split"]) for row in card.rows):
        rows = [row for row in card.rows if (row["reference"], row["split"]) == (reference, split)]
        title = f"{reference}, split {split}"
        drawn += [_methods(title, rows), _within(title, rows)]
    if card.boxes:
        drawn.append(_boxes(card.boxes))
    if card.readers:
        drawn.append(_readers(card.readers))
    if card.agreement:
        drawn += [_agreement(*told) for told in agreement(card.agreement)]
    return drawn


def markdown(card: Scorecard) -> str:
    """The scorecard as Markdown: error AP with its interval, and the errors found at 10 %."""
    parts = []
    for reference, split in dict.fromkeys((row["reference"], row["split"]) for row in card.rows):
        rows = [row for row in card.rows if (row["reference"], row["split"], row["given"]) == (reference, split, "all")]
        header = ["finding", "pairs", "errors", *(f"{METHODS[m]}, error AP" for m in COMPARED), "bpals, found at 10 %"]
        parts.append(
            f"`{reference}`, split {split}; in brackets 95 % intervals over patients, "
            f"{card.meta['bootstrap']:,} resamples:\n\n" + _pipes(header, _compared(rows))
        )
    if card.readers:
        header = ["finding", "reader", "pairs", "flags", "precision", "recall", "bpals precision", "bpals recall"]
        parts.append(_pipes(header, map(_read, shown(card.readers))))
    if card.agreement:
        parts += [_pipes(header, lines) for _, header, lines in agreement(card.agreement)]
    if card.boxes:
        header = ["finding", "boxed", "other", "median trust, boxed", "median trust, other", "AUROC boxed over other"]
        parts.append(_pipes(header, map(_boxed, card.boxes)))
    return "\n\n".join(parts) + "\n"


def sheet(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    """Make an empty table: columns of words, then columns of numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in words:
        # A name may take two lines, so that no number is cut.
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _methods(title: str, rows: Sequence[Row]) -> Table:
    """Every method by finding; `at 5 %` is the share of errors found when 5 % of the pairs are reviewed."""
    numbers = ("error AUROC", "error AP", "at 5 %", "10 %", "20 %", "AP of bpals minus it")
    table = sheet(f"Finding label errors: {title}", ["method"], numbers)
    for finding in dict.fromkeys(row["finding"] for row in rows):
        shown = [row for row in rows if row["finding"] == finding and row["given"] == "all"]
        table.add_section()
        counts = (several(shown[0]["n"], "pair"), several(shown[0]["errors"], "error"))
        table.add_row(f"[bold]{finding}[/bold]", *counts, *[""] * 4)
        for row in shown:
            found = [number(row[key], 2) for key in ("found_05", "found_10", "found_20")]
            cells = (_with_interval(row, "error_auroc"), _with_interval(row, "error_ap"), *found)
            name = f"  {METHODS.get(row['method'], row['method'])}"
            table.add_row(name, *cells, _gain(row), style="bold" if row["method"] == "bpals" else None)
    return table


def _within(title: str, rows: Sequence[Row]) -> Table:
    """Presences and absences apart, with the calibration of the trust."""
    numbers = ("n", "errors", "AP bpals", "self-conf.", "cleanlab", "preval.", "ECE", "Brier")
    table = sheet(f"By kind of claim: {title}", ["finding", "claimed"], numbers)
    parts: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        parts.setdefault((row["finding"], row["given"]), {})[row["method"]] = row
    for (finding, given), methods in parts.items():
        if given == "all":
            table.add_section()
        ours = methods["bpals"]
        precisions = [number(methods.get(method, {}).get("error_ap")) for method in COMPARED]
        calibration = [number(ours[name]) for name in ("ece", "brier")]
        counts = [f"{ours['n']:,}", f"{ours['errors']:,}"]
        table.add_row(finding if given == "all" else "", given, *counts, *precisions, *calibration)
    return table


def _boxes(rows: Sequence[Row]) -> Table:
    numbers = ("boxed", "other", "median boxed", "median other", "AUROC boxed over other")
    table = sheet("Trust of boxed presences against other presences", ["finding"], numbers)
    for row in rows:
        table.add_row(*_boxed(row))
    return table


def _readers(rows: Sequence[Row]) -> Table:
    numbers = ("n", "flags", "precision", "recall", "bpals prec.", "bpals recall")
    table = sheet("Single readers as error finders, and bpals at the same number of flags", ["reader"], numbers)
    for row in shown(rows):
        by_finding = row["finding"] != "pooled"
        finding, reader, *cells = _read(row)
        table.add_row(f"{finding}, {reader}" if by_finding else reader, *cells)
    return table


def shown(rows: Iterable[Row]) -> list[Row]:
    """Every reader over all findings, and all readers by finding; `--json` has each reader by finding too."""
    return [row for row in rows if row["finding"] == "pooled" or row["reader"] == "all"]


def _read(row: Row) -> list[str]:
    figures = ("precision", "recall", "signal_precision", "signal_recall")
    counts = [f"{row['n']:,}", f"{row['flags']:,}"]
    return [row["finding"], row["reader"], *counts, *(_with_interval(row, figure, 2) for figure in figures)]


def agreement(rows: Sequence[Row]) -> list[Told]:
    """Give both tables of agreement, each as title, header and lines: readers together, and each beside the others."""
    if not rows:
        return []
    together = [_together(row) for row in rows if "first" not in row]
    return [
        ("How far readers agree with one another", ["finding", *TOGETHER], together),
        ("Cohen's kappa, mean over findings: each beside", ["reader", *BESIDE], _beside(rows)),
    ]


def _agreement(title: str, header: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    table = sheet(title, header[:1], header[1:])
    for line in lines:
        table.add_row(*line)
    return table


def _together(row: Row) -> list[str]:
    figures = ("positive", "negative", "fleiss", "alpha", "ac1")
    return [row["finding"], f"{row['n']:,}", *(_with_interval(row, figure, 2) for figure in figures)]


def _beside(rows: Sequence[Row]) -> list[list[str]]:
    """A line a reader, beside the others, the label and the signal; then label, signal and judges beside most readers.

    One finding has no mean: its own row stands. `--json` has every judge beside every reader, by finding.
    """
    two = [row for row in rows if "first" in row]
    findings = {row["finding"] for row in two} - {MEAN}
    kept = {(row["first"], row["second"]): row for row in two if row["finding"] == MEAN or len(findings) == 1}
    lines = []
    for name in dict.fromkeys(first for first, _ in kept):
        found = [kept.get((name, second)) for second in (OTHERS, LABEL, SIGNAL)]
        found[0] = found[0] or kept.get((name, MAJORITY))
        cells = ["-" if row is None else _with_interval(row, "kappa", 2) for row in found]
        lines.append([name, f"{found[0]['n']:,}" if found[0] else "-", *cells])
    return lines


def _boxed(row: Row) -> list[str]:
    medians = [number(row[f"trust_{name}_median"]) for name in ("boxed", "other")]
    counts = [f"{row['n_boxed']:,}", f"{row['n_other']:,}"]
    return [row["finding"], *counts, *medians, _with_interval(row, "boxed_auroc")]


def _compared(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for finding in dict.fromkeys(row["finding"] for row in rows):
        methods = {row["method"]: row for row in rows if row["finding"] == finding}
        ours = methods["bpals"]
        precisions = [_with_interval(methods.get(method, {}), "error_ap") for method in COMPARED]
        counts = [f"{ours['n']:,}", f"{ours['errors']:,}"]
        lines.append([finding, *counts, *precisions, _with_interval(ours, "found_10")])
    return lines


def _pipes(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *(["--:"] * (len(header) - 1))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """Write .558 for 0.558; what is not defined is a dash."""
    if value is None:
        return "-"
    text = f"{value:{sign}.{digits}f}"
    return text.replace("0.", ".", 1) if abs(float(text)) < 1 else text


def _with_interval(row: Row, name: str, digits: int = 3) -> str:
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None or low is None or low == value == high:
        return number(value, digits)
    bounds = (number(bound, 2).replace("1.00", "1") for bound in (low, high))
    return f"{number(value, digits)} ({'-'.join(bounds)})"


def _gain(row: Row) -> str:
    if row["ap_gain"] is None:
        return number(None)
    gain, low, high = (
        number(row[f"ap_gain{end}"], digits, "+") for end, digits in (("", 3), ("_low", 2), ("_high", 2))
    )
    return f"{gain} ({low} to {high})"


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
        print(markdown(card), end="")
    else:
        _print_tables(card)
    _print_notes(card)


def _write_page(card: Scorecard, file: Path) -> None:
    meta = {**card.meta, "notes": [note.message for note in card.notes]}
    readers = shown(card.readers)
    page = render_scorecard(
        card.rows,
        card.reliability,
        meta,
        boxes=card.boxes,
        readers=readers,
        agreement=agreement(card.agreement),
    )
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}. Name another with --html FILE") from None


def _print_tables(card: Scorecard) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    for table in tables(card):
        console.print(table)


def _print_notes(card: Scorecard) -> None:
    """Say what was left out, beside the output and not in it."""
    for note in card.notes:
        print(f"note: {note.message}", file=sys.stderr)


app = alone(score, "bpals score --workspace audit --reference four-findings=expert --split test")
