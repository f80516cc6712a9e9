"""The ledger itself: one file of a workspace, one writer, whole films, nothing acknowledged that could be lost."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import polars as pl
from sqlalchemy import insert, select, update

from bpals.errors import BpalsError, WorkspaceError
from bpals.findings import Vocabulary
from bpals.ledger import frames, migrations, roll, tally
from bpals.ledger.asked import AskedFilm, Asking
from bpals.ledger.connection import Connect, Link, file_connection
from bpals.ledger.films import Statements, write_films
from bpals.ledger.lock import held, only_writer
from bpals.ledger.migrations import MIGRATIONS, Migration
from bpals.ledger.place import Place
from bpals.ledger.schema import EVENT, FILM, RUN, now
from bpals.types import JudgeCard, Question


class Ledger:
    """What asked judges said, film by film. Any thread may call it; one process at a time writes."""

    def __init__(self, place: Place, link: Link) -> None:
        """Take over a connection whose tables are up to date: use `Ledger.open`."""
        self._place = place
        self._link = link
        self._statements = Statements()
        self._asking: dict[int, Asking] = {}

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        connect: Connect | None = None,
        readonly: bool = False,
        must_exist: bool = False,
        known: Sequence[Migration] = MIGRATIONS,
    ) -> Ledger:
        """Open the ledger at a path, making it if nothing is there; a file that is no ledger is never touched.

        `connect` is the one way to the database: it gives a DB-API connection to that file, in autocommit mode.
        """
        place = Place(path)
        if not place.check(must_exist=readonly or must_exist):
            place.announce()
        link = Link(
            place, connect or functools.partial(file_connection, place.path, readonly=readonly), readonly=readonly
        )
        ledger = cls(place, link)
        try:
            ledger._bring_up(known, readonly=readonly)
        except (BpalsError, OSError):
            ledger.close()
            raise
        return ledger

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._place.path

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bring_up(self, known: Sequence[Migration], *, readonly: bool) -> None:
        """Make the changes of the tables that are due: all or none, and first a backup of what is there."""
        found = self._version()
        migrations.refuse_newer(self._place, found, known)
        latest = known[-1].number
        if found == latest and not self._place.birth.exists():
            return
        if readonly:
            raise WorkspaceError(
                f"{self.path} has tables {found} and this bpals reads {latest}. "
                f"Bring it up to date: bpals judge run SPEC --images PATH --workspace {self.path.parent}"
            )
        with only_writer(self._place.lock, "bringing the ledger up to date"):
            found = self._version()
            if 0 < found < latest:
                self._copy(Path(f"{self.path}.before-{latest}"))
            with self._link.writing() as connection:
                migrations.make_due(connection, found, known)
            self._link.checkpoint()
            self._place.birth.unlink(missing_ok=True)
            self._place.sync_folder()

    def _version(self) -> int:
        with self._link.reading() as connection:
            return migrations.version(connection)

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Be the only writer while inside; a second is refused, and told the process and host of the first."""
        with only_writer(self._place.lock, what):
            self._settle()
            yield

    def busy(self) -> bool:
        """Say whether a writer is at work, in this process or another."""
        return held(self._place.lock)

    def _settle(self) -> None:
        """Look at what the last writer left: verify after an error of the disk, and empty the log.

        A log that was written but not synced may be read back from memory only. Copying it into the file and syncing
        that makes it true.
        """
        doubted = self._place.doubt.exists()
        if doubted and (found := self.verify()):
            raise WorkspaceError(f"{self.path} is damaged: {found[0]}. Put a backup in its place")
        self._link.checkpoint()
        if doubted:
            self._place.doubt.unlink(missing_ok=True)

    def enrol(self, card: JudgeCard, questions: Sequence[Question], dataset: str) -> int:
        """Give the id of a judge; a name that is bound to another judge, other questions or data is refused."""
        with self._link.writing() as connection:
            judge_id = roll.enrol(connection, card, questions, dataset)
        # A number may be given anew once its judge, which never said anything, is forgotten.
        self._asking.pop(judge_id, None)
        return judge_id

    def judge_id(self, name: str) -> int:
        """Give the id of the judge with a name."""
        with self._link.reading() as connection:
            return roll.judge_id(connection, name, self.path)

    def cards(self) -> list[dict[str, Any]]:
        """List who was asked here: each card with what was observed, its dataset and its number of questions."""
        with self._link.reading() as connection:
            return roll.cards(connection)

    def questions(self, judge_id: int) -> tuple[Question, ...]:
        """List what a judge asks of every film, in order."""
        return self._asks(judge_id).questions

    def note_observed(self, judge_id: int, observed: Mapping[str, object]) -> None:
        """Add to what was observed of a judge; it does not change who the judge is."""
        with self._link.writing() as connection:
            roll.note_observed(connection, judge_id, observed)

    def _asks(self, judge_id: int) -> Asking:
        """Read a judge's questions once: they never change."""
        if judge_id not in self._asking:
            with self._link.reading() as connection:
                self._asking[judge_id] = roll.asking(connection, judge_id)
        return self._asking[judge_id]

    def done(self, judge_id: int, *, retry_failed: bool = False) -> dict[str, str]:
        """Give the films that are wholly asked, each with the hash of its bytes; or only those without a failure."""
        asked = select(FILM.c.image_id, FILM.c.sha256).where(FILM.c.judge_id == judge_id, FILM.c.control == "")
        if retry_failed:
            asked = asked.where(FILM.c.failed == 0)
        with self._link.reading() as connection:
            return dict(iter(connection.execute(asked)))

    def begin(self, judge_id: int, plan: Mapping[str, object], environment: Mapping[str, object]) -> int:
        """Write down that a run begins, and give its id."""
        row = {
            "judge_id": judge_id,
            "plan": json.dumps(dict(plan), default=str),
            "environment": json.dumps(dict(environment), default=str),
            "state": "running",
            "counts": "{}",
            "began": now(),
        }
        with self._link.writing() as connection:
            key = connection.execute(insert(RUN).values(row)).inserted_primary_key
        return int(key[0]) if key else 0

    def end(self, run_id: int, state: str, counts: Mapping[str, object]) -> None:
        """Write down how a run ended; one that was killed keeps the state `running`."""
        values = {"state": state, "counts": json.dumps(dict(counts), default=str), "ended": now()}
        with self._link.writing() as connection:
            connection.execute(update(RUN).where(RUN.c.run_id == run_id).values(values))

    def event(self, run_id: int, kind: str, detail: Mapping[str, object] | str) -> None:
        """Write down what happened to a run: a limit moved, a server restarted."""
        row = {"run_id": run_id, "kind": kind, "detail": json.dumps(detail, default=str), "at": now()}
        with self._link.writing() as connection:
            connection.execute(insert(EVENT).values(row))

    def runs(self, judge_id: int) -> list[dict[str, Any]]:
        """List the runs of a judge in their order, each with its plan, surroundings, counts and events."""
        with self._link.reading() as connection:
            rows = connection.execute(select(RUN).where(RUN.c.judge_id == judge_id).order_by(RUN.c.run_id)).mappings()
            found = [dict(row) for row in rows]
            for run in found:
                for name in ("plan", "environment", "counts"):
                    run[name] = json.loads(run[name])
                events = connection.execute(
                    select(EVENT.c.kind, EVENT.c.detail, EVENT.c.at)
                    .where(EVENT.c.run_id == run["run_id"])
                    .order_by(EVENT.c.event_id)
                ).mappings()
                run["events"] = [{**row, "detail": json.loads(row["detail"])} for row in events]
        return found

    def write(self, judge_id: int, run_id: int, films: Sequence[AskedFilm]) -> None:
        """Write whole films in one transaction; they are durable when this returns.

        A film that is there already is left as it is, except that what failed is replaced by what did not.
        """
        asking = self._asks(judge_id)
        with self._link.writing() as connection:
            write_films(connection, self._statements, asking, judge_id, run_id, films)

    def counts(self, judge_id: int) -> dict[str, Any]:
        """Count films, replies and judgments by outcome, tokens, tries and seconds; it may be asked during a run."""
        with self._link.reading() as connection:
            return tally.counts(connection, judge_id)

    def judgments(self, judge_id: int, vocabulary: Vocabulary) -> pl.DataFrame:
        """Give what a judge said of findings, as `types.answers_schema`, sorted by film and finding."""
        asking = self._asks(judge_id)
        with self._link.reading() as connection:
            return frames.judgments(connection, judge_id, asking, vocabulary)

    def film_answers(self, judge_id: int) -> pl.DataFrame:
        """Give what a judge said of the films themselves, as `types.FILM_ANSWERS`, sorted by film and topic."""
        asking = self._asks(judge_id)
        with self._link.reading() as connection:
            return frames.film_answers(connection, judge_id, asking)

    def replies(self, judge_id: int, *, control: bool = False, image_ids: Sequence[str] | None = None) -> pl.DataFrame:
        """Give every question asked about the dataset's films, or some, or the controls, as `frames.REPLIES`."""
        asking = self._asks(judge_id)
        with self._link.reading() as connection:
            return frames.replies(connection, judge_id, asking, control=control, image_ids=image_ids)

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the ledger as it is at one moment to a new file; runs may go on meanwhile."""
        target = Path(target)
        if target.exists():
            raise WorkspaceError(f"{target} is there already and is not overwritten. Name another file")
        self._copy(target)

    def _copy(self, target: Path) -> None:
        part = Path(f"{target}.part-{os.getpid()}")
        part.unlink(missing_ok=True)
        try:
            with self._link.bare() as connection:
                connection.exec_driver_sql("VACUUM INTO ?", (str(part),))
            place = Place(target)
            place.take(part)
        finally:
            part.unlink(missing_ok=True)

    def verify(self) -> list[str]:
        """Say what is wrong with the file or does not add up in it; nothing if all is well."""
        try:
            with self._link.reading() as connection:
                return tally.problems(connection)
        except WorkspaceError as error:  # too damaged to be read at all
            return [str(error)]
