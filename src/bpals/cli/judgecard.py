"""`bpals judge card`: who a judge is, what asking it has cost, and what its answers are worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bpals.cli.scoretables import number, sheet
from bpals.plural import several
from bpals.types import OUTCOME
from bpals.witness import card_of

DIGITS = ("seed",)
"""Whole numbers that count nothing."""
WIDTH = 100
"""Columns of a table that is written to a file or a pipe."""


def card(
    judge: Annotated[str, typer.Argument(help="A judge of the workspace; `record` is the one that reads the record.")],
    workspace: Annotated[Path, typer.Option(help="The folder of the audit.")] = Path("audit"),
    reference: Annotated[
        str | None, typer.Option(metavar="KIND=PATH", help="Expert labels to score it against, as in `bpals score`.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which rows of the reference: val, test or all.")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
) -> None:
    """Say who a judge is, what its self-test saw, and how well it tells films with a finding from films without."""
    found = card_of(judge, workspace=workspace, reference=reference, split=split)
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
        return
    for name, value in found["card"].items():
        _print_field(name.replace("_", " "), value)
    counts = ", ".join(f"{found[outcome]:,} {outcome}" for outcome in OUTCOME.categories if found[outcome])
    _print_field("answers", f"{several(found['films'], 'film')}, {several(found['asked'], 'pair')}: {counts}")
    for name in ("cost", "drift"):
        _print_field(name, found[name])
    if found["card"].get("commercial_use") == "no":
        print("This judge's licence forbids commercial use: no commercial edition may rest on it.")
    print()
    _print_skill(found["skill"])


def _print_field(name: str, value: Any) -> None:
    """Print what a card says, if it says anything."""
    if words := _words(value):
        print(f"{name:18} {words}")


def _words(value: Any, name: str = "") -> str:
    """Write a value without brackets and quotes, and nothing for what is empty; what could play with a terminal goes.

    A seed is a name made of digits: it has no thousands.
    """
    if isinstance(value, Mapping):
        said = {each: _words(inner, str(each)) for each, inner in value.items()}
        # What a network is shown has a side of its own beside that of the film: which is whose, the brackets say.
        inside = {each: f"({words})" if isinstance(value[each], Mapping) else words for each, words in said.items()}
        return ", ".join(f"{each.replace('_', ' ')} {inside[each]}" for each, words in said.items() if words)
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_words, value)))
    if value is None:
        return ""
    plain = name in DIGITS or type(value) is not int
    text = f"{value:,.4g}" if isinstance(value, float) else str(value) if plain else f"{value:,}"
    return "".join(character if character.isprintable() else " " for character in text)


def _print_skill(rows: list[dict[str, Any]]) -> None:
    numbers = ("pairs", "present", "AUROC", "95 % interval", "verdict")
    table = sheet("How well it tells films apart, patients taken whole", ["finding", "against"], numbers)
    for row in rows:
        few = "no signal: too few" if row["asked"] else "not asked"
        verdict = "signal" if row["signal"] else "no signal" if row["auroc"] is not None else few
        interval = "-" if row["auroc"] is None else f"{number(row['low'])} to {number(row['high'])}"
        counts = [f"{row['n']:,}", f"{row['positives']:,}"]
        table.add_row(row["finding"], row["against"], *counts, number(row["auroc"]), interval, verdict)
    console = Console(highlight=False, markup=False)
    (console if console.is_terminal else Console(highlight=False, markup=False, width=WIDTH)).print(table)
