"""The answers of a judge: from whole images to rows of the ledger, and from rows to tables.

A reply is one question about one image. A judgment combines the replies about one subject of it. The raw evidence of
a reply is packed into bytes: its top tokens with their log-probs, and its text.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import sqlalchemy
from sqlalchemy import ColumnElement, Connection, Dialect, Select, Table, delete, func, insert, select, update

from bpals.errors import ContractBroken, UsageError
from bpals.findings import Vocabulary
from bpals.store.ledger.locks import lock_answers
from bpals.store.ledger.schema import ATTEMPT, FILM, JUDGE, JUDGMENT, OUTCOMES, REPLY, now
from bpals.types import FILM_ANSWERS, OUTCOME, Attempt, Judgment, Question, Reply, answers_schema

LONG = 256  # bytes from which on a packet is compressed
# More tokens are not kept. So the second byte of a packet is 0 unless it is compressed: zlib never begins like that.
MOST_TOKENS = 255
_LARGEST = 3.4e38  # the largest 4-byte float, about

SUMS = (*OUTCOMES, "prompt_tokens", "cached_tokens", "output_tokens", "latency_ms", "attempts")
BLOCK = 50_000  # rows that are read at once

REPLIES = pl.Schema(
    {
        "image_id": pl.String(),
        "control": pl.String(),  # empty for an image of the dataset
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
"""One row per reply, in the order of images and questions."""

_IS_CONTROL = {True: FILM.c.control != "", False: FILM.c.control == ""}

Row = tuple[Any, ...]
Known = sqlalchemy.Row[Any]  # of `film`: image_id, control, film_id, sha256, failed
_Key = tuple[str, str]  # image id and control


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFilm:
    """One image with all its replies: the unit of a commit."""

    image_id: str
    sha256: str  # of its bytes; empty for the no-image control and for an image that could not be read
    control: str = ""  # empty for an image of the dataset; else what the judge got instead: none, black, mean, noise
    replies: Sequence[Reply]  # one per question, in the order of the judge's questions
    judgments: Sequence[Judgment] = ()  # one per subject, in any order; none for a control
    failures: Sequence[Attempt] = ()


class QuestionSet:
    """The questions of one judge, and how replies to them become rows."""

    def __init__(self, judge: str, judge_id: int, questions: Iterable[Question]) -> None:
        """Group the questions by subject; the first of a group stands for it in `judgment`."""
        self.judge = judge
        self.judge_id = judge_id
        self.questions = tuple(questions)
        self.groups: dict[tuple[str, str], tuple[int, ...]] = {}
        for number, question in enumerate(self.questions):
            key = (question.about, question.subject)
            self.groups[key] = (*self.groups.get(key, ()), number)

    def reply_rows(self, film: AskedFilm) -> list[Row]:
        """Give the rows of `reply` without their film_id; an image with too few or too many replies is refused."""
        if len(film.replies) != len(self.questions):
            raise ContractBroken(
                f"judge {self.judge!r} gave {len(film.replies)} replies about {film.image_id!r} "
                f"to {len(self.questions)} questions: an image is written whole or not at all"
            )
        return [
            (
                number,
                reply.outcome,
                reply.logit,
                reply.mass,
                reply.method,
                reply.usage.prompt,
                reply.usage.cached,
                reply.usage.output,
                reply.latency_s * 1000,
                reply.attempts,
                _clean(reply.why) if reply.why else None,
                pack(reply),
            )
            for number, reply in enumerate(film.replies)
        ]

    def judgment_rows(self, film: AskedFilm) -> list[Row]:
        """Give the rows of `judgment` without their film_id: one per subject, none for a control."""
        rows = []
        for judgment in film.judgments:
            numbers = self.groups.get((judgment.about, judgment.subject))
            if numbers is None:
                raise ContractBroken(
                    f"judge {self.judge!r} has a judgment of {judgment.subject!r} about {film.image_id!r}, "
                    "which it was not asked"
                )
            rows.append(
                (
                    numbers[0],
                    judgment.outcome,
                    judgment.p_present,
                    judgment.logit_present,
                    judgment.logit_absent,
                    judgment.mass,
                    _clean(judgment.why) if judgment.why else None,
                )
            )
        if len({row[0] for row in rows}) != len(rows) or len(rows) != (0 if film.control else len(self.groups)):
            raise ContractBroken(
                f"judge {self.judge!r} has {len(rows)} judgments of {film.image_id!r}: one is due "
                f"for each of its {len(self.groups)} subjects, and none for a control"
            )
        return rows


def sums(rows: Sequence[Row]) -> Row:
    """Sum the rows of `reply` of one image: six outcomes, three kinds of token, milliseconds, tries."""
    outcomes = [row[1] for row in rows]
    return (
        *(outcomes.count(outcome) for outcome in OUTCOMES),
        *(sum([row[place] for row in rows]) for place in (5, 6, 7, 8, 9)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmRows:
    """One image as rows of the ledger, all without their film_id."""

    image_id: str
    control: str
    sha256: str
    run_id: int
    at: str
    replies: list[Row]
    judgments: list[Row]
    attempts: dict[tuple[int, int, int], Row]  # `by_try`


def by_try(rows: Iterable[Row]) -> dict[tuple[int, int, int], Row]:
    """Give rows of `attempt` by their run, the number of the question, and which try it was: each try once."""
    return {(row[0], row[1], row[2]): row for row in rows}


def _clean(words: str) -> str:
    """Make text from outside fit for a column: no half characters, no zeros."""
    return words.replace("\0", "\u2400").encode("utf-8", "replace").decode("utf-8")


@functools.lru_cache(maxsize=64)
def insert_text(table: Table, count: int, dialect: Dialect) -> str:
    """Compile an insert of so many rows, once per engine."""
    blank = [dict.fromkeys(table.columns.keys())] * count
    return str(insert(table).values(blank).compile(dialect=dialect))


def _insert(connection: Connection, table: Table, rows: Sequence[Sequence[Row]]) -> None:
    """Insert equally long runs of rows, such as all replies about one image."""
    if not rows or not rows[0]:
        return
    # One statement per run, not per row: the driver lets other threads work while the database does.
    many = [tuple(value for row in run for value in row) for run in rows]
    if connection.dialect.name == "postgresql":
        # SQLite stores NaN as NULL; PostgreSQL gets the same.
        many = [
            tuple(None if isinstance(value, float) and math.isnan(value) else value for value in one) for one in many
        ]
    connection.exec_driver_sql(insert_text(table, len(rows[0]), connection.dialect), many)


def write_films(connection: Connection, question_set: QuestionSet, run_id: int, films: Iterable[AskedFilm]) -> None:
    """Write images inside the caller's transaction; writing one again changes only answers that failed."""
    at = now()
    rows = [
        FilmRows(
            image_id=film.image_id,
            control=film.control,
            sha256=film.sha256,
            run_id=run_id,
            at=at,
            replies=question_set.reply_rows(film),
            judgments=question_set.judgment_rows(film),
            attempts=by_try(
                (run_id, each.number, each.attempt, each.kind, each.status, _clean(each.message), at)
                for each in film.failures
            ),
        )
        for film in films
    ]
    put_films(connection, question_set, rows)


