"""`bpals judge compare A B`: where two judges differ, on what they are wrong together, and who was right."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bpals.cli.score import number, sheet
from bpals.cli.terminal import bar
from bpals.errors import UsageError
from bpals.score.intervals import Resampling
from bpals.tasks.compare import LABELS, SHOWN, Comparison, comparison_page
from bpals.tasks.compare import compare as run_comparison
from bpals.types import OUTCOME

Row = dict[str, Any]

CARD = ("kind", "model", "revision", "licence", "commercial_use", "trained_on_target")
BEHAVIOUR = {
    "yes_rate": "says yes",
    "coherent": "coherent",
    "acquiescence": "acquiescence",
    "low_mass": "little mass",
    "depends": "on the film",
    "reliance": "moves by",
}


def tables(found: Comparison) -> list[Table]:
    """Every table of a comparison that has a figure, for the terminal; experts come before labels."""
    drawn = [_judges(found)]
    for against in reversed(dict.fromkeys(row["against"] for row in found.quality)):
        name = _spoken(against)
        quality = [row for row in found.quality if row["against"] == against]
        if _has(quality, "auroc_a"):
            drawn.append(_quality(name, quality))
        if against != LABELS and _has(quality, "ap_a"):
            drawn.append(_precision(name, quality))
        together = [row for row in found.dependence if row["against"] == against]
        if _has(together, "agreement"):
            drawn.append(_dependence(name, together))
    if any(_has(found.behaviour, figure) for figure in BEHAVIOUR):
        drawn.append(_behaviour(found))
    return drawn if found.films.is_empty() else [*drawn, _films(found)]


def _has(rows: Sequence[Row], figure: str) -> bool:
    return any(row[figure] is not None for row in rows)


def headline(found: Comparison) -> str:
    """Say in two lines who is ahead and what the two are worth together, against experts where there are any."""
    names = list(dict.fromkeys(row["against"] for row in found.quality))
    against = next((name for name in names if name != LABELS), LABELS)
    scored = [row for row in found.quality if row["against"] == against and row["auroc_a"] is not None]
    together = [row for row in found.dependence if row["against"] == against and row["error_correlation"] is not None]
    if not scored or not together:
        return "Too few pairs that both answered are known to be present or absent to say who is right."
    low, high = scored[-1]["auroc_difference_low"], scored[-1]["auroc_difference_high"]
    ahead = "A is ahead" if low > 0 else "B is ahead" if high < 0 else "neither is ahead beyond chance"
    figure, worth = _figure(together[-1], "error_correlation"), number(together[-1]["effective_judges"], 2)
    return (
        f"Against {_spoken(against)} {ahead}: AUROC {_difference(scored[-1], 'auroc_difference')}.\n"
        f"Their errors correlate by {figure}: together they are worth {worth} independent judges."
    )


def _judges(found: Comparison) -> Table:
    """Who they are, what became of their questions and what that cost, side by side; what neither says is left out."""
    table = sheet("The two judges", ["", "A", "B"], [])
    rows = [(name.replace("_", " "), *(str(row["card"].get(name) or "") for row in found.judges)) for name in CARD]
    rows += [(name, *(f"{row[name]:,}" for row in found.judges)) for name in ("films", "asked", *OUTCOME.categories)]
    costs = [row["cost"] or {} for row in found.judges]
    rows += [(name.replace("_", " "), *(_count(cost.get(name)) for cost in costs)) for name in dict.fromkeys(
        name for cost in costs for name in cost)]  # fmt: skip
    for row in rows:
        if any(row[1:]):
            table.add_row(*row)
    return table


def _quality(name: str, rows: Sequence[Row]) -> Table:
    left_out = ["left out"] if any(row.get("left_out") for row in rows) else []
    numbers = ("pairs", "present", *left_out, "A", "B", "A less B", "p")
    table = sheet(f"Who is right: AUROC against {name}", ["finding"], numbers)
    for row in rows:
        counts = [_count(row.get(key)) for key in ("n", "positives", *(["left_out"] if left_out else []))]
        own = [_figure(row, f"auroc_{letter}") for letter in "ab"]
        p = _p(row["p_holm"]) if "n" in row else ""
        table.add_row(row["finding"], *counts, *own, _difference(row, "auroc_difference"), p)
    return table


def _precision(name: str, rows: Sequence[Row]) -> Table:
    numbers = ("AP of A", "AP of B", "A less B", "Brier A", "Brier B", "ECE A", "ECE B")
    table = sheet(f"Average precision, and the raw probability: against {name}", ["finding"], numbers)
    for row in rows:
        plain = [number(row[f"{figure}_{letter}"]) for figure in ("brier", "ece") for letter in "ab"]
        own = [_figure(row, f"ap_{letter}") for letter in "ab"]
        table.add_row(row["finding"], *own, _difference(row, "ap_difference"), *plain)
    return table


def _dependence(name: str, rows: Sequence[Row]) -> Table:
    numbers = ("pairs", "called alike", "kappa", "error correlation", "judges they are worth")
    table = sheet(f"Wrong together: calls against {name}", ["finding"], numbers)
    for row in rows:
        figures = [_figure(row, figure) for figure in ("agreement", "kappa", "error_correlation")]
        table.add_row(row["finding"], _count(row.get("n")), *figures, number(row["effective_judges"], 2))
    return table


def _behaviour(found: Comparison) -> Table:
    """How the two answer, mean over findings; `--json` and the page have every finding."""
    means = {row["judge"]: row for row in found.behaviour if row["finding"] == "mean"}
    shown = [figure for figure in BEHAVIOUR if any(row[figure] is not None for row in means.values())]
    table = sheet("How each answers, mean over findings", ["judge"], [BEHAVIOUR[figure] for figure in shown])
    for letter, judge in zip("AB", (found.a, found.b), strict=True):
        table.add_row(letter, *(_figure(means[judge], figure) for figure in shown))
    return table


def _films(found: Comparison) -> Table:
    """The films on which they differ most."""
    table = sheet("Where they differ most: ranks among all films", ["film", "finding"], ["A", "B", "label"])
    for film in found.films.head(SHOWN // 2).iter_rows(named=True):
        label = "-" if film["truth"] is None else "present" if film["truth"] else "absent"
        ranks = [number(film[f"rank_{letter}"]) for letter in "ab"]
        table.add_row(_printable(film["image_id"]), film["finding"], *ranks, label)
    return table


def _spoken(against: str) -> str:
    return "the labels" if against == LABELS else f"experts ({against})"


def _figure(row: Row, name: str) -> str:
    """Write a figure with its 95 % interval, where it has one."""
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None or low is None or high is None:
        return number(value)
    between = " to " if low < 0 else "-"
    return f"{number(value)} ({number(low, 2)}{between}{number(high, 2)})"


def _p(value: float | None) -> str:
    return number(value) if value is None or value >= 0.001 else "<.001"


def _difference(row: Row, name: str) -> str:
    if row[name] is None:
        return number(None)
    value, low, high = (number(row[f"{name}{end}"], 3, "+") for end in ("", "_low", "_high"))
    return f"{value} ({low} to {high})"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _printable(text: str) -> str:
    """Take out of a file's name what could play with a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


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
    print(f"{headline(found)}\n")
    for table in tables(found):
        console.print(table)
