"""What a judge said, as tables: built a column at a time from blocks of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from sqlalchemy import Connection, Select, select

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.ledger.asked import Asking
from bpals.ledger.evidence import split
from bpals.ledger.schema import FILM, JUDGE, JUDGMENT, REPLY
from bpals.types import FILM_ANSWERS, OUTCOME, answers_schema

BLOCK = 50_000

REPLIES = pl.Schema(
    {
        "image_id": pl.String(),
        "control": pl.String(),  # empty for a film of the dataset
        "number": pl.Int32(),  # of the question, from 0
        "subject": pl.String(),
        "about": pl.String(),
        "polarity": pl.String(),
        "wording": pl.String(),
        "outcome": OUTCOME,
        "logit": pl.Float64(),
        "mass": pl.Float64(),
        "entropy": pl.Float64(),  # -sum p ln p over the tokens that were kept; null where none were
        "method": pl.String(),
        "prompt_tokens": pl.Int64(),
        "cached_tokens": pl.Int64(),
        "output_tokens": pl.Int64(),
        "latency_ms": pl.Float64(),
        "attempts": pl.Int32(),
        "why": pl.String(),
        "text": pl.String(),
    }
)
"""One row a question asked, in the order of films and questions."""

_FLOATS = ("p_present", "logit_present", "logit_absent", "mass")


def judgments(connection: Connection, judge_id: int, asking: Asking, vocabulary: Vocabulary) -> pl.DataFrame:
    """Give what a judge said of findings, as `answers_schema`, sorted by film and finding."""
    numbers = {group[0]: subject for (about, subject), group in asking.groups.items() if about == "finding"}
    if strange := set(numbers.values()) - set(vocabulary.findings):
        raise UsageError(
            f"judge {asking.judge!r} was asked about {', '.join(sorted(strange))}, which this dataset does not audit"
        )
    card = connection.execute(select(JUDGE.c.card).where(JUDGE.c.judge_id == judge_id)).scalar_one()
    schema = answers_schema(vocabulary)
    given = _judged(connection, judge_id, numbers, schema["finding"])
    return (
        given.rename({"subject": "finding"})
        .with_columns(
            pl.lit(asking.judge).alias("judge"),
            pl.lit(json.loads(card)["kind"], dtype=schema["kind"]).alias("kind"),
            pl.lit(None, pl.Float64).alias("p_low"),
            pl.lit(None, pl.Float64).alias("p_high"),
        )
        .select(schema.names())
        .sort("image_id", "finding")
    )


def film_answers(connection: Connection, judge_id: int, asking: Asking) -> pl.DataFrame:
    """Give what a judge said of the films themselves, as FILM_ANSWERS, sorted by film and topic."""
    numbers = {group[0]: subject for (about, subject), group in asking.groups.items() if about == "film"}
    given = _judged(connection, judge_id, numbers, pl.String())
    return given.rename({"subject": "topic"}).select(FILM_ANSWERS.names()).sort("image_id", "topic")


def _judged(connection: Connection, judge_id: int, numbers: Mapping[int, str], subject: pl.DataType) -> pl.DataFrame:
    columns = {
        "film_id": pl.Int64(),
        "number": pl.Int32(),
        "outcome": OUTCOME,
        **dict.fromkeys(_FLOATS, pl.Float64()),
        "why": pl.String(),
    }
    asked = (
        select(*(JUDGMENT.c[name] for name in columns))
        .select_from(FILM.join(JUDGMENT, JUDGMENT.c.film_id == FILM.c.film_id))
        .where(FILM.c.judge_id == judge_id, JUDGMENT.c.number.in_(list(numbers)))
    )
    given = pl.concat(_blocks(connection, asked, columns))
    named = pl.DataFrame(
        {"number": list(numbers), "subject": list(numbers.values())},
        schema={"number": pl.Int32, "subject": subject},
    )
    return given.join(named, on="number").join(_films(connection, judge_id, control=False), on="film_id")


def replies(
    connection: Connection, judge_id: int, asking: Asking, *, control: bool, image_ids: Sequence[str] | None = None
) -> pl.DataFrame:
    """Give every question asked, about the films of the dataset, some of them or the controls, with its evidence."""
    stored = ("outcome", "logit", "mass", "method", "prompt_tokens", "cached_tokens", "output_tokens", "latency_ms")
    columns = {
        "film_id": pl.Int64(),
        **{name: REPLIES[name] for name in ("number", *stored, "attempts", "why")},
        "raw": pl.Binary(),
    }
    asked = (
        select(*(REPLY.c[name] for name in columns))
        .select_from(FILM.join(REPLY, REPLY.c.film_id == FILM.c.film_id))
        .where(FILM.c.judge_id == judge_id, (FILM.c.control != "") if control else (FILM.c.control == ""))
    )
    if image_ids is not None:
        asked = asked.where(FILM.c.image_id.in_(image_ids))
    given = pl.concat(_unpacked(block) for block in _blocks(connection, asked, columns))
    fields = ("subject", "about", "polarity", "wording")
    questions = pl.DataFrame(
        [(number, *(getattr(q, field) for field in fields)) for number, q in enumerate(asking.questions)],
        schema={"number": pl.Int32, **dict.fromkeys(fields, pl.String)},
        orient="row",
    )
    return (
        given.join(questions, on="number")
        .join(_films(connection, judge_id, control=control), on="film_id")
        .sort("image_id", "control", "number")
        .select(REPLIES.names())
    )


def _unpacked(block: pl.DataFrame) -> pl.DataFrame:
    parts = [split(packet) if packet else (b"", b"") for packet in block["raw"]]
    # Half a character cannot stand in a table and is shown as a mark; the text ends at the first zero.
    texts = pl.Series("text", [words.partition(b"\0")[0].decode("utf-8", "replace") for _, words in parts], pl.String())
    values = np.frombuffer(b"".join(numbers for numbers, _ in parts), dtype="<f4").astype(np.float64)
    with np.errstate(invalid="ignore"):
        # A token of probability 0 has a log-prob of minus infinity and adds nothing.
        shares = np.nan_to_num(-np.exp(values) * values)
    ends = np.cumsum([len(numbers) // 4 for numbers, _ in parts], dtype=np.int64)
    sums = np.diff(np.concatenate([[0.0], np.cumsum(shares)])[ends], prepend=0.0)
    entropy = pl.when(pl.Series(np.diff(ends, prepend=0)) > 0).then(pl.Series(sums))
    return block.drop("raw").with_columns(entropy.alias("entropy"), texts)


def _films(connection: Connection, judge_id: int, *, control: bool) -> pl.DataFrame:
    columns = {"film_id": pl.Int64(), "image_id": pl.String(), "control": pl.String()}
    which = (FILM.c.control != "") if control else (FILM.c.control == "")
    asked = select(*(FILM.c[name] for name in columns)).where(FILM.c.judge_id == judge_id, which)
    return pl.concat(_blocks(connection, asked, columns))


def _blocks(connection: Connection, asked: Select[Any], columns: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
    """Read in blocks, so that Python objects live only until their block is a frame; the first is empty."""
    yield pl.DataFrame(schema=dict(columns))
    for rows in connection.execution_options(stream_results=True).execute(asked).partitions(BLOCK):
        yield pl.DataFrame(_columns(rows, columns), schema=dict(columns))


def _columns(rows: Sequence[Any], columns: Mapping[str, pl.DataType]) -> list[pl.Series]:
    return [
        pl.Series(name, values, dtype=kind)
        for (name, kind), values in zip(columns.items(), zip(*rows, strict=True), strict=True)
    ]
