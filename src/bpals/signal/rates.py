"""The share of a dataset's claims that readers reject: by finding, over all findings, and by group of patients."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.errors import TruthError
from bpals.signal.bounds import Interval, Strata, interval
from bpals.text import several
from bpals.types import Notice

# Pairs that come in clusters: a film that is read whole brings all its pairs, and its errors may go together.


def design_effect(cluster: pl.Series, wrong: pl.Series) -> float:
    """Say by what factor clusters widen the variance of a share, never below 1.

    Where all or none are wrong nothing can be seen of it, and it is taken to be as large as it can be: a cluster says
    no more than one pair would.
    """
    share = wrong.cast(pl.Float64).mean()
    if wrong.is_empty() or not isinstance(share, float):
        return 1.0
    table = pl.DataFrame({"cluster": cluster, "off": wrong.cast(pl.Float64) - share})
    sums = table.group_by("cluster", maintain_order=True).agg(pl.col("off").sum(), pairs=pl.len())
    clusters, pairs = sums.height, wrong.len()
    if share in {0.0, 1.0} or clusters == 1:
        return pairs / clusters
    between = float((sums["off"] ** 2).sum()) * clusters / (clusters - 1)
    return max(1.0, between / (pairs * share * (1 - share)))


def widened(rate: float, low: float, high: float, effect: float) -> tuple[float, float]:
    """Widen an interval of pairs that was made as if each stood alone."""
    factor = math.sqrt(effect)
    return max(0.0, rate - (rate - low) * factor), min(1.0, rate + (high - rate) * factor)


# Which reads of a reading room are a random sample, although most of its cases were chosen because they looked wrong.
#
# In every batch some cases were drawn at random from all that nobody had read. Were nothing else read, they would be a
# sample in which everything has the same chance. But what was read for its value can no longer be drawn later, and such
# cases hold more errors. So a lottery lets each of them in with the chance with which it would have been drawn in the
# later batches. Then everything has one chance, whatever was chosen, and for whatever reason.

RANDOM = "random"
DRAWN = pl.Schema(
    {
        "item": pl.String(),  # what was drawn: a film, or a pair
        "batch": pl.Int64(),
        "how": pl.String(),  # value or random
        "read": pl.Boolean(),
    }
)
"""One row an item that was drawn in a study."""


def fair_sample(drawn: pl.DataFrame, *, items: int, seed: int = 0) -> tuple[pl.Series, float]:
    """Name the items that were read and are a random sample of all `items`, and the chance that each of them had."""
    cases = drawn.sort("batch").unique("item", keep="first", maintain_order=True)
    if cases.is_empty():
        return pl.Series("item", [], dtype=pl.String), 0.0
    random = pl.col("how") == RANDOM
    batches = (
        cases.group_by("batch")
        .agg(read=(random & pl.col("read")).sum(), gone=pl.col("read").sum())
        .sort("batch")
        .with_columns(left=items - pl.col("gone").cum_sum().shift(1, fill_value=0).cast(pl.Int64))
    )
    chance = np.minimum(1.0, batches["read"].to_numpy() / np.maximum(batches["left"].to_numpy(), 1))
    missed = np.cumprod((1 - chance)[::-1])[::-1]
    later = batches.select("batch", later=pl.Series(1 - np.append(missed[1:], 1.0)))
    lots = pl.Series([_lot(seed, item) for item in cases["item"]], dtype=pl.Float64)
    kept = cases.with_columns(lot=lots).join(later, on="batch", how="left", maintain_order="left")
    sampled = kept.filter(pl.col("read") & (random | (pl.col("lot") < pl.col("later"))))
    return sampled["item"], float(1 - missed[0])


def _lot(seed: int, item: str) -> float:
    """Give a number from 0 to 1 that depends on the item's name and the seed alone."""
    return float(np.random.default_rng([seed, zlib.crc32(item.encode())]).random())


# An error rate that may be looked at after every read: its interval holds at all times at once, so one may stop early.
#
# The reading list is in random order, so at each place the chance q_h that the next pair comes from stratum h is known:
# what is left of h in the list over what is left in all. With M_h claims of h not yet read, of N in all, and e = 1 for an
# error, z = M_h e / (N q_h) has, whatever went before, the mean theta - (errors found so far) / N. So a gambler who bets
# on z against a share m that is true cannot be expected to win; a share is dropped when the gambler has.
#
# A stratum of which nothing is left in the list may be all right or all wrong: what is unread of it is allowed for.

