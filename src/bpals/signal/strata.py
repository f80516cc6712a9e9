"""How many reads buy which width: what an interval would be like if errors were as frequent as the trust says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.errors import UsageError
from bpals.signal.bounds import Strata, interval
from bpals.text import several

# Which claims to read so that an error rate can be told: strata of each finding's claims, and random draws from them.
#
# present   what the dataset says is present
# suspect   said absent, and among the tenth of the absences that is trusted least
# rest      every other absence
#
# A claim without a trust counts as trusted: nobody could speak against it. An uncertain claim claims nothing.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STRATA = ("present", "suspect", "rest")
STRATUM = pl.Enum(STRATA)
SUSPECT_SHARE = 0.1
"""The share of a finding's absences that are drawn from apart."""
FEWEST = 3
"""Reads of each stratum, at least."""
NO_TRUST = 1.0
"""The trust of a claim that nobody could judge, for placing it."""

STRATIFIED = pl.Schema(
    {
        "image_id": pl.String(),
        "finding": pl.String(),
        "says": pl.String(),  # present or absent
        "suspicion": pl.Float64(),  # 1 - trust when the strata were made
        "stratum": STRATUM,
        "inclusion": pl.Float64(),  # chance with which the pair was drawn to be read; null where it was not drawn
        "batch": pl.Int64(),  # the draw that brought it, from 1
        "position": pl.Int64(),  # its place in the reading list of that batch, from 1
    }
)
"""Every claim of presence or absence with its stratum, and what was drawn of them to be read."""


def stratify(claims: pl.DataFrame) -> pl.DataFrame:
    """Place the claims of presence and absence; none is drawn yet. Takes `image_id, finding, says, trust`.

    The order of the rows does not matter: claims trusted alike are placed by their film's name.
    """
    placed = claims.select(
        "image_id",
        pl.col("finding").cast(pl.String),
        pl.col("says").cast(pl.String),
        suspicion=1.0 - pl.col("trust").fill_null(NO_TRUST),
    ).filter(pl.col("says").is_in(["present", "absent"]))
    ordered = placed.sort("finding", "says", pl.col("suspicion").neg(), "image_id")
    rank = pl.int_range(1, pl.len() + 1).over("finding", "says")
    suspects = (pl.len().over("finding", "says") * SUSPECT_SHARE).ceil()
    said_absent = pl.when(rank <= suspects).then(pl.lit("suspect")).otherwise(pl.lit("rest"))
    stratum = pl.when(pl.col("says") == "present").then(pl.lit("present")).otherwise(said_absent)
    undrawn = {name: pl.lit(None, STRATIFIED[name]) for name in ("inclusion", "batch", "position")}
    return ordered.with_columns(stratum=stratum.cast(STRATUM), **undrawn).select(STRATIFIED.names())


def spread(size: Ints, suspicion: Floats) -> Floats:
    """Give the share of the reads that each stratum gets: half by its size, half by its size times its deviation."""
    weights = size / size.sum()
    sigma = np.sqrt(suspicion * (1 - suspicion)) * weights
    return np.asarray(weights / 2 + (sigma / sigma.sum() if sigma.sum() > 0 else weights) / 2)


def allocate(size: Ints, suspicion: Floats, reads: int) -> Ints:
    """Share the reads out over strata of these sizes and mean suspicions: whole numbers, FEWEST each where there are.

    The numbers add up to `reads`, or to all claims where there are fewer.
    """
    least = np.minimum(size, FEWEST)
    if reads < least.sum():
        few, strata = several(reads, "read is", "reads are"), several(len(size), "stratum", "strata")
        raise UsageError(f"{few} too few for {strata}. Type: --reads {int(least.sum())}, or more")
    total = min(reads, int(size.sum()))
    share, fixed, given = spread(size, suspicion), np.zeros(len(size), dtype=np.bool_), least.astype(np.float64)
    while not fixed.all():
        free = np.where(fixed, 0.0, share)
        wanted = (total - given[fixed].sum()) * free / max(float(free.sum()), 1e-300)
        given = np.where(fixed, given, np.clip(wanted, least, size))
        over, under = ~fixed & (wanted >= size), ~fixed & (wanted <= least)
        # What one stratum has no room for goes to the others first; only then does the least of one cost the others.
        bound = over if over.any() else under
        if not bound.any():
            break
        fixed |= bound
    return _whole(given, size, least, total)


def _whole(given: Floats, size: Ints, least: Ints, total: int) -> Ints:
    """Round to whole numbers that add up, those with most left over first."""
    counts = np.clip(np.floor(given).astype(np.int64), least, size)
    order = np.argsort(-(given - counts), kind="stable")
    while (missing := total - int(counts.sum())) != 0:
        room = counts < size if missing > 0 else counts > least
        chosen = [h for h in (order if missing > 0 else order[::-1]) if room[h]][: abs(missing)]
        counts[chosen] += 1 if missing > 0 else -1
    return counts


def draw(stratified: pl.DataFrame, *, reads: int, seed: int = 0) -> pl.DataFrame:
    """Draw pairs at random within each stratum until `reads` of each finding are drawn; give the claims with the draw.

    Within a stratum every pair has the same chance, `inclusion`. The same claims and seed give the same draw. Pairs
    that were drawn before with this seed stay drawn: what is missing is added as a new batch, shuffled.
    """
    batch = int(stratified["batch"].max() or 0) + 1  # type: ignore[arg-type]
    parts = [
        _of_stratum(part, count, seed)
        for (_,), claims in stratified.sort("finding", "image_id").group_by("finding", maintain_order=True)
        for part, count in _counts(claims, reads)
    ]
    if not parts:
        raise UsageError("there is no claim of presence or absence to read. Name other findings with --findings")
    drawn = pl.concat(parts)
    new = pl.col("inclusion").is_not_null() & pl.col("batch").is_null()
    order = np.random.default_rng([seed, batch]).permutation(drawn.filter(new).height) + 1
    place = np.zeros(drawn.height, dtype=np.int64)
    place[drawn.select(new).to_series().to_numpy()] = order
    return drawn.with_columns(
        batch=pl.when(new).then(pl.lit(batch)).otherwise("batch"),
        position=pl.when(new).then(pl.Series(place)).otherwise("position"),
    ).cast(STRATIFIED)


