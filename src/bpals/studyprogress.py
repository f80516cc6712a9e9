"""How far a study is: the numbers of the progress page, and of `bpals review progress`.

told = study_progress("audit")                        of the study in a workspace's ledger
told = progress("audit", gather(desk), study)         of one that is open

    version         of the signal that is in the workspace
    counts          readings, repeats, reads, pairs, films, readers, imported, second, unaudited
    pace            all readers and each: reader, readings, hours, per_hour, median_s (active time)
    errors          one row a finding: claims, pairs, settled, confirmed, open; of which said `present` and `absent`;
                    then the rate among all claims with rate, low, high, the sample (pairs) and films that it rests on,
                    whether they are `enough` to say anything, unread_share
    agreement       one row a finding and their mean: n, reads, readers, patients, `enough`, and agreement, fleiss,
                    alpha, alpha_ordinal, ac1, positive, negative, each with _low and _high; null where it is not
                    defined, and the ends also where the patients are too few
    within          each reader beside himself on hidden repeats: first, n, patients, enough, agreement, kappa, ac1, ...
    against         each reader beside the consensus, the same columns
    least           what `enough` is: films and width of a rate, patients of an agreement
    needed          under a stopping rule: rule, target, widest (the width now), finding, more_pairs, more_readings
    series          reads, found, pairs, random, random_low, random_high: errors found after so many readings, and as
                    many as reading so many pairs at random would have found
    stopping        rule, reached, words
    lessons         each lesson that made the signal in force: at, version, readings, reads, pairs, findings, changed,
                    untaught
    notices         what was left out, counted
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
from sqlalchemy import Connection, select

from bpals.blindreads import blind_reads
from bpals.errors import TruthError, UnknownName
from bpals.films.shelf import open_shelf
from bpals.ledger.reviewschema import CASE, DRAWN, STUDY
from bpals.lightbox import LISTING
from bpals.plural import several
from bpals.rating import rate
from bpals.relearning import lessons_of
from bpals.review.desk.consensus import CONSENSUS, REVIEW_COLUMNS
from bpals.review.desk.desk import Desk
from bpals.review.desk.study import Study, default_study
from bpals.scoring import vocabulary_of
from bpals.signal import fairsample
from bpals.signal.clusters import design_effect, widened
from bpals.signal.fairsample import fair_sample
from bpals.studynumbers import (
    ALL,
    LEAST_FILMS,
    LEAST_PATIENTS,
    SIDES,
    UNKNOWN,
    WIDEST,
    against_consensus,
    among_readers,
    confirmed_errors,
    counts,
    errors_found,
    needed_reads,
    pace,
    settled_claims,
    within_readers,
)
from bpals.types import REVIEWS, Notice
from bpals.workspace import Sealed, Workspace
from bpals.workspaceledger import open_ledger

_PAIR = ["image_id", "finding"]
_DRAWN = pl.Schema({"image_id": pl.String(), "finding": pl.String(), "batch": pl.Int64(), "how": pl.String()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What the ledger holds of a study, as tables: it can be sent to another process."""

    reviews: pl.DataFrame
    """`review.consensus.REVIEW_COLUMNS`."""
    consensus: pl.DataFrame
    """`review.consensus.CONSENSUS`."""
    drawn: pl.DataFrame
    """image_id, finding, batch, how: what was drawn, and when."""
    stopped: str = ""
    """Why no more cases are begun; empty while the study goes on."""


