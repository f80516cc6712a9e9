"""Reviews in the ledger: adding them with their digests, reading them, and the consensus of each image and finding."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from sqlalchemy import Column, Connection, Double, Integer, Row, RowMapping, Select, Table, func, insert, select

from bpals.store.ledger.answers import insert_text
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.schema import ACCOUNT, ADJUDICATION, CASE, DRAWN, READING, REVIEW, STUDY
from bpals.types import VERDICT

DIGEST_LETTERS = 32


def _cast(column: Column[Any]) -> type:
    """Give the type that makes a value equal on both databases."""
    # One database gives 1 where the other gives 1.0: a digest of the raw values would differ.
    if isinstance(column.type, Double):
        return float
    return int if isinstance(column.type, Integer) else str


# The columns that a digest covers: all but the number of the row.
_CONTENT = {table: {c.name: _cast(c) for c in table.c if not c.primary_key} for table in (REVIEW, ADJUDICATION)}
_FRAME_TYPES: dict[type, pl.DataType] = {float: pl.Float64(), int: pl.Int64(), str: pl.String()}
REVIEW_COLUMNS = pl.Schema(
    {**{column.name: _FRAME_TYPES[_cast(column)] for column in REVIEW.c}, "verdict": VERDICT, "stands": pl.Boolean()}
)
"""REVIEW, one row per review in the order of writing, and whether it still stands."""

CONSENSUS = pl.Schema(
    {
        "case_id": pl.Int64(),
        "image_id": pl.String(),
        "finding": pl.String(),
        "verdict": VERDICT,  # null while it is open
        "how": pl.String(),  # single, consensus, majority, adjudicator; open: readers differ and nobody settled it
        "round": pl.Int64(),
        "readers": pl.Int64(),  # whose blind read is final
        "present": pl.Int64(),
        "absent": pl.Int64(),
        "uncertain": pl.Int64(),
        "unreadable": pl.Int64(),
        "inclusion": pl.Float64(),
        "amended_since": pl.Boolean(),  # a reader amended after it was settled
        "by": pl.String(),  # the adjudicator; null where the rule or the reads themselves settled it
        "note": pl.String(),  # of the adjudicator
        "at": pl.String(),  # when it was settled: without an adjudication, when the last of its reads was stored
    }
)
"""One row per case and finding that has all its reads."""


def digest(table: Table, row: Mapping[str, Any] | RowMapping) -> str:
    """Give the digest of a row's content, whatever its number."""
    values = [None if row[name] is None else cast(row[name]) for name, cast in _CONTENT[table].items()]
    return hashlib.sha256(json.dumps(values, ensure_ascii=False).encode()).hexdigest()[:DIGEST_LETTERS]


