"""The ledger of a workspace: its own file, or the PostgreSQL address that it was given once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import polars as pl
from sqlalchemy import ColumnElement, Connection, Double, literal_column, select

from bpals.errors import BpalsError, UsageError, WorkspaceError
from bpals.findings import Vocabulary
from bpals.store.ledger import answers, runs, transfer
from bpals.store.ledger.answers import AskedFilm, Asking, FilmRows, Statements, write_films
from bpals.store.ledger.backend import MIGRATIONS, Dialect, Home, Migration, Ready
from bpals.store.ledger.locks import RUNNING
from bpals.store.ledger.postgres import ServerHome, address_of, is_url, parse_url, shown
from bpals.store.ledger.schema import FILM
from bpals.store.ledger.sqlite import Connect, FileHome
from bpals.store.workspace import LEDGER, Workspace
from bpals.types import JudgeCard, Question

_CLOCKS = {
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())::float8",
}
_Given = TypeVar("_Given")


class Ledger:
    """What asked judges and readers said. Any thread may call it; of a file, one process at a time is the writer."""

    def __init__(self, home: Home) -> None:
        """Take over a place whose tables are up to date: use `Ledger.open`."""
        self._home = home
        self._link = home.link
        self._statements = Statements()
        self._now = Ready(select(self.clock))
        self._asking: dict[int, Asking] = {}

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
        """Open the ledger at a path or a PostgreSQL address, making it if nothing is there.

        A file that is no ledger is never touched. `connect` is the one way to a file: it gives a DB-API connection to
        it, in autocommit mode.
        """
        home: Home = (
            ServerHome(parse_url(str(address)), readonly=readonly)
            if is_url(address)
            else FileHome.open(address, connect, readonly=readonly, must_exist=must_exist)
        )
        try:
            home.bring_up(known, readonly=readonly)
        except (BpalsError, OSError):
            home.link.close()
            raise
        return cls(home)

    @property
    def dialect(self) -> Dialect:
        """Which SQL is spoken here."""
        return self._home.dialect

    @property
    def where(self) -> str:
        """Where the ledger is, for people: a path, or an address without its password."""
        return self._home.where

    @property
    def path(self) -> Path:
        """Where the file is; a ledger on PostgreSQL has none."""
        return self._home.path

    def close(self) -> None:
        """Close the connections."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def writing(self) -> contextlib.AbstractContextManager[Connection]:
        """Open a transaction that may write; it is durable when this ends, or it never was.

        On PostgreSQL it may end in `TransactionLost`: then try it again as a whole, or let `change` do so.
        """
        return self._link.writing()

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """Open a transaction that reads one moment, whoever else writes meanwhile."""
        return self._link.reading()

    def change(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work in a transaction that may write, and give what it gives once that is durable.

        It is made exactly once, also where PostgreSQL restarts meanwhile; but the work itself may be begun anew, so it
        touches nothing except its connection.
        """
        return self._link.change(work)

    def look(self, work: Callable[[Connection], _Given]) -> _Given:
        """Do some work that only reads, in a transaction of its own; it may be begun anew."""
        return self._link.look(work)

    def glance(self, ready: Ready, **values: Any) -> Any:
        """Give the first row of one statement that only reads: the quickest way, for what every request asks."""
        return self._link.glance(ready, **values)

    @property
    def clock(self) -> ColumnElement[float]:
        """The seconds since 1970 by the clock of the database, to be asked for with something else."""
        return literal_column(f"({_CLOCKS[self.dialect]})", Double)

    def database_time(self, connection: Connection) -> float:
        """Give the seconds since 1970 by the clock of the database: what leases and sessions go by."""
        return float(self._now.value(connection))

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Be the only writer of a file, or the only one that does this on PostgreSQL; a second is told who is first."""
        with self._home.lock(what):
            yield

    def busy(self) -> bool:
        """Say whether a judge is being asked, by this process or another."""
        return self._home.busy(RUNNING)

    def enrol(self, card: JudgeCard, questions: Sequence[Question], dataset: str) -> int:
        """Give the id of a judge; a name that is bound to another judge, other questions or data is refused."""
        judge_id = self.change(lambda connection: runs.enrol(connection, card, questions, dataset))
        # A number may be given anew once its judge, which never said anything, is forgotten.
        self._asking.pop(judge_id, None)
        return judge_id

    def differing(self, card: JudgeCard, questions: Sequence[Question], dataset: str) -> list[str]:
        """Say how the judge that bears a card's name here is another one; nothing where it may be enrolled."""
        return self.look(lambda connection: runs.differing(connection, card, questions, dataset))

    def judge_id(self, name: str) -> int:
        """Give the id of the judge with a name."""
        return self.look(lambda connection: runs.judge_id(connection, name, self.where))

    def cards(self) -> list[dict[str, Any]]:
        """List who was asked here: each card with what was observed, its dataset and its number of questions."""
        return self.look(runs.cards)

    def questions(self, judge_id: int) -> tuple[Question, ...]:
        """List what a judge asks of every film, in order."""
        return self._asks(judge_id).questions

    def note_observed(self, judge_id: int, observed: Mapping[str, object]) -> None:
        """Add to what was observed of a judge; it does not change who the judge is."""
        self.change(lambda connection: runs.note_observed(connection, judge_id, observed))

    def _asks(self, judge_id: int) -> Asking:
        """Read a judge's questions once: they never change."""
        if judge_id not in self._asking:
            self._asking[judge_id] = self.look(lambda connection: runs.asking(connection, judge_id))
        return self._asking[judge_id]

    def done(self, judge_id: int, *, retry_failed: bool = False) -> dict[str, str]:
        """Give the films that are wholly asked, each with the hash of its bytes; or only those without a failure."""
        asked = select(FILM.c.image_id, FILM.c.sha256).where(FILM.c.judge_id == judge_id, FILM.c.control == "")
        if retry_failed:
            asked = asked.where(FILM.c.failed == 0)
        return self.look(lambda connection: dict(iter(connection.execute(asked))))

    def begin(self, judge_id: int, plan: Mapping[str, object], environment: Mapping[str, object]) -> int:
        """Write down that a run begins, and give its id."""
        row = runs.beginning(judge_id, plan, environment)
        return self.change(lambda connection: runs.begin(connection, row))

    def end(self, run_id: int, state: str, counts: Mapping[str, object]) -> None:
        """Write down how a run ended; one that was killed keeps the state `running`."""
        self.change(lambda connection: runs.end(connection, run_id, state, counts))

    def event(self, run_id: int, kind: str, detail: Mapping[str, object] | str) -> None:
        """Write down what happened to a run: a limit moved, a server restarted."""
        row = runs.happening(run_id, kind, detail)
        self.change(lambda connection: runs.event(connection, row))

    def runs(self, judge_id: int) -> list[dict[str, Any]]:
        """List the runs of a judge in their order, each with its plan, surroundings, counts and events."""
        return self.look(lambda connection: runs.of_judge(connection, judge_id))

    def write(self, judge_id: int, run_id: int, films: Sequence[AskedFilm]) -> None:
        """Write whole films in one transaction; they are durable when this returns.

        A film that is there already is left as it is, except that what failed is replaced by what did not.
        """
        asking = self._asks(judge_id)
        self.change(lambda connection: write_films(connection, self._statements, asking, judge_id, run_id, films))

    def stored_runs(self, judge_id: int) -> list[dict[str, Any]]:
        """Give the runs of a judge as rows, each with the rows of its events, for another ledger to take."""
        return self.look(lambda connection: transfer.stored_runs(connection, judge_id))

    def take_runs(self, judge_id: int, others: Sequence[Mapping[str, Any]]) -> dict[int, int]:
        """Bring over runs of another ledger, each once; give the number of each there and here."""
        return self.change(lambda connection: transfer.take_runs(connection, judge_id, others))

    def stored_films(self, judge_id: int, after: int) -> tuple[int, list[FilmRows]]:
        """Give some films of a judge, controls too, as rows for another ledger to take, and where to go on."""
        return self.look(lambda connection: transfer.stored_films(connection, judge_id, after))

    def take_films(self, judge_id: int, films: Sequence[FilmRows], numbers: Mapping[int, int]) -> transfer.Taken:
        """Bring over films of another ledger in one transaction; `numbers` are those of their runs there and here."""
        asking = self._asks(judge_id)
        return self.change(
            lambda connection: transfer.take_films(connection, self._statements, asking, judge_id, films, numbers)
        )

    def counts(self, judge_id: int) -> dict[str, Any]:
        """Count films, replies and judgments by outcome, tokens, tries and seconds; it may be asked during a run."""
        return self.look(lambda connection: runs.counts(connection, judge_id))

    def judgments(self, judge_id: int, vocabulary: Vocabulary) -> pl.DataFrame:
        """Give what a judge said of findings, as `types.answers_schema`, sorted by film and finding."""
        asking = self._asks(judge_id)
        return self.look(lambda connection: answers.judgments(connection, judge_id, asking, vocabulary))

    def film_answers(self, judge_id: int) -> pl.DataFrame:
        """Give what a judge said of the films themselves, as `types.FILM_ANSWERS`, sorted by film and topic."""
        asking = self._asks(judge_id)
        return self.look(lambda connection: answers.film_answers(connection, judge_id, asking))

    def replies(self, judge_id: int, *, control: bool = False, image_ids: Sequence[str] | None = None) -> pl.DataFrame:
        """Give every question asked about the dataset's films, or some, or the controls, as `frames.REPLIES`."""
        asking = self._asks(judge_id)
        return self.look(
            lambda connection: answers.replies(connection, judge_id, asking, control=control, image_ids=image_ids)
        )

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the ledger as it is at one moment to a new file; runs may go on meanwhile."""
        self._home.backup(target)

    def verify(self) -> list[str]:
        """Say what is wrong with the ledger or does not add up in it; nothing if all is well."""
        try:
            return self.look(runs.problems)
        except WorkspaceError as error:  # too damaged to be read at all
            return [str(error)]


def ledger_of(home: Workspace, given: str | None = None) -> str | Path:
    """Say where a workspace keeps what must not be lost: its own file, or the PostgreSQL address that it was given."""
    remembered, file = home.remembered("ledger"), home.path / LEDGER
    # An address that is named anew takes the place of the old one: a server may move.
    address = address_of(given, None if given else remembered, os.environ)
    if address is not None and remembered is None and file.exists():
        raise UsageError(
            f"{home.path} keeps its answers in {file}, and a workspace has one ledger. "
            "Leave out --ledger and BPALS_LEDGER, or name another folder: --workspace DIR"
        )
    return address or file


def remember_ledger(home: Workspace, address: str | Path) -> None:
    """Let the commands that come later find the ledger; its password is not kept."""
    plain = shown(parse_url(str(address))) if is_url(address) else None
    if plain != home.remembered("ledger"):
        home.remember(ledger=plain)


def is_there(address: str | Path) -> bool:
    """Say whether something may be found at an address: a server is asked later."""
    return is_url(address) or Path(address).exists()


def open_ledger(home: Workspace, given: str | None = None, *, readonly: bool = False) -> Ledger:
    """Open the ledger of a workspace, and remember an address that was given; one that is only read is not made."""
    address = ledger_of(home, given)
    ledger = Ledger.open(address, readonly=readonly, must_exist=readonly)
    if given is not None:
        remember_ledger(home, address)
    return ledger
