"""`bpals score`: the scorecard of a signal against radiologist labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bpals.cli import terminal
from bpals.cli.terminal import AS_JSON, AUDIT, BOOTSTRAP, RESAMPLING_SEED, SPLIT, WORKSPACE, Row, number, sheet, takes
from bpals.errors import UsageError
from bpals.report.scorecard_page import render_scorecard
from bpals.reviews.agreement import MAJORITY, MEAN, OTHERS
from bpals.score.intervals import Resampling
from bpals.tasks.score import LABEL, SIGNAL, Scorecard, scorecard
from bpals.text import several

Lines = list[list[str]]

METHODS = {
    "bpals": "bpals",
    "cleanlab": "cleanlab",
    "self_confidence": "self-confidence",
    "label_only": "label only",
    "prevalence": "prevalence only",
    "random": "random",
    "oracle": "oracle",
}
COMPARED = ("bpals", "self_confidence", "cleanlab", "prevalence")


def score(  # noqa: PLR0913  an option of the command is a parameter
    workspace: WORKSPACE = AUDIT,
    reference: Annotated[
        list[str] | None,
        takes(
            "KIND=PATH",
            "Expert labels: four-findings=PATH, all-findings=PATH, table=FILE or boxes. May be given again.",
        ),
    ] = None,
    split: SPLIT = "all",
    only_judged: Annotated[
        bool, typer.Option(help="Keep to images that every image judge answered, and give each judge its own row.")
    ] = False,
    readers: Annotated[
        Path | None, takes("PATH", "A file with one row per reader: score single readers beside bpals.")
    ] = None,
    min_readers: Annotated[
        int | None, takes("K", "all-findings by reader: present if at least K say so, not the majority.")
    ] = None,
    as_json: AS_JSON = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables, for a README.")] = False,
    html: Annotated[Path | None, takes("FILE", "Also write a page with the plots.")] = None,
    bootstrap: BOOTSTRAP = 1000,
    seed: RESAMPLING_SEED = 0,
) -> None:
    """Score the trust of an audit against radiologist labels, beside other ways of finding label errors."""
    if as_json and as_markdown:
        raise UsageError("--json and --markdown both want the output. Type one of them")
    with terminal.progress("reading the audit") as show:
        card = scorecard(
            workspace,
            reference=reference or (),
            split=split,
            only_judged=only_judged,
            readers=readers,
            min_readers=min_readers,
            resampling=Resampling(draws=bootstrap, seed=seed),
            progress=lambda what, share: show(f"scoring {what}", share),
        )
    if html is not None:
        terminal.write_text(_page(card), html, "--html")
    if as_json:
        print(json.dumps([*card.rows, *card.boxes, *card.readers, *card.agreement], indent=1, allow_nan=False))
    elif as_markdown:
        print(markdown(card), end="")
    else:
        terminal.print_tables(tables(card))
    terminal.print_notes(note.message for note in card.notes)


def _page(card: Scorecard) -> str:
    return render_scorecard(
        card.rows,
        card.reliability,
        {**card.meta, "notes": [note.message for note in card.notes]},
        boxes=card.boxes,
        readers=_shown_readers(card),
        agreement=_agreement(card.agreement),
    )


def tables(card: Scorecard) -> list[Table]:
    """Every table of a scorecard, for the terminal."""
    drawn = []
    for reference, split, rows in _by_reference(card):
        title = f"{reference}, split {split}"
        drawn += [_methods(title, rows), _within(title, rows)]
    if card.boxes:
        title = "Trust of boxed presences against other presences"
        boxed = ("boxed", "other", "median boxed", "median other", "AUROC boxed over other")
        drawn.append(sheet(title, ["finding"], boxed, map(_boxed, card.boxes)))
    if card.readers:
        numbers = ("n", "flags", "precision", "recall", "bpals prec.", "bpals recall")
        title = "Single readers as error finders, and bpals at the same number of flags"
        lines = [
            [reader if finding == "pooled" else f"{finding}, {reader}", *cells]
            for finding, reader, *cells in map(_read, _shown_readers(card))
        ]
        drawn.append(sheet(title, ["reader"], numbers, lines))
    return [*drawn, *(sheet(title, head[:1], head[1:], lines) for title, head, lines in _agreement(card.agreement))]


def markdown(card: Scorecard) -> str:
    """The scorecard as Markdown: error AP with its interval, and the errors found at 10 %."""
    parts = []
    for reference, split, rows in _by_reference(card):
        header = ["finding", "pairs", "errors", *(f"{METHODS[m]}, error AP" for m in COMPARED), "bpals, found at 10 %"]
        parts.append(
            f"`{reference}`, split {split}; in brackets 95 % intervals over patients, "
            f"{card.meta['bootstrap']:,} resamples:\n\n" + _pipes(header, _compared(rows))
        )
    if card.readers:
        header = ["finding", "reader", "pairs", "flags", "precision", "recall", "bpals precision", "bpals recall"]
        parts.append(_pipes(header, map(_read, _shown_readers(card))))
    parts += [_pipes(header, lines) for _, header, lines in _agreement(card.agreement)]
    if card.boxes:
        header = ["finding", "boxed", "other", "median trust, boxed", "median trust, other", "AUROC boxed over other"]
        parts.append(_pipes(header, map(_boxed, card.boxes)))
    return "\n\n".join(parts) + "\n"


def _pipes(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *(["--:"] * (len(header) - 1))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])


def _by_reference(card: Scorecard) -> Iterator[tuple[str, str, list[Row]]]:
    for reference, split in dict.fromkeys((row["reference"], row["split"]) for row in card.rows):
        yield reference, split, [row for row in card.rows if (row["reference"], row["split"]) == (reference, split)]


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
    table = sheet(f"By kind of label: {title}", ["finding", "label"], numbers)
    parts: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        parts.setdefault((row["finding"], row["given"]), {})[row["method"]] = row
    for (finding, given), methods in parts.items():
        if given == "all":
            table.add_section()
        ours = methods["bpals"]
        precisions = [number(methods.get(method, {}).get("error_ap")) for method in COMPARED]
        calibration = [number(ours[name]) for name in ("ece", "brier")]
        table.add_row(finding if given == "all" else "", given, *_counts(ours), *precisions, *calibration)
    return table


def _compared(rows: Sequence[Row]) -> Lines:
    lines = []
    for finding in dict.fromkeys(row["finding"] for row in rows):
        methods = {row["method"]: row for row in rows if (row["finding"], row["given"]) == (finding, "all")}
        precisions = [_with_interval(methods.get(method, {}), "error_ap") for method in COMPARED]
        ours = methods["bpals"]
        lines.append([finding, *_counts(ours), *precisions, _with_interval(ours, "found_10")])
    return lines


def _boxed(row: Row) -> list[str]:
    medians = [number(row[f"trust_{name}_median"]) for name in ("boxed", "other")]
    return [row["finding"], *_counts(row, "n_boxed", "n_other"), *medians, _with_interval(row, "boxed_auroc")]


def _shown_readers(card: Scorecard) -> list[Row]:
    """Every reader over all findings, and all readers by finding; `--json` has each reader by finding too."""
    return [row for row in card.readers if row["finding"] == "pooled" or row["reader"] == "all"]


def _read(row: Row) -> list[str]:
    figures = ("precision", "recall", "signal_precision", "signal_recall")
    cells = (_with_interval(row, figure, 2) for figure in figures)
    return [row["finding"], row["reader"], *_counts(row, "n", "flags"), *cells]


def _agreement(rows: Sequence[Row]) -> list[tuple[str, list[str], Lines]]:
    """Give both tables of agreement, each as title, header and lines: readers together, and each beside the others."""
    if not rows:
        return []
    figures = ("positive", "negative", "fleiss", "alpha", "ac1")
    together = [
        [row["finding"], *_counts(row, "n"), *(_with_interval(row, figure, 2) for figure in figures)]
        for row in rows
        if "first" not in row
    ]
    header = ["finding", "pairs", "positive", "negative", "Fleiss kappa", "alpha", "AC1"]
    return [
        ("How far readers agree with one another", header, together),
        (
            "Cohen's kappa, mean over findings: each beside",
            ["reader", "pairs", "most readers", "the label", "bpals"],
            _beside([row for row in rows if "first" in row]),
        ),
    ]


def _beside(rows: Sequence[Row]) -> Lines:
    """One line per reader, beside the others, the label and the signal; then these and the judges beside most readers.

    One finding has no mean: its own row stands. `--json` has every judge beside every reader, by finding.
    """
    findings = {row["finding"] for row in rows} - {MEAN}
    kept = {(row["first"], row["second"]): row for row in rows if row["finding"] == MEAN or len(findings) == 1}
    lines = []
    for name in dict.fromkeys(first for first, _ in kept):
        found = [kept.get((name, second)) for second in (OTHERS, LABEL, SIGNAL)]
        found[0] = found[0] or kept.get((name, MAJORITY))
        cells = ["-" if row is None else _with_interval(row, "kappa", 2) for row in found]
        lines.append([name, f"{found[0]['n']:,}" if found[0] else "-", *cells])
    return lines


def _counts(row: Row, *names: str) -> list[str]:
    return [f"{row[name]:,}" for name in names or ("n", "errors")]


def _with_interval(row: Row, name: str, digits: int = 3) -> str:
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None or low is None or low == value == high:
        return number(value, digits)
    bounds = (number(bound, 2).replace("1.00", "1") for bound in (low, high))
    return f"{number(value, digits)} ({'-'.join(bounds)})"


def _gain(row: Row) -> str:
    if row["ap_gain"] is None:
        return number(None)
    low, high = (number(row[f"ap_gain_{end}"], 2, "+") for end in ("low", "high"))
    return f"{number(row['ap_gain'], 3, '+')} ({low} to {high})"


app = terminal.alone(score, "bpals score --workspace audit --reference four-findings=expert --split test")
