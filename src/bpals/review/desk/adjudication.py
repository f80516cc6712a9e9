"""Settling by a person: what readers differ in, side by side and without names, pinned to what was on the screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, bindparam, select

from bpals.errors import NotNow, NotYours, Refused, StaleVersion
from bpals.ledger.reviewschema import CASE, HOW, READING
from bpals.ledger.schema import now
from bpals.review.desk.answer import Box
from bpals.review.desk.assignment import shuffled
from bpals.review.desk.bounds import check_text, complete_verdicts
from bpals.review.desk.chain import canonical
from bpals.review.desk.settling import CaseReads, majority, reads_of, set_stage
from bpals.review.desk.sitting import Request, Sitting
from bpals.review.desk.testimony import store_adjudications
from bpals.review.desk.views import Disagreement, Dispute, Opinion, Saved

MOST_CASES = 2**63
"""A database keeps no larger number."""
_READ_IT = select(READING.c.case_id).where(
    READING.c.study_id == bindparam("study"), READING.c.account_id == bindparam("person")
)
_DISPUTED = select(CASE.c.case_id).where(
    CASE.c.study_id == bindparam("study"),
    CASE.c.stage == "disputed",
    (CASE.c.round == 0) | (CASE.c.round > bindparam("rounds")),
    CASE.c.case_id.not_in(_READ_IT),
)


def next_disagreement(sitting: Sitting) -> Disagreement | None:
    """Give a case that waits for this person to settle it; discussions are left to their readers until they end."""
    check_role(sitting)
    asked = {"study": sitting.study_id, "person": sitting.account.account_id, "rounds": sitting.study.rounds}
    cases = sitting.connection.execute(_DISPUTED, asked).scalars().all()
    # Two adjudicators begin in different places.
    for case_id in sorted(cases, key=lambda case_id: shuffled(sitting.study.seed, sitting.account.name, case_id)):
        reads = reads_of(sitting, case_id)
        if reads.disputed:
            return show_disagreement(sitting, reads)
    return None


def disagreement(sitting: Sitting, case_id: int) -> Disagreement:
    """Give one disputed case as it stands now."""
    check_role(sitting)
    return show_disagreement(sitting, _open_case(sitting, case_id))


def adjudicate(
    request: Request, pinned: Mapping[str, int], verdicts: Mapping[str, tuple[str, str]], note: str
) -> Saved:
    """Settle every disputed finding of a case, from what was on the screen and nothing else."""
    sitting, case_id = request.sitting, int(request.subject)
    check_role(sitting)
    reads = _open_case(sitting, case_id)
    if any(row.account_id == sitting.account.account_id for row in reads.readers):
        raise NotYours("you read this case yourself: another adjudicator settles it")
    if dict(pinned) != dict(reads.pinned):
        raise StaleVersion(
            "a reader amended this case while you looked at it. Look at it again, then settle it",
            show_disagreement(sitting, reads),
        )
    check_text(note, "the note")
    complete_verdicts({finding: verdict for finding, (verdict, _) in verdicts.items()}, reads.disputed)
    for finding, (verdict, how) in verdicts.items():
        _check_how(reads, finding, verdict, how)
    sealed = store_adjudications(
        sitting.connection, [_row(sitting, reads, finding, said, note) for finding, said in verdicts.items()]
    )
    version = max(reads.pinned.values())
    detail = {"case": case_id, "adjudications": sealed, "pinned": dict(reads.pinned), "verdicts": _listed(verdicts)}
    saved = request.finish({"case_id": case_id, "version": version, "state": "settled"}, detail)
    set_stage(sitting, case_id, "settled", round_=reads.case.round)
    return saved


def show_disagreement(sitting: Sitting, reads: CaseReads, *, round_: int = 0) -> Disagreement:
    """Show what readers say of each disputed finding; who is Reader 1 differs from case to case."""
    case_id = reads.case.case_id
    order = sorted(reads.readers, key=lambda row: shuffled(sitting.study.seed, "names", case_id, row.reading_id))
    names = {row.reading_id: f"Reader {number}" for number, row in enumerate(order, start=1)}
    mine = {row.reading_id for row in reads.readers if row.account_id == sitting.account.account_id}
    last = round_ - 1 if round_ else max(reads.rounds, default=0)
    return Disagreement(
        case_id=case_id,
        image_id=reads.case.image_id,
        disputes=tuple(_dispute(reads, finding, names, mine, last) for finding in reads.disputed),
        pinned=reads.pinned,
        round=round_,
        rounds=sitting.study.rounds if round_ else 0,
    )


def check_role(sitting: Sitting) -> None:
    """Refuse whoever may not settle."""
    if not sitting.account.may_settle:
        raise NotYours("disagreements are settled by an adjudicator")


def _open_case(sitting: Sitting, case_id: int) -> CaseReads:
    stage = stage_of(sitting, case_id)
    if stage is None:
        raise NotYours("this study has no such case")
    if stage != "disputed":
        raise NotNow("there is nothing to settle in this case: its readers agree, or it was settled meanwhile")
    return reads_of(sitting, case_id)


def stage_of(sitting: Sitting, case_id: int) -> str | None:
    """Say how far a case of this study is; nothing where it has none of that number."""
    if not 0 < case_id < MOST_CASES:
        return None
    which = select(CASE.c.stage).where(CASE.c.case_id == case_id, CASE.c.study_id == sitting.study_id)
    return sitting.connection.execute(which).scalar()


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


def _row(sitting: Sitting, reads: CaseReads, finding: str, said: tuple[str, str], note: str) -> dict[str, Any]:
    verdict, how = said
    return {
        "study_id": sitting.study_id,
        "case_id": reads.case.case_id,
        "finding": finding,
        "verdict": verdict,
        "how": how,
        "round": max(reads.rounds, default=0),
        "account_id": sitting.account.account_id,
        "pinned": canonical(dict(reads.pinned)),
        "note": note or None,
        "at": now(),
    }


def _listed(verdicts: Mapping[str, tuple[str, str]]) -> dict[str, list[str]]:
    return {finding: list(said) for finding, said in verdicts.items()}
