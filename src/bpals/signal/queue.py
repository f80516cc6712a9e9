"""The queue: which pairs an expert reads next, most of them by value and a share at random, unmarked.

How a batch of n is drawn, patient by patient (or pair by pair, where several images of a patient are wanted):

1. The random share: every pair that could be read has the same chance to be one of the r random ones, r / N. A
   patient is drawn with a chance proportional to its pairs, and then one of them. The draw is systematic: all patients
   lie on a line, each as long as its chance, and a comb with teeth one apart is laid on it at a random place. The
   patients of most value lie first, in the order of their value; the others behind them in a random order.
2. The rest: the best pair of each patient not drawn yet, the most valuable first.

Where whole images are read, an image stands in the place of a pair, worth as much as all its pairs.

So the chance of a pair to be in the batch is known exactly when it is drawn: its part of its patient's chance in 1, and
for the best pair of a patient also the chance that 2 reaches it. `inclusion` is that chance; 1 / inclusion weighs a
read in an estimate for all pairs that could have been read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import UsageError
from bpals.numeric import patients
from bpals.signal.value import Floats, Worth, values
from bpals.types import Reviews

Ints = npt.NDArray[np.int64]

DRAWN = pl.Enum(["value", "random"])
READING_LIST = pl.Schema(
    {
        "image_id": pl.String(),
        "finding": pl.String(),
        "value": pl.Float64(),  # errors an expert minute is expected to find, counted by gain; null: nobody judged it
        "inclusion": pl.Float64(),  # chance with which the pair was to be in this batch
        "drawn": DRAWN,  # never shown to a reader
    }
)
"""The next pairs to read, in the order of reading."""

_PAIR = ["image_id", "finding"]
# Chances are sums of shares: one that should be 1 may miss it in the last digits.
_CERTAIN = 1 - 1e-9
MOST_BATCHES = 40
"""After so many the rest is drawn in one: nobody reads so far before the queue is drawn anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How a batch is drawn."""

    random_share: float = 0.2
    """Share of the batch that is drawn at random; rounded up, so that there is one unless the share is 0."""
    seed: int = 0
    one_per_patient: bool = True
    """At most one pair, and so one image, of a patient."""
    readers_per_pair: int = 1
    """A pair with fewer reads than this is offered again."""
    whole_films: bool = False
    """All findings of an image are read at once: what is drawn is an image, named with its most valuable finding."""
    batch: int | None = None
    """Draw so many at a time, each batch from what the ones before left over; None draws all in one."""

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if not 0 <= self.random_share <= 1:
            raise UsageError(
                f"a random share of {self.random_share}: it lies between 0 and 1. Type: --random-share 0.2"
            )
        if self.seed < 0:
            raise UsageError(f"{self.seed} is no seed: it must be 0 or more. Type: --seed 0")
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"a batch of {self.batch} is nothing to read. Draw 50 at a time")
        if self.readers_per_pair < 1:
            raise UsageError(f"{self.readers_per_pair} readers a pair read nothing. Type: --readers-per-pair 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """What could be read, in an order that does not depend on the order of rows: patient by patient."""

    pairs: pl.DataFrame
    value: Floats
    """NaN where nobody judged."""
    unit: Ints
    """The patient of each pair, counting up; each pair is a patient of its own where several may be read."""

    @property
    def start(self) -> Ints:
        """Where each patient's pairs begin."""
        return np.flatnonzero(np.diff(self.unit, prepend=-1)).astype(np.int64)

    @property
    def size(self) -> Ints:
        """How many pairs each patient has."""
        return np.diff(self.start, append=len(self.unit)).astype(np.int64)

    @property
    def best(self) -> Ints:
        """The most valuable pair of each patient, the first of those that tie."""
        start, value = self.start, np.nan_to_num(self.value, nan=-1.0)
        top = np.repeat(np.maximum.reduceat(value, start), self.size) if len(value) else value
        places = np.flatnonzero(value == top)
        return places[np.searchsorted(places, start)]

    def without(self, chosen: Ints) -> _Pool:
        """Leave some pairs out."""
        kept = np.ones(len(self.unit), dtype=np.bool_)
        kept[chosen] = False
        return _Pool(pairs=self.pairs.filter(kept), value=self.value[kept], unit=self.unit[kept])