def store(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Add reviews or adjudications; give id -> digest, which the log's entry about them holds under `reviews` or so."""
    if not rows:
        return {}
    whole = [{name: row.get(name) for name in _CONTENT[table]} for row in rows]
    if connection.dialect.name == "sqlite":
        # No other process writes now, and SQLite gives back the numbers of many rows only one row at a time.
        first = int(_last_number(table).value(connection)) + 1
        numbers: Sequence[int] = range(first, first + len(whole))
        placed = [(number, *row.values()) for number, row in zip(numbers, whole, strict=True)]
        # Compiled once: for 14 rows SQLAlchemy takes longer than SQLite.
        connection.exec_driver_sql(insert_text(table, 1, connection.dialect), placed)
    else:
        (identity,) = table.primary_key.columns
        added = connection.execute(insert(table).returning(identity, sort_by_parameter_order=True), whole)
        numbers = added.scalars().all()
    return {str(number): digest(table, row) for number, row in zip(numbers, whole, strict=True)}


@functools.cache
def _last_number(table: Table) -> Ready:
    (identity,) = table.primary_key.columns
    return Ready(select(func.coalesce(func.max(identity), 0)))


def reviews(connection: Connection, study_id: int | None = None) -> pl.DataFrame:
    """Give the reviews of a study, or of all, and those from files; a row stands unless a later one replaced it.

    Of the rows of one reading, finding, round and `saw_signal` the last stands; none does of a lock that was undone.
    """
    rows = select(REVIEW, READING.c.state).join_from(
        REVIEW, READING, REVIEW.c.reading_id == READING.c.reading_id, isouter=True
    )
    if study_id is not None:
        rows = rows.where((REVIEW.c.study_id == study_id) | REVIEW.c.study_id.is_(None))
    rows = rows.order_by(REVIEW.c.review_id)
    names = REVIEW_COLUMNS.names()[:-1]
    found = connection.execute(rows).mappings().all()
    values = {name: [row[name] for row in found] for name in [*names, "state"]}
    schema = {name: pl.String() if kind == VERDICT else kind for name, kind in REVIEW_COLUMNS.items()}
    table = pl.DataFrame(values, schema={name: schema.get(name, pl.String()) for name in values})
    # `saw_signal` is part of the key: a second read with the signal never replaces the blind one.
    of_one = ["reading_id", "finding", "round", "saw_signal"]
    last = pl.col("review_id") == pl.col("review_id").max().over(of_one)
    here = pl.col("reading_id").is_null() | (last & pl.col("state").is_in(["locked", "done"]))
    return table.with_columns(stands=here).select(REVIEW_COLUMNS.names()).cast(REVIEW_COLUMNS)


def every_consensus(connection: Connection) -> pl.DataFrame:
    """Give the verdicts of all studies, in the order in which these began: CONSENSUS, and the `study_id`."""
    found = connection.execute(select(STUDY.c.study_id, STUDY.c.settings).order_by(STUDY.c.study_id)).all()
    parts = []
    for study_id, text in found:
        settings = json.loads(text)
        table = consensus(connection, study_id, asks=settings["asks"], reveal=settings["reveal"])
        parts.append(table.with_columns(study_id=pl.lit(study_id, pl.Int64)))
    return pl.concat(parts) if parts else pl.DataFrame(schema={**CONSENSUS, "study_id": pl.Int64()})


def consensus(connection: Connection, study_id: int, *, asks: str, reveal: bool) -> pl.DataFrame:
    """Give the verdict of every pair whose case has all its reads, and how it came about.

    `asks` and `reveal` are settings of the study: which findings a reader is asked about, and whether locking reveals.
    """
    settled = {(row.case_id, row.finding): row for row in _adjudications(connection, study_id)}
    chances = _inclusions(connection, study_id, asks)
    newest = _newest(connection, study_id)
    rows = []
    for (case_id, finding), reads in _blind_reads(connection, study_id, reveal=reveal).items():
        first = next(iter(reads.values()))
        if len(reads) < first.wanted:  # no verdict before all have read: a later reader could overturn it
            continue
        row = settled.get((case_id, finding))
        votes = Counter(read.verdict for read in reads.values())
        verdict, how = _verdict(row, votes)
        rows.append(
            {
                "case_id": case_id,
                "image_id": first.image_id,
                "finding": finding,
                "verdict": verdict,
                "how": how,
                "round": row.round if row else 0,
                "readers": len(reads),
                **{word: votes.get(word, 0) for word in VERDICT.categories},
                "inclusion": chances.get((case_id, finding if asks == "drawn" else "")),
                "amended_since": row is not None and _amended(row, newest),
                "by": row.name if row else None,
                "note": row.note if row else None,
                "at": row.at if row else max(read.at for read in reads.values()),
            }
        )
    return pl.DataFrame(rows, schema=CONSENSUS)


def _verdict(settled: Row[Any] | None, votes: Counter[str]) -> tuple[str | None, str]:
    if settled is not None:
        return settled.verdict, settled.how
    if len(votes) > 1:
        return None, "open"
    return next(iter(votes)), "single" if votes.total() == 1 else "consensus"


def _amended(settled: Row[Any], newest: dict[str, int]) -> bool:
    return any(newest.get(reading_id, 0) > review_id for reading_id, review_id in json.loads(settled.pinned).items())


def _adjudications(connection: Connection, study_id: int) -> Sequence[Row[Any]]:
    whose = ADJUDICATION.outerjoin(ACCOUNT, ADJUDICATION.c.account_id == ACCOUNT.c.account_id)
    query = select(ADJUDICATION, ACCOUNT.c.name).select_from(whose)
    return connection.execute(query.where(ADJUDICATION.c.study_id == study_id)).all()


def _inclusions(connection: Connection, study_id: int, asks: str) -> dict[tuple[int, str], float]:
    """Give the inclusion probability of each drawn pair; where all findings are asked, that of the film."""
    drawn = (
        select(DRAWN.c.case_id, DRAWN.c.finding, DRAWN.c.inclusion)
        .join_from(DRAWN, CASE, DRAWN.c.case_id == CASE.c.case_id)
        .where(CASE.c.study_id == study_id, CASE.c.taken > 0, DRAWN.c.inclusion.is_not(None))
    )
    chances: dict[tuple[int, str], float] = {}
    for case_id, finding, inclusion in connection.execute(drawn):
        pair = (case_id, finding if asks == "drawn" else "")
        chances[pair] = max(inclusion, chances.get(pair, 0.0))
    return chances


def _newest(connection: Connection, study_id: int) -> dict[str, int]:
    """Give the last review of each reading, second reads left out."""
    last = (
        select(REVIEW.c.reading_id, func.max(REVIEW.c.review_id))
        .where(REVIEW.c.study_id == study_id, REVIEW.c.phase.in_(["blind", "amended", "round"]))
        .group_by(REVIEW.c.reading_id)
    )
    return dict(iter(connection.execute(last)))


def _blind_reads(connection: Connection, study_id: int, *, reveal: bool) -> dict[tuple[int, str], dict[str, Row[Any]]]:
    """Give the blind reads that are final: case and finding -> reading_id -> the row that stands."""
    columns = (REVIEW.c.reading_id, REVIEW.c.finding, REVIEW.c.verdict, REVIEW.c.at)
    rows: Select[Any] = (
        select(*columns, CASE.c.case_id, CASE.c.image_id, CASE.c.wanted)
        .join_from(REVIEW, READING, REVIEW.c.reading_id == READING.c.reading_id)
        .join(CASE, READING.c.case_id == CASE.c.case_id)
        .where(
            READING.c.study_id == study_id,
            READING.c.state.in_(["locked", "done"] if reveal else ["done"]),
            REVIEW.c.phase.in_(["blind", "amended"]),
            REVIEW.c.saw_signal == 0,
            REVIEW.c.repeat == 0,
        )
        .order_by(REVIEW.c.review_id)
    )
    reads: dict[tuple[int, str], dict[str, Row[Any]]] = {}
    for row in connection.execute(rows):
        reads.setdefault((row.case_id, row.finding), {})[row.reading_id] = row
    return reads