Floats = NDArray[np.float64]

SHARES = 3001
"""Shares that are tried, closer to one another near 0."""
MOST_BET = 0.5
"""Share of the purse that is put at risk, at most."""

STEPS = pl.Schema({"read": pl.Int64(), "low": pl.Float64(), "high": pl.Float64()})


@dataclass(frozen=True, slots=True)
class _Draws:
    """What each read in turn was worth, at least and at most, and the share of errors found before it."""

    least: Floats
    most: Floats
    cap: Floats
    """The most that the read could have been worth."""
    found: Floats
    found_at_most: Floats


def watch(told: pl.DataFrame, level: float = 0.95) -> pl.DataFrame:
    """Give the interval after each read of a plan, in the order of its list: one row a pair that was looked at.

    Takes the claims as `readings.cells` gives them. An unsettled pair counts as right for the lower end and as wrong
    for the upper one. Pairs of the list that are not read yet are passed over.
    """
    listed = told.filter(pl.col("drawn").is_not_null()).sort("batch", "position")
    if not listed["looked"].any():
        return pl.DataFrame(schema=STEPS)
    stratum = pl.struct("finding", "stratum").rank("dense").cast(pl.Int64) - 1
    size = told.with_columns(at=stratum).group_by("at").len().sort("at")["len"].to_numpy()
    place = told.select("image_id", "finding", at=stratum).join(listed, on=["image_id", "finding"])
    ordered = place.sort("batch", "position")
    guess = float(told["suspicion"].mean() or 0.0)  # type: ignore[arg-type]
    low, high = _bet(_draws(ordered, size), guess, 1 - level)
    return pl.DataFrame({"read": np.arange(1, len(low) + 1), "low": low, "high": high}, schema=STEPS)


def _draws(ordered: pl.DataFrame, size: NDArray[np.int64]) -> _Draws:
    at, batch = ordered["at"].to_numpy(), ordered["batch"].to_numpy()
    looked = ordered["looked"].to_numpy()
    error = ordered["wrong"].cast(pl.Float64).to_numpy()
    total = size.sum()
    unread, left = size.astype(np.float64), np.zeros(len(size))
    found = np.zeros(2)
    rows = []
    for t in range(len(at)):
        if t == 0 or batch[t] != batch[t - 1]:
            left = np.bincount(at[batch == batch[t]], minlength=len(size)).astype(np.float64)
        if looked[t]:
            listed = left > 0
            worth = np.divide(unread * left.sum(), total * left, out=np.zeros(len(size)), where=listed)
            shut = unread[~listed].sum() / total
            errors = np.array([error[t] == 1.0, error[t] != 0.0], dtype=np.float64)
            here = worth[at[t]] * errors
            rows.append((here[0], here[1] + shut, worth.max() + shut, *(found / total)))
            unread[at[t]] -= 1
            found += errors
        left[at[t]] -= 1
    return _Draws(*np.array(rows, dtype=np.float64).T)


def _bet(draws: _Draws, guess: float, alpha: float) -> tuple[Floats, Floats]:
    """Bet on and against every share, and keep those against which neither bet has won 2 / alpha."""
    share = np.linspace(0.0, 1.0, SHARES) ** 2
    kept = np.ones(SHARES, dtype=np.bool_)
    on, against = np.zeros(SHARES), np.zeros(SHARES)
    lows, highs = np.zeros(len(draws.cap)), np.ones(len(draws.cap))
    mean, spread = guess, max(guess, 1e-4) * float(draws.cap[0])
    sums, squares = guess, spread
    for t in range(1, len(draws.cap) + 1):
        least, most, cap = (float(column[t - 1]) for column in (draws.least, draws.most, draws.cap))
        at_most = np.maximum(share - draws.found[t - 1], 1e-12)
        at_least = share - draws.found_at_most[t - 1]
        stake = np.sqrt(2 * np.log(2 / alpha) / (spread * t * np.log(t + 1)))
        on += np.log1p(np.minimum(stake, MOST_BET / at_most) * (least - at_most))
        risk = np.maximum(cap - at_least, MOST_BET * cap)
        against += np.log1p(-np.minimum(stake, MOST_BET / risk) * (most - at_least))
        kept &= (np.maximum(on, against) < np.log(2 / alpha)) & (share >= draws.found[t - 1] - 1e-12)
        squares += (least - mean) ** 2
        sums += least
        mean, spread = sums / (t + 1), squares / (t + 1)
        inside = np.flatnonzero(kept)
        if len(inside):
            lows[t - 1] = share[max(0, inside[0] - 1)]
            highs[t - 1] = share[min(SHARES - 1, inside[-1] + 1)]
        else:
            lows[t - 1], highs[t - 1] = lows[t - 2], highs[t - 2]
    return lows, highs


