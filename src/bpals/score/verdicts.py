"""What readers wrote, one row a verdict: from a sheet with a column a finding, or with a row a finding."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import polars as pl

from bpals.errors import TruthError, UnknownName
from bpals.findings import Group, Vocabulary, fold
from bpals.plural import several
from bpals.score.sheets import LINE, Sheet
from bpals.types import Notice

IMAGE_COLUMNS = ("image id", "image index", "image")
READER_COLUMNS = ("reader", "reader id")
SPLIT_COLUMNS = ("set id", "split", "set")
VERDICT_COLUMNS = ("verdict", "present")
INCLUSION = "inclusion"

VERDICTS = pl.Schema(
    {
        "image_id": pl.String,
        "finding": pl.String,  # a finding of the vocabulary, or the name of a group
        "reader": pl.String,  # null where the file speaks for all readers at once
        "verdict": pl.String,  # present, absent, uncertain or unreadable
        "split": pl.String,  # val, test or another word of the file; null where it names none
        "inclusion": pl.Float64,  # chance with which the pair was drawn to be read; null where nobody knows
    }
)
"""One row a verdict; a blank cell was not read and is no row."""

WORDS = "present, absent, uncertain or unreadable (YES, NO and HEDGE are taken too)"
"""What may be written for a verdict, as people are told."""
_WORDS = (
    dict.fromkeys(("yes", "y", "1", "1.0", "true", "present", "positive"), "present")
    | dict.fromkeys(("no", "n", "0", "0.0", "false", "absent", "negative"), "absent")
    | dict.fromkeys(("hedge", "uncertain", "-1", "-1.0", "maybe"), "uncertain")
    | {"unreadable": "unreadable"}
    | dict.fromkeys(("", "na", "n/a", "nan", "null", "none"), "unread")
)
_SPLITS = {"validation": "val", "valid": "val", "": None}


def column(sheet: Sheet, names: Iterable[str]) -> str | None:
    """Give the first of these columns that the sheet has."""
    return next((name for name in names if name in sheet.titles), None)


def spellings(vocabulary: Vocabulary, groups: Iterable[Group]) -> dict[str, str]:
    """Every folded spelling of a finding, or of a group whose members are all audited -> its name."""
    whole = [group for group in groups if set(group.members) <= set(vocabulary.findings)]
    named = {fold(group.name): group.name for group in whole}
    slashed = {fold(group.name.replace(" or ", "/")): group.name for group in whole}
    return slashed | named | vocabulary.spellings


def of_split(chosen: list[Sheet], split: str, option: str = "--split") -> list[Sheet]:
    """Keep the rows of one split, which an option names; a file that names none has only `all`."""
    if split == "all":
        return chosen
    kept = [replace(sheet, cells=sheet.cells.filter(_split(sheet) == split)) for sheet in chosen]
    if all(sheet.cells.is_empty() for sheet in kept):
        named = sorted({word for sheet in chosen for word in sheet.cells.select(_split(sheet)).to_series() if word})
        has = f"there is {', '.join(named)}" if named else "there is no column 'Set Id'"
        raise TruthError(f"{chosen[0].path} has no row of the split {split!r}: {has}. Type: {option} all")
    return [sheet for sheet in kept if not sheet.cells.is_empty()]


def wide(sheet: Sheet, findings: Mapping[str, str]) -> pl.DataFrame:
    """Read a sheet with a column a finding: `findings` says which column means which."""
    long = _keyed(sheet).hstack(sheet.cells.select(list(findings)))
    melted = long.unpivot(
        list(findings),
        index=["image_id", "reader", "split", INCLUSION, LINE],
        variable_name="finding",
        value_name="word",
    )
    return _spoken(sheet, melted.with_columns(pl.col("finding").replace_strict(dict(findings))))


def long(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    """Read a sheet with a row a finding: columns `finding`, and `verdict` or `present`."""
    spoken = column(sheet, VERDICT_COLUMNS)
    if spoken is None:
        raise TruthError(
            f"{sheet.path} has a column 'finding' but none called 'verdict' or 'present'. Rename the column of verdicts"
        )
    rows = _keyed(sheet).hstack(sheet.cells.select(finding="finding", word=spoken))
    for word, line in rows.group_by("finding", maintain_order=True).agg(pl.col(LINE).first()).iter_rows():
        if fold(word) not in known:
            raise UnknownName.of("finding", word, list(dict.fromkeys(known.values())), where=sheet.where(line))
    names = {word: known[fold(word)] for word in rows["finding"].unique()}
    return _spoken(sheet, rows.with_columns(pl.col("finding").replace_strict(names, return_dtype=pl.String)))


def unaudited(sheet: Sheet, known: Mapping[str, str]) -> list[Notice]:
    """Count the columns of verdicts that no audited finding answers to; a slip of the pen is refused."""
    notices = []
    for name, title in sheet.titles.items():
        words = sheet.cells[name].str.to_lowercase()
        if (
            name in known
            or name in (*IMAGE_COLUMNS, *READER_COLUMNS, INCLUSION)
            or not set(words.unique()) <= set(_WORDS)
        ):
            continue
        if difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            raise UnknownName.of("finding", title, list(dict.fromkeys(known.values())), where=sheet.where(1))
        present = sum(_WORDS[word] == "present" for word in words)
        left = several(present, "presence was", "presences were")
        message = f"{sheet.path}: {title!r} is not audited; its {left} left out"
        notices.append(Notice(code="unaudited", count=present, message=message))
    return notices


def outside(sheet: Sheet, known: Mapping[str, str]) -> dict[str, str]:
    """Give the columns of verdicts that no audited finding answers to, folded name -> title; a slip is refused."""
    found = {}
    for name, title in sheet.titles.items():
        said = {_WORDS.get(word, "") for word in sheet.cells[name].str.to_lowercase().unique()}
        if name in known or name in (*IMAGE_COLUMNS, *READER_COLUMNS, INCLUSION) or "" in said or said == {"unread"}:
            continue
        if difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            raise UnknownName.of("finding", title, list(dict.fromkeys(known.values())), where=sheet.where(1))
        found[name] = title
    return found


def _keyed(sheet: Sheet) -> pl.DataFrame:
    """Give image, reader, split and line of each row."""
    image, reader = column(sheet, IMAGE_COLUMNS), column(sheet, READER_COLUMNS)
    if image is None:
        raise TruthError(
            f"{sheet.path} has no image column; it has {', '.join(sheet.titles.values())}. Call one of them image_id"
        )
    nameless = sheet.cells.filter(pl.col(image) == "")
    if not nameless.is_empty():
        raise TruthError(f"{sheet.where(nameless[LINE][0])}: no image id. Fill it in, or remove the row")
    return sheet.cells.select(
        pl.col(image).alias("image_id"),
        (pl.col(reader) if reader else pl.lit(None, pl.String)).alias("reader"),
        _split(sheet).alias("split"),
        LINE,
    ).hstack([_inclusion(sheet)])


def _inclusion(sheet: Sheet) -> pl.Series:
    """Read each row's chance of having been drawn; a blank is unknown, and what is no chance is refused."""
    if INCLUSION not in sheet.titles:
        return pl.Series(INCLUSION, [None] * sheet.cells.height, dtype=pl.Float64)
    words = sheet.cells[INCLUSION]
    chance = words.cast(pl.Float64, strict=False)
    wrong = sheet.cells.filter(
        (words != "") & ~(chance.is_between(0, 1, closed="right") & chance.is_not_nan()).fill_null(value=False)
    )
    if not wrong.is_empty():
        raise TruthError(
            f"{sheet.where(wrong[LINE][0])}: {wrong[INCLUSION][0]!r} under 'inclusion' is no chance of being drawn. "
            "Write a number above 0 and at most 1, or leave it blank where nobody knows"
        )
    return chance.alias(INCLUSION)


def _split(sheet: Sheet) -> pl.Expr:
    """Read the split off its column, else off the file's name, as in `..._test_labels.csv`."""
    if name := column(sheet, SPLIT_COLUMNS):
        return pl.col(name).str.to_lowercase().replace(_SPLITS)
    words = {_SPLITS.get(word, word) for word in re.split(r"[^a-z]+", sheet.path.name.lower())} & {"val", "test"}
    return pl.lit(words.pop() if len(words) == 1 else None, pl.String)


def _spoken(sheet: Sheet, rows: pl.DataFrame) -> pl.DataFrame:
    """Turn words into verdicts; an unknown word is refused where it stands."""
    said = rows.with_columns(verdict=pl.col("word").str.to_lowercase().replace_strict(_WORDS, default=None))
    strange = said.filter(pl.col("verdict").is_null()).sort(LINE)
    if not strange.is_empty():
        first = strange.row(0, named=True)
        raise TruthError(
            f"{sheet.where(first[LINE])}: {first['word']!r} under {first['finding']!r} is no verdict. "
            f"Write {WORDS}, or leave the cell blank where nobody read"
        )
    return said.filter(pl.col("verdict") != "unread").select(VERDICTS.names()).cast(VERDICTS)
