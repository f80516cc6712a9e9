"""Who reads what next: leases, the order of each reader, and the hidden repeats.

The lowest batch that still wants a reader comes first, and within it each reader has an order of their own, made from
the seed of the study. A lease ends by the database's clock: the case goes back, and what was written stays.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
from sqlalchemy import Row, and_, bindparam, exists, func, insert, literal, or_, select, update

from bpals.errors import ContractBroken, NotNow, UnknownName, UsageError
from bpals.room.desk import readings
from bpals.room.desk.readings import FIRST_TIME, IS_LOCKED, MINE, WHOLE, Answer, Transaction, Verdict, shuffled
from bpals.room.desk.settling import settle
from bpals.room.desk.study import Study
from bpals.store.ledger.backend import Ready, insert_new
from bpals.store.ledger.schema import BATCH, CASE, DRAWN, READING, REVIEW, now

HINT_S = 10.0  # how long a hint holds: a case that is given back to an earlier batch waits at most so long


class BatchHints:
    """The lowest batch that had a case for a reader a moment ago: where to look first, and never more than that."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet; the clock is one that only goes forward."""
        self._clock = clock
        self._found: dict[int, tuple[int, float]] = {}

    def of(self, account_id: int) -> int:
        """Give the batch to begin with."""
        batch, until = self._found.get(account_id, (0, 0.0))
        return batch if self._clock() < until else 0

    def found(self, account_id: int, batch: int, *, began_at: int) -> None:
        """Remember where the search from a batch ended; a hint that was used does not hold longer for it."""
        _, until = self._found.get(account_id, (0, 0.0))
        self._found[account_id] = (batch, until if began_at else self._clock() + HINT_S)

    def forget(self) -> None:
        """Know nothing again: cases were drawn or withdrawn."""
        self._found.clear()


BLANK = Answer().as_json()
# Where a batch has PLENTY cases left for a reader, SPARE more are leased at once: the next requests then write nothing.
PLENTY, SPARE = 12, 3
_INSERT = Ready(insert(READING))

_HELD = READING.c.state.in_([literal("leased"), literal("locked")])
_IN_HAND = Ready(WHOLE.where(MINE, _HELD))
_RETURNED = Ready(
    WHOLE.where(MINE, READING.c.state == "released", or_(CASE.c.taken < CASE.c.wanted, ~FIRST_TIME))
    .order_by(READING.c.position)
    .limit(1)
)
_SKIPPED = Ready(WHOLE.where(MINE, READING.c.state == "skipped"))
_LAST_PLACE = Ready(select(func.coalesce(func.max(READING.c.position), -1)).where(MINE))
_PAST = and_(READING.c.study_id == bindparam("study"), READING.c.held_until < bindparam("moment"))
_OVERDUE = Ready(WHOLE.where(_PAST, _HELD))
_FIRST_OVERDUE = Ready(select(READING.c.reading_id).where(_PAST, READING.c.state == "leased").limit(1))
_READ_BY_ME = exists(literal(1)).where(READING.c.account_id == bindparam("reader"), READING.c.case_id == CASE.c.case_id)
_OFFERED = and_(CASE.c.study_id == bindparam("study"), readings.STILL_OPEN, ~_READ_BY_ME)
_BEGUN = CASE.c.taken > 0
_lowest = select(CASE.c.batch).where(_OFFERED, CASE.c.batch >= bindparam("floor")).order_by(CASE.c.batch).limit(1)
_LOWEST, _LOWEST_BEGUN = Ready(_lowest), Ready(_lowest.where(_BEGUN))
_cases = select(CASE.c.case_id, CASE.c.wanted, CASE.c.taken).where(_OFFERED, CASE.c.batch == bindparam("number"))
_OF_BATCH, _BEGUN_OF_BATCH = Ready(_cases), Ready(_cases.where(_BEGUN))


def sweep(tx: Transaction) -> None:
    """Do what the clock demands: leases that ended go back, and a last lock can no longer be undone."""
    for row in _OVERDUE.rows(tx.connection, study=tx.study_id, moment=tx.now):
        if row.state == "leased":
            readings.give_back(tx, row, "released")
            tx.note("lease ended", {"state": "released", "version": row.version}, reading_id=row.reading_id)
        elif not tx.study.reveal:
            finish_blind(tx, row)


