"""Taking a judge's runs and images from another ledger; taking them twice changes nothing.

A new image comes as it is. In a known one an answer replaces a failure. Any other difference is a clash: it is
reported, and what was here first stays. Nothing is ever averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select, update

from bpals.store.ledger import runs
from bpals.store.ledger.answers import FilmRows, Known, QuestionSet, Row, add_attempts, by_try, known_films, put_films
from bpals.store.ledger.locks import lock_answers
from bpals.store.ledger.schema import ATTEMPT, FILM, JUDGMENT, REPLY, RUN

# Images of one transaction: with 28 questions each some 6,000 rows, and a few megabytes.
FILMS_AT_ONCE = 200
OUTCOME, LOGIT = 1, 2  # their positions in a row of `reply` without its film_id


@dataclass(frozen=True, slots=True)
class Clash:
    """A difference between two ledgers about one image, or about one subject of it."""

    judge: str
    image_id: str  # an image, or the name of a control
    subject: str  # empty where the bytes of the image differ
    here: str  # what is kept
    there: str  # what the other ledger has


def stored_films(connection: Connection, judge_id: int, after: int) -> tuple[int, list[FilmRows]]:
    """Give the next images of a judge as rows, in the order of their ids, and the last id; none at the end."""
    names = ("image_id", "control", "sha256", "run_id", "at")
    columns = [FILM.c[name] for name in ("film_id", *names)]
    query = select(*columns).where(FILM.c.judge_id == judge_id, FILM.c.film_id > after)
    found = connection.execute(query.order_by(FILM.c.film_id).limit(FILMS_AT_ONCE)).all()
    if not found:
        return after, []
    ids = [row[0] for row in found]
    replies, judgments, attempts = (_by_film(connection, table, ids) for table in (REPLY, JUDGMENT, ATTEMPT))
    return ids[-1], [
        FilmRows(
            **dict(zip(names, row, strict=True)),
            replies=replies.get(film_id, []),
            judgments=judgments.get(film_id, []),
            attempts=by_try(attempts.get(film_id, [])),
        )
        for film_id, *row in found
    ]


def _by_film(connection: Connection, table: Any, ids: Sequence[int]) -> dict[int, list[Row]]:
    """Read the rows of some images, each image's in the order of its key."""
    found: dict[int, list[Row]] = {}
    query = select(*table.columns).where(table.c.film_id.in_(ids)).order_by(*table.primary_key.columns)
    for film_id, *row in connection.execute(query):
        found.setdefault(film_id, []).append(tuple(row))
    return found


def take_runs(connection: Connection, judge_id: int, others: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Take the runs of a judge, each once, with its events; give its number there -> its number here."""
    lock_answers(connection)
    numbers = {}
    for other in others:
        row = {name: other[name] for name in RUN.columns.keys() if name not in ("run_id", "judge_id")}  # noqa: SIM118
        begun = {**row, "judge_id": judge_id}
        run_id = runs.begin(connection, begun, again=True)
        numbers[int(other["run_id"])] = run_id
        # It may have gone on since it was taken last.
        later = {name: row[name] for name in ("state", "counts", "ended")}
        if row["ended"] is not None or row["state"] != "running":
            connection.execute(update(RUN).where(RUN.c.run_id == run_id).values(later))
        for event in other["events"]:
            runs.event(connection, {"run_id": run_id, **event}, again=True)
    return numbers


def take_films(
    connection: Connection, question_set: QuestionSet, films: Sequence[FilmRows], numbers: Mapping[int, int]
) -> tuple[int, list[Clash]]:
    """Take some images, their runs numbered as they are here; give how many are new, and the clashes."""
    lock_answers(connection)
    ours = {(film.image_id, film.control): _renumbered(film, numbers) for film in films}
    known = known_films(connection, question_set.judge_id, ours)
    clashes = list(_clashes(connection, question_set, known, ours))
    put_films(connection, question_set, ours.values())
    for key, there in known.items():
        add_attempts(connection, there.film_id, ours[key])
    return sum(not control for _, control in ours.keys() - known.keys()), clashes


def _renumbered(film: FilmRows, numbers: Mapping[int, int]) -> FilmRows:
    attempts = by_try((numbers[run_id], *rest) for run_id, *rest in film.attempts.values())
    return replace(film, run_id=numbers[film.run_id], attempts=attempts)


def _clashes(
    connection: Connection,
    question_set: QuestionSet,
    known: Mapping[tuple[str, str], Known],
    films: Mapping[tuple[str, str], FilmRows],
) -> Iterator[Clash]:
    """Compare known images with the same ones there: bytes, outcomes and numbers, but not latencies."""
    stored = _by_film(connection, REPLY, [each.film_id for each in known.values()])
    for key, there in known.items():
        film = films[key]
        name = film.image_id if not film.control else f"control {film.control}"
        if there.sha256 and film.sha256 and there.sha256 != film.sha256:
            yield Clash(question_set.judge, name, "", there.sha256, film.sha256)
            continue
        for (_, subject), numbers in question_set.groups.items():
            here, other = (
                [(rows[number][OUTCOME], rows[number][LOGIT]) for number in numbers]
                for rows in (stored[there.film_id], film.replies)
            )
            # A failure is no answer: it cannot contradict one.
            if here != other and not any(outcome == "failed" for outcome, _ in (*here, *other)):
                words = (", ".join(answer_words(*answer) for answer in answers) for answers in (here, other))
                yield Clash(question_set.judge, name, subject, *words)


def answer_words(outcome: str, value: float | None) -> str:
    """Write an answer for the report of a clash."""
    return outcome if value is None else f"{outcome} {value:.6g}"
