"""Reads of one pair made into one word about its claim, and placed where they were drawn from.

Readers of a pair outvote one another; where they split evenly, or nobody was sure, the pair is unsettled. A read counts
towards a rate only if the chance with which its pair was drawn is known, or if the reads are a simple random sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from bpals.errors import TruthError
from bpals.text import several
from bpals.types import Notice

PAIR = ["image_id", "finding"]
WHOLE = "whole"
"""The cell of pairs that were sure to be drawn: they are known, and no sample."""
EVERY = "every"
"""The one cell of a finding whose pairs all had the same chance."""
MOST_SKIPPED = 0.2
"""Share of a reading list, down to the last pair that was read, that may have been passed over."""
STRETCH = 10
"""Pairs in a row from which they are a part of the list that one reader had, or that was left to another."""
MOST_SHORT = 2
"""Shorter stretches that may be read where much was passed over: two readers have just begun."""
MOST_READS = 1.5
"""Reads over those that the stated chances lead to, from which the chances are not believed."""


def settle(reads: pl.DataFrame) -> pl.DataFrame:
    """Give one row a pair: its inclusion, the readers on each side, and `present`, null where they do not settle it."""
    verdict = pl.col("verdict").cast(pl.String)
    known = pl.col("inclusion").drop_nulls()
    pairs = reads.group_by(PAIR, maintain_order=True).agg(
        known.first(),
        known.n_unique().alias("chances"),
        *((verdict == word).sum().cast(pl.Int64).alias(word) for word in ("present", "absent")),
        (verdict == "uncertain").sum().cast(pl.Int64).alias("hedged"),
        (verdict == "unreadable").sum().cast(pl.Int64).alias("unreadable"),
    )
    _check(pairs)
    said = pl.when(pl.col("present") != pl.col("absent")).then(pl.col("present") > pl.col("absent"))
    return pairs.with_columns(says_present=said).drop("chances").rename({"present": "yes", "absent": "no"})


def _check(pairs: pl.DataFrame) -> None:
    strange = pairs.filter(~((pl.col("inclusion") > 0) & (pl.col("inclusion") <= 1)))
    for wrong, words in (
        (strange, "has the inclusion {}, which is no chance. Write a number above 0 and at most 1, or leave it blank"),
        (pairs.filter(pl.col("chances") > 1), "has two inclusions, {} is one. Keep the one it was drawn with"),
    ):
        if wrong.height:
            first = wrong.row(0, named=True)
            raise TruthError(f"the pair {first['image_id']}, {first['finding']} {words.format(first['inclusion'])}")


def place(pairs: pl.DataFrame, stratified: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Lay the settled pairs beside every claim of the findings that were read: `looked`, and `wrong` where settled.

    Where a finding has a plan, its pairs have the plan's chances, and reads of other pairs are left out.
    """
    claimed = pairs.join(stratified, on=PAIR, how="semi")
    notices = []
    if missing := pairs.height - claimed.height:
        first = pairs.join(stratified, on=PAIR, how="anti", maintain_order="left").row(0, named=True)
        message = (
            f"{several(missing, 'pair that was read makes', 'pairs that were read make')} no claim of presence or "
            f"absence, or none that is audited (first: {first['image_id']}, {first['finding']}): left out"
        )
        notices.append(Notice(code="unclaimed_reads", count=missing, message=message))
    found = stratified.filter(pl.col("finding").is_in(claimed["finding"].unique().implode()))
    joined = found.rename({"inclusion": "drawn"}).join(claimed, on=PAIR, how="left", maintain_order="left")
    looked = pl.col("yes").is_not_null()
    planned = pl.col("drawn").is_not_null().any().over("finding")
    laid = joined.with_columns(
        looked=looked,
        wrong=pl.when(looked).then(pl.col("says_present") != (pl.col("says") == "present")),
        planned=planned,
        inclusion=pl.when(planned).then("drawn").otherwise("inclusion"),
    )
    beside = pl.col("looked") & pl.col("planned") & pl.col("drawn").is_null()
    if count := laid.filter(beside).height:
        those = several(count, "pair was", "pairs were")
        message = f"{those} read that the plan of the finding did not draw: left out"
        notices.append(Notice(code="unplanned_reads", count=count, message=message))
    told, more = _passed_over(_unread(laid, beside))
    return told, notices + more


