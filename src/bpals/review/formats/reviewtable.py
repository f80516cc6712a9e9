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

from bpals.ledger.reviewschema import READING, REVIEW, STUDY
from bpals.review.desk import chain
from bpals.review.desk.testimony import store_reviews

KEPT = pl.Schema(
    {
        "image_id": pl.String(),
        "finding": pl.String(),
        "reader": pl.String(),
        "phase": pl.String(),
        "round": pl.Int64(),
        "repeat": pl.Int64(),
        "verdict": pl.String(),
        "confidence": pl.Int64(),
        "saw_signal": pl.Int64(),
        "signal": pl.String(),
        "inclusion": pl.Float64(),
        "box": pl.String(),
        "note": pl.String(),
        "quality": pl.String(),
        "devices": pl.String(),
        "active_s": pl.Float64(),
        "wall_s": pl.Float64(),
        "position": pl.Int64(),
        "at": pl.String(),
        "external_id": pl.String(),
        "stands": pl.Int64(),  # 0: a later word of the same reading replaced it, or its lock was undone
    }
)
"""The columns that a file gives back as they were."""

OF_THE_ROOM = ("study", "reading_id", "source")
"""What a review is called in the ledger that holds it: it goes out, and is given anew where it comes in."""

TABLE = pl.Schema({**KEPT, **dict.fromkeys(OF_THE_ROOM, pl.String())})
NEEDED = ("image_id", "finding", "reader", "verdict")

AN_ENTRY = 5_000
"""Reviews that one entry of the log holds at most."""

_SAID = ("image_id", "finding", "reader", "phase", "round", "repeat", "verdict", "at")


def all_reviews(connection: Connection) -> pl.DataFrame:
    """Give every review of the ledger as TABLE, in the order in which it came; each has an external id."""
    others = {"study": STUDY.c.name, "stands": READING.c.state}
    held = [others[name] if name in others else REVIEW.c[name] for name in TABLE.names()]
    joined = REVIEW.outerjoin(STUDY, REVIEW.c.study_id == STUDY.c.study_id)
    joined = joined.outerjoin(READING, REVIEW.c.reading_id == READING.c.reading_id)
    rows = connection.execute(select(*held).select_from(joined).order_by(REVIEW.c.review_id)).fetchall()
    schema = {**TABLE, "stands": pl.String()}
    table = _standing(pl.DataFrame([tuple(row) for row in rows], schema=schema, orient="row"))
    return _known_by_their_reading(table).cast(TABLE)


def _standing(reviews: pl.DataFrame) -> pl.DataFrame:
    """Say which reviews stand, by the state of their readings: the last word of each, unless its lock was undone."""
    of_one = ["reading_id", "finding", "round", "saw_signal"]
    last = pl.int_range(pl.len()).over(of_one) == pl.len().over(of_one) - 1
    stands = pl.col("reading_id").is_null() | (last & pl.col("stands").is_in(["locked", "done"]))
    return reviews.with_columns(stands=stands.cast(pl.Int64))


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
    here = all_reviews(connection).select("external_id")
    new = reviews.unique("external_id", keep="first", maintain_order=True)
    new = new.join(here, on="external_id", how="anti", maintain_order="left")
    for part in new.select([name for name in KEPT.names() if name in REVIEW.c]).iter_slices(AN_ENTRY):
        seals = store_reviews(connection, [{**row, "source": source} for row in part.iter_rows(named=True)])
        chain.append(connection, actor=chain.ROOM, action="import", detail={"source": source, "reviews": seals})
    return new
