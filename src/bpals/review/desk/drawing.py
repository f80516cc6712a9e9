"""Cases into the study: films that were drawn to be read, in batches, each pair with its chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl
from sqlalchemy import exists, func, insert, literal, select, update

from bpals.errors import UnknownName, UsageError
from bpals.ledger.reviewschema import BATCH, CASE, DRAWN, READING
from bpals.ledger.schema import now
from bpals.ledger.upsert import insert_new
from bpals.review.desk.sitting import Sitting

COLUMNS = pl.Schema(
    {
        "image_id": pl.String(),
        "patient_id": pl.String(),
        "finding": pl.String(),
        "how": pl.String(),  # value or random; never shown to a reader
        "inclusion": pl.Float64(),
    }
)
"""What is drawn: one row a pair, in the order of reading."""

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


def withdraw(sitting: Sitting) -> int:
    """Offer no more the cases that nobody has opened, and say how many those were."""
    unbegun = (CASE.c.study_id == sitting.study_id) & (CASE.c.withdrawn == 0) & (CASE.c.taken == 0) & ~_HAS_READING
    return sitting.connection.execute(update(CASE).where(unbegun).values(withdrawn=1)).rowcount


def add(sitting: Sitting, pairs: pl.DataFrame, signal: str) -> int:
    """Add the films as cases, a batch after the other, and say how many are new.

    A film that is a case already is not read again: its new pairs are noted with that case. Only where a study asks
    nothing but the drawn findings, and the case has been begun without them, the film becomes a case once more.
    """
    films = pairs.group_by("image_id", maintain_order=True).agg(pl.col("patient_id").first(), "finding")
    live = _live_cases(sitting)
    asked = _asked(sitting) if sitting.study.asks == "drawn" else {}
    known: dict[str, int] = {}
    new: list[dict[str, Any]] = []
    left_out: set[tuple[str, str]] = set()
    for image_id, patient_id, findings in films.iter_rows():
        case_id, begun = live.get(image_id, (0, False))
        if case_id and (sitting.study.asks == "all" or not begun):
            known[image_id] = case_id
            continue
        again = asked.get(image_id, set()) if case_id else set()
        left_out.update((image_id, finding) for finding in findings if finding in again)
        if set(findings) - again:
            new.append({"image_id": image_id, "patient_id": patient_id})
    added = _insert(sitting, new, signal)
    for cases, store in ((added, _insert_drawn), (known, _insert_missing)):
        store(
            sitting,
            [
                {"case_id": cases[image_id], "finding": finding, "how": how, "inclusion": inclusion}
                for image_id, _, finding, how, inclusion in pairs.iter_rows()
                if image_id in cases and (image_id, finding) not in left_out
            ],
        )
    return len(new)


def _live_cases(sitting: Sitting) -> dict[str, tuple[int, bool]]:
    """Give the newest case of each film that is not withdrawn, and whether somebody has opened it."""
    cases = (
        select(CASE.c.image_id, CASE.c.case_id, _HAS_READING)
        .where(CASE.c.study_id == sitting.study_id, CASE.c.withdrawn == 0)
        .order_by(CASE.c.case_id)
    )
    return {image_id: (case_id, bool(begun)) for image_id, case_id, begun in sitting.connection.execute(cases)}


def _asked(sitting: Sitting) -> dict[str, set[str]]:
    """Give the findings that the live cases of each film ask already."""
    pairs = (
        select(CASE.c.image_id, DRAWN.c.finding)
        .join_from(CASE, DRAWN, DRAWN.c.case_id == CASE.c.case_id)
        .where(CASE.c.study_id == sitting.study_id, CASE.c.withdrawn == 0)
    )
    asked: dict[str, set[str]] = {}
    for image_id, finding in sitting.connection.execute(pairs):
        asked.setdefault(image_id, set()).add(finding)
    return asked


def _next_batch(sitting: Sitting) -> int:
    last = select(func.max(BATCH.c.number)).where(BATCH.c.study_id == sitting.study_id)
    return int(sitting.connection.execute(last).scalar() or 0) + 1


def _insert_drawn(sitting: Sitting, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        sitting.connection.execute(insert(DRAWN), rows)


def _insert_missing(sitting: Sitting, rows: Sequence[Mapping[str, Any]]) -> None:
    insert_new(sitting.connection, DRAWN, rows)


def _insert(sitting: Sitting, new: Sequence[Mapping[str, Any]], signal: str) -> dict[str, int]:
    """Insert the new cases with their batches, and give image_id -> case_id."""
    if not new:
        return {}
    first = _next_batch(sitting)
    batches = list(_batches(new, sitting.study.batch, first))
    at = now()
    numbers = [{"study_id": sitting.study_id, "number": number, "signal": signal, "at": at} for number, _ in batches]
    sitting.connection.execute(insert(BATCH), numbers)
    same = {"study_id": sitting.study_id, "wanted": sitting.study.readers_per_case, "taken": 0, "withdrawn": 0}
    new_rows = [
        {**case, **same, "batch": number, "stage": "reading", "round": 0} for number, some in batches for case in some
    ]
    sitting.connection.execute(insert(CASE), new_rows)
    added = select(CASE.c.image_id, CASE.c.case_id).where(CASE.c.study_id == sitting.study_id, CASE.c.batch >= first)
    return dict(iter(sitting.connection.execute(added)))


def _batches(
    cases: Sequence[Mapping[str, Any]], size: int, first: int
) -> Iterator[tuple[int, Sequence[Mapping[str, Any]]]]:
    for number, start in enumerate(range(0, len(cases), size), start=first):
        yield number, cases[start : start + size]
