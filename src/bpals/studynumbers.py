"""The numbers of a reading study, from its tables: errors, pace, agreement, what is still needed, and the curve."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from bpals.blindreads import voting
from bpals.chronology import patients
from bpals.review.desk.study import Study
from bpals.signal.agreement import DEFINITE, MEAN, Bootstrap, among, between, side_by_side
from bpals.types import Reviews

ALL = "all findings"
EVERYONE = "all readers"
CONSENSUS = "consensus"
HIMSELF = "the same reader"
LEAST_FILMS = 10
"""Films that were fairly drawn and read, below which no error rate is told ..."""
WIDEST = 0.5
"""... nor where its interval is wider than this."""
LEAST_PATIENTS = 10
"""Patients whose films were read twice, below which no agreement is told: intervals are drawn over patients."""
UNKNOWN = 1.0
"""The width of an interval that nothing is known about."""
POINTS = 200
"""Of the curve, at most."""
DRAWS = 500
"""Times that patients are drawn for the intervals of agreement."""
HOUR = 3600.0
SIDES = ["present", "absent"]

_PAIR = ["image_id", "finding"]


def settled_claims(
    reads: pl.DataFrame, reviews: pl.DataFrame, consensus: pl.DataFrame, claims: pl.DataFrame
) -> pl.DataFrame:
    """Give every claim that was read: what it says, and what the readers settled on, null where they did not.

    Of a pair that was read in the room the study decides: it is open until its case has all its readers and they agree
    or somebody settled it. Of reads from files most decide.
    """
    word = pl.col("verdict").cast(pl.String)
    votes = reads.group_by(_PAIR, maintain_order=True).agg(
        yes=(word == "present").sum().cast(pl.Int64), no=(word == "absent").sum().cast(pl.Int64)
    )
    yes = pl.when(pl.col("yes") > pl.col("no")).then(pl.lit("present"))
    most = yes.when(pl.col("yes") < pl.col("no")).then(pl.lit("absent"))
    stands = consensus.filter(pl.col("verdict").is_not_null()).select(*_PAIR, agreed=word).unique(_PAIR, keep="last")
    here = reviews.filter(pl.col("reading_id").is_not_null()).select(*_PAIR, here=pl.lit(True)).unique()
    both = votes.with_columns(most=most).join(stands, on=_PAIR, how="left", maintain_order="left")
    both = both.join(here, on=_PAIR, how="left", maintain_order="left")
    truth = pl.when(pl.col("here")).then("agreed").otherwise(pl.coalesce("agreed", "most"))
    known = both.select(*_PAIR, truth=pl.when(truth.is_in(SIDES)).then(truth))
    return claims.join(known, on=_PAIR, how="inner", maintain_order="right").with_columns(
        wrong=pl.col("truth") != pl.col("says")
    )


def confirmed_errors(
    settled: pl.DataFrame, claims: pl.DataFrame, rates: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Count the errors that were confirmed, finding by finding, beside the rate among all claims."""
    said = claims.group_by("finding").agg(claims=pl.len()).sort("finding")
    found = settled.group_by("finding").agg(
        pairs=pl.len(),
        settled=pl.col("wrong").count(),
        confirmed=pl.col("wrong").sum(),
        open=pl.col("wrong").null_count(),
        **{side: (pl.col("wrong") & (pl.col("says") == side)).sum() for side in SIDES},
    )
    told = said.join(found, on="finding", how="inner").sort("finding")
    rows = [{**row, **_rate(rates.get(row["finding"]), row["claims"])} for row in told.iter_rows(named=True)]
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
    told = {ours: row[theirs] for ours, theirs in names.items()}
    return told | {"enough": row["films"] >= min(LEAST_FILMS, claims) and _width(row) <= WIDEST}


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
        "pairs": reads.table.select(_PAIR).n_unique(),
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


def one_each(reads: pl.DataFrame) -> pl.DataFrame:
    """Keep one read a reader and pair: two of one reader are no two readers."""
    return reads.unique([*_PAIR, "reader"], keep="first", maintain_order=True)