# How often readers are right, from pairs that several of them read, and what that does to an error rate.
#
# Nobody knows the truth of a pair. But if readers err independently of one another, with one sensitivity and one
# specificity a finding, then how often they split on what is said to be present and on what is said to be absent tells
# both. Rogan and Gladen's correction is what follows for a pair with one read.

Floats = NDArray[np.float64]

FEWEST_TWICE = 30
"""Pairs with two settled reads or more, below which nothing is corrected."""
FEWEST_SIDE = 10.0
"""Of them, films with the finding and films without, at least: else one of the two skills is a guess."""
WIDEST_SKILL = 0.4
"""Width of the interval of the sensitivity, above which it is a guess."""
RESAMPLES = 400
ROUNDS = 300
PRIOR = 0.5
"""Reads that are added on either side, so that no skill is exactly 1."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """An error rate with the readers' own errors taken out, and those errors; or why there is none."""

    rate: float | None = None
    low: float | None = None
    high: float | None = None
    sensitivity: float | None = None
    specificity: float | None = None
    twice: int = 0
    """Pairs with two settled reads or more."""
    why_not: str = ""
    least: tuple[float, ...] = ()
    """The rate of each resample, from which the lower end is taken."""
    most: tuple[float, ...] = ()
    """The same with half an error more in each cell, for the upper end."""


def correct(told: pl.DataFrame, seed: int = 0) -> Corrected:
    """Correct the rate of one finding, from its claims as `cells` gives them.

    The ends hold the middle 95 % over resampled pairs, drawn again within each cell; the skills are fitted anew. For
    the upper end half a pair that both readers reject is added to each cell: else one without errors is not in doubt.
    """
    read = told.filter(pl.col("looked") & (pl.col("yes") + pl.col("no") > 0))
    twice = read.filter(pl.col("yes") + pl.col("no") > 1).height
    if twice < FEWEST_TWICE:
        read_twice = several(twice, "pair was", "pairs were")
        return Corrected(twice=twice, why_not=f"{read_twice} read twice; {FEWEST_TWICE} are needed")
    patterns = read.group_by("cell", "says", "yes", "no").len().sort("cell", "says", "yes", "no")
    sizes = told.group_by("cell", "says").agg(size=pl.len()).join(patterns, on=["cell", "says"], how="semi")
    return corrected(patterns, sizes.sort("cell", "says"), seed)


def corrected(patterns: pl.DataFrame, sizes: pl.DataFrame, seed: int = 0) -> Corrected:
    """Do so from counts, in order: `cell, says, yes, no, len` of each pattern of reads, and `cell, says, size`."""
    twice = int(patterns.filter(pl.col("yes") + pl.col("no") > 1)["len"].sum())
    known = _with_rejections(patterns, sizes)
    fit = _Fit.of(known, sizes)
    counts, dice = known["len"].to_numpy().astype(np.float64), np.random.default_rng(seed)
    drawn = fit.resample(counts, counts, dice)
    more = fit.resample(counts, counts + known["rejects"].to_numpy() / 2, dice)
    rates, sensitivity, specificity, ill = fit.solve(np.vstack([counts, drawn, more]))
    sensitivity = sensitivity[: RESAMPLES + 1]
    if min(ill, twice - ill) < FEWEST_SIDE:
        few = f"of {twice:,} pairs read twice about {ill:.0f} show the finding"
        return Corrected(
            twice=twice, why_not=f"{few}; {FEWEST_SIDE:.0f} with it and {FEWEST_SIDE:.0f} without are needed"
        )
    skills = float(sensitivity[0]), float(specificity[0])
    worst, best = np.quantile(sensitivity[1:], [0.025, 0.975])
    if best - worst > WIDEST_SKILL:
        vague = f"the double reads put the sensitivity anywhere from {worst:.2f} to {best:.2f}"
        return Corrected(twice=twice, why_not=f"{vague}; more of them are needed")
    least, most = rates[1 : RESAMPLES + 1], rates[RESAMPLES + 1 :]
    return _between(float(rates[0]), least, most, Corrected(None, None, None, *skills, twice))


