"""How asked films are written: new ones whole, known ones left alone, failed answers replaced by better ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from bpals.ledger.alone import alone
from bpals.ledger.asked import AskedFilm, Asking, FilmRows, Row, rows_of, sums
from bpals.ledger.schema import ATTEMPT, FILM, JUDGMENT, OUTCOMES, REPLY, now

SUMS = (*OUTCOMES, "prompt_tokens", "cached_tokens", "output_tokens", "latency_ms", "attempts")

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class KnownFilm:
    """A film that is in the ledger."""

    film_id: int
    sha256: str
    failed: int


class Statements:
    """The texts of the inserts, each compiled once: a whole film is one statement with a row a question."""

    def __init__(self) -> None:
        """Know none yet."""
        self._texts: dict[tuple[str, int], str] = {}

    def insert(self, connection: Connection, table: Table, rows: Sequence[Sequence[Row]]) -> None:
        """Insert equally long runs of rows; a run is one step of the database, which keeps the other threads moving."""
        if not rows or not rows[0]:
            return
        key = (table.name, len(rows[0]))
        if key not in self._texts:
            blank = [dict.fromkeys(table.columns.keys())] * len(rows[0])
            self._texts[key] = str(insert(table).values(blank).compile(dialect=connection.dialect))
        many = [tuple(value for row in run for value in row) for run in rows]
        if connection.dialect.name == "postgresql":
            # SQLite keeps what is not a number as nothing, and so do we.
            many = [
                tuple(None if isinstance(value, float) and math.isnan(value) else value for value in one)
                for one in many
            ]
        connection.exec_driver_sql(self._texts[key], many)


def write_films(
    connection: Connection,
    statements: Statements,
    asking: Asking,
    judge_id: int,
    run_id: int,
    films: Iterable[AskedFilm],
) -> None:
    """Write films inside the caller's transaction; writing one again changes nothing but answers that failed."""
    at = now()
    put_films(connection, statements, asking, judge_id, [rows_of(asking, film, run_id, at) for film in films])


def put_films(
    connection: Connection, statements: Statements, asking: Asking, judge_id: int, films: Iterable[FilmRows]
) -> None:
    """Put the rows of films in their tables: new films whole, known ones only where an answer had failed."""
    alone(connection)
    by_key: dict[_Key, FilmRows] = {}
    for film in films:
        by_key.setdefault((film.image_id, film.control), film)
    known = known_films(connection, judge_id, by_key)
    _add(connection, statements, judge_id, [film for key, film in by_key.items() if key not in known])
    for key, there in known.items():
        _mend(connection, statements, asking, there, by_key[key])


def known_films(connection: Connection, judge_id: int, by_key: Iterable[_Key]) -> dict[_Key, KnownFilm]:
    """Say which films are here, by image id and control."""
    wanted = set(by_key)
    rows = connection.execute(
        select(FILM.c.image_id, FILM.c.control, FILM.c.film_id, FILM.c.sha256, FILM.c.failed).where(
            FILM.c.judge_id == judge_id, FILM.c.image_id.in_([image_id for image_id, _ in wanted])
        )
    )
    return {(row[0], row[1]): KnownFilm(*row[2:]) for row in rows if (row[0], row[1]) in wanted}


def _add(connection: Connection, statements: Statements, judge_id: int, films: Sequence[FilmRows]) -> None:
    """Add films that are not here yet, with ids that go on where the last one stopped: nobody else adds any now."""
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
        statements.insert(connection, table, runs)


def _mend(connection: Connection, statements: Statements, asking: Asking, there: KnownFilm, film: FilmRows) -> None:
    """Replace what failed by what did not, a subject at a time, so that a judgment is always that of its replies."""
    if not there.failed or (there.sha256 and there.sha256 != film.sha256):
        return
    of_film = REPLY.c.film_id == there.film_id
    stored = dict(connection.execute(select(REPLY.c.number, REPLY.c.outcome).where(of_film)).all())
    better = [
        numbers
        for numbers in asking.groups.values()
        if any(stored[n] == "failed" for n in numbers) and all(film.replies[n][1] != "failed" for n in numbers)
    ]
    for table, rows in ((REPLY, film.replies), (JUDGMENT, film.judgments)):
        new = [row for row in rows if any(row[0] in numbers for numbers in better)]
        here = (table.c.film_id == there.film_id, table.c.number.in_([row[0] for row in new]))
        connection.execute(delete(table).where(*here))
        statements.insert(connection, table, [[(there.film_id, *row)] for row in new])
    add_attempts(connection, statements, there.film_id, film)
    if better:
        now_there = connection.execute(select(*REPLY.columns).where(of_film)).all()
        renewed: dict[str, Any] = dict(zip(SUMS, sums([tuple(row)[1:] for row in now_there]), strict=True))
        same = FILM.c.film_id == there.film_id
        connection.execute(update(FILM).where(same).values(sha256=film.sha256, **renewed))


def add_attempts(connection: Connection, statements: Statements, film_id: int, film: FilmRows) -> None:
    """Add the failed tries of a film that are not here yet."""
    if not film.attempts:
        return
    columns = (ATTEMPT.c.run_id, ATTEMPT.c.number, ATTEMPT.c.attempt)
    there = set(connection.execute(select(*columns).where(ATTEMPT.c.film_id == film_id)))
    new = [[(film_id, *row)] for key, row in film.attempts.items() if key not in there]
    statements.insert(connection, ATTEMPT, new)
