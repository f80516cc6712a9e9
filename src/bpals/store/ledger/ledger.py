"""The ledger: the answers of judges and readers, in a file of the workspace or in a PostgreSQL database."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import polars as pl
from sqlalchemy import ColumnElement, Connection, Double, literal_column, select, update

from bpals.errors import BpalsError, UnknownName, UsageError, WorkspaceError
from bpals.findings import Vocabulary
from bpals.store.ledger import answers, runs, transfer
from bpals.store.ledger.answers import AskedFilm, FilmRows, QuestionSet, write_films
from bpals.store.ledger.backend import MIGRATIONS, Dialect, Migration, Ready
from bpals.store.ledger.locks import RUNNING
from bpals.store.ledger.postgres import ServerBackend, address_of, is_url, parse_url, shown
from bpals.store.ledger.schema import FILM, JUDGE, RUN, now
from bpals.store.ledger.sqlite import Connect, FileBackend
from bpals.store.workspace import LEDGER, Workspace
from bpals.types import JudgeCard, Question

_CLOCKS = {
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())::float8",
}
_Result = TypeVar("_Result")
Backend = FileBackend | ServerBackend


class Ledger:
    """The answers of judges and readers. Any thread may call it; one process at a time writes to a file."""

    def __init__(self, backend: Backend) -> None:
        """Take over a backend whose tables are up to date: use `Ledger.open`."""
        self._backend = backend
        self.dialect: Dialect = backend.dialect
        self.where = backend.where  # for people: a path, or an address without its password
        self._now = Ready(select(self.clock))
        self._question_sets: dict[int, QuestionSet] = {}

    @classmethod
    def open(
        cls,
        address: str | os.PathLike[str],
        *,
        connect: Connect | None = None,
        readonly: bool = False,
        must_exist: bool = False,
        known: Sequence[Migration] = MIGRATIONS,
    ) -> Self:
        """Open the ledger at a path or a PostgreSQL address, making it if nothing is there."""
        backend: Backend = (
            ServerBackend(parse_url(str(address)), readonly=readonly)
            if is_url(address)
            else FileBackend.open(address, connect, readonly=readonly, must_exist=must_exist)
        )
        try:
            backend.bring_up(known, readonly=readonly)
        except (BpalsError, OSError):
            backend.close()
            raise
        return cls(backend)

    @property
    def path(self) -> Path:
        """Where the file is; a ledger on PostgreSQL has none."""
        return self._backend.path

    def close(self) -> None:
        """Close the connections."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def writing(self) -> contextlib.AbstractContextManager[Connection]:
        """Open a transaction that may write; it is durable when this ends, or it never was."""
        # On PostgreSQL it may end in `TransactionLost`: then try it again as a whole, or let `change` do so.
        return self._backend.writing()

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """Open a transaction that reads one moment, whoever else writes meanwhile."""
        return self._backend.reading()

    def change(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do some work in a transaction that may write, and give its result once that is durable."""
        # It takes effect once, even if PostgreSQL restarts. But the work may be begun anew: it must touch nothing else.
        return self._backend.change(work)

    def look(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do some work that only reads, in a transaction of its own; it may be begun anew."""
        return self._backend.look(work)

    def glance(self, ready: Ready, **values: Any) -> Any:
        """Give the first row of one statement that only reads: the quickest way, for what every request needs."""
        return self._backend.glance(ready, **values)

    @property
    def clock(self) -> ColumnElement[float]:
        """The seconds since 1970 by the clock of the database, as a column of a query."""
        return literal_column(f"({_CLOCKS[self.dialect]})", Double)

    def database_time(self, connection: Connection) -> float:
        """Give the seconds since 1970 by the clock of the database: what leases and sessions go by."""
        return float(self._now.value(connection))

    def lock(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Be the only writer of a file, or the only one at this work on PostgreSQL; a second gets the first's name."""
        return self._backend.lock(what)

    def busy(self) -> bool:
        """Say whether a run of a judge is at work, in this process or another."""
        return self._backend.busy(RUNNING)

    def enrol(self, card: JudgeCard, questions: Sequence[Question], dataset: str) -> int:
        """Give the id of a judge; a name that is bound to another judge, other questions or data is refused."""
        judge_id = self.change(lambda connection: runs.enrol(connection, card, questions, dataset))
        # A judge without any answer can be replaced, and its number given to another.
        self._question_sets.pop(judge_id, None)
        return judge_id

    def differing(self, card: JudgeCard, questions: Sequence[Question], dataset: str) -> list[str]:
        """Say how the judge of the same name here differs; nothing where this one may be enrolled."""
        return self.look(lambda connection: runs.differing(connection, card, questions, dataset))

    def judge_id(self, name: str) -> int:
        """Give the id of the judge with a name."""
        query = select(JUDGE.c.name, JUDGE.c.judge_id).order_by(JUDGE.c.judge_id)
        names = self.look(lambda connection: dict(iter(connection.execute(query))))
        if name not in names:
            raise UnknownName.of("judge", name, names, where=self.where)
        return int(names[name])

    def cards(self) -> list[dict[str, Any]]:
        """List the judges: each card with what was observed, its dataset and its number of questions."""
        return self.look(runs.cards)

    def questions(self, judge_id: int) -> tuple[Question, ...]:
        """List the questions that a judge answers about every image, in order."""
        return self._questions_of(judge_id).questions

    def note_observed(self, judge_id: int, observed: Mapping[str, object]) -> None:
        """Add to what was observed of a judge; it does not change who the judge is."""
        self.change(lambda connection: runs.note_observed(connection, judge_id, observed))

    def _questions_of(self, judge_id: int) -> QuestionSet:
        """Read a judge's questions once: they never change."""
        if judge_id not in self._question_sets:
            self._question_sets[judge_id] = self.look(lambda connection: runs.question_set(connection, judge_id))
        return self._question_sets[judge_id]

    def done(self, judge_id: int, *, retry_failed: bool = False) -> dict[str, str]:
        """Give the images with all their replies, each with its hash; or only those without a failure."""
        query = select(FILM.c.image_id, FILM.c.sha256).where(FILM.c.judge_id == judge_id, FILM.c.control == "")
        if retry_failed:
            query = query.where(FILM.c.failed == 0)
        return self.look(lambda connection: dict(iter(connection.execute(query))))

    def begin(self, judge_id: int, plan: Mapping[str, object], environment: Mapping[str, object]) -> int:
        """Write down that a run begins, and give its id."""
        row = runs.run_row(judge_id, plan, environment)  # not inside: work that is begun anew keeps its time
        return self.change(lambda connection: runs.begin(connection, row))

    def end(self, run_id: int, state: str, counts: Mapping[str, object]) -> None:
        """Write down how a run ended; one that was killed keeps the state `running`."""
        values = {"state": state, "counts": json.dumps(dict(counts), default=str), "ended": now()}
        self.change(lambda connection: connection.execute(update(RUN).where(RUN.c.run_id == run_id).values(values)))

    def event(self, run_id: int, kind: str, detail: Mapping[str, object] | str) -> None:
        """Write down what happened to a run: a limit moved, a server restarted."""
        row = runs.event_row(run_id, kind, detail)
        self.change(lambda connection: runs.event(connection, row))

    def runs(self, judge_id: int) -> list[dict[str, Any]]:
        """List the runs of a judge in their order, each with its plan, environment, counts and events."""
        found = self.stored_runs(judge_id)
        for run in found:
            run.update({name: json.loads(run[name]) for name in ("plan", "environment", "counts")})
            run["events"] = [{**event, "detail": json.loads(event["detail"])} for event in run["events"]]
        return found

    def write(self, judge_id: int, run_id: int, films: Sequence[AskedFilm]) -> None:
        """Write whole images, durable when this returns; in a known image an answer replaces a failure."""
        question_set = self._questions_of(judge_id)
        self.change(lambda connection: write_films(connection, question_set, run_id, films))

    def stored_runs(self, judge_id: int) -> list[dict[str, Any]]:
        """Give the runs of a judge as rows, each with its events, for another ledger to take."""
        return self.look(lambda connection: runs.stored(connection, judge_id))

    def take_runs(self, judge_id: int, others: Sequence[Mapping[str, Any]]) -> dict[int, int]:
        """Take runs of another ledger, each once; give its number of each run -> the number here."""
        return self.change(lambda connection: transfer.take_runs(connection, judge_id, others))

    def stored_films(self, judge_id: int, after: int) -> tuple[int, list[FilmRows]]:
        """Give the next images of a judge, controls too, as rows for another ledger, and where to go on."""
        return self.look(lambda connection: transfer.stored_films(connection, judge_id, after))

    def take_films(
        self, judge_id: int, films: Sequence[FilmRows], numbers: Mapping[int, int]
    ) -> tuple[int, list[transfer.Clash]]:
        """Take images of another ledger in one transaction; `numbers` maps its runs to those here."""
        question_set = self._questions_of(judge_id)
        return self.change(lambda connection: transfer.take_films(connection, question_set, films, numbers))

    def counts(self, judge_id: int) -> dict[str, Any]:
        """Count images, replies and judgments by outcome, tokens, tries and seconds; a run may go on meanwhile."""
        return self.look(lambda connection: runs.counts(connection, judge_id))

    def judgments(self, judge_id: int, vocabulary: Vocabulary) -> pl.DataFrame:
        """Give a judge's answers about findings, as `types.answers_schema`, sorted by image and finding."""
        question_set = self._questions_of(judge_id)
        return self.look(lambda connection: answers.judgments(connection, question_set, vocabulary))

    def film_answers(self, judge_id: int) -> pl.DataFrame:
        """Give a judge's answers about the images themselves, as `types.FILM_ANSWERS`, sorted by image and topic."""
        question_set = self._questions_of(judge_id)
        return self.look(lambda connection: answers.film_answers(connection, question_set))

    def replies(self, judge_id: int, *, control: bool = False, image_ids: Sequence[str] | None = None) -> pl.DataFrame:
        """Give every reply about the dataset's images, some of them, or the controls, as `answers.REPLIES`."""
        question_set = self._questions_of(judge_id)
        return self.look(lambda c: answers.replies(c, question_set, control=control, image_ids=image_ids))

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the ledger as it is at one moment to a new file; runs may go on meanwhile."""
        self._backend.backup(target)

    def verify(self) -> list[str]:
        """List what is damaged or does not add up; nothing if all is well."""
        try:
            return self.look(runs.problems)
        except WorkspaceError as error:  # too damaged to be read at all
            return [str(error)]


def ledger_of(home: Workspace, given: str | None = None) -> str | Path:
    """Say where the ledger of a workspace is: its own file, or the PostgreSQL address that it was given."""
    remembered, file = home.remembered("ledger"), home.path / LEDGER
    # A new address replaces the remembered one: a server may move.
    address = address_of(given, None if given else remembered, os.environ)
    if address is not None and remembered is None and file.exists():
        raise UsageError(
            f"{home.path} keeps its answers in {file}, and a workspace has one ledger. "
            "Leave out --ledger and BPALS_LEDGER, or name another folder: --workspace DIR"
        )
    return address or file


def remember_ledger(home: Workspace, address: str | Path) -> None:
    """Let later commands find the ledger; its password is not kept."""
    plain = shown(parse_url(str(address))) if is_url(address) else None
    if plain != home.remembered("ledger"):
        home.remember(ledger=plain)


def is_there(address: str | Path) -> bool:
    """Say whether a ledger may be at an address: a server is contacted only when it is opened."""
    return is_url(address) or Path(address).exists()


def open_ledger(home: Workspace, given: str | None = None, *, readonly: bool = False) -> Ledger:
    """Open the ledger of a workspace, and remember a given address; a reader makes no new ledger."""
    address = ledger_of(home, given)
    ledger = Ledger.open(address, readonly=readonly, must_exist=readonly)
    if given is not None:
        remember_ledger(home, address)
    return ledger
