"""The sealed checks of a workspace's films: a table and the record that names it, whole or not there.

    films.parquet      FILM_CHECKS: one row a film that was looked at
    film-checks.json   who looked, what was learnt from how many films, and the table with its sha256

The record is written last. No audit removes them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bpals.durable import named, names_files, parquet, sha256, sync_folder, write_durably
from bpals.errors import WorkspaceError
from bpals.plural import several
from bpals.types import FILM_CHECKS

FORMAT = 1
TABLE, RECORD = "films.parquet", "film-checks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFilms:
    """What was found out about the films of a workspace."""

    table: pl.DataFrame
    """FILM_CHECKS."""
    record: dict[str, Any]


def seal_films(home: Path, table: pl.DataFrame, told: Mapping[str, Any]) -> SealedFilms:
    """Write the checks durably, their record last."""
    content = parquet(table)
    record = {"format": FORMAT, **told, "files": named({TABLE: content})}
    text = json.dumps(record, indent=1, ensure_ascii=False).encode()
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name, bytes_ in ((TABLE, content), (RECORD, text)):
            write_durably(home / f".{name}.part", bytes_)
            (home / f".{name}.part").replace(home / name)
            sync_folder(home)
    except OSError as error:
        raise WorkspaceError(f"{home} cannot be written: {error.strerror}. Name another with --workspace DIR") from None
    return SealedFilms(table=table, record=record)


def open_films(home: Path) -> SealedFilms | None:
    """Open the checks; None where there are none, and what is not whole is an error, never left out in silence."""
    broken = WorkspaceError(
        f"{home / RECORD} and {home / TABLE} are not a whole set. Run the probe again (bpals judge run probe:), "
        f"which checks the films anew, or remove both"
    )
    try:
        record = json.loads((home / RECORD).read_bytes())
        content = (home / TABLE).read_bytes()
        whole = record["format"] == FORMAT and names_files(record)
        whole = whole and record["files"][TABLE]["sha256"] == sha256(content)
    except (FileNotFoundError, NotADirectoryError):
        if (home / RECORD).exists():
            raise broken from None
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise broken from None
    if not whole:
        raise broken
    table = pl.read_parquet(io.BytesIO(content))
    if table.schema != FILM_CHECKS:
        raise broken
    return SealedFilms(table=table, record=record)


def summary(record: Mapping[str, Any]) -> str:
    """Count films by what is odd about them, in one line; what was not looked for comes first."""
    counts = {name: count for name, count in record["fired"].items() if count}
    fired = [f"{count:,} {name.replace('_', ' ')}{_in_pairs(name, record)}" for name, count in counts.items()]
    checked = record.get("checked", record["films"])
    unread = f" ({record['films'] - checked:,} more could not be read)" if checked < record["films"] else ""
    unasked = f", not for {', '.join(record['not_looked_for'])}" if record.get("not_looked_for") else ""
    words = ", ".join(fired) or "nothing odd was found"
    return f"{several(checked, 'film was', 'films were')} checked{unread}{unasked}: {words} (docs/film-checks.md)"


def _in_pairs(check: str, record: Mapping[str, Any]) -> str:
    """Say how many pairs near-duplicates are; nothing of another check."""
    if check != "near_duplicate" or "near_duplicate_pairs" not in record:
        return ""
    pairs = several(record["near_duplicate_pairs"], "pair")
    return f" ({pairs}, {record['pairs_of_two_patients']:,} of two patients)"
