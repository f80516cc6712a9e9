"""How the readers of a case come to agree: by the study's rule, in rounds of a discussion, or by an adjudicator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, bindparam, select, update

from bpals.errors import NotNow, NotYours, Refused, StaleVersion
from bpals.room.desk import readings
from bpals.room.desk.readings import (
    FIRST_TIME,
    IS_LOCKED,
    Disagreement,
    Dispute,
    Opinion,
    Request,
    Saved,
    Transaction,
    shuffled,
)
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.log import canonical
from bpals.store.ledger.review_rows import store
from bpals.store.ledger.schema import ADJUDICATION, CASE, HOW, READING, REVIEW, now

MOST_CASES = 2**63  # a database keeps no larger number
_CASE = Ready(select(CASE).where(CASE.c.case_id == bindparam("of_case")))
_OF_CASE = READING.c.case_id == bindparam("of_case")
_LOCKED_READS = Ready(readings.WHOLE.where(_OF_CASE, IS_LOCKED, FIRST_TIME).order_by(READING.c.reading_id))
_REVIEWS = Ready(
    select(REVIEW)
    .join_from(REVIEW, READING, REVIEW.c.reading_id == READING.c.reading_id)
    .where(_OF_CASE, REVIEW.c.repeat == 0)
    .order_by(REVIEW.c.review_id)
)
_CALLED = Ready(update(CASE).where(CASE.c.case_id == bindparam("of_case")).values(wanted=bindparam("more")))
_MOVED = Ready(
    update(CASE)
    .where(CASE.c.case_id == bindparam("of_case"))
    .values(stage=bindparam("to_stage"), round=bindparam("to_round"))
)
_SETTLED = Ready(select(ADJUDICATION.c.finding).where(ADJUDICATION.c.case_id == bindparam("of_case")))
_READ_IT = select(READING.c.case_id).where(
    READING.c.study_id == bindparam("study"), READING.c.account_id == bindparam("person")
)
_DISPUTED = select(CASE.c.case_id).where(
    CASE.c.study_id == bindparam("study"),
    CASE.c.stage == "disputed",
    (CASE.c.round == 0) | (CASE.c.round > bindparam("rounds")),
    CASE.c.case_id.not_in(_READ_IT),
)
_ANSWERED = (
    select(REVIEW.c.review_id)
    .where(REVIEW.c.reading_id == READING.c.reading_id, REVIEW.c.phase == "round", REVIEW.c.round == CASE.c.round)
    .exists()
)
_WAITING = (
    select(CASE.c.case_id)
    .join_from(CASE, READING, READING.c.case_id == CASE.c.case_id)
    .where(
        CASE.c.study_id == bindparam("study"),
        CASE.c.stage == "disputed",
        CASE.c.round.between(1, bindparam("rounds")),
        READING.c.account_id == bindparam("reader"),
        IS_LOCKED,
        FIRST_TIME,
        ~_ANSWERED,
    )
    .order_by(CASE.c.round.desc(), CASE.c.case_id)
    .limit(1)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReads:
    """One case with the blind reads that stand, and with the verdicts of its rounds."""

    case: Row[Any]
    readers: tuple[Row[Any], ...]  # final readings, hidden repeats left out, in the order of their random ids
    blind: Mapping[str, Mapping[str, Row[Any]]]  # finding -> reading_id -> the row that stands
    rounds: Mapping[int, Mapping[str, Mapping[str, Row[Any]]]]  # round -> finding -> reading_id -> the review then
    settled: frozenset[str]
    pinned: Mapping[str, int]  # reading_id -> the last review of its reader, second reads left out
    amended: Mapping[str, Mapping[str, readings.Verdict]]
    """Finding -> reading_id -> what its reader says since, having seen the label."""

    @property
    def disputed(self) -> list[str]:
        """The findings on which the blind reads differ and that nobody settled."""
        return [
            finding
            for finding, rows in self.blind.items()
            if finding not in self.settled and len({row.verdict for row in rows.values()}) > 1
        ]

    @property
    def last_round(self) -> int:
        """The last round that somebody answered; 0 before the first."""
        return max(self.rounds, default=0)

    def newest(self, finding: str, round_: int) -> dict[str, Row[Any]]:
        """Give the last review of each reader, up to a round."""
        newest = dict(self.blind[finding])
        for number in sorted(self.rounds):
            if number <= round_:
                newest.update(self.rounds[number].get(finding, {}))
        return newest


def majority(verdicts: Iterable[str]) -> str | None:
    """Give what more than half of the readers say; nothing where no verdict has that."""
    votes = Counter(verdicts)
    verdict, most = votes.most_common(1)[0] if votes else ("", 0)
    return verdict if most > votes.total() / 2 else None


def reads_of(tx: Transaction, case_id: int) -> CaseReads:
    """Gather the reviews of a case by those whose blind read is final."""
    connection = tx.connection
    locked = _LOCKED_READS.rows(connection, of_case=case_id)
    readers = tuple(row for row in locked if readings.is_final(tx, row))
    final = {row.reading_id for row in readers}
    blind: dict[str, dict[str, Row[Any]]] = {}
    rounds: dict[int, dict[str, dict[str, Row[Any]]]] = {}
    amended: dict[str, dict[str, readings.Verdict]] = {}
    pinned: dict[str, int] = {}
    for row in _REVIEWS.rows(connection, of_case=case_id):
        if row.reading_id not in final or row.phase == "second":
            continue
        pinned[row.reading_id] = row.review_id
        if row.phase == "round":
            rounds.setdefault(row.round, {}).setdefault(row.finding, {})[row.reading_id] = row
        elif row.saw_signal:
            amended.setdefault(row.finding, {})[row.reading_id] = row.verdict
        else:
            # A later row stands instead of an earlier one: undone and read again, or amended.
            blind.setdefault(row.finding, {})[row.reading_id] = row
    return CaseReads(
        case=_CASE.first(connection, of_case=case_id),
        readers=readers,
        blind=blind,
        rounds=rounds,
        settled=frozenset(row.finding for row in _SETTLED.rows(connection, of_case=case_id)),
        pinned=pinned,
        amended=amended,
    )


def settle(tx: Transaction, case_id: int) -> None:
    """See whether a case has all its reads, and do what the study's rule says where they differ."""
    rule = tx.study.adjudication
    case = _CASE.first(tx.connection, of_case=case_id)
    if rule == "none" or case.stage == "settled" or case.taken < case.wanted:
        return
    reads = reads_of(tx, case_id)
    if len(reads.readers) < case.wanted:
        return
    disputed = reads.disputed
    if not disputed:
        _set_stage(tx, reads, "reading", round_=0)
    elif rule == "third":
        _third(tx, reads, disputed)
    elif case.stage != "disputed":
        _set_stage(tx, reads, "disputed", round_=1 if rule == "discussion" else 0)