def together(findings: Mapping[str, tuple[int, Corrected]], seed: int = 0) -> Corrected:
    """Pool the corrected rates of findings, each given with its claims; none where one of them has none.

    The pairs of each finding are drawn by themselves, so resamples of one go with any resamples of another.
    """
    twice = sum(found.twice for _, found in findings.values())
    if missing := [name for name, (_, found) in findings.items() if found.rate is None]:
        return Corrected(twice=twice, why_not=f"not corrected: {', '.join(missing)}")
    claims = np.array([claims for claims, _ in findings.values()], dtype=np.float64)
    weight = claims / claims.sum()
    dice = np.random.default_rng(seed)
    # The resamples of all findings come from one seed; shuffled, they do not go up and down together.
    least, most = (
        weight @ np.stack([dice.permutation(np.array(ends)) for ends in its])
        for its in zip(*((found.least, found.most) for _, found in findings.values()), strict=True)
    )
    rate = weight @ np.array([found.rate for _, found in findings.values()], dtype=np.float64)
    return _between(float(rate), least, most, Corrected(twice=twice))


def _between(rate: float, least: Floats, most: Floats, found: Corrected) -> Corrected:
    """Put the rate and its interval in, from the resamples for either end."""
    low, high = float(np.quantile(least, 0.025)), float(max(np.quantile(least, 0.975), np.quantile(most, 0.975)))
    return replace(found, rate=rate, low=low, high=high, least=tuple(least.tolist()), most=tuple(most.tolist()))


