"""Reviews as one table: how the ledger gives and takes it, what an export format is handed, and what is checked."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from sqlalchemy import Connection, select

from bpals.errors import TruthError
from bpals.numeric import PAIR
from bpals.reviews.verdicts import READ_AS, UNREAD, counted
from bpals.store.ledger import log
from bpals.store.ledger.review_rows import REVIEW_COLUMNS, every_consensus, reviews, store
from bpals.store.ledger.schema import ENTRY, PHASES, REVIEW, STUDY, VERDICTS
from bpals.text import several
from bpals.types import VERDICT, Notice

# What a review is in the ledger that holds it: it is given anew where the review comes in.
OF_THE_LEDGER = ("review_id", "study_id", "reading_id", "source")
_PLAIN = {VERDICT: pl.String(), pl.Boolean(): pl.Int64()}

# The columns that a file gives back as they were; `stands` is 0 for what a later word replaced, or was undone.
KEPT = pl.Schema({name: _PLAIN.get(kind, kind) for name, kind in REVIEW_COLUMNS.items() if name not in OF_THE_LEDGER})

# What a review is called in the ledger that holds it: it goes out, and does not come back.
OF_THE_ROOM = ("study", "reading_id", "source")

TRUTH = pl.Schema(
    {
        "truth": pl.String(),  # what several readers came to, or an adjudicator decided; null for one reader, or none
        "truth_how": pl.String(),  # consensus, majority or adjudicator; single: one reader alone; open: not settled
        "truth_round": pl.Int64(),  # of the discussion that settled it; 0 where there was none
        "truth_by": pl.String(),  # the adjudicator; null where the rule settled it
        "truth_at": pl.String(),
        "truth_note": pl.String(),
        "amended_since": pl.Int64(),  # 1 if a reader amended after it was settled
    }
)
"""What the readers of a review's pair came to: it goes out with each of their reviews, and does not come back."""

# Why a reader amended: the log keeps it, it goes out with each row of the amendment, and does not come back.
REASON = "reason"

TABLE = pl.Schema({**KEPT, **dict.fromkeys((*OF_THE_ROOM, REASON), pl.String()), **TRUTH})
NEEDED = ("image_id", "finding", "reader", "verdict")

ENTRY_REVIEWS = 5_000  # reviews that one entry of the log holds at most

_IDENTITY = ("image_id", "finding", "reader", "phase", "round", "repeat", "verdict", "at")


def all_reviews(connection: Connection) -> pl.DataFrame:
    """Give every review of the ledger as TABLE, in the order in which it came; each has an external id."""
    held = _held(connection).join(_reasons(connection), on="review_id", how="left", maintain_order="left")
    return _with_truth(held, every_consensus(connection)).select(TABLE.names()).cast(TABLE)


def _held(connection: Connection) -> pl.DataFrame:
    """Give every review with the name of its study and an external id."""
    studies = [tuple(row) for row in connection.execute(select(STUDY.c.study_id, STUDY.c.name))]
    names = pl.DataFrame(studies, schema={"study_id": pl.Int64, "study": pl.String}, orient="row")
    held = reviews(connection).join(names, on="study_id", how="left", maintain_order="left")
    # What was read here is known by reading, phase, round and finding; the number tells amendments apart.
    same = ["reading_id", "study", "image_id", "reader", "phase", "round", "finding"]
    number = pl.int_range(pl.len()).over(same)
    reading = pl.coalesce("reading_id", pl.format("{}/{}/{}", pl.col("study").fill_null(""), "image_id", "reader"))
    made = pl.format("{}/{}/{}/{}/{}", reading, "phase", "round", number, "finding")
    return held.with_columns(pl.col("verdict").cast(pl.String), external_id=pl.coalesce("external_id", made))


def _reasons(connection: Connection) -> pl.DataFrame:
    """Give why each amended review was written, as its entry of the log says."""
    reasons = []
    for (detail,) in connection.execute(select(ENTRY.c.detail).where(ENTRY.c.action == "amend")):
        entry = json.loads(detail)
        reasons += [(int(review_id), entry["reason"]) for review_id in entry["reviews"]]
    return pl.DataFrame(reasons, schema={"review_id": pl.Int64, REASON: pl.String}, orient="row")