def among_readers(reads: pl.DataFrame, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Say how far the readers of a pair agree, finding by finding, and on the mean."""
    each = one_each(reads)
    said = each.filter(pl.col("verdict").cast(pl.String).is_in(list(DEFINITE)))
    several = said.filter(pl.len().over(_PAIR) > 1)
    return _weighed(among(each, images, Bootstrap(draws=DRAWS)), several, "finding", images)


def within_readers(reviews: pl.DataFrame, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Set each reader beside himself, on the films that he read again without being told."""
    blind = reviews.filter("stands", pl.col("phase") == "blind", pl.col("saw_signal") == 0)
    again = blind.filter(pl.col("repeat") == 1).with_columns(who="reader")
    once = blind.filter(pl.col("repeat") == 0).with_columns(who="reader")
    pairs = side_by_side(one_each(again), one_each(once)).filter(pl.col("first") == pl.col("second"))
    return _pooled(pairs.with_columns(second=pl.lit(HIMSELF)), images)


def against_consensus(reads: pl.DataFrame, consensus: pl.DataFrame, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Set each reader beside what several readers came to."""
    several = consensus.filter(pl.col("readers") > 1, pl.col("verdict").is_not_null())
    agreed = several.select(*_PAIR, "verdict", reader=pl.lit(CONSENSUS)).unique(_PAIR, keep="last", maintain_order=True)
    return _pooled(side_by_side(one_each(reads), agreed), images)


def _pooled(pairs: pl.DataFrame, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Say how far the two agree over all findings, for all readers together and for each."""
    if pairs.is_empty():
        return []
    everyone = pairs.with_columns(first=pl.lit(EVERYONE)) if pairs["first"].n_unique() > 1 else pairs.clear()
    both = pl.concat([everyone, pairs.sort("first", maintain_order=True)]).with_columns(finding=pl.lit(ALL))
    return _weighed(between(both, images, Bootstrap(draws=DRAWS)), both, "first", images)


def _weighed(rows: list[dict[str, Any]], pairs: pl.DataFrame, named: str, images: pl.DataFrame) -> list[dict[str, Any]]:
    """Say of each row how many patients it rests on, and whether they are enough.

    One film that was read twice is 14 pairs, and yet one draw: drawn again it is the same.
    """
    known = pl.DataFrame({"image_id": images["image_id"], "patient": patients(images)})
    whose = pairs.join(known, on="image_id", how="left").with_columns(pl.coalesce("patient", "image_id"))
    many: dict[str, int] = dict(whose.group_by(named).agg(pl.col("patient").n_unique()).iter_rows())
    many[MEAN] = whose["patient"].n_unique()
    return [_honest(row | {"patients": many.get(row[named], 0)}) for row in rows]


def _honest(row: dict[str, Any]) -> dict[str, Any]:
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
    told = dict.fromkeys(("rule", "target", "widest", "finding", "more_pairs", "more_readings"))
    known = {row["finding"]: row for row in errors if row["finding"] != ALL}
    if study.stop_width is not None:
        return told | {"rule": "width", "target": study.stop_width} | _least_known(known, asked, study)
    if study.stop_reads is not None:
        left = max(0, study.stop_reads - readings)
        return told | {"rule": "reads", "target": study.stop_reads, "more_readings": left}
    return told


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

    An error is found when its pair is first read; which pairs are errors is told by what is settled now. At random as
    many pairs would hold errors at the rate of the last row of `errors`, that of all findings: its ends are the band's.
    """
    here = voting(reviews).with_columns(reading=pl.coalesce("reading_id", pl.format("{}/{}", "image_id", "reader")))
    turns = here.select("reading").unique(maintain_order=True).with_row_index("turn", offset=1)
    if turns.is_empty():
        return []
    first = here.unique(_PAIR, keep="first", maintain_order=True).join(turns, on="reading", how="left")
    told = settled.join(first.select(*_PAIR, "turn"), on=_PAIR, how="inner")
    by_turn = told.group_by("turn").agg(found=pl.col("wrong").sum(), pairs=pl.col("wrong").count())
    whole = turns.select("turn").join(by_turn, on="turn", how="left").fill_null(0).sort("turn")
    curve = whole.select(reads="turn", found=pl.col("found").cum_sum(), pairs=pl.col("pairs").cum_sum())
    step = max(1, math.ceil(curve.height / POINTS))
    shown = curve.filter((pl.col("reads") % step == 0) | (pl.col("reads") == curve.height))
    rate = errors[-1] if errors and errors[-1]["enough"] else dict.fromkeys(("rate", "low", "high"))
    ends = {"random": rate["rate"], "random_low": rate["low"], "random_high": rate["high"]}
    chances = [(pl.col("pairs") * pl.lit(end, dtype=pl.Float64)).alias(name) for name, end in ends.items()]
    return shown.with_columns(chances).to_dicts()