def put_films(connection: Connection, question_set: QuestionSet, films: Iterable[FilmRows]) -> None:
    """Put the rows of images in their tables: new ones whole, known ones only where an answer had failed."""
    lock_answers(connection)
    by_key: dict[_Key, FilmRows] = {}
    for film in films:
        by_key.setdefault((film.image_id, film.control), film)
    known = known_films(connection, question_set.judge_id, by_key)
    _add(connection, question_set.judge_id, [film for key, film in by_key.items() if key not in known])
    for key, there in known.items():
        _mend(connection, question_set, there, by_key[key])


def known_films(connection: Connection, judge_id: int, by_key: Iterable[_Key]) -> dict[_Key, Known]:
    """Find the images that are here, by image id and control."""
    wanted = set(by_key)
    columns = (FILM.c.image_id, FILM.c.control, FILM.c.film_id, FILM.c.sha256, FILM.c.failed)
    names = [image_id for image_id, _ in wanted]
    query: Select[Any] = select(*columns).where(FILM.c.judge_id == judge_id, FILM.c.image_id.in_(names))
    rows = connection.execute(query)
    return {(row.image_id, row.control): row for row in rows if (row.image_id, row.control) in wanted}


def _add(connection: Connection, judge_id: int, films: Sequence[FilmRows]) -> None:
    """Add images that are not here yet. `lock_answers` makes it safe to number them from the last one on."""
    last = connection.execute(select(func.coalesce(func.max(FILM.c.film_id), 0))).scalar_one()
    rows: dict[Table, list[list[Row]]] = {FILM: [], REPLY: [], JUDGMENT: [], ATTEMPT: []}
    for film_id, film in enumerate(films, start=last + 1):
        owner = (film_id, judge_id, film.run_id)
        rows[FILM].append([(*owner, film.image_id, film.control, film.sha256, *sums(film.replies), film.at)])
        rows[REPLY].append([(film_id, *row) for row in film.replies])
        if film.judgments:
            rows[JUDGMENT].append([(film_id, *row) for row in film.judgments])
        rows[ATTEMPT].extend([(film_id, *row)] for row in film.attempts.values())
    for table, runs in rows.items():
        _insert(connection, table, runs)