def finish_blind(tx: Transaction, row: Row[Any]) -> None:
    """Make a locked read final where nothing is revealed, and see whether its case is settled."""
    readings.move(tx, row.reading_id, state="done")
    tx.note("final", {"state": "done", "version": row.version}, reading_id=row.reading_id)
    settle(tx, row.case_id)


def is_due(tx: Transaction, held: list[Row[Any]]) -> bool:
    """Say whether a lease of anybody has ended, or one of these is half over."""
    ends = _FIRST_OVERDUE.first(tx.connection, study=tx.study_id, moment=tx.now)
    return ends is not None or any(_is_half_over(tx, row) for row in held)


def in_hand(tx: Transaction) -> list[Row[Any]]:
    """Give the readings that this reader holds, in their order: being read, or locked and waiting for a second read."""
    rows = _IN_HAND.rows(tx.connection, **tx.mine)
    # Sorted here: asked to sort, SQLite would go through all that the reader ever read.
    return sorted((row for row in rows if row.state == "leased" or tx.study.reveal), key=lambda row: row.position)


def fill(tx: Transaction, missing: int, *, stopped: bool, hints: BatchHints) -> int:
    """Lease so many cases, fewer where fewer are left, and some more where there are plenty; say how many."""
    leased = 0
    while leased < missing and _take_returned(tx):
        leased += 1
    if leased == missing:
        return leased
    place = int(_LAST_PLACE.value(tx.connection, **tx.mine))
    offered: list[Row[Any]] = []
    while leased < missing:
        case_id = None if stopped else due_repeat(tx, place + 1)
        if case_id is not None:
            _lease(tx, case_id, f"repeat {tx.account.name}", place + 1)
        else:
            if not offered:
                offered = _offer(tx, stopped=stopped, hints=hints)
                missing += SPARE if len(offered) >= PLENTY else 0
            if not offered:
                break
            _take(tx, offered.pop(0), place + 1)
        place, leased = place + 1, leased + 1
    return leased


def bring_back(tx: Transaction) -> int:
    """Let the reader be handed again what they skipped, as far as others have not taken it."""
    rows = _SKIPPED.rows(tx.connection, **tx.mine)
    for row in rows:
        readings.move(tx, row.reading_id, state="released")
        tx.note("brought back", {"state": "released", "version": row.version}, reading_id=row.reading_id)
    return len(rows)


def renew(tx: Transaction, held: list[Row[Any]]) -> None:
    """Lengthen leases that are more than half over: their reader is here."""
    for row in held:
        if _is_half_over(tx, row):
            readings.move(tx, row.reading_id, held_until=tx.lease_end)


def _is_half_over(tx: Transaction, row: Row[Any]) -> bool:
    return bool(row.state == "leased" and row.held_until < tx.now + 30 * tx.study.lease_minutes)


def _take_returned(tx: Transaction) -> bool:
    """Lease again what this reader had begun, with its draft, if the case is still free."""
    row = _RETURNED.first(tx.connection, **tx.mine)
    if row is None or not readings.take_again(tx, row):
        return False
    tx.note("leased again", {"state": "leased", "version": row.version}, reading_id=row.reading_id)
    return True


def _offer(tx: Transaction, *, stopped: bool, hints: BatchHints) -> list[Row[Any]]:
    """Give the cases of the lowest batch that has one for this reader, in the reader's own order."""
    lowest, of_batch = (_LOWEST_BEGUN, _BEGUN_OF_BATCH) if stopped else (_LOWEST, _OF_BATCH)
    seed, reader = tx.study.seed, tx.account.account_id
    for floor in dict.fromkeys((hints.of(reader), 0)):
        batch = lowest.value(tx.connection, **tx.mine, floor=floor)
        if batch is not None:
            hints.found(reader, int(batch), began_at=floor)
            cases = of_batch.rows(tx.connection, **tx.mine, number=int(batch))
            return sorted(cases, key=lambda case: shuffled(seed, reader, case.case_id))
    return []