def next_reviews(
    signal: pl.DataFrame,
    images: pl.DataFrame,
    *,
    n: int,
    reviews: Reviews | None = None,
    only: pl.Series | None = None,
    worth: Worth | None = None,
    draw: Draw | None = None,
) -> pl.DataFrame:
    """Draw the next `n` pairs to read, fewer where fewer are left: READING_LIST, in the order of reading.

    `reviews` are the reads that there are: a pair with enough of them is not offered again. `only` names the films that
    can be shown, where not all can. Uncertain labels are not offered, because they cannot be wrong, and neither is what
    people settled (`verdict`). The same inputs give the same batch, whatever the order of their rows.
    """
    if n < 1:
        raise UsageError(f"{n} pairs are nothing to read. Type: --n 50")
    how = draw or Draw()
    valued = _valued(signal, worth)
    if only is not None:
        valued = valued.filter(pl.col("image_id").is_in(only.implode()))
    pool = _pool(valued, images, reviews, how)
    rng = np.random.default_rng(how.seed)
    if how.batch is None:
        return _batch(pool, n, how, rng)[0]
    return _batches(pool, n, how, rng)


def _batches(pool: _Pool, n: int, how: Draw, rng: np.random.Generator) -> pl.DataFrame:
    """Draw batch after batch; who was drawn is not drawn by value again while there are others."""
    parts, before = [pl.DataFrame(schema=READING_LIST)], np.zeros(0, dtype=np.int64)
    for turn in range(MOST_BATCHES + 1):
        wanted = min(n, how.batch or n)
        if turn == MOST_BATCHES:
            # Every pair stands for itself now, so that the rest comes in one batch whatever the patients.
            wanted, pool = n, replace(pool, unit=np.arange(len(pool.unit)))
        if len(np.setdiff1d(pool.unit, before)) < wanted:
            # Too few patients are left that were not drawn yet: all of them begin again.
            before = before[:0]
        listed, chosen = _batch(pool, wanted, how, rng, before)
        before = np.union1d(before, pool.unit[chosen])
        pool, n = pool.without(chosen), n - listed.height
        parts.append(listed)
        if not n or not len(pool.unit):
            break
    return pl.concat(parts)


def _batch(
    pool: _Pool, n: int, how: Draw, rng: np.random.Generator, before: Ints | None = None
) -> tuple[pl.DataFrame, Ints]:
    """Draw one batch, READING_LIST, and say which rows of the pool it took."""
    n = min(n, len(pool.start))
    if n == 0:
        return pl.DataFrame(schema=READING_LIST), np.zeros(0, dtype=np.int64)
    # Rounded before it is rounded up: 50 x .2 may be 10.000000000000002.
    at_random = int(np.ceil(np.round(n * how.random_share, 9)))
    chosen, inclusion, random = _draw(pool, n, at_random, rng, before)
    listed = pool.pairs[chosen].with_columns(
        value=pl.Series(pool.value[chosen], nan_to_null=True),
        inclusion=pl.Series(inclusion),
        drawn=pl.Series(np.where(random, "random", "value")).cast(DRAWN),
    )
    return listed[_interleaved(random, rng)].select(READING_LIST.names()).cast(READING_LIST), chosen


def _valued(signal: pl.DataFrame, worth: Worth | None) -> pl.DataFrame:
    """Give every definite label that nobody settled its value."""
    if "verdict" in signal.columns:
        signal = signal.filter(pl.col("verdict").is_null())
    needed = (*_PAIR, "says", "trust", "trust_low", "trust_high", "method", "p_split")
    claims = signal.select(name for name in needed if name in signal.columns).filter(pl.col("says") != "uncertain")
    return claims.select(_PAIR).with_columns(pl.col("finding").cast(pl.String), value=pl.Series(values(claims, worth)))


def _pool(pairs: pl.DataFrame, images: pl.DataFrame, reviews: Reviews | None, draw: Draw) -> _Pool:
    """Lay out what could be read: definite labels without enough reads, patient by patient."""
    if reviews is not None:
        pairs = pairs.join(_read_enough(reviews, draw.readers_per_pair), on=_PAIR, how="anti", maintain_order="left")
    pairs = pairs.join(_films(pairs, images), on="image_id", how="left", maintain_order="left")
    findings = pairs["finding"].unique().sort()
    column = pairs["finding"].replace_strict(findings, range(len(findings)), return_dtype=pl.Int64).to_numpy()
    place = pairs["film"].to_numpy() * len(findings) + column
    pairs = pairs[np.argsort(place, kind="stable")]
    if draw.whole_films:
        pairs = _whole(pairs)
    unit = pairs["patient"].to_numpy() if draw.one_per_patient else np.arange(pairs.height)
    return _Pool(pairs=pairs.select(_PAIR), value=pairs["value"].to_numpy(), unit=unit)


def _whole(pairs: pl.DataFrame) -> pl.DataFrame:
    """Make one row of each image: worth as much as its pairs together, named with the most valuable of them."""
    known = pl.col("value").fill_nan(None)
    films = pairs.group_by("film", maintain_order=True).agg(
        pl.col("image_id").first(),
        pl.col("finding").gather(known.arg_max().fill_null(0)).first(),
        pl.when(known.count() > 0).then(known.sum()).otherwise(float("nan")).alias("value"),
        pl.col("patient").first(),
    )
    return films.sort("film")


