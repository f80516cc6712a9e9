"""Reviews that come from a file, looked at before they are kept: words, ranges, readers, and what is said twice."""

from __future__ import annotations

import polars as pl

from bpals.errors import TruthError
from bpals.ledger.reviewschema import PHASES, VERDICTS
from bpals.ledger.schema import now
from bpals.plural import several
from bpals.review.formats.exchange import true_boxes
from bpals.review.formats.reviewtable import KEPT
from bpals.types import Notice

IMPORTED = "imported"
"""The phase of a read whose file names none."""
WORDS = {
    "phase": PHASES,
    "verdict": VERDICTS,
    "quality": ("good", "limited", "unreadable"),
    "devices": ("present", "absent"),
}
RANGES = {
    "confidence": (0, 100),
    "round": (0, None),
    "repeat": (0, 1),
    "saw_signal": (0, 1),
    "position": (0, None),
    "stands": (0, 1),
}
SECONDS = ("active_s", "wall_s")
NEVER_BLANK = ("image_id", "finding", "reader", "verdict")
PAIR = ["image_id", "finding"]
READ = [*PAIR, "reader", "phase", "round"]


def checked(table: pl.DataFrame, name: str, reader: str | None) -> pl.DataFrame:
    """Fill in what a file may leave out, and refuse a row that says what no review can say."""
    filled = table.select(KEPT.names()).with_columns(
        pl.col("reader").replace({"": None}).fill_null(pl.lit(reader, pl.String)),
        pl.col("phase").fill_null(IMPORTED),
        pl.col("round", "repeat", "saw_signal").fill_null(0),
        pl.col("stands").fill_null(1),
        pl.col("external_id", "box").replace({"": None}),
    )
    for column in NEVER_BLANK:
        blank = pl.col(column).is_null() | (pl.col(column).str.strip_chars() == "")
        hint = "Type: --reader NAME, or fill it in" if column == "reader" else "Fill it in, or remove the row"
        _refuse(filled, name, blank, f"no {column}. {hint}")
    for column, words in WORDS.items():
        strange = ~pl.col(column).is_in(list(words))
        _refuse(filled, name, strange, f"{{}} is no {column}. Write {', '.join(words[:-1])} or {words[-1]}", column)
    for column, (low, high) in RANGES.items():
        outside = (pl.col(column) < low) | (pl.lit(value=False) if high is None else pl.col(column) > high)
        most = "up" if high is None else f"to {high}"
        _refuse(filled, name, outside, f"{{}} is no {column}: it goes from {low} {most}. Mend it", column)
    for column in SECONDS:
        outside = ~pl.col(column).is_finite() | (pl.col(column) < 0)
        _refuse(filled, name, outside, f"{{}} is no time in seconds. Mend {column}, or blank it", column)
    chance = ~pl.col("inclusion").is_between(0, 1, closed="right") | pl.col("inclusion").is_nan()
    _refuse(filled, name, chance, "{} is no chance of being drawn. Write a number above 0 and at most 1", "inclusion")
    boxes = pl.col("box").map_elements(lambda text: not true_boxes(text), return_dtype=pl.Boolean)
    _refuse(filled, name, boxes, "{} is no list of boxes. Write [[x, y, width, height]]", "box")
    return filled


def _refuse(table: pl.DataFrame, name: str, wrong: pl.Expr, message: str, column: str = "image_id") -> None:
    rows = table.select(wrong.fill_null(value=False).arg_true()).to_series()
    if len(rows):
        row = int(rows[0])
        raise TruthError(f"{name}, read {row + 1}: {message.format(repr(table[column][row]))}")


def dated(table: pl.DataFrame) -> pl.DataFrame:
    """Give a read that has no time the time at which it came."""
    return table.with_columns(pl.col("at").fill_null(now()))


def standing(table: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Leave out what was replaced or undone where it comes from: here it would vote again."""
    kept = table.filter(pl.col("stands") == 1)
    if not (count := table.height - kept.height):
        return kept, []
    message = f"{several(count, 'read was', 'reads were')} replaced or undone before the file was written: left out"
    return kept, [Notice(code="replaced_reads", count=count, message=message)]


def said_twice(table: pl.DataFrame) -> list[Notice]:
    """Count where one reader spoke of a pair more than once: every read is kept and votes."""
    again = table.group_by(READ, maintain_order=True).agg(reads=pl.len(), verdicts=pl.col("verdict").n_unique())
    notices = []
    for code, chosen, words in (
        ("reader_contradicts", pl.col("verdicts") > 1, "said two things about a pair"),
        ("reader_repeats", (pl.col("reads") > 1) & (pl.col("verdicts") == 1), "said the same about a pair again"),
    ):
        found = again.filter(chosen)
        if found.height:
            first = ", ".join(found.select(*PAIR, "reader").row(0))
            times = several(found.height, "time")
            message = f"{times} one reader {words}; every read is kept and votes (first: {first})"
            notices.append(Notice(code=code, count=found.height, message=message))
    return notices
