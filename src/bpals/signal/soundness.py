"""Soundness: what a table of answers must be before it is heard; what is not is left out and counted, never dropped.

A table may come from elsewhere, so nothing is taken on trust: a probability is a number from 0 to 1, and a judge says
one thing about a pair.
"""

from __future__ import annotations

import polars as pl

from bpals.text import several
from bpals.types import Notice

PAIR = ["image_id", "finding"]
_PLACE = "\0place"


def sound(judge: str, answers: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep a judge's sound rows, in their order; the others are as if it had not answered, and are counted."""
    kept, notices = _probable(judge, answers)
    return _once(judge, kept, notices)


def _probable(judge: str, answers: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Leave out answers without a probability from 0 to 1."""
    given = pl.col("p_present")
    wrong = (pl.col("outcome") == "answered") & ~(given.is_between(0, 1) & given.is_not_nan()).fill_null(value=False)
    strange = answers.filter(wrong)
    if strange.is_empty():
        return answers, []
    message = (
        f"{judge}: of its {several(answers.height, 'answer')} {several(strange.height, 'gives', 'give')} no "
        f"probability from 0 to 1 ({_first(strange)} gives {strange['p_present'][0]}): counted as not answered"
    )
    return answers.filter(~wrong), [Notice(code="no_probability", count=strange.height, message=message)]


def _once(judge: str, answers: pl.DataFrame, notices: list[Notice]) -> tuple[pl.DataFrame, list[Notice]]:
    """Hear a pair once: twice the same counts once, and two different answers count as none."""
    said = answers.filter(pl.col("outcome") == "answered").with_row_index(_PLACE)
    doubled = said.filter(said.select(PAIR).is_duplicated())
    if doubled.is_empty():
        return answers, notices
    pairs = doubled.group_by(PAIR, maintain_order=True).agg(pl.col("p_present").n_unique().alias("different"))
    against, again = pairs.filter(pl.col("different") > 1), pairs.filter(pl.col("different") == 1)
    kept = said.join(against.select(PAIR), on=PAIR, how="anti", maintain_order="left")
    kept = kept.unique(PAIR, keep="first", maintain_order=True).drop(_PLACE)
    for code, found, words in (
        ("answers_contradict", against, "it gives two different answers ({}); they count as not answered"),
        ("answers_again", again, "it gives the same answer again ({}); it counts once"),
    ):
        if found.height:
            message = f"{judge}: about {several(found.height, 'pair')} {words.format(f'first: {_first(found)}')}"
            notices = [*notices, Notice(code=code, count=found.height, message=message)]
    return kept, notices


def _first(rows: pl.DataFrame) -> str:
    return f"{rows['image_id'][0]}, {rows['finding'][0]}"
