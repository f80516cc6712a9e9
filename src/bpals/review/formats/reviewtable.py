"""Reviews as a table: what leaves in a file, and what comes back from one.

A review that was read here is known outside by its reading; one that came from a file keeps the id it came with, and
one that came without any gets an id from what it says. So the same read, brought in twice, is one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import polars as pl
from sqlalchemy import Connection, select

from bpals.ledger.reviewschema import ENTRY, REVIEW, STUDY
from bpals.review.desk import chain
from bpals.review.desk.consensus import REVIEW_COLUMNS, every_consensus, reviews
from bpals.review.desk.testimony import store_reviews
from bpals.types import VERDICT

OF_THE_LEDGER = ("review_id", "study_id", "reading_id", "source")
"""What a review is in the ledger that holds it: it is given anew where the review comes in."""
_PLAIN = {VERDICT: pl.String(), pl.Boolean(): pl.Int64()}

KEPT = pl.Schema({name: _PLAIN.get(kind, kind) for name, kind in REVIEW_COLUMNS.items() if name not in OF_THE_LEDGER})
"""The columns that a file gives back as they were; `stands` is 0 for what a later word replaced, or was undone."""

OF_THE_ROOM = ("study", "reading_id", "source")
"""What a review is called in the ledger that holds it: it goes out, and does not come back."""

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

REASON = "reason"
"""Why a reader amended: the log keeps it, it goes out with each row of the amendment, and does not come back."""

TABLE = pl.Schema({**KEPT, **dict.fromkeys((*OF_THE_ROOM, REASON), pl.String()), **TRUTH})
NEEDED = ("image_id", "finding", "reader", "verdict")

AN_ENTRY = 5_000
"""Reviews that one entry of the log holds at most."""

_PAIR = ("image_id", "finding")
_SAID = ("image_id", "finding", "reader", "phase", "round", "repeat", "verdict", "at")


def all_reviews(connection: Connection) -> pl.DataFrame:
    """Give every review of the ledger as TABLE, in the order in which it came; each has an external id."""
    held = _held(connection).join(_reasons(connection), on="review_id", how="left", maintain_order="left")
    return _with_truth(held, every_consensus(connection)).select(TABLE.names()).cast(TABLE)


def _held(connection: Connection) -> pl.DataFrame:
    """Give every review with the name of its study and an external id."""
    studies = [tuple(row) for row in connection.execute(select(STUDY.c.study_id, STUDY.c.name))]
    names = pl.DataFrame(studies, schema={"study_id": pl.Int64, "study": pl.String}, orient="row")
    held = reviews(connection).join(names, on="study_id", how="left", maintain_order="left")
    return _known_by_their_reading(held.with_columns(pl.col("verdict").cast(pl.String)))


def _reasons(connection: Connection) -> pl.DataFrame:
    """Give why each amended review was written, as its entry of the log says."""
    told = []
    for (detail,) in connection.execute(select(ENTRY.c.detail).where(ENTRY.c.action == "amend")):
        said = json.loads(detail)
        told += [(int(review_id), said["reason"]) for review_id in said["reviews"]]
    return pl.DataFrame(told, schema={"review_id": pl.Int64, REASON: pl.String}, orient="row")


def _with_truth(held: pl.DataFrame, settled: pl.DataFrame) -> pl.DataFrame:
    """Put beside each review what its study came to; beside one that no study asked for, what the last study did."""
    alone = pl.col("how").is_in(["single", "open"])
    told = settled.select(
        "study_id",
        *_PAIR,
        truth=pl.when(~alone).then(pl.col("verdict").cast(pl.String)),
        truth_how="how",
        truth_round="round",
        truth_by="by",
        truth_at="at",
        truth_note="note",
        amended_since="amended_since",
    ).unique(["study_id", *_PAIR], keep="last", maintain_order=True)
    last = told.unique(_PAIR, keep="last", maintain_order=True).with_columns(study_id=pl.lit(None, pl.Int64))
    both = pl.concat([told, last])
    return held.join(both, on=["study_id", *_PAIR], how="left", nulls_equal=True, maintain_order="left")


def truths_of(table: pl.DataFrame, *apart: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Give what was settled of each film of a TABLE, a list a study: image_id, finding, `study` and TRUTH of each pair.

    What differs in a column that is named comes in lists apart.
    """
    told = table.filter(pl.col("truth").is_not_null(), pl.col("study").is_not_null())
    pairs = told.select("study", *_PAIR, *TRUTH.names()).unique(["study", *_PAIR], keep="first", maintain_order=True)
    films: dict[str, list[list[dict[str, Any]]]] = {}
    for (film, *_), rows in pairs.group_by("image_id", "study", *apart, maintain_order=True):
        films.setdefault(str(film), []).append(rows.rows(named=True))
    return films


def _known_by_their_reading(reviews: pl.DataFrame) -> pl.DataFrame:
    """Name what was read here: reading, phase, round and finding; the number tells amendments apart."""
    same = ["reading_id", "study", "image_id", "reader", "phase", "round", "finding"]
    number = pl.int_range(pl.len()).over(same)
    reading = pl.coalesce("reading_id", pl.format("{}/{}/{}", pl.col("study").fill_null(""), "image_id", "reader"))
    named = pl.format("{}/{}/{}/{}/{}", reading, "phase", "round", number, "finding")
    return reviews.with_columns(external_id=pl.coalesce("external_id", named))


def identified(reviews: pl.DataFrame) -> pl.DataFrame:
    """Give an id to every read that came without one, made of what it says; said twice in one file, it is two."""
    blank = reviews.filter(pl.col("external_id").is_null()).select(_SAID)
    seen: Counter[tuple[Any, ...]] = Counter()
    made = []
    for said in blank.iter_rows():
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        made.append(f"read-{hashlib.sha256(text.encode()).hexdigest()[:32]}-{seen[said]}")
        seen[said] += 1
    ids = iter(made)
    filled = [known if known is not None else next(ids) for known in reviews["external_id"]]
    return reviews.with_columns(pl.Series("external_id", filled, dtype=pl.String))


def add_reviews(connection: Connection, reviews: pl.DataFrame, source: str) -> pl.DataFrame:
    """Keep the reviews that are not here yet, with entries of the log that hold their digests, and give them."""
    chain.hold(connection)
    here = _held(connection).select("external_id")
    new = reviews.unique("external_id", keep="first", maintain_order=True)
    new = new.join(here, on="external_id", how="anti", maintain_order="left")
    for part in new.select([name for name in KEPT.names() if name in REVIEW.c]).iter_slices(AN_ENTRY):
        seals = store_reviews(connection, [{**row, "source": source} for row in part.iter_rows(named=True)])
        chain.append(connection, actor=chain.ROOM, action="import", detail={"source": source, "reviews": seals})
    return new
