"""`bpals judge merge`: bring what the shards of a run heard into one workspace."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bpals.cli.progress import bar
from bpals.ledger.merge import Clash
from bpals.merging import Merged
from bpals.merging import merge as merge_workspaces
from bpals.plural import several

LISTED = 20
"""Conflicts that are printed; --json has up to a thousand."""
CLASHING = 2
"""The exit code under --strict."""


def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The workspaces of the shards; only read.")],
    workspace: Annotated[Path, typer.Option(help="The folder to write to.")],
    ledger: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Keep the answers on PostgreSQL: postgresql://NAME@HOST/DATABASE."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 if two parts contradict each other.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, for a program.")] = False,
) -> None:
    """Merge workspaces: in any order, as often as you like, the result is that of one run."""
    with bar() as drawn:
        task = drawn.add_task("merging", total=None)
        done = merge_workspaces(
            parts,
            workspace=workspace,
            ledger=ledger,
            watch=lambda judge, films: drawn.update(task, description=f"{judge}: {several(films, 'film')}"),
        )
    if as_json:
        print(json.dumps(_as_json(done), indent=1))
    else:
        _tell(done, workspace)
    if strict and done.clashing:
        raise typer.Exit(CLASHING)


def _as_json(done: Merged) -> dict[str, Any]:
    judges = [
        {
            "judge": each.run.name,
            "state": each.run.state,
            "films": each.run.films,
            "new": each.new,
            "known": each.known,
            "counts": dict(each.run.counts),
            "sealed": None if each.run.sealed is None else str(each.run.sealed),
        }
        for each in done.judges
    ]
    notices = [notice.message for notice in done.notices]
    clashes = [asdict(clash) for clash in done.clashes]
    return {"judges": judges, "notices": notices, "conflicts": done.clashing, "first_conflicts": clashes}


def _tell(done: Merged, workspace: Path) -> None:
    for each in done.judges:
        films = several(each.run.films, "film")
        print(f"{each.run.name}: {each.run.state}, {films} ({each.new:,} new, {each.known:,} known)")
        print("  " + ", ".join(f"{outcome} {count:,}" for outcome, count in each.run.counts.items()))
    for notice in done.notices:
        print(notice.message, file=sys.stderr)
    if done.clashing:
        print(f"{several(done.clashing, 'conflict')}; the first value stays:", file=sys.stderr)
    for clash in done.clashes[:LISTED]:
        print(f"  {_words(clash)}", file=sys.stderr)
    print(f"Audit: bpals audit --workspace {workspace}")


def _words(clash: Clash) -> str:
    what = f"{clash.image_id}, {clash.subject}" if clash.subject else f"{clash.image_id}, sha256 of the film"
    return f"{clash.judge}: {what}: {clash.here} here, {clash.there} there"