def _counts(claims: pl.DataFrame, reads: int) -> list[tuple[pl.DataFrame, int]]:
    """Split the claims of one finding into its strata, with the number to be read of each."""
    parts = [part for name in STRATA if (part := claims.filter(pl.col("stratum") == name)).height]
    size = np.array([part.height for part in parts])
    suspicion = np.array([part["suspicion"].mean() for part in parts], dtype=np.float64)
    already = np.array([part["inclusion"].count() for part in parts])
    counts = np.maximum(allocate(size, suspicion, reads), already)
    return list(zip(parts, counts.tolist(), strict=True))


def _of_stratum(part: pl.DataFrame, count: int, seed: int) -> pl.DataFrame:
    """Draw the first `count` of one fixed random order, so that a larger draw holds the smaller one."""
    finding, stratum = str(part["finding"][0]), str(part["stratum"][0])
    dice = np.random.default_rng([seed, zlib.crc32(f"{finding}/{stratum}".encode())])
    chosen = np.zeros(part.height, dtype=np.bool_)
    chosen[dice.permutation(part.height)[:count]] = True
    before = part["inclusion"].is_not_null()
    if not bool((before & ~pl.Series(chosen)).any()):
        share = pl.when(pl.Series(chosen)).then(pl.lit(count / part.height)).otherwise(None)
        return part.with_columns(inclusion=share)
    raise UsageError(
        f"the pairs of {finding} that were drawn before were drawn with another seed. Type the --seed of that plan"
    )


def reading_list(drawn: pl.DataFrame, batch: int | None = None) -> pl.DataFrame:
    """Give what was drawn in the order of reading: all of it, or one batch."""
    listed = drawn.filter(pl.col("inclusion").is_not_null())
    if batch is not None:
        listed = listed.filter(pl.col("batch") == batch)
    return listed.sort("batch", "position")


# How many reads buy which width: what an interval would be like if errors were as frequent as the trust says.

READS = (50, 100, 200, 300, 500, 1000)
TRIALS = 10
"""Made-up readings a number of reads."""

WIDTHS = pl.Schema(
    {
        "finding": pl.String(),
        "claims": pl.Int64(),
        "expected_rate": pl.Float64(),  # mean of 1 - trust
        "reads": pl.Int64(),
        "width": pl.Float64(),  # mean width of the 95 % interval, if errors are as frequent as expected
    }
)
"""One row a finding and number of reads."""

Progress = Callable[[float], None]


def widths(
    stratified: pl.DataFrame,
    *,
    reads: Sequence[int] = READS,
    seed: int = 0,
    progress: Progress = lambda _share: None,
) -> pl.DataFrame:
    """Say which width each number of reads a finding is expected to buy, finding by finding."""
    rows = []
    findings = stratified.group_by("finding", maintain_order=True)
    total = stratified["finding"].n_unique() * len(reads)
    for (finding,), claims in findings:
        parts = [claims.filter(pl.col("stratum") == name) for name in STRATA]
        size = np.array([part.height for part in parts if part.height])
        suspicion = np.array([part["suspicion"].mean() for part in parts if part.height], dtype=np.float64)
        rate = float(size @ suspicion / size.sum())
        for number in [n for n in reads if n <= claims.height] or [claims.height]:
            width = _width(Strata.of(size, allocate(size, suspicion, number), 0 * size), suspicion, seed)
            rows.append((str(finding), claims.height, rate, number, width))
            progress(len(rows) / total)
    return pl.DataFrame(rows, schema=WIDTHS, orient="row")


def _width(read: Strata, suspicion: np.ndarray[tuple[int], np.dtype[np.float64]], seed: int) -> float:
    dice = np.random.default_rng([seed, int(read.read.sum())])
    wrong = np.clip(np.rint(read.size * suspicion).astype(np.int64), 0, read.size)
    seen = [tuple(dice.hypergeometric(wrong, read.size - wrong, read.read)) for _ in range(TRIALS)]
    made = {x: interval(Strata(read.size, read.read, np.array(x))).width for x in set(seen)}
    return float(np.mean([made[x] for x in seen]))


def reads_for(table: pl.DataFrame, width: float) -> int:
    """Give the number of reads a finding that buys a width for every finding of a table of `widths`.

    Between its rows the width is taken to fall as a power of the reads; beyond the last, as their root.
    """
    if not 0 < width < 1:
        raise UsageError(f"no interval has a width of {width:g}. Type a number between 0 and 1, such as --width 0.02")
    needed = 1.0
    for _, part in table.group_by("finding", maintain_order=True):
        reads, got = (part[name].to_numpy().astype(np.float64) for name in ("reads", "width"))
        if width < got[-1]:
            n = reads[-1] * (got[-1] / width) ** 2
        else:
            n = np.exp(np.interp(-np.log(width), -np.log(np.maximum(got, 1e-9)), np.log(reads)))
        needed = max(needed, min(float(n), float(part["claims"][0])))
    return int(np.ceil(needed - 1e-6))
