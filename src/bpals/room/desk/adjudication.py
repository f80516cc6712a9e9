"""Settling by a person: what readers differ in, side by side and without names, pinned to what was on the screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, bindparam, select

from bpals.errors import NotNow, NotYours, Refused, StaleVersion
from bpals.room.desk.assignment import shuffled
from bpals.room.desk.readings import (
    Box,
    Disagreement,
    Dispute,
    Opinion,
    Request,
    Saved,
    Transaction,
    check_text,
    complete_verdicts,
)
from bpals.room.desk.settling import CaseReads, majority, reads_of, record, set_stage
from bpals.store.ledger.log import canonical
from bpals.store.ledger.schema import CASE, HOW, READING, REVIEW, now
from bpals.store.ledger.verdicts import store_adjudications, store_reviews

MOST_CASES = 2**63  # a database keeps no larger number
_READ_IT = select(READING.c.case_id).where(
    READING.c.study_id == bindparam("study"), READING.c.account_id == bindparam("person")
)
_DISPUTED = select(CASE.c.case_id).where(
    CASE.c.study_id == bindparam("study"),
    CASE.c.stage == "disputed",
    (CASE.c.round == 0) | (CASE.c.round > bindparam("rounds")),
    CASE.c.case_id.not_in(_READ_IT),
)


def next_disagreement(tx: Transaction) -> Disagreement | None:
    """Give a case that waits for this person to settle it; discussions are left to their readers until they end."""
    check_role(tx)
    asked = {"study": tx.study_id, "person": tx.account.account_id, "rounds": tx.study.rounds}
    cases = tx.connection.execute(_DISPUTED, asked).scalars().all()
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
    request: Request, pinned: Mapping[str, int], verdicts: Mapping[str, tuple[str, str]], note: str
) -> Saved:
    """Settle every disputed finding of a case, from what was on the screen and nothing else."""
    tx, case_id = request.tx, int(request.subject)
    check_role(tx)
    reads = _open_case(tx, case_id)
    if any(row.account_id == tx.account.account_id for row in reads.readers):
        raise NotYours("you read this case yourself: another adjudicator settles it")
    if dict(pinned) != dict(reads.pinned):
        raise StaleVersion(
            "a reader amended this case while you looked at it. Look at it again, then settle it",
            show_disagreement(tx, reads),
        )
    check_text(note, "the note")
    complete_verdicts({finding: verdict for finding, (verdict, _) in verdicts.items()}, reads.disputed)
    for finding, (verdict, how) in verdicts.items():
        _check_how(reads, finding, verdict, how)
    sealed = store_adjudications(
        tx.connection, [_row(tx, reads, finding, said, note) for finding, said in verdicts.items()]
    )
    version = max(reads.pinned.values())
    detail = {"case": case_id, "adjudications": sealed, "pinned": dict(reads.pinned), "verdicts": _listed(verdicts)}
    saved = request.finish({"case_id": case_id, "version": version, "state": "settled"}, detail)
    set_stage(tx, case_id, "settled", round_=reads.case.round)
    return saved


def show_disagreement(tx: Transaction, reads: CaseReads, *, round_: int = 0) -> Disagreement:
    """Show what readers say of each disputed finding; who is Reader 1 differs from case to case."""
    case_id = reads.case.case_id
    order = sorted(reads.readers, key=lambda row: shuffled(tx.study.seed, "names", case_id, row.reading_id))
    names = {row.reading_id: f"Reader {number}" for number, row in enumerate(order, start=1)}
    mine = {row.reading_id for row in reads.readers if row.account_id == tx.account.account_id}
    last = round_ - 1 if round_ else max(reads.rounds, default=0)
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
            _opinion(said[r], names, mine) for said in before for r in shown if r in said and said[r] is not newest[r]
        ),
    )


def _opinion(row: Row[Any], names: Mapping[str, str], mine: set[str]) -> Opinion:
    boxes = json.loads(row.box) if row.box else []
    return Opinion(
        reader=names[row.reading_id],
        verdict=row.verdict,
        confidence=row.confidence,
        boxes=tuple(Box(finding=row.finding, x=x, y=y, width=w, height=h) for x, y, w, h in boxes),
        note=row.note or "",
        round=row.round,
        yours=row.reading_id in mine,
    )


def _check_how(reads: CaseReads, finding: str, verdict: str, how: str) -> None:
    """Refuse to call a majority what is none."""
    if how not in HOW:
        raise Refused(f"{finding} is settled by {how!r}; it is one of {', '.join(HOW)}")
    said = reads.newest(finding, max(reads.rounds, default=0))
    most = majority(row.verdict for row in said.values())
    if how == "majority" and most != verdict:
        found = f"most say {most}" if most else "no verdict has more than half"
        raise Refused(f"{finding}: {verdict} is not the majority's verdict: {found}. Settle it as adjudicator")


def _row(tx: Transaction, reads: CaseReads, finding: str, said: tuple[str, str], note: str) -> dict[str, Any]:
    verdict, how = said
    return {
        "study_id": tx.study_id,
        "case_id": reads.case.case_id,
        "finding": finding,
        "verdict": verdict,
        "how": how,
        "round": max(reads.rounds, default=0),
        "account_id": tx.account.account_id,
        "pinned": canonical(dict(reads.pinned)),
        "note": note or None,
        "at": now(),
    }


def _listed(verdicts: Mapping[str, tuple[str, str]]) -> dict[str, list[str]]:
    return {finding: list(said) for finding, said in verdicts.items()}


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
        READING.c.state.in_(["locked", "done"]),
        READING.c.slot.not_like("repeat %"),
        ~_ANSWERED,
    )
    .order_by(CASE.c.round.desc(), CASE.c.case_id)
    .limit(1)
)


def next_round(tx: Transaction) -> Disagreement | None:
    """Give a disputed case of this reader whose round they have not answered yet."""
    asked = {"study": tx.study_id, "reader": tx.account.account_id, "rounds": tx.study.rounds}
    case_id = tx.connection.execute(_WAITING, asked).scalar()
    if case_id is None:
        return None
    reads = reads_of(tx, case_id)
    return show_disagreement(tx, reads, round_=reads.case.round)


def round_of(tx: Transaction, case_id: int) -> Disagreement:
    """Give one discussion of this reader, as it stands now."""
    reads, _ = _mine(tx, case_id)
    return show_disagreement(tx, reads, round_=reads.case.round)


def answer_round(request: Request, round_: int, verdicts: Mapping[str, str], note: str) -> Saved:
    """Store what a reader says in a round; the last to answer closes it."""
    tx, case_id = request.tx, int(request.subject)
    reads, own = _mine(tx, case_id)
    if round_ != reads.case.round:
        shown = show_disagreement(tx, reads, round_=reads.case.round)
        raise StaleVersion(f"round {round_} is over: this case is in round {reads.case.round}", shown)
    disputed = reads.disputed
    if any(own.reading_id in said for said in reads.rounds.get(round_, {}).values()):
        raise NotNow(f"you have answered round {round_} of this case. The others are asked first")
    complete_verdicts(verdicts, disputed)
    check_text(note, "the note")
    rows = [_review(tx, own, round_, finding, verdicts[finding], note) for finding in disputed]
    sealed = store_reviews(tx.connection, rows)
    reply = {"case_id": case_id, "version": round_, "state": "answered"}
    saved = request.finish(reply, {"case": case_id, "round": round_, "reviews": sealed, "verdicts": dict(verdicts)})
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
    said = {finding: reads.rounds[round_].get(finding, {}) for finding in disputed}
    if any(len(answers) < len(reads.readers) for answers in said.values()):
        return
    votes = {finding: [row.verdict for row in answers.values()] for finding, answers in said.items()}
    agreed = {finding: verdicts[0] for finding, verdicts in votes.items() if len(set(verdicts)) == 1}
    record(tx, reads, agreed, "consensus", round_)
    left = [finding for finding in disputed if finding not in agreed]
    if left and round_ == tx.study.rounds:
        most = {finding: majority(votes[finding]) for finding in left}
        outvoted = {finding: verdict for finding, verdict in most.items() if verdict is not None}
        record(tx, reads, outvoted, "majority", round_)
        left = [finding for finding in left if finding not in outvoted]
    if left:
        set_stage(tx, reads.case.case_id, "disputed", round_=round_ + 1)
    else:
        set_stage(tx, reads.case.case_id, "settled", round_=round_)


def _review(tx: Transaction, own: Row[Any], round_: int, finding: str, verdict: str, note: str) -> dict[str, Any]:
    return {
        "study_id": tx.study_id,
        "reading_id": own.reading_id,
        "image_id": own.image_id,
        "finding": finding,
        "reader": tx.account.name,
        "phase": "round",
        "round": round_,
        "repeat": 0,
        "verdict": verdict,
        "saw_signal": int(tx.study.reveal),
        "signal": own.signal,
        "note": note or None,
        "position": own.position,
        "source": "room",
        "at": now(),
    }