def _films(pairs: pl.DataFrame, images: pl.DataFrame) -> pl.DataFrame:
    """Number images and patients in the order of their names; an image that nobody knows is a patient of its own."""
    named = images.select("image_id", patient=patients(images)).unique("image_id")
    films = pairs.select("image_id").unique().join(named, on="image_id", how="left")
    films = films.with_columns(pl.col("patient").fill_null("film:" + pl.col("image_id"))).sort("patient", "image_id")
    return films.select(
        "image_id", film=pl.int_range(pl.len(), dtype=pl.Int64), patient=pl.col("patient").rle_id().cast(pl.Int64)
    )


def _read_enough(reviews: Reviews, readers: int) -> pl.DataFrame:
    """List the pairs that so many have read; who says that a group is absent has read each of its members."""
    reads = reviews.table.select(*_PAIR, "reader", "verdict")
    members = [
        reads.filter((pl.col("finding") == group.name) & (pl.col("verdict") == "absent")).with_columns(
            finding=pl.lit(member)
        )
        for group in reviews.groups
        for member in group.members
    ]
    counted = pl.concat([reads, *members]).group_by(_PAIR).agg(pl.col("reader").n_unique().alias("readers"))
    return counted.filter(pl.col("readers") >= readers)


def _draw(
    pool: _Pool, n: int, at_random: int, rng: np.random.Generator, before: Ints | None
) -> tuple[Ints, Floats, npt.NDArray[np.bool_]]:
    """Draw the pairs, first at random and then by value: their places, their inclusions, and which are random."""
    best, start, size = pool.best, pool.start, pool.size
    chance = _chances(size, at_random)
    certain = chance >= _CERTAIN
    value = np.nan_to_num(pool.value[best], nan=-1.0)
    if before is not None:
        value = np.where(np.isin(pool.unit[start], before), -2.0, value)
    by_value = np.argsort(-value, kind="stable")
    line = by_value[~certain[by_value]]
    # Only so many patients can be reached by value, however the comb falls; the others are shuffled.
    reach = min(n, len(line))
    line[reach:] = rng.permutation(np.sort(line[reach:]))
    ends = np.cumsum(chance[line])
    teeth = rng.random() + np.arange(at_random - int(certain.sum()))
    hit = np.unique(np.minimum(np.searchsorted(ends, teeth, side="right"), len(line) - 1))
    random_units = np.concatenate([np.flatnonzero(certain), np.sort(line[hit])]).astype(np.int64)
    valued = np.delete(line[:reach], hit[hit < reach])[: n - len(random_units)]
    reached = np.zeros(len(start))
    reached[line[:reach]] = _reached(ends[:reach], chance[line[:reach]], n - at_random)
    within = (rng.random(len(random_units)) * size[random_units]).astype(np.int64)
    units = np.concatenate([valued, random_units])
    chosen = np.concatenate([best[valued], start[random_units] + within])
    inclusion = chance[units] / size[units] + np.where(chosen == best[units], reached[units], 0.0)
    return chosen, np.minimum(inclusion, 1.0), np.arange(len(units)) >= len(valued)


def _chances(size: Ints, wanted: int) -> Floats:
    """Give each patient its chance to be drawn: proportional to its pairs, none above 1, `wanted` in all."""
    chance = np.zeros(len(size))
    if not wanted:
        return chance
    sure = np.zeros(len(size), dtype=np.bool_)
    while True:
        rest = wanted - sure.sum()
        chance = np.where(sure, 1.0, size * (rest / max(1, size[~sure].sum())))
        above = (chance >= _CERTAIN) & ~sure
        if not above.any():
            return chance
        sure |= above


def _reached(ends: Floats, chance: Floats, by_value: int) -> Floats:
    """Give the chance that a patient is read for its value, along the line of patients of most value.

    The comb lies at u, uniform on [0, 1), so that of the patients before place k it hits q + 1 where u < f and q where
    not, q + f being where patient k begins. It is read for its value where it is not hit itself and at most
    `by_value - 1` of those before it are left over.
    """
    begins = ends - chance
    whole = np.floor(begins)
    part = begins - whole
    before = np.arange(len(ends))
    below = part - np.maximum(0.0, part + chance - 1)
    above = 1 - part - np.minimum(chance, 1 - part)
    return below * (before - whole - 1 < by_value) + above * (before - whole < by_value)


def _interleaved(random: npt.NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """Put the random pairs at random places among the others, which keep the order of their value."""
    places = np.empty(len(random), dtype=np.int64)
    slots = np.zeros(len(random), dtype=np.bool_)
    slots[rng.choice(len(random), int(random.sum()), replace=False)] = True
    places[slots] = rng.permutation(np.flatnonzero(random))
    places[~slots] = np.flatnonzero(~random)
    return places
