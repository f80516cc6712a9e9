"""The films themselves: how many are odd in which way, with examples, as the signal has it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

EXAMPLES = 3
"""Films that are named for each check."""
NAMES = {
    "blank": "Blank",
    "inverted": "Inverted",
    "turned": "Turned",
    "cropped": "Cropped",
    "near_duplicate": "Near-duplicates",
    "view": "View",
    "lateral": "Lateral",
    "unlike": "Unlike the others",
    "text": "Text burnt in",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OddFilms:
    """What the checks of the films say."""

    checked: int
    odd: int
    rows: tuple[tuple[str, int, str], ...]
    """A row a check that fired: its name, films, and what is said of some of them."""


def odd_films(signal: pl.DataFrame) -> OddFilms | None:
    """Count the films by what is odd about them; None where nobody looked."""
    films = signal.filter(pl.col("film_checks").is_not_null()).unique("image_id", keep="first", maintain_order=True)
    if films.is_empty():
        return None
    odd = films.filter(pl.col("film_checks").list.len() > 0).select("image_id", "film_checks", "reasons")
    return OddFilms(
        checked=films.height,
        odd=odd.height,
        rows=tuple(row for check in NAMES if (row := _row(check, odd)) is not None),
    )


def _row(check: str, odd: pl.DataFrame) -> tuple[str, int, str] | None:
    its = odd.filter(pl.col("film_checks").list.contains(check))
    if its.is_empty():
        return None
    said = []
    for image_id, reasons in its.select("image_id", "reasons").head(EXAMPLES).iter_rows():
        words = next((reason for reason in reasons if reason.startswith(f"film_{check}: ")), "")
        said.append(f"{image_id}: {words.partition(': ')[2]}")
    return NAMES[check], its.height, "; ".join(said)