def _with_truth(held: pl.DataFrame, settled: pl.DataFrame) -> pl.DataFrame:
    """Put beside each review what its study came to; beside one that no study asked for, what the last study did."""
    # One reader alone is no truth, and what readers differ in is none yet.
    alone = pl.col("how").is_in(["single", "open"])
    by_study = settled.select(
        "study_id",
        *PAIR,
        truth=pl.when(~alone).then(pl.col("verdict").cast(pl.String)),
        truth_how="how",
        truth_round="round",
        truth_by="by",
        truth_at="at",
        truth_note="note",
        amended_since="amended_since",
    ).unique(["study_id", *PAIR], keep="last", maintain_order=True)
    last = by_study.unique(PAIR, keep="last", maintain_order=True).with_columns(study_id=pl.lit(None, pl.Int64))
    truths = pl.concat([by_study, last])
    return held.join(truths, on=["study_id", *PAIR], how="left", nulls_equal=True, maintain_order="left")


def truths_of(table: pl.DataFrame, *apart: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Give what was settled about each film of a TABLE, one list per study: image_id, finding, `study`, TRUTH.

    Rows that differ in a column named after the table come in separate lists.
    """
    settled = table.filter(pl.col("truth").is_not_null(), pl.col("study").is_not_null())
    pairs = settled.select("study", *PAIR, *TRUTH.names()).unique(["study", *PAIR], keep="first", maintain_order=True)
    films: dict[str, list[list[dict[str, Any]]]] = {}
    for (film, *_), rows in pairs.group_by("image_id", "study", *apart, maintain_order=True):
        films.setdefault(str(film), []).append(rows.rows(named=True))
    return films


def identified(reviews: pl.DataFrame) -> pl.DataFrame:
    """Give an id to every read that came without one, made of its content; the same read twice in a file is two."""
    seen: Counter[str] = Counter()
    ids = []
    for known, *read in reviews.select("external_id", *_IDENTITY).iter_rows():
        text = json.dumps(read, ensure_ascii=False, separators=(",", ":"))
        made = f"read-{hashlib.sha256(text.encode()).hexdigest()[:32]}-{seen[text]}"
        ids.append(made if known is None else known)
        seen[text] += known is None
    return reviews.with_columns(pl.Series("external_id", ids, dtype=pl.String))


def add_reviews(connection: Connection, reviews: pl.DataFrame, source: str) -> pl.DataFrame:
    """Keep the reviews that are not here yet, with entries of the log that hold their digests, and give them."""
    log.hold(connection)
    here = _held(connection).select("external_id")
    new = reviews.unique("external_id", keep="first", maintain_order=True)
    new = new.join(here, on="external_id", how="anti", maintain_order="left")
    for part in new.select([name for name in KEPT.names() if name in REVIEW.c]).iter_slices(ENTRY_REVIEWS):
        digests = store(connection, REVIEW, [{**row, "source": source} for row in part.iter_rows(named=True)])
        log.append(connection, actor=log.ROOM, action="import", detail={"source": source, "reviews": digests})
    return new


# Film -> its width and height in pixels, for those whose pixels could be looked at.
Sizes = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """What a format may have to know of the films."""

    sizes: Sizes = field(default_factory=dict)
    dicom: Callable[[str], bytes | None] = lambda _image_id: None
    """Gives the whole DICOM file of a film; None for a film that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Files to be written: one, without a name, or several of a folder."""

    files: Mapping[str, bytes]
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Reviews that a file holds, before anybody has looked whether their films are here."""

    table: pl.DataFrame  # KEPT; the reader is null where the file names none, the external id where it gives none
    notices: tuple[Notice, ...] = ()


def table_of(rows: list[dict[str, Any]], name: str) -> pl.DataFrame:
    """Make KEPT of rows that a file gave; what is of another kind is refused by the name of its column."""
    columns = {}
    for column, kind in KEPT.items():
        try:
            columns[column] = pl.Series(column, [row.get(column) for row in rows], dtype=kind, strict=True)
        except (TypeError, pl.exceptions.PolarsError):
            raise TruthError(
                f"{name}: {column!r} holds what is no {kind}. Mend it, or export the reviews again"
            ) from None
    return pl.DataFrame(columns)


def no_reads(name: str, settled: int) -> list[Notice]:
    """Count verdicts that readers came to together elsewhere: nobody read them, so none is kept."""
    together = "that readers came to together"
    those = several(settled, f"verdict {together} is no read", f"verdicts {together} are no reads")
    return counted("settled", settled, f"{name}: {those}: left out")


def not_drawn(reads: int) -> tuple[Notice, ...]:
    """Count reads whose boxes a format measures by the size of the film, where nobody knows that size."""
    those = several(reads, "read has", "reads have")
    message = f"{those} boxes on films whose pixels were not found; kept, not drawn: --images PATH"
    return tuple(counted("unsized", reads, message))


def boxes_of(text: str | None) -> list[list[float]]:
    """Read the boxes of a review: x, y, width and height of each, in pixels of the film."""
    return json.loads(text) if text else []


def as_boxes(boxes: list[list[float]]) -> str | None:
    """Write boxes as the ledger keeps them; none where there is none."""
    return json.dumps(boxes) if boxes else None


def true_boxes(text: str) -> bool:
    """Say whether a text is a list of boxes."""
    try:
        boxes = json.loads(text)
    except ValueError:
        return False
    return isinstance(boxes, list) and all(isinstance(box, list) and _is_box(box) for box in boxes)


def _is_box(box: list[Any]) -> bool:
    # In Python a bool is an int, and JSON may hold NaN.
    numbers = [each for each in box if isinstance(each, int | float) and not isinstance(each, bool)]
    return len(box) == len(numbers) == 4 and all(math.isfinite(each) for each in numbers) and min(box[2:]) >= 0


def loaded(content: bytes, name: str) -> Any:
    """Read a JSON text; what is none is refused with its line."""
    try:
        return json.loads(content)
    except UnicodeDecodeError:
        raise TruthError(f"{name} is not UTF-8. Export it again as JSON") from None
    except RecursionError:
        raise TruthError(f"{name} is nested too deeply to be reviews. Name another file") from None
    except ValueError as error:
        where = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise TruthError(f"{name}{where} is not whole JSON. Export it again, or name another file") from None


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
WORD_OF = {word: verdict for word, verdict in READ_AS.items() if verdict != UNREAD}


def checked(table: pl.DataFrame, name: str, reader: str | None) -> pl.DataFrame:
    """Fill in what a file may leave out, and refuse a row that says what no review can say."""
    filled = table.select(KEPT.names()).with_columns(
        pl.col("reader").replace({"": None}).fill_null(pl.lit(reader, pl.String)),
        pl.col("phase").fill_null("imported"),
        pl.col("round", "repeat", "saw_signal").fill_null(0),
        pl.col("stands").fill_null(1),
        pl.col("external_id", "box").replace({"": None}),
        # Other tools' pages may offer other words; what is none of them is refused below as it was written.
        pl.coalesce(pl.col("verdict").str.to_lowercase().replace_strict(WORD_OF, default=None), "verdict"),
    )
    for column in NEEDED:
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


def standing(table: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Leave out reads that were replaced or undone before the file was written: here they would vote again."""
    kept = table.filter(pl.col("stands") == 1)
    count = table.height - kept.height
    message = f"{several(count, 'read was', 'reads were')} replaced or undone before the file was written: left out"
    return kept, counted("replaced_reads", count, message)


def repeated(table: pl.DataFrame) -> list[Notice]:
    """Count where one reader gave several verdicts on a pair: every read is kept and votes."""
    by = [*PAIR, "reader", "phase", "round"]
    again = table.group_by(by, maintain_order=True).agg(reads=pl.len(), verdicts=pl.col("verdict").n_unique())
    notices = []
    for code, chosen, words in (
        ("reader_contradicts", pl.col("verdicts") > 1, "said two things about a pair"),
        ("reader_repeats", (pl.col("reads") > 1) & (pl.col("verdicts") == 1), "said the same about a pair again"),
    ):
        found = again.filter(chosen)
        if found.height:
            first = ", ".join(found.select(*PAIR, "reader").row(0))
            message = (
                f"{several(found.height, 'time')} one reader {words}; every read is kept and votes (first: {first})"
            )
            notices.append(Notice(code=code, count=found.height, message=message))
    return notices
