"""Every read of a sheet, to be kept: also of findings that nobody audits, and also where a reader speaks twice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

import polars as pl

from bpals.errors import TruthError, UnknownName
from bpals.findings import Group, Vocabulary, fold
from bpals.score import keys, sheets, verdicts
from bpals.score.sheets import Sheet

ALIKE = 0.8
"""A word so like a known one is taken for a slip of the pen."""


def every_read(path: Path, *, vocabulary: Vocabulary, groups: Iterable[Group]) -> pl.DataFrame:
    """Read a sheet with one row a read as `verdicts.VERDICTS`; a reader that it does not name is null."""
    sheet = sheets.read(path, "bpals review import")
    known = verdicts.spellings(vocabulary, groups)
    reads = _long(sheet, known) if "finding" in sheet.titles else _wide(sheet, known)
    if reads.is_empty():
        raise TruthError(f"{path} holds no read. Fill in {verdicts.WORDS}, or name another file")
    return keys.with_inclusion(reads, path)


def _wide(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    columns = {name: known[name] for name in sheet.titles if name in known} | verdicts.outside(sheet, known)
    if not columns:
        raise TruthError(
            f"{sheet.path}, line 1: no column holds verdicts ({', '.join(sheet.titles.values())}). "
            "Give it a column a finding, or the columns 'finding' and 'verdict'"
        )
    return verdicts.wide(sheet, columns)


def _long(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    words = sheet.cells["finding"].unique(maintain_order=True)
    return verdicts.long(sheet, dict(known) | {fold(word): named(word, known, str(sheet.path)) for word in words})


def named(word: str, known: Mapping[str, str], where: str) -> str:
    """Name a finding as the vocabulary does; one outside of it keeps its name, and a slip of the pen is refused."""
    folded = fold(word)
    if folded in known:
        return known[folded]
    if difflib.get_close_matches(folded, known, n=1, cutoff=ALIKE):
        raise UnknownName.of("finding", word, list(dict.fromkeys(known.values())), where=where)
    return word