def _mend(connection: Connection, question_set: QuestionSet, there: Known, film: FilmRows) -> None:
    """Replace failures by answers, one whole subject at a time, so that a judgment always fits its replies."""
    if not there.failed or (there.sha256 and there.sha256 != film.sha256):
        return
    of_film = REPLY.c.film_id == there.film_id
    stored = dict(connection.execute(select(REPLY.c.number, REPLY.c.outcome).where(of_film)).all())
    better = [
        numbers
        for numbers in question_set.groups.values()
        if any(stored[n] == "failed" for n in numbers) and all(film.replies[n][1] != "failed" for n in numbers)
    ]
    for table, rows in ((REPLY, film.replies), (JUDGMENT, film.judgments)):
        new = [row for row in rows if any(row[0] in numbers for numbers in better)]
        here = (table.c.film_id == there.film_id, table.c.number.in_([row[0] for row in new]))
        connection.execute(delete(table).where(*here))
        _insert(connection, table, [[(there.film_id, *row)] for row in new])
    add_attempts(connection, there.film_id, film)
    if better:
        now_there = connection.execute(select(*REPLY.columns).where(of_film)).all()
        renewed: dict[str, Any] = dict(zip(SUMS, sums([tuple(row)[1:] for row in now_there]), strict=True))
        same = FILM.c.film_id == there.film_id
        connection.execute(update(FILM).where(same).values(sha256=film.sha256, **renewed))


def add_attempts(connection: Connection, film_id: int, film: FilmRows) -> None:
    """Add the failed tries of an image that are not here yet."""
    if not film.attempts:
        return
    columns = (ATTEMPT.c.run_id, ATTEMPT.c.number, ATTEMPT.c.attempt)
    there = set(connection.execute(select(*columns).where(ATTEMPT.c.film_id == film_id)))
    new = [[(film_id, *row)] for key, row in film.attempts.items() if key not in there]
    _insert(connection, ATTEMPT, new)


def judgments(connection: Connection, question_set: QuestionSet, vocabulary: Vocabulary) -> pl.DataFrame:
    """Give a judge's answers about findings, as `answers_schema`, sorted by image and finding."""
    asked = {subject for about, subject in question_set.groups if about == "finding"}
    if unknown := asked - set(vocabulary.findings):
        raise UsageError(
            f"judge {question_set.judge!r} was asked about {', '.join(sorted(unknown))}, "
            "which this dataset does not audit"
        )
    card = connection.execute(select(JUDGE.c.card).where(JUDGE.c.judge_id == question_set.judge_id)).scalar_one()
    schema = answers_schema(vocabulary)
    return (
        _judged(connection, question_set, "finding", schema["finding"])
        .rename({"subject": "finding"})
        .with_columns(
            pl.lit(question_set.judge).alias("judge"),
            pl.lit(json.loads(card)["kind"], dtype=schema["kind"]).alias("kind"),
            pl.lit(None, pl.Float64).alias("p_low"),
            pl.lit(None, pl.Float64).alias("p_high"),
        )
        .select(schema.names())
        .sort("image_id", "finding")
    )


def film_answers(connection: Connection, question_set: QuestionSet) -> pl.DataFrame:
    """Give a judge's answers about the images themselves, as FILM_ANSWERS, sorted by image and topic."""
    given = _judged(connection, question_set, "film", pl.String())
    return given.rename({"subject": "topic"}).select(FILM_ANSWERS.names()).sort("image_id", "topic")


def _judged(connection: Connection, question_set: QuestionSet, about: str, subject: pl.DataType) -> pl.DataFrame:
    """Give the judgments about findings, or about the images themselves, each with its image and its subject."""
    numbers = {group[0]: name for (kind, name), group in question_set.groups.items() if kind == about}
    columns = {
        "film_id": pl.Int64(),
        "number": pl.Int32(),
        "outcome": OUTCOME,
        **dict.fromkeys(("p_present", "logit_present", "logit_absent", "mass"), pl.Float64()),
        "why": pl.String(),
    }
    asked = JUDGMENT.c.number.in_(list(numbers))
    given = pl.concat(_blocks(connection, question_set, JUDGMENT, columns, asked))
    named = pl.DataFrame([*numbers.items()], schema={"number": pl.Int32(), "subject": subject}, orient="row")
    return given.join(named, on="number").join(_films(connection, question_set, control=False), on="film_id")