def _passed_over(laid: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Take pairs of a list that were passed over as read and not settled; where somebody chose, refuse the reads.

    Readers who share a list leave whole parts of it to one another: such a part is not read yet. Single reads between
    pairs that were passed over are chosen.
    """
    listed = laid.filter(pl.col("drawn").is_not_null()).sort("finding", "batch", "position")
    reached = listed.filter(pl.col("looked").reverse().cum_max().reverse().over("finding"))
    run = reached.with_columns(run=pl.col("looked").rle_id().over("finding"))
    run = run.with_columns(long=pl.len().over("finding", "run") >= STRETCH)
    passed = ~pl.col("looked")
    gaps = run.group_by("finding", maintain_order=True).agg(
        pl.col("image_id").filter(passed).first(),
        reached=pl.len(),
        skipped=passed.sum(),
        short=pl.col("run").filter("looked", ~pl.col("long")).n_unique(),
        whole=pl.col("run").filter("looked", "long").n_unique(),
    )
    picked = (pl.col("short") > MOST_SHORT) | (pl.col("whole") == 0)
    chosen = gaps.filter(picked, pl.col("skipped") > MOST_SKIPPED * pl.col("reached"))
    if chosen.height:
        first = chosen.row(0, named=True)
        raise TruthError(
            f"of the first {several(first['reached'], 'pair')} that were drawn of {first['finding']}, "
            f"{several(first['skipped'], 'was', 'were')} passed over while others below were read: reads that are "
            "chosen may be enriched in errors and give no rate. Read the list of bpals rate plan from its top, "
            f"{first['image_id']} first, or leave out the reads below that"
        )
    if not (count := int(gaps["skipped"].sum())):
        return laid, []
    holes = run.filter(passed, ~pl.col("long")).select(*PAIR, hole=pl.lit(value=True))
    open_ = laid.join(holes, on=PAIR, how="left", maintain_order="left")
    those = several(count, "pair of the reading list was", "pairs of the reading list were")
    unsettled = f"{several(holes.height, 'counts', 'count')} as unsettled" if holes.height else "left to other readers"
    message = f"{those} passed over: {unsettled}"
    told = open_.with_columns(looked=pl.col("looked") | pl.col("hole").fill_null(value=False)).drop("hole")
    return told, [Notice(code="skipped_pairs", count=count, message=message)]


def cells(placed: pl.DataFrame, *, simple_random: bool = False, seed: int = 0) -> tuple[pl.DataFrame, list[Notice]]:
    """Put each claim into the cell within which every pair had the same chance to be read.

    Such a cell is a stratum of the plan. Without a plan it is a stratum, or the whole finding where all its pairs had
    one chance; pairs that were sure to be read are a cell of their own; and where the chances inside a stratum differ,
    a lottery sets reads aside until they do not.
    """
    if simple_random:
        _refuse_unequal(placed)
        return placed.with_columns(cell=pl.lit(EVERY)), []
    notices = []
    unknown = pl.col("looked") & pl.col("inclusion").is_null()
    if count := placed.filter(unknown).height:
        those = several(count, "pair was", "pairs were")
        message = f"{those} read without a known chance of being drawn, which says nothing about a rate: left out"
        notices.append(Notice(code="unknown_inclusion", count=count, message=message))
    known = _unread(placed, unknown)
    if not known["looked"].any():
        those = several(int(placed["looked"].sum()), "pair that was", "pairs that were")
        raise TruthError(
            f"of {those} read none has a known chance of being drawn: such reads may be enriched in errors and give "
            "no rate. Type: bpals rate plan, and read what it draws; or, if every "
            "pair had the same chance, add --simple-random"
        )
    certain = pl.col("looked") & (pl.col("inclusion") >= 1)
    one_chance = pl.col("inclusion").filter(pl.col("looked") & ~certain).n_unique().over("finding") <= 1
    stratum = pl.col("stratum").cast(pl.String)
    unplanned = pl.when(certain).then(pl.lit(WHOLE)).when(one_chance).then(pl.lit(EVERY)).otherwise(stratum)
    told = known.with_columns(cell=pl.when("planned").then(stratum).otherwise(unplanned))
    _believe(told)
    even, more = _evened(told, seed)
    return even, notices + more


def _refuse_unequal(placed: pl.DataFrame) -> None:
    """Refuse to take reads for a simple random sample whose chances are known to differ."""
    known = (
        placed.filter("looked")
        .group_by("finding", maintain_order=True)
        .agg(least=pl.col("inclusion").min(), most=pl.col("inclusion").max())
    )
    odd = known.filter(pl.col("most") > pl.col("least") * (1 + 1e-9))
    if odd.height:
        first = odd.row(0, named=True)
        raise TruthError(
            f"--simple-random: the reads of {first['finding']} were drawn with chances from {first['least']:.2g} to "
            f"{first['most']:.2g}, which is no simple random sample. Leave --simple-random out"
        )


def _unread(placed: pl.DataFrame, chosen: pl.Expr) -> pl.DataFrame:
    """Treat some pairs as if nobody had read them."""
    return placed.with_columns(
        looked=pl.col("looked") & ~chosen, wrong=pl.when(chosen).then(None).otherwise(pl.col("wrong"))
    )


def _believe(told: pl.DataFrame) -> None:
    """Refuse chances that do not lead to so many reads."""
    cell = ["finding", "cell"]
    drawn = told.group_by(cell).agg(
        size=pl.len(), looked=pl.col("looked").sum(), most=pl.col("inclusion").filter("looked").max()
    )
    expected = pl.col("size") * pl.col("most")
    odd = drawn.filter(
        (pl.col("cell") != WHOLE) & (pl.col("looked") > MOST_READS * expected + 6 * expected.sqrt() + 1)
    ).sort(cell)
    if odd.height:
        first = odd.row(0, named=True)
        raise TruthError(
            f"{first['looked']:,} of {first['size']:,} claims of {first['finding']} were read, with an inclusion of at "
            f"most {first['most']:g}: these are not the chances of this draw. Mend the column 'inclusion', or blank it"
        )


def _evened(told: pl.DataFrame, seed: int) -> tuple[pl.DataFrame, list[Notice]]:
    """Set reads aside at random until each cell has one chance; the rest is an equal-chance sample of the cell."""
    least = pl.col("inclusion").filter(pl.col("looked")).min().over("finding", "cell")
    keep = told.select((least / pl.col("inclusion")).fill_null(1.0)).to_series()
    if (keep >= 1 - 1e-9).all():
        return told, []
    order = told.select(pl.concat_str(PAIR, separator="/").rank("ordinal")).to_series().to_numpy()
    lots = np.random.default_rng([seed, told.height]).random(told.height)[order - 1]
    aside = pl.col("looked") & pl.Series(lots >= keep.to_numpy())
    count = told.filter(aside).height
    message = (
        f"a lottery set {several(count, 'pair')} aside that had a larger chance of being read than others of the "
        "stratum, so that the rest counts alike"
    )
    return _unread(told, aside), [Notice(code="uneven_inclusion", count=count, message=message)] if count else []


def tally(told: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Count, for each cell: its claims, the pairs read and settled, those of them that are wrong, and the unsettled."""
    return told.group_by(by, maintain_order=True).agg(
        size=pl.len().cast(pl.Int64),
        read=pl.col("wrong").count().cast(pl.Int64),
        wrong=pl.col("wrong").sum().cast(pl.Int64),
        unsettled=(pl.col("looked") & pl.col("wrong").is_null()).sum().cast(pl.Int64),
    )