def gather(desk: Desk) -> Gathered:
    """Read from the ledger what progress is made of."""

    def drawn(connection: Connection) -> pl.DataFrame:
        rows = (
            select(CASE.c.image_id, DRAWN.c.finding, CASE.c.batch, DRAWN.c.how)
            .join_from(DRAWN, CASE, DRAWN.c.case_id == CASE.c.case_id)
            .where(CASE.c.study_id == desk.study_id)
            .order_by(CASE.c.batch, CASE.c.case_id)
        )
        return pl.DataFrame([tuple(row) for row in connection.execute(rows)], schema=_DRAWN, orient="row")

    return Gathered(
        reviews=desk.reviews(),
        consensus=desk.consensus(),
        drawn=desk.ledger.look(drawn),
        stopped=desk.stopped(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that progress is worked out from; it can be sent to another process."""

    workspace: Path
    gathered: Gathered
    study: Study
    films: frozenset[str] | None = None


def answer(question: Question) -> dict[str, Any]:
    """Tell how far a study is, in one argument: what a room's notice board does in another process."""
    return progress(question.workspace, question.gathered, question.study, films=question.films)


def study_progress(
    workspace: str | os.PathLike[str] = "audit", *, study: str | None = None, ledger: str | None = None
) -> dict[str, Any]:
    """Tell how far a study of a workspace is, the last one where none is named; reads from files need no study."""
    home = Workspace(workspace)
    vocabulary = vocabulary_of(home.open().table("claims.parquet", "finding"))
    with open_ledger(home, ledger, readonly=True) as kept:
        found = kept.look(lambda connection: connection.execute(select(STUDY).order_by(STUDY.c.study_id)).all())
        chosen = [row for row in found if study in (None, row.name)]
        if study is not None and not chosen:
            raise UnknownName.of("study", study, [row.name for row in found], where=str(home.path))
        if not chosen:
            desk = Desk(kept, default_study(vocabulary), 0)
        else:
            desk = Desk(kept, Study.from_json(chosen[-1].settings), chosen[-1].study_id)
        gathered = gather(desk) if chosen else replace(_nothing_drawn(), reviews=desk.reviews())
    told = progress(home.path, gathered, desk.study, films=_shown(home))
    return {"study": desk.study.name if chosen else None, **told}


def _nothing_drawn() -> Gathered:
    """Stand for a ledger that holds reads from files alone."""
    return Gathered(
        reviews=pl.DataFrame(schema=REVIEW_COLUMNS),
        consensus=pl.DataFrame(schema=CONSENSUS),
        drawn=pl.DataFrame(schema=_DRAWN),
    )


def _shown(home: Workspace) -> tuple[str, ...] | None:
    """Name the films that a room here can show, where it is known where they are."""
    where = home.remembered("images")
    if where is None or not Path(where).exists():
        return None
    wanted = home.open().table("images.parquet", "image_id")["image_id"].to_list()
    return open_shelf(where, wanted, listing=home.path / LISTING).found


def progress(
    workspace: str | os.PathLike[str],
    gathered: Gathered,
    study: Study,
    *,
    films: Collection[str] | None = None,
) -> dict[str, Any]:
    """Tell how far a study is; `films` names those that can be shown, where not all can: the error rate is theirs.

    It takes seconds on a large dataset: a room has it worked out in another process. The shape is in the module's text.
    """
    audit = Workspace(workspace).open()
    claims = _claims(audit, study, films)
    reads = blind_reads(gathered.reviews, vocabulary_of(audit.table("claims.parquet", "finding")))
    images = audit.table("images.parquet", "image_id", "patient_id")
    rates, notices = _rates(workspace, _with_chances(reads.table, gathered, claims, study), claims, films)
    settled = settled_claims(reads.table, gathered.reviews, gathered.consensus, claims)
    errors = confirmed_errors(settled, claims, rates)
    counted = counts(gathered.reviews, reads)
    needed = needed_reads(errors, set(claims["finding"].unique()), study, counted["readings"])
    return {
        "version": audit.run["files"]["signal.parquet"]["sha256"],
        "counts": counted,
        "pace": pace(gathered.reviews),
        "errors": errors,
        "agreement": among_readers(reads.table, images),
        "within": within_readers(gathered.reviews, images),
        "against": against_consensus(reads.table, gathered.consensus, images),
        "least": {"films": LEAST_FILMS, "width": WIDEST, "patients": LEAST_PATIENTS},
        "needed": needed,
        "series": errors_found(gathered.reviews, settled, errors),
        "stopping": _stopping(gathered, needed),
        "lessons": lessons_of(audit.run),
        "notices": [notice.message for notice in (*reads.notices, *notices)],
    }


def _claims(audit: Sealed, study: Study, films: Collection[str] | None) -> pl.DataFrame:
    """Read the definite claims that the study could be asked about, of its findings and of groups."""
    tables = [
        audit.table(name, *_PAIR, "says").with_columns(pl.col("finding", "says").cast(pl.String))
        for name in ("signal.parquet", "groups.parquet")
        if audit.has(name)
    ]
    claims = pl.concat(tables).filter(pl.col("says").is_in(SIDES))
    audited = tables[0]["finding"].unique()
    foreign = audited.filter(~audited.is_in(list(study.findings)))
    claims = claims.filter(~pl.col("finding").is_in(foreign.implode()))
    return claims if films is None else claims.filter(pl.col("image_id").is_in(list(films)))


def _as_settled(reads: pl.DataFrame, gathered: Gathered, wanted: int) -> pl.DataFrame:
    """Let each read of the room say what its study came to; those of a pair that waits for a reader are left out.

    Else one reader's slips would be errors of the label. Where all `wanted` have read a pair, it need not wait until
    other findings of its case are settled: what is hard to settle would be missing from the rate.
    """
    here = gathered.reviews.filter(pl.col("reading_id").is_not_null()).select(_PAIR).unique()
    agreed = gathered.consensus.select(*_PAIR, agreed=pl.col("verdict").cast(reads["verdict"].dtype))
    of_room = reads.join(here, on=_PAIR, how="semi", maintain_order="left")
    known = of_room.join(agreed.unique(_PAIR, keep="last"), on=_PAIR, how="left", maintain_order="left")
    all_read = pl.col("reader").n_unique().over(_PAIR) >= wanted
    said = known.filter(pl.col("agreed").is_not_null() | all_read)
    said = said.with_columns(verdict=pl.coalesce("agreed", "verdict")).select(reads.columns)
    return pl.concat([reads.join(here, on=_PAIR, how="anti", maintain_order="left"), said])


def _with_chances(reads: pl.DataFrame, gathered: Gathered, claims: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Give each settled read the chance that a rate may rest on: of the room's own, those of a fair sample have one.

    Reads from a file keep theirs. A finding of which every claim was read needs no chance: all is known.
    """
    key = ["image_id"] if study.asks == "all" else _PAIR
    named = pl.concat_str(key, separator="/")
    own = claims.filter(pl.col("finding").is_in(list(study.findings)))
    read = reads.select(item=named).unique()
    cases = gathered.drawn.select("batch", "how", item=named).with_columns(
        read=pl.col("item").is_in(read["item"].implode())
    )
    sample, chance = fair_sample(
        cases.select(fairsample.DRAWN.names()), items=own.select(key).n_unique(), seed=study.seed
    )
    of_room = pl.col("item").is_in(cases["item"].implode())
    fair = pl.when(pl.col("item").is_in(sample.implode())).then(chance)
    said = _as_settled(reads, gathered, study.readers_per_case)
    whole = claims.join(said, on=_PAIR, how="anti")["finding"].unique()
    return (
        said.with_columns(item=named)
        .with_columns(inclusion=pl.when(of_room).then(fair).otherwise("inclusion"))
        .with_columns(inclusion=pl.when(pl.col("finding").is_in(whole.implode())).then("inclusion").otherwise(1.0))
        .select(REVIEWS.names())
    )


def _rates(
    workspace: str | os.PathLike[str], reads: pl.DataFrame, claims: pl.DataFrame, films: Collection[str] | None
) -> tuple[dict[str, Mapping[str, Any]], list[Notice]]:
    """Tell the error rates by `bpals rate`; where the reads cannot say any, say why."""
    if reads.is_empty():
        return {}, []
    try:
        told = rate(workspace, reviews=reads, films=films)
    except TruthError as error:
        return {}, [Notice(code="no_rate", count=reads.height, message=f"no error rate yet: {error}")]
    rows = told.rates.filter(pl.col("says") == "all", pl.col("group_by").is_null())
    fair = told.reviews.filter(pl.col("inclusion").is_not_null())
    on: dict[str, int] = dict(fair.group_by("finding").agg(pl.col("image_id").n_unique()).iter_rows())
    on[ALL] = fair["image_id"].n_unique()
    rates: dict[str, Mapping[str, Any]] = {
        row["finding"]: {**row, "films": on.get(row["finding"], 0)} for row in rows.iter_rows(named=True)
    }
    if ALL in rates:
        rates[ALL] = {**rates[ALL], **_by_film(rates[ALL], fair, claims)}
    return rates, told.notes


def _by_film(row: Mapping[str, Any], fair: pl.DataFrame, claims: pl.DataFrame) -> dict[str, float]:
    """Widen the interval of all findings together as far as errors of one film go together."""
    if row["rate"] is None:
        return {}
    pairs = fair.unique(_PAIR, keep="last", maintain_order=True).join(claims, on=_PAIR, how="inner")
    definite = pairs.with_columns(pl.col("verdict").cast(pl.String)).filter(pl.col("verdict").is_in(SIDES))
    effect = design_effect(definite["image_id"], definite["verdict"] != definite["says"])
    low, high = widened(row["rate"], row["low"], row["high"], effect)
    return {"low": low, "high": high}


def _stopping(gathered: Gathered, needed: Mapping[str, Any]) -> dict[str, Any]:
    """Say whether the study may stop."""
    if gathered.stopped:
        return {"rule": "stopped", "reached": True, "words": gathered.stopped}
    more, target = needed["more_readings"], needed["target"]
    left = "" if not more else f": about {several(more, 'more reading')}"
    if needed["rule"] == "width":
        width = needed["widest"]
        now = "not known yet" if width in {None, UNKNOWN} else f"{width:.3f}"
        words = f"stop when every error rate is known to within {target:g}; the widest interval is {now}{left}"
        return {"rule": "width", "reached": width is not None and width <= target, "words": words}
    if needed["rule"] == "reads":
        words = f"stop after {several(target, 'reading')}: {more:,} more"
        return {"rule": "reads", "reached": not more, "words": words}
    return {"rule": None, "reached": False, "words": "no stopping rule: read as long as you like"}
