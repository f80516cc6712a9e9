"""Reads from several files, heard together: what a reader says of a pair in two of them counts once, or is counted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.plural import several
from bpals.score import references
from bpals.types import Notice, Reviews

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One file or folder of reads, or several."""

_PAIR = ["image_id", "finding"]
_READ = [*_PAIR, "reader"]


def load_many(given: Files, *, vocabulary: Vocabulary, split: str = "all") -> Reviews:
    """Read one file of reads, or several as if they were one; a file that is named twice is refused."""
    files = [Path(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]
    if len({file.resolve() for file in files}) < len(files):
        names = ", ".join(map(str, files))
        raise UsageError(f"--reviews names a file twice ({names}). Name each file of reads once")
    parts = [references.load_reads(file, vocabulary=vocabulary, split=split) for file in files]
    return parts[0] if len(parts) == 1 else _together(files, parts)


def as_typed(given: Files | None) -> str | list[str] | None:
    """Write down which files were given, as the record of a run keeps it."""
    if given is None or isinstance(given, str | os.PathLike):
        return None if given is None else os.fspath(given)
    return [os.fspath(each) for each in given]


def _together(files: Sequence[Path], parts: Sequence[Reviews]) -> Reviews:
    whole = pl.concat([part.table for part in parts])
    said = whole.group_by(_READ).agg(rows=pl.len(), verdicts=pl.col("verdict").n_unique())
    against = said.filter(pl.col("verdicts") > 1).sort(_READ)
    again = said.filter((pl.col("rows") > 1) & (pl.col("verdicts") == 1))
    notices = [notice for part in parts for notice in part.notices]
    names = " and ".join(file.name for file in files)
    for code, found, words in (
        ("reader_contradicts", against, "said two things about a pair; that reader was left out there"),
        ("reader_repeats", again, "said the same about a pair again; it counts once"),
    ):
        if found.height:
            message = f"{names}: {several(found.height, 'time')} one reader {words}"
            first = f" (first: {found['image_id'][0]}, {found['finding'][0]})" if found is against else ""
            notices.append(Notice(code=code, count=found.height, message=message + first))
    table = whole.join(against, on=_READ, how="anti", maintain_order="left")
    # Where one file knows the chance of a pair and another does not, the one that knows comes first.
    known = table.sort(pl.col("inclusion").is_null(), maintain_order=True)
    groups = tuple(dict.fromkeys(group for part in parts for group in part.groups))
    return Reviews(
        table=known.unique(_READ, keep="first", maintain_order=True),
        groups=groups,
        inputs=_inputs(files, parts),
        notices=tuple(notices),
        settled=pl.concat([part.settled for part in parts]).unique(_PAIR, keep="last", maintain_order=True),
    )


def _inputs(files: Sequence[Path], parts: Sequence[Reviews]) -> dict[str, str]:
    """Name every file with its hash; two files of one name are told apart by their folders."""
    names = [name for part in parts for name in part.inputs]
    return {
        (name if names.count(name) == 1 else str(file)): digest
        for file, part in zip(files, parts, strict=True)
        for name, digest in part.inputs.items()
    }
