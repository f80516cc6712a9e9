"""What compressed tars hold, remembered: listing one means unpacking it, and NIH's twelve have 42 GB."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bpals.errors import FilmError
from bpals.films.holder import Entry, Holder
from bpals.types import Refusal

VERSION = 1
DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError)
"""What a listing raises that is not ours or not whole: it is made anew."""


class Listing:
    """The entries of holders, and a file that remembers those of compressed tars by name, size and time."""

    def __init__(self, file: str | os.PathLike[str] | None = None) -> None:
        """Read the file if there is one; whatever is wrong with it, archives are only listed again."""
        self._file = None if file is None else Path(file)
        self._known = self._remembered()
        self._new = False

    def entries(self, holder: Holder, name: str) -> tuple[list[Entry], str]:
        """List a holder: its entries, and what is wrong with it in one line, or nothing."""
        if not holder.sequential:
            return _list(holder)
        about = holder.path.stat()
        stamp = [about.st_size, about.st_mtime_ns]
        known = self._known.get(name)
        if known is not None and known["stamp"] == stamp:
            return [_entry(row) for row in known["entries"]], known["damage"]
        entries, damage = _list(holder)
        self._known[name] = {"stamp": stamp, "damage": damage, "entries": [_row(entry) for entry in entries]}
        self._new = True
        return entries, damage

    def save(self) -> None:
        """Write the file if something was listed anew, whole or not at all."""
        if self._file is None or not self._new:
            return
        part = self._file.with_name(f"{self._file.name}.tmp-{os.getpid()}")
        try:
            part.write_text(json.dumps({"version": VERSION, "archives": self._known}), encoding="utf-8")
            part.replace(self._file)
        finally:
            part.unlink(missing_ok=True)

    def _remembered(self) -> dict[str, Any]:
        if self._file is None or not self._file.is_file():
            return {}
        try:
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            known = stored["archives"] if stored["version"] == VERSION else {}
            for archive in known.values():
                [_entry(row) for row in archive["entries"]]
                str(archive["damage"]), list(archive["stamp"])
        except DAMAGED:
            return {}
        return dict(known)


def _list(holder: Holder) -> tuple[list[Entry], str]:
    entries = []
    try:
        for entry in holder.entries():
            entries.append(entry)  # noqa: PERF402  what was listed before a damage is kept
    except FilmError as error:
        return entries, str(error)
    except OSError as error:
        return entries, f"{holder.path.name} cannot be read: {error.strerror}"
    return entries, ""


def _row(entry: Entry) -> list[Any]:
    return [entry.name, entry.size, entry.at, entry.pixels, asdict(entry.refusal) if entry.refusal else None]


def _entry(row: list[Any]) -> Entry:
    name, size, at, pixels, refusal = row
    return Entry(str(name), int(size), int(at), pixels, Refusal(**refusal) if refusal else None)
