"""Exports of a reading room among files of reads: which of their rows vote, and what was settled over the votes.

An export has every word of every reader. Only blind reads vote, as they do in the room itself; and a pair that an
adjudicator or a discussion settled has that truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from bpals.findings import fold
from bpals.score import verdicts
from bpals.score.sheets import Sheet
from bpals.types import SETTLED

VOTING = ("blind", "amended", "imported")
_MARKS = {"finding", "verdict", "phase", "saw signal", "repeat", "stands", "external id"}
_TRUTH = {"truth", "truth by", "truth round"}


def voting(sheet: Sheet) -> Sheet:
    """Keep the rows of an export that vote; any other sheet is as it is."""
    if not sheet.titles.keys() >= _MARKS:
        return sheet
    blind = pl.col("phase").is_in(VOTING) & (pl.col("saw signal") == "0")
    return replace(sheet, cells=sheet.cells.filter(blind & (pl.col("repeat") == "0") & (pl.col("stands") == "1")))


def settled(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    """Give what people settled after they saw each other's opinions, as SETTLED; `known` names the findings."""
    image = verdicts.column(sheet, verdicts.IMAGE_COLUMNS)
    if image is None or not sheet.titles.keys() >= _MARKS | _TRUTH:
        return pl.DataFrame(schema=SETTLED)
    together = (pl.col("truth by") != "") | ~pl.col("truth round").is_in(["", "0"])
    told = sheet.cells.filter(together, pl.col("truth").is_in(["present", "absent"]))
    names = {word: known.get(fold(word)) for word in told["finding"].unique()}
    pairs = told.select(
        image_id=image,
        finding=pl.col("finding").replace_strict(names, return_dtype=pl.String),
        settled=(pl.col("truth") == "present").cast(pl.Float64),
    )
    return pairs.drop_nulls().unique(["image_id", "finding"], keep="last", maintain_order=True).cast(SETTLED)
