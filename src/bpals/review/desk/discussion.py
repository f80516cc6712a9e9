"""Settling by discussion: in rounds, each in their own time and without names, until all agree or the rounds are over.

This is how the adjudicated labels of Majkowska et al. (Radiology, 2020) were made: readers who differ see what the
others said, and why, and answer again; after the last round the majority counts, and is recorded as a majority.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, bindparam, select

from bpals.errors import NotNow, NotYours, StaleVersion
from bpals.ledger.reviewschema import CASE, READING, REVIEW
from bpals.ledger.schema import now
from bpals.review.desk.adjudication import show_disagreement, stage_of
from bpals.review.desk.bounds import check_text, complete_verdicts
from bpals.review.desk.settling import CaseReads, majority, reads_of, record, set_stage
from bpals.review.desk.sitting import Request, Sitting
from bpals.review.desk.testimony import store_reviews
from bpals.review.desk.views import Disagreement, Saved

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


def next_round(sitting: Sitting) -> Disagreement | None:
    """Give a disputed case of this reader whose round they have not answered yet."""
    asked = {"study": sitting.study_id, "reader": sitting.account.account_id, "rounds": sitting.study.rounds}
    case_id = sitting.connection.execute(_WAITING, asked).scalar()
    if case_id is None:
        return None
    reads = reads_of(sitting, case_id)
    return show_disagreement(sitting, reads, round_=reads.case.round)


def round_of(sitting: Sitting, case_id: int) -> Disagreement:
    """Give one discussion of this reader, as it stands now."""
    reads, _ = _mine(sitting, case_id)
    return show_disagreement(sitting, reads, round_=reads.case.round)


def answer_round(request: Request, round_: int, verdicts: Mapping[str, str], note: str) -> Saved:
    """Store what a reader says in a round; the last to answer closes it."""
    sitting, case_id = request.sitting, int(request.subject)
    reads, own = _mine(sitting, case_id)
    if round_ != reads.case.round:
        shown = show_disagreement(sitting, reads, round_=reads.case.round)
        raise StaleVersion(f"round {round_} is over: this case is in round {reads.case.round}", shown)
    disputed = reads.disputed
    if any(own.reading_id in said for said in reads.rounds.get(round_, {}).values()):
        raise NotNow(f"you have answered round {round_} of this case. The others are asked first")
    complete_verdicts(verdicts, disputed)
    check_text(note, "the note")
    rows = [_review(sitting, own, round_, finding, verdicts[finding], note) for finding in disputed]
    sealed = store_reviews(sitting.connection, rows)
    reply = {"case_id": case_id, "version": round_, "state": "answered"}
    saved = request.finish(reply, {"case": case_id, "round": round_, "reviews": sealed, "verdicts": dict(verdicts)})
    _close(sitting, reads_of(sitting, case_id), disputed)
    return saved


def _mine(sitting: Sitting, case_id: int) -> tuple[CaseReads, Row[Any]]:
    """Give a discussion that this reader takes part in, and their reading of the case."""
    reads = reads_of(sitting, case_id) if stage_of(sitting, case_id) is not None else None
    own = [row for row in reads.readers if row.account_id == sitting.account.account_id] if reads else []
    if reads is None or not own:
        raise NotYours("you have no such discussion")
    if reads.case.stage != "disputed" or not 1 <= reads.case.round <= sitting.study.rounds:
        raise NotNow("the discussion of this case is over")
    return reads, own[0]


def _close(sitting: Sitting, reads: CaseReads, disputed: list[str]) -> None:
    """End the round if everybody has answered: what all say is settled, and after the last round what most say."""
    round_ = reads.case.round
    said = {finding: reads.rounds[round_].get(finding, {}) for finding in disputed}
    if any(len(answers) < len(reads.readers) for answers in said.values()):
        return
    votes = {finding: [row.verdict for row in answers.values()] for finding, answers in said.items()}
    agreed = {finding: verdicts[0] for finding, verdicts in votes.items() if len(set(verdicts)) == 1}
    record(sitting, reads, agreed, "consensus", round_)
    left = [finding for finding in disputed if finding not in agreed]
    if left and round_ == sitting.study.rounds:
        most = {finding: majority(votes[finding]) for finding in left}
        outvoted = {finding: verdict for finding, verdict in most.items() if verdict is not None}
        record(sitting, reads, outvoted, "majority", round_)
        left = [finding for finding in left if finding not in outvoted]
    if left:
        set_stage(sitting, reads.case.case_id, "disputed", round_=round_ + 1)
    else:
        set_stage(sitting, reads.case.case_id, "settled", round_=round_)


def _review(sitting: Sitting, own: Row[Any], round_: int, finding: str, verdict: str, note: str) -> dict[str, Any]:
    return {
        "study_id": sitting.study_id,
        "reading_id": own.reading_id,
        "image_id": own.image_id,
        "finding": finding,
        "reader": sitting.account.name,
        "phase": "round",
        "round": round_,
        "repeat": 0,
        "verdict": verdict,
        "saw_signal": int(sitting.study.reveal),
        "signal": own.signal,
        "note": note or None,
        "position": own.position,
        "source": "room",
        "at": now(),
    }