def _store(tx: Transaction, reads: CaseReads, verdicts: Mapping[str, tuple[str, str]], **more: Any) -> dict[str, str]:
    """Store what was settled, finding -> verdict and how, with the versions of the reads that it rests on."""
    same = {
        "study_id": tx.study_id,
        "case_id": reads.case.case_id,
        "pinned": canonical(dict(reads.pinned)),
        "at": now(),
        **more,
    }
    rows = [{**same, "finding": name, "verdict": verdict, "how": how} for name, (verdict, how) in verdicts.items()]
    return store(tx.connection, ADJUDICATION, rows)


def _record(tx: Transaction, reads: CaseReads, verdicts: Mapping[str, str], how: str, round_: int = 0) -> None:
    if verdicts:
        digests = _store(tx, reads, {name: (verdict, how) for name, verdict in verdicts.items()}, round=round_)
        tx.note(how, {"case": reads.case.case_id, "adjudications": digests, "verdicts": dict(verdicts)})


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
    _record(tx, reads, found, "majority")
    _set_stage(tx, reads, "disputed" if None in votes.values() else "settled", round_=0)


def _set_stage(tx: Transaction, reads: CaseReads, stage: str, *, round_: int) -> None:
    """Move a case on, and write it down, unless it is there already."""
    if (reads.case.stage, reads.case.round) != (stage, round_):
        _MOVED.run(tx.connection, of_case=reads.case.case_id, to_stage=stage, to_round=round_)
        tx.note(stage, {"case": reads.case.case_id, "round": round_})


def next_disagreement(tx: Transaction) -> Disagreement | None:
    """Give a case that waits for this person to settle it; discussions are left to their readers until they end."""
    check_role(tx)
    person = {"study": tx.study_id, "person": tx.account.account_id, "rounds": tx.study.rounds}
    cases = tx.connection.execute(_DISPUTED, person).scalars().all()
    # Two adjudicators begin in different places.
    for case_id in sorted(cases, key=lambda case_id: shuffled(tx.study.seed, tx.account.name, case_id)):
        reads = reads_of(tx, case_id)
        if reads.disputed:
            return show_disagreement(tx, reads)
    return None