def _take(tx: Transaction, case: Row[Any], place: int) -> None:
    slot = "1" if case.taken == 0 else readings.free_slot(tx, case.case_id, case.wanted)
    if slot is None:
        raise ContractBroken(f"case {case.case_id} counts {case.taken} readers, but its {case.wanted} places are taken")
    readings.count_taken(tx, case.case_id, 1)
    _lease(tx, case.case_id, slot, place)


def _lease(tx: Transaction, case_id: int, slot: str, place: int) -> None:
    reading_id = secrets.token_urlsafe(16)
    row = {
        "reading_id": reading_id,
        "study_id": tx.study_id,
        "case_id": case_id,
        "account_id": tx.account.account_id,
        "slot": slot,
        "position": place,
        "state": "leased",
        "version": 0,
        "answer": BLANK,
        "held_until": tx.lease_end,
        "began": tx.now,
        "locked": None,
        "signal": None,
    }
    _INSERT.run(tx.connection, **row)
    detail = {"state": "leased", "version": 0, "case": case_id, "slot": slot, "reader": tx.account.name}
    tx.note("leased", detail, reading_id=reading_id)


_ONCE = READING.alias("once")
_REPEATABLE = Ready(
    select(READING.c.case_id)
    .where(
        MINE,
        IS_LOCKED,
        FIRST_TIME,
        READING.c.position <= bindparam("latest"),
        ~exists(literal(1)).where(_ONCE.c.case_id == READING.c.case_id, _ONCE.c.slot == bindparam("slot")),
    )
    .order_by(READING.c.position.desc())
    .limit(200)
)


