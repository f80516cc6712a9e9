"""The numbers of a reading study, from its tables: errors, pace, agreement, what is still needed, and the curve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from bpals.blindreads import voting
from bpals.review.desk.study import Study
from bpals.signal.agreement import Bootstrap, between, side_by_side
from bpals.types import Reviews

ALL = "all findings"
EVERYONE = "all readers"
CONSENSUS = "consensus"
HIMSELF = "the same reader"
TARGET = 0.05
"""The width of an interval that is worked towards where the study names none."""
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
    rows = [{**row, **_rate(rates.get(row["finding"]))} for row in told.iter_rows(named=True)]
    if len(rows) > 1:
        counted = ("claims", "pairs", "settled", "confirmed", "open", *SIDES)
        whole = {name: sum(row[name] for row in rows) for name in counted}
        rows.append({"finding": ALL, **whole, **_rate(rates.get(ALL))})
    return rows


def _rate(row: Mapping[str, Any] | None) -> dict[str, Any]:
    names = {"rate": "rate", "low": "low", "high": "high", "sample": "read", "unread_share": "unread_share"}
    return {ours: None if row is None else row[theirs] for ours, theirs in names.items()}


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
    return between(both, images, Bootstrap(draws=DRAWS))


def needed_reads(errors: list[dict[str, Any]], study: Study) -> dict[str, Any]:
    """Say how many more reads the target takes, for the finding whose rate is least known.

    An interval is taken to narrow as the root of the reads. A pair at random comes with every film that is drawn at
    random; where only the drawn finding is read, with one such film in as many as there are findings.
    """
    target = study.stop_width if study.stop_width is not None else TARGET
    known = [row for row in errors if row["finding"] != ALL and row["sample"]]
    told: dict[str, Any] = {
        "target": target,
        "widest": None,
        "finding": None,
        "more_pairs": None,
        "more_readings": None,
    }
    if not known:
        return told
    worst = max(known, key=lambda row: float(row["high"] - row["low"]))
    width = float(worst["high"] - worst["low"])
    more = max(0, math.ceil(worst["sample"] * ((width / target) ** 2 - 1))) if target > 0 else None
    if more is not None:
        more = min(more, int(worst["claims"]) - int(worst["sample"]))
    spread = 1 if study.asks == "all" else len(study.findings)
    readings = None if more is None or not study.random_share else math.ceil(more * spread / study.random_share)
    return told | {"widest": width, "finding": worst["finding"], "more_pairs": more, "more_readings": readings}


def errors_found(reviews: pl.DataFrame, settled: pl.DataFrame, errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Follow the errors that were found, reading by reading, beside what reading at random would have found.

    An error is found when its pair is first read; which pairs are errors is told by what is settled now.
    """
    here = voting(reviews).with_columns(reading=pl.coalesce("reading_id", pl.format("{}/{}", "image_id", "reader")))
    turns = here.select("reading").unique(maintain_order=True).with_row_index("turn", offset=1)
    first = here.unique(_PAIR, keep="first", maintain_order=True).join(turns, on="reading", how="left")
    ends = {row["finding"]: (row["rate"], row["low"], row["high"]) for row in errors}
    chances = pl.DataFrame(
        [(finding, *rates) for finding, rates in ends.items() if rates[0] is not None],
        schema={"finding": pl.String, "random": pl.Float64, "random_low": pl.Float64, "random_high": pl.Float64},
        orient="row",
    )
    told = settled.join(first.select(*_PAIR, "turn"), on=_PAIR, how="inner").join(chances, on="finding", how="left")
    expected = ["random", "random_low", "random_high"]
    by_turn = told.group_by("turn").agg(
        *(pl.col(name).sum() for name in expected), found=pl.col("wrong").sum(), unknown=pl.col("random").null_count()
    )
    whole = turns.select("turn").join(by_turn, on="turn", how="left").fill_null(0).sort("turn")
    curve = whole.select(
        reads="turn", found=pl.col("found").cum_sum(), unknown=pl.col("unknown").cum_sum(),
        **{name: pl.col(name).cum_sum() for name in expected},
    )  # fmt: skip
    if curve.is_empty():
        return []
    step = max(1, math.ceil(curve.height / POINTS))
    shown = curve.filter((pl.col("reads") % step == 0) | (pl.col("reads") == curve.height))
    unknown = pl.col("unknown") > 0
    hidden = [pl.when(~unknown).then(name).alias(name) for name in expected]
    return shown.with_columns(hidden).drop("unknown").to_dicts()