def disagreement(tx: Transaction, case_id: int) -> Disagreement:
    """Give one disputed case as it stands now."""
    check_role(tx)
    return show_disagreement(tx, _open_case(tx, case_id))


def adjudicate(
    tx: Transaction, request: Request, pinned: Mapping[str, int], verdicts: Mapping[str, tuple[str, str]], note: str
) -> Saved:
    """Settle every disputed finding of a case, from what was on the screen and nothing else."""
    case_id = int(request.subject)
    check_role(tx)
    reads = _open_case(tx, case_id)
    if any(row.account_id == tx.account.account_id for row in reads.readers):
        raise NotYours("you read this case yourself: another adjudicator settles it")
    if dict(pinned) != dict(reads.pinned):
        raise StaleVersion(
            "a reader amended this case while you looked at it. Look at it again, then settle it",
            show_disagreement(tx, reads),
        )
    readings.check_text(note, "the note")
    readings.complete_verdicts({finding: verdict for finding, (verdict, _) in verdicts.items()}, reads.disputed)
    for finding, (verdict, how) in verdicts.items():
        _check_how(reads, finding, verdict, how)
    more = {"round": reads.last_round, "account_id": tx.account.account_id, "note": note or None}
    detail = {
        "case": case_id,
        "adjudications": _store(tx, reads, verdicts, **more),
        "pinned": dict(reads.pinned),
        "verdicts": {finding: list(settled) for finding, settled in verdicts.items()},
    }
    version = max(reads.pinned.values())
    saved = request.finish(tx, {"case_id": case_id, "version": version, "state": "settled"}, detail)
    _set_stage(tx, reads, "settled", round_=reads.case.round)
    return saved


def show_disagreement(tx: Transaction, reads: CaseReads, *, round_: int = 0) -> Disagreement:
    """Show what readers say of each disputed finding; who is Reader 1 differs from case to case."""
    case_id = reads.case.case_id
    order = sorted(reads.readers, key=lambda row: shuffled(tx.study.seed, "names", case_id, row.reading_id))
    names = {row.reading_id: f"Reader {number}" for number, row in enumerate(order, start=1)}
    mine = {row.reading_id for row in reads.readers if row.account_id == tx.account.account_id}
    last = round_ - 1 if round_ else reads.last_round
    return Disagreement(
        case_id=case_id,
        image_id=reads.case.image_id,
        disputes=tuple(_dispute(reads, finding, names, mine, last) for finding in reads.disputed),
        pinned=reads.pinned,
        round=round_,
        rounds=tx.study.rounds if round_ else 0,
    )


def check_role(tx: Transaction) -> None:
    """Refuse whoever may not settle."""
    if not tx.account.may_settle:
        raise NotYours("disagreements are settled by an adjudicator")


def _open_case(tx: Transaction, case_id: int) -> CaseReads:
    stage = stage_of(tx, case_id)
    if stage is None:
        raise NotYours("this study has no such case")
    if stage != "disputed":
        raise NotNow("there is nothing to settle in this case: its readers agree, or it was settled meanwhile")
    return reads_of(tx, case_id)


def stage_of(tx: Transaction, case_id: int) -> str | None:
    """Say how far a case of this study is; nothing where it has none of that number."""
    if not 0 < case_id < MOST_CASES:
        return None
    which = select(CASE.c.stage).where(CASE.c.case_id == case_id, CASE.c.study_id == tx.study_id)
    return tx.connection.execute(which).scalar()


def _dispute(reads: CaseReads, finding: str, names: Mapping[str, str], mine: set[str], last: int) -> Dispute:
    newest = reads.newest(finding, last)
    since = reads.amended.get(finding, {})
    before = [reads.blind[finding], *(reads.rounds[n].get(finding, {}) for n in sorted(reads.rounds) if n <= last)]
    shown = sorted(names, key=lambda reading_id: names[reading_id])
    return Dispute(
        finding=finding,
        opinions=tuple(replace(_opinion(newest[r], names, mine), amended=since.get(r)) for r in shown if r in newest),
        earlier=tuple(
            _opinion(rows[r], names, mine) for rows in before for r in shown if r in rows and rows[r] is not newest[r]
        ),
    )


