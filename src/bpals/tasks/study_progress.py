"""How far a study is: the numbers of the progress page, and of `bpals review progress`.

numbers = study_progress("audit")                     of the study in a workspace's ledger
numbers = progress("audit", gather(desk), study)      of one that is open

    version         of the signal that is in the workspace
    counts          readings, repeats, reads, pairs, films, readers, imported, second, unaudited
    pace            all readers and each: reader, readings, hours, per_hour, median_s (active time)
    errors          one row per finding: claims, pairs, settled, confirmed, open; of which label `present` and `absent`;
                    then the rate among all claims with rate, low, high, the sample (pairs) and films that it rests on,
                    whether they are `enough` to say anything, unread_share
    agreement       one row per finding and their mean: n, reads, readers, patients, `enough`, and agreement, fleiss,
                    alpha, alpha_ordinal, ac1, positive, negative, each with _low and _high; null where it is not
                    defined, and the ends also where the patients are too few
    within          each reader against their own first read on hidden repeats: first, n, patients, enough, agreement,
                    kappa, ac1, ...
    against         each reader against the consensus, the same columns
    least           what `enough` is: films and width of a rate, patients of an agreement
    needed          under a stopping rule: rule, target, widest (the width now), finding, more_pairs, more_readings
    series          reads, found, pairs, random, random_low, random_high: errors found after so many readings, and as
                    many as reading so many pairs at random would have found
    stopping        rule, reached, words
    lessons         each lesson that made the signal in force: at, version, readings, reads, pairs, findings, changed
    notices         what was left out, counted
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from sqlalchemy import Connection, select

from bpals.errors import TruthError, UnknownName
from bpals.images.collection import open_index
from bpals.numeric import PAIR, majority, patients
from bpals.reviews.agreement import MEAN, Bootstrap, among, between, side_by_side
from bpals.reviews.ledger_reads import blind_reads, voting
from bpals.reviews.verdicts import DEFINITE
from bpals.room.desk.desk import Desk
from bpals.room.desk.study import Study, default_study
from bpals.signal.rates import DRAWN as CASES_DRAWN
from bpals.signal.rates import design_effect, fair_sample, widened
from bpals.store.ledger.ledger import open_ledger
from bpals.store.ledger.review_rows import CONSENSUS
from bpals.store.ledger.schema import CASE, DRAWN, STUDY
from bpals.store.workspace import FinishedAudit, Workspace
from bpals.tasks.image_access import LISTING
from bpals.tasks.rate import rate
from bpals.tasks.relearn import lessons_of
from bpals.tasks.score import vocabulary_of
from bpals.text import several
from bpals.types import REVIEWS, Notice, Reviews

ALL = "all findings"
EVERYONE = "all readers"
CONSENSUS_READER = "consensus"
SAME_READER = "the same reader"
# No error rate is shown from fewer films that were fairly drawn and read, nor where its interval is wider.
LEAST_FILMS, WIDEST = 10, 0.5
# Patients whose films were read twice, below which no agreement is shown: intervals are drawn over patients.
LEAST_PATIENTS = 10
UNKNOWN = 1.0  # the width of an interval that nothing is known about
POINTS = 200  # of the curve, at most
DRAWS = 500  # times that patients are drawn for the intervals of agreement
HOUR = 3600.0
SIDES = ["present", "absent"]
_DRAWN = pl.Schema({"image_id": pl.String(), "finding": pl.String(), "batch": pl.Int64(), "how": pl.String()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What the ledger holds of a study, as tables: it can be sent to another process."""

    reviews: pl.DataFrame  # REVIEW_COLUMNS
    consensus: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CONSENSUS))
    drawn: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_DRAWN))  # what was drawn, and when
    stopped: str = ""  # why no more cases are begun; empty while the study goes on


def study_progress(
    workspace: str | os.PathLike[str] = "audit", *, study: str | None = None, ledger: str | None = None
) -> dict[str, Any]:
    """Give the numbers of a workspace's study, the last one where none is named; reads from files need no study."""
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
        gathered = gather(desk) if chosen else Gathered(reviews=desk.reviews())
    numbers = progress(home.path, gathered, desk.study, films=_shown(home))
    return {"study": desk.study.name if chosen else None, **numbers}


