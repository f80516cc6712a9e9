"""`bpals judge card`: who a judge is, what asking it has cost, and what its answers are worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bpals.cli.scoretables import number, sheet
from bpals.types import OUTCOME
from bpals.witness import card_of

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
    _print_field("answers", f"{found['films']:,} films, {found['asked']:,} pairs: {counts}")
    for name in ("cost", "drift"):
        _print_field(name, found[name])
    if found["card"].get("commercial_use") == "no":
        print("This judge's licence forbids commercial use: no commercial edition may rest on it.")
    print()
    _print_skill(found["skill"])


def _print_field(name: str, value: Any) -> None:
    """Print what a card says, if it says anything."""
    if value not in ("", None, {}, [], ()):
        print(f"{name:18} {_words(value)}")


def _words(value: Any) -> str:
    """Write a value without brackets and quotes; what could play with the terminal is left out."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_words(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    text = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    return "".join(character if character.isprintable() else " " for character in text)


def _print_skill(rows: list[dict[str, Any]]) -> None:
    numbers = ("pairs", "present", "AUROC", "95 % interval", "verdict")
    table = sheet("How well it tells films apart, patients taken whole", ["finding", "against"], numbers)
    for row in rows:
        verdict = "signal" if row["signal"] else "no signal" if row["auroc"] is not None else "no signal: too few"
        interval = "-" if row["auroc"] is None else f"{number(row['low'])} to {number(row['high'])}"
        counts = [f"{row['n']:,}", f"{row['positives']:,}"]
        table.add_row(row["finding"], row["against"], *counts, number(row["auroc"]), interval, verdict)
    console = Console(highlight=False, markup=False)
    (console if console.is_terminal else Console(highlight=False, markup=False, width=WIDTH)).print(table)
