"""When all have read a case: do they agree, and what happens if they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, bindparam, literal, select, update

from bpals.room.desk import readings
from bpals.room.desk.readings import WHOLE, Transaction, Verdict
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.log import canonical
from bpals.store.ledger.schema import ADJUDICATION, CASE, READING, REVIEW, now
from bpals.store.ledger.verdicts import store_adjudications

_CASE = Ready(select(CASE).where(CASE.c.case_id == bindparam("of_case")))
_READERS = Ready(
    WHOLE.where(
        READING.c.case_id == bindparam("of_case"), READING.c.state.in_([literal("locked"), literal("done")])
    ).order_by(READING.c.reading_id)
)
_SAID = Ready(
    select(REVIEW)
    .join_from(REVIEW, READING, REVIEW.c.reading_id == READING.c.reading_id)
    .where(READING.c.case_id == bindparam("of_case"), REVIEW.c.repeat == 0)
    .order_by(REVIEW.c.review_id)
)
_CALLED = Ready(update(CASE).where(CASE.c.case_id == bindparam("of_case")).values(wanted=bindparam("more")))
_MOVED = Ready(
    update(CASE)
    .where(CASE.c.case_id == bindparam("of_case"))
    .values(stage=bindparam("to_stage"), round=bindparam("to_round"))
)
_SETTLED = Ready(select(ADJUDICATION.c.finding).where(ADJUDICATION.c.case_id == bindparam("of_case")))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReads:
    """One case with the blind reads that stand, and with what was said of it in rounds."""

    case: Row[Any]
    readers: tuple[Row[Any], ...]  # final readings, hidden repeats left out, in the order of their random ids
    blind: Mapping[str, Mapping[str, Row[Any]]]  # finding -> reading_id -> the row that stands
    rounds: Mapping[int, Mapping[str, Mapping[str, Row[Any]]]]  # round -> finding -> reading_id -> what was said then
    settled: frozenset[str]
    pinned: Mapping[str, int]  # reading_id -> the last thing its reader said of the case, second reads left out
    amended: Mapping[str, Mapping[str, Verdict]]
    """Finding -> reading_id -> what its reader says since, having seen the label."""

    @property
    def disputed(self) -> list[str]:
        """The findings on which the blind reads differ and that nobody settled."""
        return [
            finding
            for finding, said in self.blind.items()
            if finding not in self.settled and len({row.verdict for row in said.values()}) > 1
        ]

    def newest(self, finding: str, round_: int) -> dict[str, Row[Any]]:
        """Give what each reader said last, up to a round."""
        said = dict(self.blind[finding])
        for number in sorted(self.rounds):
            if number <= round_:
                said.update(self.rounds[number].get(finding, {}))
        return said


def majority(verdicts: Iterable[str]) -> str | None:
    """Give what more than half of the readers say; nothing where no verdict has that."""
    votes = Counter(verdicts)
    verdict, most = votes.most_common(1)[0] if votes else ("", 0)
    return verdict if most > votes.total() / 2 else None


def reads_of(tx: Transaction, case_id: int) -> CaseReads:
    """Gather what was said of a case by those whose blind read is final."""
    case = _CASE.first(tx.connection, of_case=case_id)
    return _gather(tx, case, _final_readers(tx, case_id))


def _final_readers(tx: Transaction, case_id: int) -> tuple[Row[Any], ...]:
    found = _READERS.rows(tx.connection, of_case=case_id)
    return tuple(row for row in found if readings.is_final(tx, row) and not readings.is_repeat(row))


def _gather(tx: Transaction, case: Row[Any], readers: tuple[Row[Any], ...]) -> CaseReads:
    connection = tx.connection
    final = {row.reading_id for row in readers}
    blind: dict[str, dict[str, Row[Any]]] = {}
    rounds: dict[int, dict[str, dict[str, Row[Any]]]] = {}
    amended: dict[str, dict[str, Verdict]] = {}
    pinned: dict[str, int] = {}
    for row in _SAID.rows(connection, of_case=case.case_id):
        if row.reading_id not in final or row.phase == "second":
            continue
        pinned[row.reading_id] = row.review_id
        if row.phase == "round":
            rounds.setdefault(row.round, {}).setdefault(row.finding, {})[row.reading_id] = row
        elif row.saw_signal:
            amended.setdefault(row.finding, {})[row.reading_id] = row.verdict
        else:
            # a later row stands instead of an earlier one: undone and read again, or amended.
            blind.setdefault(row.finding, {})[row.reading_id] = row
    return CaseReads(
        case=case,
        readers=readers,
        blind=blind,
        rounds=rounds,
        settled=frozenset(row.finding for row in _SETTLED.rows(connection, of_case=case.case_id)),
        pinned=pinned,
        amended=amended,
    )


def settle(tx: Transaction, case_id: int) -> None:
    """See whether a case has all its reads, and do what the study's rule says where they differ."""
    rule = tx.study.adjudication
    case = _CASE.first(tx.connection, of_case=case_id)
    if rule == "none" or case.stage == "settled" or case.taken < case.wanted:
        return
    readers = _final_readers(tx, case_id)
    if len(readers) < case.wanted:
        return
    reads = _gather(tx, case, readers)
    disputed = reads.disputed
    if not disputed:
        _set_stage(tx, reads, "reading", round_=0)
    elif rule == "third":
        _third(tx, reads, disputed)
    elif case.stage != "disputed":
        _set_stage(tx, reads, "disputed", round_=1 if rule == "discussion" else 0)


def record(tx: Transaction, reads: CaseReads, verdicts: Mapping[str, str], how: str, round_: int = 0) -> None:
    """Write down what the rule settled, with the versions it saw."""
    at, pinned = now(), canonical(dict(reads.pinned))
    rows = [
        {
            "study_id": tx.study_id,
            "case_id": reads.case.case_id,
            "finding": finding,
            "verdict": verdict,
            "how": how,
            "round": round_,
            "account_id": None,
            "pinned": pinned,
            "note": None,
            "at": at,
        }
        for finding, verdict in verdicts.items()
    ]
    if rows:
        sealed = store_adjudications(tx.connection, rows)
        tx.note(how, {"case": reads.case.case_id, "adjudications": sealed, "verdicts": dict(verdicts)})


def _third(tx: Transaction, reads: CaseReads, disputed: list[str]) -> None:
    """Call one reader more where no verdict has a majority yet; then let the majority stand."""
    votes = {finding: majority(row.verdict for row in reads.blind[finding].values()) for finding in disputed}
    case_id = reads.case.case_id
    if None in votes.values() and reads.case.wanted == tx.study.readers_per_case:
        more = reads.case.wanted + 1
        _CALLED.run(tx.connection, of_case=case_id, more=more)
        tx.note("another reader called", {"case": case_id, "wanted": more, "findings": disputed})
        return
    found = {finding: verdict for finding, verdict in votes.items() if verdict is not None}
    record(tx, reads, found, "majority")
    _set_stage(tx, reads, "disputed" if None in votes.values() else "settled", round_=0)


def _set_stage(tx: Transaction, reads: CaseReads, stage: str, *, round_: int) -> None:
    if (reads.case.stage, reads.case.round) != (stage, round_):
        set_stage(tx, reads.case.case_id, stage, round_=round_)


def set_stage(tx: Transaction, case_id: int, stage: str, *, round_: int) -> None:
    """Move a case on, and write it down."""
    _MOVED.run(tx.connection, of_case=case_id, to_stage=stage, to_round=round_)
    tx.note(stage, {"case": case_id, "round": round_})