def progress(
    workspace: str | os.PathLike[str], gathered: Gathered, study: Study, *, films: Collection[str] | None = None
) -> dict[str, Any]:
    """Give the numbers of a study; `films` names those that can be shown, where not all can: the error rate is theirs.

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
        reviews=desk.reviews(), consensus=desk.consensus(), drawn=desk.ledger.look(drawn), stopped=desk.stopped()
    )


def _shown(home: Workspace) -> tuple[str, ...] | None:
    """Name the films that a room here can show, where it is known where they are."""
    where = home.remembered("images")
    if where is None or not Path(where).exists():
        return None
    wanted = home.open().table("images.parquet", "image_id")["image_id"].to_list()
    return open_index(where, wanted, listing=home.path / LISTING).found


def _claims(audit: FinishedAudit, study: Study, films: Collection[str] | None) -> pl.DataFrame:
    """Read the definite claims that the study could be asked about, of its findings and of groups."""
    tables = [
        audit.table(name, *PAIR, "says").with_columns(pl.col("finding", "says").cast(pl.String))
        for name in ("signal.parquet", "groups.parquet")
        if audit.has(name)
    ]
    claims = pl.concat(tables).filter(pl.col("says").is_in(SIDES))
    audited = tables[0]["finding"].unique()
    foreign = audited.filter(~audited.is_in(list(study.findings)))
    claims = claims.filter(~pl.col("finding").is_in(foreign.implode()))
    return claims if films is None else claims.filter(pl.col("image_id").is_in(list(films)))


def _as_settled(reads: pl.DataFrame, gathered: Gathered, wanted: int) -> pl.DataFrame:
    """Put what the study came to in the place of each read of the room; pairs that wait for a reader are left out.

    Else one reader's slips would be errors of the label. Where all `wanted` have read a pair, it need not wait until
    other findings of its case are settled: what is hard to settle would be missing from the rate.
    """
    here = gathered.reviews.filter(pl.col("reading_id").is_not_null()).select(PAIR).unique()
    agreed = gathered.consensus.select(*PAIR, agreed=pl.col("verdict").cast(reads["verdict"].dtype))
    of_room = reads.join(here, on=PAIR, how="semi", maintain_order="left")
    known = of_room.join(agreed.unique(PAIR, keep="last"), on=PAIR, how="left", maintain_order="left")
    all_read = pl.col("reader").n_unique().over(PAIR) >= wanted
    settled = known.filter(pl.col("agreed").is_not_null() | all_read)
    settled = settled.with_columns(verdict=pl.coalesce("agreed", "verdict")).select(reads.columns)
    return pl.concat([reads.join(here, on=PAIR, how="anti", maintain_order="left"), settled])


def _with_chances(reads: pl.DataFrame, gathered: Gathered, claims: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Give each settled read the chance that a rate may rest on: of the room's own, those of a fair sample have one.

    Reads from a file keep theirs. A finding of which every claim was read needs no chance: all is known.
    """
    key = ["image_id"] if study.asks == "all" else PAIR
    named = pl.concat_str(key, separator="/")
    own = claims.filter(pl.col("finding").is_in(list(study.findings)))
    read = reads.select(item=named).unique()
    cases = gathered.drawn.select("batch", "how", item=named).with_columns(
        read=pl.col("item").is_in(read["item"].implode())
    )
    sample, chance = fair_sample(cases.select(CASES_DRAWN.names()), items=own.select(key).n_unique(), seed=study.seed)
    of_room = pl.col("item").is_in(cases["item"].implode())
    fair = pl.when(pl.col("item").is_in(sample.implode())).then(chance)
    settled = _as_settled(reads, gathered, study.readers_per_case)
    whole = claims.join(settled, on=PAIR, how="anti")["finding"].unique()
    return (
        settled.with_columns(item=named)
        .with_columns(inclusion=pl.when(of_room).then(fair).otherwise("inclusion"))
        .with_columns(inclusion=pl.when(pl.col("finding").is_in(whole.implode())).then("inclusion").otherwise(1.0))
        .select(REVIEWS.names())
    )


def _rates(
    workspace: str | os.PathLike[str], reads: pl.DataFrame, claims: pl.DataFrame, films: Collection[str] | None
) -> tuple[dict[str, Mapping[str, Any]], list[Notice]]:
    """Give the error rates of `bpals rate`; where the reads give none, a notice says why."""
    if reads.is_empty():
        return {}, []
    try:
        found = rate(workspace, reviews=reads, films=films)
    except TruthError as error:
        return {}, [Notice(code="no_rate", count=reads.height, message=f"no error rate yet: {error}")]
    rows = found.rates.filter(pl.col("says") == "all", pl.col("group_by").is_null())
    fair = found.reviews.filter(pl.col("inclusion").is_not_null())
    on: dict[str, int] = dict(fair.group_by("finding").agg(pl.col("image_id").n_unique()).iter_rows())
    on[ALL] = fair["image_id"].n_unique()
    rates: dict[str, Mapping[str, Any]] = {
        row["finding"]: {**row, "films": on.get(row["finding"], 0)} for row in rows.iter_rows(named=True)
    }
    if ALL in rates:
        rates[ALL] = {**rates[ALL], **_by_film(rates[ALL], fair, claims)}
    return rates, found.notes


