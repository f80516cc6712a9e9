"""Why a reader is handed nothing, in one sentence."""

from __future__ import annotations

from sqlalchemy import exists, literal, select

from bpals.ledger.reviewschema import CASE, READING
from bpals.review.desk.sitting import Sitting
from bpals.review.desk.views import WhyNone


def why_none(sitting: Sitting, stopped: str) -> tuple[WhyNone, str]:
    """Say why there is no case for this reader now."""
    ask, mine = sitting.connection.execute, READING.c.account_id == sitting.account.account_id
    here = CASE.c.study_id == sitting.study_id
    if ask(select(CASE.c.case_id).where(here, CASE.c.withdrawn == 0).limit(1)).first() is None:
        return "empty", "No film has been drawn for this study yet."
    of_study = READING.c.study_id == sitting.study_id
    skipped = ask(
        select(READING.c.reading_id)
        .join_from(READING, CASE, READING.c.case_id == CASE.c.case_id)
        .where(of_study, mine, READING.c.state == "skipped", CASE.c.taken < CASE.c.wanted)
    ).all()
    if skipped:
        return "skipped", f"Nothing is left but what you skipped: {len(skipped):,}. You can have them back."
    own = READING.alias("own")
    read_by_me = exists(literal(1)).where(
        own.c.account_id == sitting.account.account_id, own.c.case_id == READING.c.case_id, own.c.state != "released"
    )
    held = select(READING.c.reading_id).where(of_study, ~mine, READING.c.state == "leased", ~read_by_me).limit(1)
    if stopped:
        return "stopped", f"The study is done: {stopped}."
    if ask(held).first() is not None:
        return "held", "The cases that are left are being read by others. One that is given back comes to you."
    return "read", "You have read every case that wants you. Thank you."
