"""The desk: where readers get their cases and hand in their verdicts. One call is one transaction, durable on return.

desk = Desk.open(ledger, study)
desk.draw(cases, signal)                          films into the study
handed = desk.next(account)                       what to read now, and what comes next
desk.draft(...), desk.lock(...), desk.second(...)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import polars as pl
from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from bpals.errors import NotNow, UsageError
from bpals.room.desk import acts, assignment, readings, settling
from bpals.room.desk.readings import Answer, Disagreement, Handed, ReadingView, Request, Saved, Spent, Transaction
from bpals.room.desk.study import Account, Study, differences
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.review_rows import consensus, reviews
from bpals.store.ledger.schema import STUDY, now

_Given = TypeVar("_Given")
_COUNT_S = 30.0  # how long the number of cases is believed: another process may draw

_STOPPED = Ready(select(STUDY.c.stopped).where(STUDY.c.study_id == bindparam("study")))

ROOM = Account(account_id=0, name=log.ROOM, role="admin")


class Desk:
    """One study at work; any thread may call it, and on PostgreSQL any number of processes."""

    def __init__(self, ledger: Ledger, study: Study, study_id: int) -> None:
        """Take over a study that is in the ledger: use `Desk.open`."""
        self.ledger = ledger
        self.study = study
        self.study_id = study_id
        self._of: tuple[float, int] | None = None
        self._hints = assignment.BatchHints()

    @classmethod
    def open(cls, ledger: Ledger, study: Study) -> Desk:
        """Make the study, or find it; one of the same name with other settings is refused, naming the difference."""
        return cls(ledger, study, ledger.change(lambda connection: _enter(connection, study)))

    def draw(self, cases: pl.DataFrame, signal: str, *, replace: bool = False) -> int:
        """Add films as cases (`assignment.COLUMNS`, in the order of reading), and say how many are new.

        `replace` first withdraws the cases of earlier draws that nobody has opened.
        """
        pairs = assignment.check_drawn(cases, self.study.findings)

        def work(tx: Transaction) -> int:
            withdrawn = assignment.withdraw(tx) if replace else 0
            added = assignment.add(tx, pairs, signal)
            tx.note("drawn", {"cases": added, "withdrawn": withdrawn, "pairs": pairs.height, "signal": signal})
            return added

        added = self._write(ROOM, work)
        self._of = None
        self._hints.forget()
        return added

    def next(self, account: Account, *, ahead: int = 2) -> Handed:
        """Give the reader's next case and some after it, so that their films can be loaded before they are wanted."""
        wanted = 1 + ahead

        def look(tx: Transaction) -> Handed | None:
            held = assignment.in_hand(tx)
            enough = len(held) >= wanted and not assignment.is_due(tx, held)
            return self._hand(tx, held[:wanted]) if enough else None

        def lease(tx: Transaction) -> Handed:
            assignment.sweep(tx)
            stopped = self._stopped(tx)
            held = assignment.in_hand(tx)
            missing = wanted - len(held)
            if missing > 0 and assignment.fill(tx, missing, stopped=bool(stopped), hints=self._hints):
                held = assignment.in_hand(tx)
            assignment.renew(tx, held)
            if not held:
                code, sentence = assignment.why_none(tx, stopped)
                return Handed(current=None, why_none=sentence, why_code=code)
            return self._hand(tx, held[:wanted])

        return self._read(account, look) or self._write(account, lease)

    def reading(self, account: Account, reading_id: str) -> ReadingView:
        """Give one of the reader's own readings; another's is NotYours."""
        return self._read(account, lambda tx: readings.show(tx, readings.find(tx, reading_id)))

    def blind_read(self, account: Account, reading_id: str) -> readings.BlindRead:
        """Give what is stored of the reader's own blind read; NotNow before the lock."""
        return self._read(account, lambda tx: assignment.blind_read(tx, readings.find(tx, reading_id)))

    def last_readings(self, account: Account, *, most: int = 20) -> tuple[readings.FinishedReading, ...]:
        """Give the readings that this reader finished last, the newest first, to be amended."""
        return self._read(account, lambda tx: assignment.last_readings(tx, most))

    def draft(self, account: Account, reading_id: str, *, version: int, key: str, answer: Answer) -> Saved:
        """Keep what is written so far."""
        request = Request(action="draft", subject=reading_id, key=key, content=answer.as_json())
        return self._once(account, request, lambda tx: acts.draft(tx, request, version, answer))

    def lock(
        self,
        account: Account,
        reading_id: str,
        *,
        version: int,
        key: str,
        answer: Answer,
        spent: Spent,
        signal: str | None = None,
    ) -> Saved:
        """Store the blind read for good; a case that has gone to another reader keeps it as a draft, and says so.

        `signal` is the version that the reader is shown as soon as this returns.
        """
        request = Request(action="lock", subject=reading_id, key=key, content=answer.as_json())
        saved = self._once(
            account, request, lambda tx: acts.lock(tx, request, version, answer, spent, signal), view=True
        )
        if saved.reply["state"] == "released":
            raise NotNow("your time for this case had ended and it has gone to another reader; what you wrote is kept")
        return saved

    def second(
        self,
        account: Account,
        reading_id: str,
        *,
        version: int,
        key: str,
        answer: Answer,
        spent: Spent,
        signal: str | None = None,
    ) -> Saved:
        """Store the second read, after the reveal.

        `signal` is the version that was on the screen; without it, the one that was revealed last.
        """
        request = Request(action="second", subject=reading_id, key=key, content=answer.as_json())
        return self._once(account, request, lambda tx: acts.second(tx, request, version, answer, spent, signal))

    def skip(self, account: Account, reading_id: str, *, version: int, key: str) -> Saved:
        """Leave a case to others."""
        request = Request(action="skip", subject=reading_id, key=key)
        return self._once(account, request, lambda tx: acts.skip(tx, request, version), view=True)

    def undo(self, account: Account, reading_id: str, *, version: int, key: str) -> Saved:
        """Take back a skip, or the last lock where the study does not reveal."""
        request = Request(action="undo", subject=reading_id, key=key)
        return self._once(account, request, lambda tx: acts.undo(tx, request, version), view=True)

    def amend(self, account: Account, reading_id: str, *, version: int, key: str, answer: Answer, reason: str) -> Saved:
        """Correct a locked read, with a reason; the first one stays beside it."""
        request = Request(action="amend", subject=reading_id, key=key, content=f"{answer.as_json()}\0{reason}")
        return self._once(account, request, lambda tx: acts.amend(tx, request, version, answer, reason), view=True)

    def bring_back(self, account: Account) -> int:
        """Offer the reader again what they skipped and nobody else has taken; say how many those are."""
        return self._write(account, assignment.bring_back)

    def note_reveal(self, account: Account, reading_id: str, signal: str) -> None:
        """Write down that the reader is shown a version of the signal; NotNow before the lock."""
        self._write(account, lambda tx: acts.note_reveal(tx, reading_id, signal))

    def adjudication_next(self, account: Account) -> Disagreement | None:
        """Give a case that waits for this adjudicator."""
        return self._read(account, settling.next_disagreement)

    def disagreement(self, account: Account, case_id: int) -> Disagreement:
        """Give one disputed case as it stands now."""
        return self._read(account, lambda tx: settling.disagreement(tx, case_id))

    def adjudicate(
        self,
        account: Account,
        case_id: int,
        *,
        pinned: Mapping[str, int],
        key: str,
        verdicts: Mapping[str, tuple[str, str]],
        note: str = "",
    ) -> Saved:
        """Settle every disputed finding: finding -> verdict and how; StaleVersion if a reader amended meanwhile."""
        content = log.canonical([sorted(verdicts.items()), note])
        request = Request(action="adjudicate", subject=str(case_id), key=key, content=content)
        return self._once(account, request, lambda tx: settling.adjudicate(tx, request, pinned, verdicts, note))

    def round_next(self, account: Account) -> Disagreement | None:
        """Give a discussion in which this reader is asked again."""
        return self._read(account, settling.next_round)

    def round(self, account: Account, case_id: int) -> Disagreement:
        """Give one discussion of this reader, as it stands now."""
        return self._read(account, lambda tx: settling.round_of(tx, case_id))

    def round_answer(
        self, account: Account, case_id: int, *, round_: int, key: str, verdicts: Mapping[str, str], note: str = ""
    ) -> Saved:
        """Answer a round of a discussion: finding -> verdict."""
        content = log.canonical([round_, sorted(verdicts.items()), note])
        request = Request(action="round", subject=str(case_id), key=key, content=content)
        return self._once(account, request, lambda tx: settling.answer_round(tx, request, round_, verdicts, note))

    def note_width(self, width: float) -> bool:
        """Tell the desk how wide the interval of the error rate is; say whether the study has stopped."""
        limit = self.study.stop_width

        def work(tx: Transaction) -> bool:
            if limit is not None and width <= limit:
                acts.stop(tx, f"the interval is {width:.3f} wide, and the study was to stop at {limit:g}")
            return bool(self._stopped(tx))

        return self._write(ROOM, work)

    def stopped(self) -> str:
        """Say why no more cases are begun; nothing while the study goes on."""
        return self._read(ROOM, self._stopped)

    def consensus(self) -> pl.DataFrame:
        """Give the verdict of every pair that has all its reads: CONSENSUS of the ledger."""
        study = self.study
        return self.ledger.look(lambda c: consensus(c, self.study_id, asks=study.asks, reveal=study.reveal))

    def reviews(self) -> pl.DataFrame:
        """Give every review, and whether it stands: REVIEW_COLUMNS of the ledger."""
        return self.ledger.look(lambda connection: reviews(connection, self.study_id))

    def counts(self) -> readings.Counts:
        """Count cases, readings and what is open."""
        return self.ledger.look(lambda connection: readings.count(connection, self.study_id))

    def _hand(self, tx: Transaction, held: list[Row[Any]]) -> Handed:
        current, *others = readings.show_all(tx, held)
        return Handed(current=current, ahead=tuple(others), of=max(current.case_no, self._expected(tx)))

    def _stopped(self, tx: Transaction) -> str:
        return _STOPPED.value(tx.connection, study=self.study_id) or ""

    def _expected(self, tx: Transaction) -> int:
        """Say about how many cases a reader will be handed; counting 100,000 takes a while, so it is remembered."""
        if self._of is None or time.monotonic() - self._of[0] > _COUNT_S:
            cases = int(tx.connection.execute(select(func.count()).where(tx.live)).scalar_one())
            self._of = (time.monotonic(), round(cases * (1 + self.study.repeats)))
        return self._of[1]

    def _transaction(self, connection: Connection, account: Account) -> Transaction:
        return Transaction(
            connection=connection,
            study=self.study,
            study_id=self.study_id,
            account=account,
            now=self.ledger.database_time(connection),
            log=log.Log(connection),
        )

    def _write(self, account: Account, work: Callable[[Transaction], _Given]) -> _Given:
        def turn(connection: Connection) -> _Given:
            # Whoever writes waits here for their turn, and then sees all that was written before.
            log.hold(connection)
            return work(self._transaction(connection, account))

        return self.ledger.change(turn)

    def _read(self, account: Account, work: Callable[[Transaction], _Given]) -> _Given:
        return self.ledger.look(lambda connection: work(self._transaction(connection, account)))

    def _once(
        self, account: Account, request: Request, work: Callable[[Transaction], Saved], *, view: bool = False
    ) -> Saved:
        """Do what is requested once: the same key again gives the first receipt.

        With `view` the receipt holds the reading as it stands now, with which the page goes on.
        """

        def once(tx: Transaction) -> Saved:
            saved = request.done_before(tx) or work(tx)
            return assignment.with_reading(tx, saved, request.subject) if view else saved

        return self._write(account, once)


def _enter(connection: Connection, study: Study) -> int:
    """Make the study or find it, and give its id; what may change in one that has begun is brought up to date."""
    log.hold(connection)
    kept = connection.execute(select(STUDY).where(STUDY.c.name == study.name)).first()
    if kept is None:
        row = {"name": study.name, "settings": study.as_json(), "at": now()}
        study_id = int(connection.execute(insert(STUDY).returning(STUDY.c.study_id), [row]).scalar_one())
    elif differing := differences(Study.from_json(kept.settings), study):
        raise UsageError(
            f"the study {study.name!r} has begun with other settings: {'; '.join(differing)}. "
            "Put them back, or give the new study another name"
        )
    elif kept.settings == study.as_json():
        return int(kept.study_id)
    else:
        study_id = int(kept.study_id)
        connection.execute(update(STUDY).where(STUDY.c.study_id == study_id).values(settings=study.as_json()))
    detail = {"study": study_id, "settings": asdict(study)}
    log.append(connection, actor=log.ROOM, action="study", detail=detail)
    return study_id