def _with_rejections(patterns: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Give each cell a row for pairs whose claim two readers reject, seen or not, marked in `rejects`."""
    present = pl.col("says") == "present"
    twice = pl.when(present).then(0).otherwise(2)
    rejected = sizes.select("cell", "says", yes=twice.cast(patterns["yes"].dtype), rejects=pl.lit(1.0))
    rejected = rejected.with_columns(no=(2 - pl.col("yes")).cast(patterns["no"].dtype))
    key = ["cell", "says", "yes", "no"]
    known = patterns.join(rejected, on=key, how="full", coalesce=True).sort(key)
    return known.with_columns(pl.col("len").fill_null(0), pl.col("rejects").fill_null(0.0))


@dataclass(frozen=True, slots=True)
class _Fit:
    """The pattern of reads in each cell, and the cells' weights."""

    yes: Floats
    no: Floats
    member: Floats
    """One row a pattern, one column a cell: 1 where the pattern was seen in it."""
    weight: Floats
    says_present: NDArray[np.bool_]

    @classmethod
    def of(cls, patterns: pl.DataFrame, cells: pl.DataFrame) -> _Fit:
        keys = [tuple(row) for row in cells.select("cell", "says").iter_rows()]
        column = [keys.index(tuple(row)) for row in patterns.select("cell", "says").iter_rows()]
        size = cells["size"].to_numpy().astype(np.float64)
        return cls(
            patterns["yes"].to_numpy().astype(np.float64),
            patterns["no"].to_numpy().astype(np.float64),
            np.eye(len(keys))[column],
            size / size.sum(),
            (cells["says"] == "present").to_numpy(),
        )

    def resample(self, counts: Floats, likely: Floats, dice: np.random.Generator) -> Floats:
        """Draw as many pairs of each cell again, RESAMPLES times, each pattern as likely as given: one row a draw."""
        drawn = np.zeros((RESAMPLES, len(counts)))
        for cell in self.member.T.astype(np.bool_):
            chances = likely[cell] / likely[cell].sum()
            drawn[:, cell] = dice.multinomial(int(counts[cell].sum()), chances, size=RESAMPLES)
        return drawn

    def solve(self, counts: Floats) -> tuple[Floats, Floats, Floats, float]:
        """Fit the share that shows the finding in each cell, and the readers' skill, by expectation-maximisation.

        Gives the error rate, sensitivity and specificity of each row, and how many pairs read twice show the finding.
        """
        total = counts @ self.member
        share = np.clip(counts * (self.yes > self.no) @ self.member / np.maximum(total, 1), 0.01, 0.99)
        sensitivity, specificity = np.full(len(counts), 0.85), np.full(len(counts), 0.95)
        shows = np.zeros_like(counts)
        # Many cells have the same patterns of yes and no, whose chance is worked out once.
        (yes, no), place = np.unique(np.stack([self.yes, self.no]), axis=1, return_inverse=True)
        for _ in range(ROUNDS):
            ill, well = sensitivity[:, None], specificity[:, None]
            shown = share @ self.member.T
            if_ill = shown * (ill**yes * (1 - ill) ** no)[:, place]
            if_well = (1 - shown) * ((1 - well) ** yes * well**no)[:, place]
            shows = counts * if_ill / (if_ill + if_well)
            without = counts - shows
            share = np.clip(shows @ self.member / np.maximum(total, 1), 1e-9, 1 - 1e-9)
            sensitivity = (shows @ self.yes + PRIOR) / (shows @ (self.yes + self.no) + 2 * PRIOR)
            specificity = (without @ self.no + PRIOR) / (without @ (self.yes + self.no) + 2 * PRIOR)
        wrong = np.where(self.says_present, 1 - share, share)
        return wrong @ self.weight, sensitivity, specificity, float(shows[0] @ (self.yes + self.no > 1))


# Reads of one pair made into one word about its claim, and placed where they were drawn from.
#
# Readers of a pair outvote one another; where they split evenly, or nobody was sure, the pair is unsettled. A read counts
# towards a rate only if the chance with which its pair was drawn is known, or if the reads are a simple random sample.

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


# The share of a dataset's claims that readers reject: by finding, over all findings, and by group of patients.
#
# Made of reads of pairs that were drawn at random with known chances. It is the rate of this dataset, whose claims are
# counted, not of a population it may have come from; and it is the readers' word, unless it is corrected for theirs.

ALL = "all"
OVERALL = "all findings"
KINDS = ("present", "absent")

RATES = pl.Schema(
    {
        "finding": pl.String(),  # `all findings` pools those that were read
        "group_by": pl.String(),  # the column of images that makes the groups; null for all films
        "group": pl.String(),
        "says": pl.String(),  # all claims, or those of presence or absence
        "claims": pl.Int64(),  # in the dataset
        "read": pl.Int64(),  # pairs that were drawn at random and settled by reads
        "wrong": pl.Int64(),  # of them, those whose claim the readers reject
        "rate": pl.Float64(),  # share of the claims that is wrong; null where none was read
        "low": pl.Float64(),  # 95 % interval
        "high": pl.Float64(),
        "unsettled": pl.Int64(),  # pairs that readers split on, hedged on or could not read: not in `read`
        "low_if_right": pl.Float64(),  # lower end if every unsettled claim were right
        "high_if_wrong": pl.Float64(),  # upper end if every one were wrong
        "unread_share": pl.Float64(),  # share of the claims in strata of which no read is there
        "anytime_low": pl.Float64(),  # holds however often you look; null without a plan
        "anytime_high": pl.Float64(),
        "corrected": pl.Float64(),  # the rate with the readers' own errors taken out; null where it cannot be
        "corrected_low": pl.Float64(),
        "corrected_high": pl.Float64(),
        "sensitivity": pl.Float64(),  # of one reader, as the double reads tell
        "specificity": pl.Float64(),
        "read_twice": pl.Int64(),  # pairs with two settled reads or more
        "why_not_corrected": pl.String(),  # in words; null where it is corrected, and for groups
    }
)
"""One row a finding, group and kind of claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """How reads are to be understood."""

    level: float = 0.95
    simple_random: bool = False
    """Every pair of a finding had the same chance to be read, whatever `inclusion` says."""
    seed: int = 0


def rates(
    reads: pl.DataFrame, stratified: pl.DataFrame, *, by: Sequence[str] = (), rating: Rating | None = None
) -> tuple[pl.DataFrame, list[Notice]]:
    """Tell the error rates: REVIEWS and the claims as `stratify` or `draw` give them, to a table like RATES.

    `by` names columns of `stratified` beside its own, such as `sex`: patients' groups.
    """
    how = rating or Rating()
    placed, notices = place(settle(reads), stratified)
    told, more = cells(placed, simple_random=how.simple_random, seed=how.seed)
    read = told.filter(pl.col("looked").any().over("finding"))
    findings = read["finding"].unique(maintain_order=True).to_list()
    rows = []
    skills: dict[str, tuple[int, Corrected]] = {}
    for finding in findings:
        own = read.filter(pl.col("finding") == finding)
        skills[finding] = (own.height, correct(own, how.seed))
        rows += _rows(own, finding, by, how, skills[finding][1])
    if len(findings) > 1:
        rows += _rows(read, OVERALL, by, how, together(skills, how.seed))
    return pl.DataFrame(rows, schema=RATES, orient="row"), [*notices, *more]


def _rows(
    told: pl.DataFrame, finding: str, by: Sequence[str], how: Rating, skill: Corrected
) -> list[dict[str, object]]:
    """Make the rows of one finding: all claims, each kind of claim, each group."""
    cell = ["finding", "cell"]
    key: dict[str, object] = {"finding": finding, "group_by": None, "group": None}
    whole = _row(tally(told, cell), key | {"says": ALL}, how)
    rows = [whole | _watched(told, how) | _skill(skill)]
    for kind in KINDS:
        part = told.filter(pl.col("says") == kind)
        rows.append(_row(tally(part, cell), key | {"says": kind}, how) | _watched(part, how))
    for column in by:
        named = told.with_columns(pl.col(column).cast(pl.String).fill_null("unknown"))
        for group in named[column].unique().sort():
            part = named.filter(pl.col(column) == group)
            its = key | {"group_by": column, "group": group, "says": ALL}
            rows.append(_row(tally(part, cell), its, how) | _watched(part, how))
    return [row for row in rows if row["claims"]]


def _row(counts: pl.DataFrame, key: dict[str, object], how: Rating) -> dict[str, object]:
    """Put numbers to one row from the counts of its cells."""
    size, read, wrong, unsettled = (counts[name].to_numpy() for name in ("size", "read", "wrong", "unsettled"))
    told = interval(Strata.of(size, read, wrong), how.level)
    least, most = told, told
    if unsettled.any():
        least = interval(Strata.of(size, read + unsettled, wrong), how.level)
        most = interval(Strata.of(size, read + unsettled, wrong + unsettled), how.level)
    claims = int(size.sum())
    return {
        **key,
        "claims": claims,
        "read": int(read.sum()),
        "wrong": int(wrong.sum()),
        **_ends(told),
        "unsettled": int(unsettled.sum()),
        "low_if_right": min(told.low, least.low),
        "high_if_wrong": max(told.high, most.high),
        "unread_share": float(size[read == 0].sum() / max(1, claims)),
    }


def _ends(told: Interval) -> dict[str, object]:
    return {"rate": told.rate, "low": told.low, "high": told.high}


def _watched(told: pl.DataFrame, how: Rating) -> dict[str, object]:
    """Add the interval that holds at any time, where a plan says in which order pairs were to be read.

    A group's pairs are a list of their own: whatever fell to it, they are in random order within the whole list.
    """
    if how.simple_random or not told["planned"].all():
        return {}
    steps = watch(told, level=how.level)
    return {"anytime_low": steps["low"][-1], "anytime_high": steps["high"][-1]} if steps.height else {}


def _skill(found: Corrected) -> dict[str, object]:
    return {
        "corrected": found.rate,
        "corrected_low": found.low,
        "corrected_high": found.high,
        "sensitivity": found.sensitivity,
        "specificity": found.specificity,
        "read_twice": found.twice,
        "why_not_corrected": found.why_not or None,
    }