def _by_film(row: Mapping[str, Any], fair: pl.DataFrame, claims: pl.DataFrame) -> dict[str, float]:
    """Widen the interval of all findings together as far as errors of one film go together."""
    if row["rate"] is None:
        return {}
    pairs = fair.unique(PAIR, keep="last", maintain_order=True).join(claims, on=PAIR, how="inner")
    definite = pairs.with_columns(pl.col("verdict").cast(pl.String)).filter(pl.col("verdict").is_in(SIDES))
    effect = design_effect(definite["image_id"], definite["verdict"] != definite["says"])
    low, high = widened(row["rate"], row["low"], row["high"], effect)
    return {"low": low, "high": high}


def _stopping(gathered: Gathered, needed: Mapping[str, Any]) -> dict[str, Any]:
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


def settled_claims(
    reads: pl.DataFrame, reviews: pl.DataFrame, consensus: pl.DataFrame, claims: pl.DataFrame
) -> pl.DataFrame:
    """Give every claim that was read: what it says, and what the readers settled on, null where they did not.

    Of a pair that was read in the room the study decides: it is open until its case has all its readers and they agree
    or somebody settled it. Of reads from files most decide.
    """
    word = pl.col("verdict").cast(pl.String)
    side = pl.when("present").then(pl.lit("present")).otherwise(pl.lit("absent"))
    votes = majority(reads).select(*PAIR, most=pl.when(~pl.col("tied")).then(side))
    stands = consensus.filter(pl.col("verdict").is_not_null()).select(*PAIR, agreed=word).unique(PAIR, keep="last")
    here = reviews.filter(pl.col("reading_id").is_not_null()).select(*PAIR, here=pl.lit(True)).unique()
    both = votes.join(stands, on=PAIR, how="left", maintain_order="left")
    both = both.join(here, on=PAIR, how="left", maintain_order="left")
    truth = pl.when(pl.col("here")).then("agreed").otherwise(pl.coalesce("agreed", "most"))
    known = both.select(*PAIR, truth=pl.when(truth.is_in(SIDES)).then(truth))
    return claims.join(known, on=PAIR, how="inner", maintain_order="right").with_columns(
        wrong=pl.col("truth") != pl.col("says")
    )