def _opinion(row: Row[Any], names: Mapping[str, str], mine: set[str]) -> Opinion:
    boxes = json.loads(row.box) if row.box else []
    return Opinion(
        reader=names[row.reading_id],
        verdict=row.verdict,
        confidence=row.confidence,
        boxes=tuple(readings.Box(finding=row.finding, x=x, y=y, width=w, height=h) for x, y, w, h in boxes),
        note=row.note or "",
        round=row.round,
        yours=row.reading_id in mine,
    )


def _check_how(reads: CaseReads, finding: str, verdict: str, how: str) -> None:
    """Refuse to call a majority what is none."""
    if how not in HOW:
        raise Refused(f"{finding} is settled by {how!r}; it is one of {', '.join(HOW)}")
    most = majority(row.verdict for row in reads.newest(finding, reads.last_round).values())
    if how == "majority" and most != verdict:
        found = f"most say {most}" if most else "no verdict has more than half"
        raise Refused(f"{finding}: {verdict} is not the majority's verdict: {found}. Settle it as adjudicator")


def next_round(tx: Transaction) -> Disagreement | None:
    """Give a disputed case of this reader whose round they have not answered yet."""
    person = {"study": tx.study_id, "reader": tx.account.account_id, "rounds": tx.study.rounds}
    case_id = tx.connection.execute(_WAITING, person).scalar()
    if case_id is None:
        return None
    reads = reads_of(tx, case_id)
    return show_disagreement(tx, reads, round_=reads.case.round)


def round_of(tx: Transaction, case_id: int) -> Disagreement:
    """Give one discussion of this reader, as it stands now."""
    reads, _ = _mine(tx, case_id)
    return show_disagreement(tx, reads, round_=reads.case.round)


def answer_round(tx: Transaction, request: Request, round_: int, verdicts: Mapping[str, str], note: str) -> Saved:
    """Store what a reader says in a round; the last to answer closes it."""
    case_id = int(request.subject)
    reads, own = _mine(tx, case_id)
    if round_ != reads.case.round:
        shown = show_disagreement(tx, reads, round_=reads.case.round)
        raise StaleVersion(f"round {round_} is over: this case is in round {reads.case.round}", shown)
    disputed = reads.disputed
    if any(own.reading_id in rows for rows in reads.rounds.get(round_, {}).values()):
        raise NotNow(f"you have answered round {round_} of this case. The others are asked first")
    readings.complete_verdicts(verdicts, disputed)
    readings.check_text(note, "the note")
    row = readings.review_row(
        tx, own, "round", round=round_, saw_signal=int(tx.study.reveal), signal=own.signal, note=note or None
    )
    digests = store(tx.connection, REVIEW, [row | {"finding": each, "verdict": verdicts[each]} for each in disputed])
    reply = {"case_id": case_id, "version": round_, "state": "answered"}
    saved = request.finish(
        tx, reply, {"case": case_id, "round": round_, "reviews": digests, "verdicts": dict(verdicts)}
    )
    _close(tx, reads_of(tx, case_id), disputed)
    return saved


def _mine(tx: Transaction, case_id: int) -> tuple[CaseReads, Row[Any]]:
    """Give a discussion that this reader takes part in, and their reading of the case."""
    reads = reads_of(tx, case_id) if stage_of(tx, case_id) is not None else None
    own = [row for row in reads.readers if row.account_id == tx.account.account_id] if reads else []
    if reads is None or not own:
        raise NotYours("you have no such discussion")
    if reads.case.stage != "disputed" or not 1 <= reads.case.round <= tx.study.rounds:
        raise NotNow("the discussion of this case is over")
    return reads, own[0]


def _close(tx: Transaction, reads: CaseReads, disputed: list[str]) -> None:
    """End the round if everybody has answered: what all say is settled, and after the last round what most say."""
    round_ = reads.case.round
    given = {finding: reads.rounds[round_].get(finding, {}) for finding in disputed}
    if any(len(answers) < len(reads.readers) for answers in given.values()):
        return
    votes = {finding: [row.verdict for row in answers.values()] for finding, answers in given.items()}
    agreed = {finding: verdicts[0] for finding, verdicts in votes.items() if len(set(verdicts)) == 1}
    _record(tx, reads, agreed, "consensus", round_)
    left = [finding for finding in disputed if finding not in agreed]
    if left and round_ == tx.study.rounds:
        most = {finding: majority(votes[finding]) for finding in left}
        outvoted = {finding: verdict for finding, verdict in most.items() if verdict is not None}
        _record(tx, reads, outvoted, "majority", round_)
        left = [finding for finding in left if finding not in outvoted]
    _set_stage(tx, reads, "disputed" if left else "settled", round_=round_ + 1 if left else round_)
