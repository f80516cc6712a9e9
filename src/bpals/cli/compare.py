"""`bpals judge compare A B`: where two judges differ, on what they are wrong together, and who was right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bpals.cli import terminal
from bpals.cli.terminal import AS_JSON, AUDIT, BOOTSTRAP, RESAMPLING_SEED, SPLIT, WORKSPACE, Row, number, sheet, takes
from bpals.score.intervals import Resampling
from bpals.tasks.compare import LABELS, SHOWN, Comparison, comparison_page
from bpals.tasks.compare import compare as run_comparison
from bpals.types import OUTCOME

CARD = ("kind", "model", "revision", "licence", "commercial_use", "trained_on_target")
BEHAVIOUR = {
    "yes_rate": "says yes",
    "coherent": "coherent",
    "acquiescence": "acquiescence",
    "low_mass": "little mass",
    "depends": "on the image",
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
    return drawn if found.films.is_empty() else [*drawn, _images(found)]


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
    first = f"Against {_spoken(against)} {ahead}: AUROC {_difference(scored[-1], 'auroc_difference')}."
    if lacks := _without_signal(together[-1]):
        return f"{first}\nNo signal, so no worth: {lacks}. The 95 % interval of the AUROC does not lie above .5."
    figure, worth = _figure(together[-1], "error_correlation"), number(together[-1]["effective_judges"], 2)
    return f"{first}\nTheir errors correlate by {figure}: together they are worth {worth} independent judges."


def _without_signal(row: Row) -> str:
    return " and ".join(letter.upper() for letter in row["no_signal"])


def _judges(found: Comparison) -> Table:
    """Who they are, what became of their questions and what that cost, side by side; what neither says is left out."""
    rows = [(name.replace("_", " "), *(str(row["card"].get(name) or "") for row in found.judges)) for name in CARD]
    counts = {"films": "images", "asked": "asked"} | {name: name for name in OUTCOME.categories}
    rows += [(word, *(f"{row[name]:,}" for row in found.judges)) for name, word in counts.items()]
    costs = [row["cost"] or {} for row in found.judges]
    names = dict.fromkeys(name for cost in costs for name in cost)
    rows += [(name.replace("_", " "), *(_count(cost.get(name)) for cost in costs)) for name in names]
    return sheet("The two judges", ["", "A", "B"], [], [row for row in rows if any(row[1:])])


def _quality(name: str, rows: Sequence[Row]) -> Table:
    left_out = ["left out"] if any(row.get("left_out") for row in rows) else []
    numbers = ("pairs", "present", *left_out, "A", "B", "A less B", "p")
    lines = []
    for row in rows:
        counts = [_count(row.get(key)) for key in ("n", "positives", *(["left_out"] if left_out else []))]
        own = [_figure(row, f"auroc_{letter}") for letter in "ab"]
        p = _p(row["p_holm"]) if "n" in row else ""
        lines.append([row["finding"], *counts, *own, _difference(row, "auroc_difference"), p])
    return sheet(f"Who is right: AUROC against {name}", ["finding"], numbers, lines)


def _precision(name: str, rows: Sequence[Row]) -> Table:
    numbers = ("AP of A", "AP of B", "A less B", "Brier A", "Brier B", "ECE A", "ECE B")
    lines = []
    for row in rows:
        plain = [number(row[f"{figure}_{letter}"]) for figure in ("brier", "ece") for letter in "ab"]
        own = [_figure(row, f"ap_{letter}") for letter in "ab"]
        lines.append([row["finding"], *own, _difference(row, "ap_difference"), *plain])
    return sheet(f"Average precision, and the raw probability: against {name}", ["finding"], numbers, lines)


def _dependence(name: str, rows: Sequence[Row]) -> Table:
    numbers = ("pairs", "called alike", "kappa", "error correlation", "judges they are worth")
    lines = []
    for row in rows:
        figures = [_figure(row, figure) for figure in ("agreement", "kappa", "error_correlation")]
        lacks = _without_signal(row)
        worth = f"no signal: {lacks}" if lacks else number(row["effective_judges"], 2)
        lines.append([row["finding"], _count(row.get("n")), *figures, worth])
    return sheet(f"Wrong together: calls against {name}", ["finding"], numbers, lines)


def _behaviour(found: Comparison) -> Table:
    """How the two answer, mean over findings; `--json` and the page have every finding."""
    means = {row["judge"]: row for row in found.behaviour if row["finding"] == "mean"}
    shown = [figure for figure in BEHAVIOUR if any(row[figure] is not None for row in means.values())]
    both = {"A": found.a, "B": found.b}
    lines = [[letter, *(_figure(means[judge], figure) for figure in shown)] for letter, judge in both.items()]
    return sheet("How each answers, mean over findings", ["judge"], [BEHAVIOUR[figure] for figure in shown], lines)


def _images(found: Comparison) -> Table:
    """The images on which they differ most."""
    lines = []
    for image in found.films.head(SHOWN // 2).iter_rows(named=True):
        label = "-" if image["truth"] is None else "present" if image["truth"] else "absent"
        ranks = [number(image[f"rank_{letter}"]) for letter in "ab"]
        lines.append([terminal.printable(image["image_id"]), image["finding"], *ranks, label])
    return sheet("Where they differ most: ranks among all images", ["image", "finding"], ["A", "B", "label"], lines)


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


def compare(  # noqa: PLR0913  an option of the command is a parameter
    a: Annotated[str, typer.Argument(help=terminal.JUDGE)],
    b: Annotated[str, typer.Argument(help="Another one.")],
    workspace: WORKSPACE = AUDIT,
    reference: Annotated[
        list[str] | None, takes("KIND=PATH", "Expert labels, as in `bpals score`. Repeatable.")
    ] = None,
    split: SPLIT = "all",
    images: Annotated[
        Path | None, takes("PATH", "Where the images are; by default where `judge run` found them.")
    ] = None,
    html: Annotated[Path | None, takes("FILE", "The page; by default compare-A-B.html in the workspace.")] = None,
    bootstrap: BOOTSTRAP = 1000,
    seed: RESAMPLING_SEED = 0,
    as_json: AS_JSON = False,
) -> None:
    """Compare two judges: who is right, how often they are wrong together, and the images on which they differ most."""
    with terminal.progress("reading the judges") as show:
        found = run_comparison(
            a,
            b,
            workspace=workspace,
            reference=reference or (),
            split=split,
            resampling=Resampling(draws=bootstrap, seed=seed),
            progress=show,
        )
        show("writing the page", 0.95)
        page = html or workspace / f"compare-{a}-{b}.html"
        terminal.write_text(comparison_page(found, workspace=workspace, images=images), page, "--html")
    if as_json:
        print(json.dumps(found.as_dict(), indent=1, allow_nan=False))
    else:
        print(f"A = {found.a}, B = {found.b}\n")
        print(f"{headline(found)}\n")
        terminal.print_tables(tables(found), 120, markup=False)
        print(f"Page: {page}")
    terminal.print_notes(note.message for note in found.notes)