def replies(
    connection: Connection, question_set: QuestionSet, *, control: bool, image_ids: Sequence[str] | None
) -> pl.DataFrame:
    """Give every reply about the images of the dataset, some of them, or the controls, with its evidence."""
    stored = {column.name: REPLIES[column.name] for column in REPLY.columns if column.name in REPLIES}
    columns = {"film_id": pl.Int64(), **stored, "raw": pl.Binary()}
    wanted = [_IS_CONTROL[control]] if image_ids is None else [_IS_CONTROL[control], FILM.c.image_id.in_(image_ids)]
    blocks = _blocks(connection, question_set, REPLY, columns, *wanted)
    given = pl.concat(_unpacked(block) for block in blocks)
    fields = ("subject", "about", "polarity", "wording")
    questions = pl.DataFrame(
        [(number, *(getattr(q, field) for field in fields)) for number, q in enumerate(question_set.questions)],
        schema={"number": pl.Int32, **dict.fromkeys(fields, pl.String)},
        orient="row",
    )
    return (
        given.join(questions, on="number")
        .join(_films(connection, question_set, control=control), on="film_id")
        .sort("image_id", "control", "number")
        .select(REPLIES.names())
    )


def _unpacked(block: pl.DataFrame) -> pl.DataFrame:
    parts = [_split(packet) if packet else (b"", b"") for packet in block["raw"]]
    # A table cannot hold half a character: a mark replaces it. The text ends at the first zero.
    texts = pl.Series("text", [words.partition(b"\0")[0].decode("utf-8", "replace") for _, words in parts], pl.String())
    values = np.frombuffer(b"".join(numbers for numbers, _ in parts), dtype="<f4").astype(np.float64)
    with np.errstate(invalid="ignore"):
        # A token of probability 0 has a log-prob of minus infinity and adds nothing.
        shares = np.nan_to_num(-np.exp(values) * values)
    ends = np.cumsum([len(numbers) // 4 for numbers, _ in parts], dtype=np.int64)
    sums = np.diff(np.concatenate([[0.0], np.cumsum(shares)])[ends], prepend=0.0)
    entropy = pl.when(pl.Series(np.diff(ends, prepend=0)) > 0).then(pl.Series(sums))
    return block.drop("raw").with_columns(entropy.alias("entropy"), texts)


def _films(connection: Connection, question_set: QuestionSet, *, control: bool) -> pl.DataFrame:
    columns = {"film_id": pl.Int64(), "image_id": pl.String(), "control": pl.String()}
    return pl.concat(_blocks(connection, question_set, FILM, columns, _IS_CONTROL[control]))


def _blocks(
    connection: Connection,
    question_set: QuestionSet,
    table: Table,
    columns: Mapping[str, pl.DataType],
    *where: ColumnElement[bool],
) -> Iterator[pl.DataFrame]:
    """Read a judge's images, replies or judgments in blocks; the first is empty."""
    # In blocks, so that Python objects live only until their block is a frame.
    joined = FILM if table is FILM else FILM.join(table, table.c.film_id == FILM.c.film_id)
    query = select(*(table.c[name] for name in columns)).select_from(joined)
    query = query.where(FILM.c.judge_id == question_set.judge_id, *where)
    yield pl.DataFrame(schema=dict(columns))
    for rows in connection.execution_options(stream_results=True).execute(query).partitions(BLOCK):
        values = zip(columns.items(), zip(*rows, strict=True), strict=True)
        yield pl.DataFrame([pl.Series(name, column, dtype=kind) for (name, kind), column in values])


def pack(reply: Reply) -> bytes | None:
    """Pack the text and the top tokens of a reply; None where there is neither."""
    top = reply.top[:MOST_TOKENS]
    if not top and not reply.text:
        return None
    words = [reply.text, *[token for token, _ in top]]
    joined = "\0".join(words)
    if joined.count("\0") > len(top):
        joined = "\0".join(word.replace("\0", "\u2400") for word in words)
    # A token may be half of a character: JSON gives it as a lone surrogate.
    packet = _numbers([value for _, value in top]) + joined.encode("utf-8", "surrogatepass")
    return zlib.compress(packet, 1) if len(packet) > LONG else packet


def _numbers(values: list[float]) -> bytes:
    form = f"<H{len(values)}f"
    try:
        return struct.pack(form, len(values), *values)
    except OverflowError:
        return struct.pack(form, len(values), *(max(-_LARGEST, min(_LARGEST, value)) for value in values))


def unpack(packet: bytes | None) -> tuple[str, tuple[tuple[str, float], ...]]:
    """Give the text and the top tokens with their log-probs, as 4-byte floats hold them."""
    if packet is None:
        return "", ()
    numbers, words = _split(packet)
    text, *tokens = words.decode("utf-8", "surrogatepass").split("\0")
    return text, tuple(zip(tokens, struct.unpack(f"<{len(numbers) // 4}f", numbers), strict=True))


def _split(packet: bytes) -> tuple[bytes, bytes]:
    """Split a packet into its floats and its words."""
    plain = zlib.decompress(packet) if packet[1] else packet
    end = 2 + 4 * plain[0]
    return plain[2:end], plain[end:]