def confirmed_errors(
    settled: pl.DataFrame, claims: pl.DataFrame, rates: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Count the errors that were confirmed, finding by finding, beside the rate among all claims."""
    labels = claims.group_by("finding").agg(claims=pl.len())
    found = settled.group_by("finding").agg(
        pairs=pl.len(),
        settled=pl.col("wrong").count(),
        confirmed=pl.col("wrong").sum(),
        open=pl.col("wrong").null_count(),
        **{side: (pl.col("wrong") & (pl.col("says") == side)).sum() for side in SIDES},
    )
    both = labels.join(found, on="finding", how="inner").sort("finding")
    rows = [{**row, **_rate(rates.get(row["finding"]), row["claims"])} for row in both.iter_rows(named=True)]
    if len(rows) > 1:
        counted = ("claims", "pairs", "settled", "confirmed", "open", *SIDES)
        whole = {name: sum(row[name] for row in rows) for name in counted}
        rows.append({"finding": ALL, **whole, **_rate(rates.get(ALL), whole["claims"])})
    return rows


def _rate(row: Mapping[str, Any] | None, claims: int) -> dict[str, Any]:
    """Take a rate over, and say whether it rests on enough; who has read every film of a few has."""
    names = {"rate": "rate", "low": "low", "high": "high", "sample": "read", "films": "films"}
    names |= {"unread_share": "unread_share"}
    if row is None or row["rate"] is None:
        return dict.fromkeys(names) | {"enough": False}
    return {ours: row[theirs] for ours, theirs in names.items()} | {
        "enough": row["films"] >= min(LEAST_FILMS, claims) and _width(row) <= WIDEST
    }


def _width(row: Mapping[str, Any]) -> float:
    return UNKNOWN if row["rate"] is None else float(row["high"] - row["low"])


def counts(reviews: pl.DataFrame, reads: Reviews) -> dict[str, int]:
    """Count readings and reads; what is about a finding that is not audited is counted apart."""
    here = reviews.filter("stands", pl.col("phase") == "blind")
    again = pl.col("repeat") == 1
    return {
        "readings": here.filter(~again)["reading_id"].drop_nulls().n_unique(),
        "repeats": here.filter(again)["reading_id"].drop_nulls().n_unique(),
        "reads": reads.table.height,
        "pairs": reads.table.select(PAIR).n_unique(),
        "films": reads.table["image_id"].n_unique(),
        "readers": len(reads.readers),
        "imported": reviews.filter(pl.col("phase") == "imported").height,
        "second": reviews.filter(pl.col("phase") == "second")["reading_id"].drop_nulls().n_unique(),
        "unaudited": voting(reviews).height - reads.table.height,
    }


def pace(reviews: pl.DataFrame) -> list[dict[str, Any]]:
    """Say how quickly films are read: active time, by all readers and by each."""
    timed = reviews.filter(
        "stands", pl.col("phase") == "blind", pl.col("active_s") > 0, pl.col("reading_id").is_not_null()
    )
    timed = timed.unique("reading_id", maintain_order=True).select("reader", "active_s")
    if timed.is_empty():
        return []
    both = pl.concat([timed.with_columns(reader=pl.lit(EVERYONE)), timed.sort("reader", maintain_order=True)])
    rows = both.group_by("reader", maintain_order=True).agg(
        readings=pl.len(), hours=pl.col("active_s").sum() / HOUR, median_s=pl.col("active_s").median()
    )
    return rows.with_columns(per_hour=pl.col("readings") / pl.col("hours")).to_dicts()


def one_per_reader(reads: pl.DataFrame) -> pl.DataFrame:
    """Keep one read per reader and pair: two of one reader are no two readers."""
    return reads.unique([*PAIR, "reader"], keep="first", maintain_order=True)


def among_readers(reads: pl.DataFrame, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Say how far the readers of a pair agree, finding by finding, and on the mean."""
    each = one_per_reader(reads)
    definite = each.filter(pl.col("verdict").cast(pl.String).is_in(list(DEFINITE)))
    several = definite.filter(pl.len().over(PAIR) > 1)
    return _with_patients(among(each, images, Bootstrap(draws=DRAWS)), several, "finding", images)


def within_readers(reviews: pl.DataFrame, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Compare each reader with their own first read, on the films that came again unmarked."""
    blind = reviews.filter("stands", pl.col("phase") == "blind", pl.col("saw_signal") == 0)
    again = blind.filter(pl.col("repeat") == 1).with_columns(who="reader")
    once = blind.filter(pl.col("repeat") == 0).with_columns(who="reader")
    pairs = side_by_side(one_per_reader(again), one_per_reader(once)).filter(pl.col("first") == pl.col("second"))
    return _pooled(pairs.with_columns(second=pl.lit(SAME_READER)), images)


def against_consensus(reads: pl.DataFrame, consensus: pl.DataFrame, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Compare each reader with what several readers came to."""
    several = consensus.filter(pl.col("readers") > 1, pl.col("verdict").is_not_null())
    agreed = several.select(*PAIR, "verdict", reader=pl.lit(CONSENSUS_READER)).unique(
        PAIR, keep="last", maintain_order=True
    )
    return _pooled(side_by_side(one_per_reader(reads), agreed), images)


def _pooled(pairs: pl.DataFrame, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Say how far the two agree over all findings, for all readers together and for each."""
    if pairs.is_empty():
        return []
    everyone = pairs.with_columns(first=pl.lit(EVERYONE)) if pairs["first"].n_unique() > 1 else pairs.clear()
    both = pl.concat([everyone, pairs.sort("first", maintain_order=True)]).with_columns(finding=pl.lit(ALL))
    return _with_patients(between(both, images, Bootstrap(draws=DRAWS)), both, "first", images)


def _with_patients(
    rows: list[dict[str, Any]], pairs: pl.DataFrame, named: str, images: pl.DataFrame
) -> list[dict[str, Any]]:
    """Say of each row how many patients it rests on, and whether they are enough.

    One film that was read twice is 14 pairs, and yet one draw: drawn again it is the same.
    """
    known = pl.DataFrame({"image_id": images["image_id"], "patient": patients(images)})
    whose = pairs.join(known, on="image_id", how="left").with_columns(pl.coalesce("patient", "image_id"))
    many: dict[str, int] = dict(whose.group_by(named).agg(pl.col("patient").n_unique()).iter_rows())
    many[MEAN] = whose["patient"].n_unique()
    return [_without_weak_intervals(row | {"patients": many.get(row[named], 0)}) for row in rows]


def _without_weak_intervals(row: dict[str, Any]) -> dict[str, Any]:
    """Take away the intervals of too few patients, and those without width: there every draw was the same."""
    enough = row["patients"] >= LEAST_PATIENTS
    ends: dict[str, None] = {}
    for name in row:
        low, high = f"{name}_low", f"{name}_high"
        if low in row and (not enough or row[low] == row[high]):
            ends |= {low: None, high: None}
    return {**row, **ends, "enough": enough}


def needed_reads(errors: list[dict[str, Any]], asked: Collection[str], study: Study, readings: int) -> dict[str, Any]:
    """Say how many more readings the study's stopping rule takes; without a rule nothing is needed.

    `asked` are the findings that there are claims of. By width it is the finding whose rate is least known: an interval
    is taken to narrow as the root of the reads. A pair at random comes with every film that is drawn at random; where
    only the drawn finding is read, with one such film in as many as there are findings.
    """
    needed = dict.fromkeys(("rule", "target", "widest", "finding", "more_pairs", "more_readings"))
    known = {row["finding"]: row for row in errors if row["finding"] != ALL}
    if study.stop_width is not None:
        return needed | {"rule": "width", "target": study.stop_width} | _least_known(known, asked, study)
    if study.stop_reads is not None:
        left = max(0, study.stop_reads - readings)
        return needed | {"rule": "reads", "target": study.stop_reads, "more_readings": left}
    return needed


def _least_known(known: Mapping[str, Mapping[str, Any]], asked: Collection[str], study: Study) -> dict[str, Any]:
    """Name the finding whose rate is least known, and what it would take to know it; one without a rate comes first."""
    unknown = [
        finding for finding in study.findings if finding in asked and not (known.get(finding) or {}).get("films")
    ]
    if unknown:
        return {"widest": UNKNOWN, "finding": unknown[0]}
    if not known:
        return {}
    worst = max(known.values(), key=_width)
    width, target = _width(worst), float(study.stop_width or 0)
    more = max(0, math.ceil(worst["sample"] * ((width / target) ** 2 - 1))) if target > 0 else None
    if more is not None:
        more = min(more, int(worst["claims"]) - int(worst["sample"]))
    spread = 1 if study.asks == "all" else len(study.findings)
    readings = None if more is None or not study.random_share else math.ceil(more * spread / study.random_share)
    return {"widest": width, "finding": worst["finding"], "more_pairs": more, "more_readings": readings}


def errors_found(reviews: pl.DataFrame, settled: pl.DataFrame, errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Follow the errors that were found, reading by reading, beside what reading at random would have found.

    An error is found when its pair is first read; which pairs are errors depends on what is settled now. At random as
    many pairs would hold errors at the rate of the last row of `errors`, that of all findings: its ends are the band's.
    """
    here = voting(reviews).with_columns(reading=pl.coalesce("reading_id", pl.format("{}/{}", "image_id", "reader")))
    turns = here.select("reading").unique(maintain_order=True).with_row_index("turn", offset=1)
    if turns.is_empty():
        return []
    first = here.unique(PAIR, keep="first", maintain_order=True).join(turns, on="reading", how="left")
    # An error is found at the reading in which its pair was read first.
    by_turn = (
        settled.join(first.select(*PAIR, "turn"), on=PAIR, how="inner")
        .group_by("turn")
        .agg(found=pl.col("wrong").sum(), pairs=pl.col("wrong").count())
    )
    whole = turns.select("turn").join(by_turn, on="turn", how="left").fill_null(0).sort("turn")
    curve = whole.select(reads="turn", found=pl.col("found").cum_sum(), pairs=pl.col("pairs").cum_sum())
    step = max(1, math.ceil(curve.height / POINTS))
    shown = curve.filter((pl.col("reads") % step == 0) | (pl.col("reads") == curve.height))
    rate = errors[-1] if errors and errors[-1]["enough"] else dict.fromkeys(("rate", "low", "high"))
    ends = {"random": rate["rate"], "random_low": rate["low"], "random_high": rate["high"]}
    chances = [(pl.col("pairs") * pl.lit(end, dtype=pl.Float64)).alias(name) for name, end in ends.items()]
    return shown.with_columns(chances).to_dicts()