def repeat_distance(study: Study) -> int:
    """Say after how many cases at the earliest a film may come again: long enough to be forgotten."""
    return max(5, study.batch // 2)


def due_repeat(tx: Transaction, place: int) -> int | None:
    """Give the case that this reader is to read again at this place of their order, if there is to be one.

    Of every 1 / repeats places one is for a repeat; which one, is drawn from the seed, so that nobody can count it out.
    """
    if tx.study.repeats <= 0:
        return None
    seed, reader = tx.study.seed, tx.account.account_id
    block = max(1, round(1 / tx.study.repeats))
    drawn = int(shuffled(seed, reader, "repeat", place // block)[:8], 16) % block
    latest = place - repeat_distance(tx.study)
    if place % block != drawn or latest < 0:
        return None
    slot = f"repeat {tx.account.name}"
    cases = [row.case_id for row in _REPEATABLE.rows(tx.connection, **tx.mine, latest=latest, slot=slot)]
    return min(cases, key=lambda case_id: shuffled(seed, reader, "again", case_id), default=None)


def why_none(tx: Transaction, stopped: str) -> tuple[readings.WhyNone, str]:
    """Say why there is no case for this reader now."""
    run, reader = tx.connection.execute, tx.account.account_id
    if run(select(CASE.c.case_id).where(tx.live).limit(1)).first() is None:
        return "empty", "No film has been drawn for this study yet."
    mine, of_study = READING.c.account_id == reader, READING.c.study_id == tx.study_id
    skipped = run(
        select(READING.c.reading_id)
        .join_from(READING, CASE, READING.c.case_id == CASE.c.case_id)
        .where(of_study, mine, READING.c.state == "skipped", CASE.c.taken < CASE.c.wanted)
    ).all()
    if skipped:
        return "skipped", f"Nothing is left but what you skipped: {len(skipped):,}. You can have them back."
    if stopped:
        return "stopped", f"The study is done: {stopped}."
    own = READING.alias("own")
    read_by_me = exists(literal(1)).where(
        own.c.account_id == reader, own.c.case_id == READING.c.case_id, own.c.state != "released"
    )
    held = select(READING.c.reading_id).where(of_study, ~mine, READING.c.state == "leased", ~read_by_me).limit(1)
    if run(held).first() is not None:
        return "held", "The cases that are left are being read by others. One that is given back comes to you."
    return "read", "You have read every case that wants you. Thank you."


COLUMNS = pl.Schema(
    {
        "image_id": pl.String(),
        "patient_id": pl.String(),
        "finding": pl.String(),
        "how": pl.String(),  # value or random; never shown to a reader
        "inclusion": pl.Float64(),
    }
)
"""What is drawn: one row per pair, in the order of reading."""

_HAS_READING = exists(literal(1)).where(READING.c.case_id == CASE.c.case_id)


def check_drawn(cases: pl.DataFrame, findings: Sequence[str]) -> pl.DataFrame:
    """Give the pairs in their types; a column or finding that does not fit is refused."""
    if missing := [name for name in COLUMNS if name not in cases.columns]:
        raise UsageError(f"the drawn cases have no column {missing[0]!r}. Give {', '.join(COLUMNS)}")
    pairs = cases.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())
    for finding in pairs["finding"].unique().sort():
        if finding not in findings:
            raise UnknownName.of("finding of the study", str(finding), findings, where="the drawn cases")
    chance = pl.col("inclusion").fill_nan(None)
    return pairs.with_columns(chance).unique(["image_id", "finding"], keep="first", maintain_order=True)


def withdraw(tx: Transaction) -> int:
    """Offer no more the cases that nobody has opened, and say how many those were."""
    unbegun = update(CASE).where(tx.live, CASE.c.taken == 0, ~_HAS_READING)
    return tx.connection.execute(unbegun.values(withdrawn=1)).rowcount


def add(tx: Transaction, pairs: pl.DataFrame, signal: str) -> int:
    """Add the films as cases, a batch after the other, and say how many are new.

    A film that is a case already is not read again: its new pairs are noted with that case. Only where a study asks
    nothing but the drawn findings, and the case has been begun without them, the film becomes a case once more.
    """
    films = pairs.group_by("image_id", maintain_order=True).agg(pl.col("patient_id").first(), "finding")
    live = _live_cases(tx)
    asked = _asked(tx) if tx.study.asks == "drawn" else {}
    known: dict[str, int] = {}
    new: list[dict[str, Any]] = []
    left_out: set[tuple[str, str]] = set()
    for image_id, patient_id, findings in films.iter_rows():
        case_id, begun = live.get(image_id, (0, False))
        if case_id and (tx.study.asks == "all" or not begun):
            known[image_id] = case_id
            continue
        again = asked.get(image_id, set()) if case_id else set()
        left_out.update((image_id, finding) for finding in findings if finding in again)
        if set(findings) - again:
            new.append({"image_id": image_id, "patient_id": patient_id})
    cases = known | _insert(tx, new, signal)
    rows = [
        {"case_id": cases[image_id], "finding": finding, "how": how, "inclusion": inclusion}
        for image_id, _, finding, how, inclusion in pairs.iter_rows()
        if image_id in cases and (image_id, finding) not in left_out
    ]
    # Of a known case some pairs may be there already: only what is missing is added.
    insert_new(tx.connection, DRAWN, rows)
    return len(new)


def _live_cases(tx: Transaction) -> dict[str, tuple[int, bool]]:
    """Give the newest case of each film that is not withdrawn, and whether somebody has opened it."""
    cases = select(CASE.c.image_id, CASE.c.case_id, _HAS_READING).where(tx.live).order_by(CASE.c.case_id)
    return {image_id: (case_id, bool(begun)) for image_id, case_id, begun in tx.connection.execute(cases)}


def _asked(tx: Transaction) -> dict[str, set[str]]:
    """Give the findings that the live cases of each film ask already."""
    pairs = select(CASE.c.image_id, DRAWN.c.finding).join_from(CASE, DRAWN, DRAWN.c.case_id == CASE.c.case_id)
    asked: dict[str, set[str]] = {}
    for image_id, finding in tx.connection.execute(pairs.where(tx.live)):
        asked.setdefault(image_id, set()).add(finding)
    return asked


def _insert(tx: Transaction, new: Sequence[Mapping[str, Any]], signal: str) -> dict[str, int]:
    """Insert the new cases with their batches, and give image_id -> case_id."""
    if not new:
        return {}
    last = select(func.max(BATCH.c.number)).where(BATCH.c.study_id == tx.study_id)
    first = int(tx.connection.execute(last).scalar() or 0) + 1
    size, at = tx.study.batch, now()
    same: dict[str, Any] = {"study_id": tx.study_id, "wanted": tx.study.readers_per_case, "taken": 0, "withdrawn": 0}
    same |= {"stage": "reading", "round": 0}
    cases = [{**case, **same, "batch": first + place // size} for place, case in enumerate(new)]
    numbers = range(first, first + -(-len(new) // size))
    batches = [{"study_id": tx.study_id, "number": number, "signal": signal, "at": at} for number in numbers]
    tx.connection.execute(insert(BATCH), batches)
    tx.connection.execute(insert(CASE), cases)
    added = select(CASE.c.image_id, CASE.c.case_id).where(CASE.c.study_id == tx.study_id, CASE.c.batch >= first)
    return dict(iter(tx.connection.execute(added)))


_REVIEWS = Ready(
    select(REVIEW.c.phase, REVIEW.c.finding, REVIEW.c.verdict, REVIEW.c.quality, REVIEW.c.devices)
    .where(REVIEW.c.reading_id == bindparam("wanted_id"))
    .order_by(REVIEW.c.review_id)
)
_FINISHED = (
    select(READING.c.reading_id, READING.c.position, READING.c.locked, READING.c.answer)
    .where(MINE, READING.c.state.in_(bindparam("states", expanding=True)), READING.c.position > bindparam("after"))
    .order_by(READING.c.position.desc())
    .limit(bindparam("most"))
)


def with_reading(tx: Transaction, saved: readings.Saved, reading_id: str) -> readings.Saved:
    """Put into a receipt the reading as it stands now, and what is stored of it where its second read is due."""
    row = readings.ONE_READING.first(tx.connection, wanted_id=reading_id)
    view = readings.show(tx, row)
    return replace(saved, view=view, read=blind_read(tx, row) if view.phase == "second" else None)


def blind_read(tx: Transaction, row: Row[Any]) -> readings.BlindRead:
    """Give what is stored of a reader's own blind read; NotNow before the lock."""
    stored = _stored(tx, row.reading_id)
    blind = stored.get("blind")
    if row.state not in {"locked", "done"} or not blind:
        raise NotNow("this case is not locked: nothing of it is stored yet")
    any_of_it = next(iter(blind.values()))
    return readings.BlindRead(
        verdicts=_verdicts(blind),
        quality=any_of_it.quality,
        devices=any_of_it.devices,
        second=_verdicts(stored["second"]) if "second" in stored else None,
    )


def last_readings(tx: Transaction, most: int) -> tuple[readings.FinishedReading, ...]:
    """Give the readings that this reader finished last, the newest first.

    Where films come again unmarked, none is listed that may be the one on the screen: that is to be read anew.
    """
    study, held = tx.study, in_hand(tx)
    wanted = {
        **tx.mine,
        # Where the study reveals, a case that is locked and not done still waits for its second read.
        "states": ["done"] if study.reveal else ["locked", "done"],
        "after": held[0].position - repeat_distance(study) if held and study.repeats > 0 else -1,
        "most": most,
    }
    return tuple(_finished(tx, row) for row in tx.connection.execute(_FINISHED, wanted).all())


def _finished(tx: Transaction, row: Row[Any, Any, Any, Any]) -> readings.FinishedReading:
    now, stored = Answer.from_json(row.answer), _stored(tx, row.reading_id)
    return readings.FinishedReading(
        reading_id=row.reading_id,
        case_no=row.position + 1,
        locked=row.locked,
        marked=now.verdicts,
        quality=now.quality,
        amended="amended" in stored,
        blind=_verdicts(stored.get("blind", {})),
        second=_verdicts(stored["second"]) if "second" in stored else None,
    )


def _stored(tx: Transaction, reading_id: str) -> dict[str, dict[str, Any]]:
    stored: dict[str, dict[str, Any]] = {}
    for review in _REVIEWS.rows(tx.connection, wanted_id=reading_id):
        # A later row stands instead of an earlier one: undone and read again.
        stored.setdefault(review.phase, {})[review.finding] = review
    return stored


def _verdicts(reviews: Mapping[str, Any]) -> dict[str, Verdict]:
    return {finding: review.verdict for finding, review in reviews.items()}
