"""A fair sample of a room's reads: on average the truth, although most cases were chosen because they looked wrong."""

import numpy as np
import polars as pl
import pytest

from bpals.signal.fairsample import DRAWN, fair_sample

ITEMS = 240
BATCH = 40
RANDOM = 10


def study(seed, batches):
    """Read batches of a small world: in each, ten at random of what is unread, and thirty that look most wrong.

    What looks wrong is wrong more often, and after every batch the looks follow what was read.
    """
    dice = np.random.default_rng(seed)
    wrong = dice.random(ITEMS) < 0.2
    looks = wrong + dice.normal(size=ITEMS)
    rows, unread = [], np.ones(ITEMS, dtype=bool)
    for batch in range(batches):
        left = np.flatnonzero(unread)
        at_random = dice.choice(left, min(RANDOM, len(left)), replace=False)
        rest = np.setdiff1d(left, at_random)
        by_value = rest[np.argsort(-looks[rest])][: BATCH - RANDOM]
        rows += [
            (str(item), batch, how, True) for how, some in (("random", at_random), ("value", by_value)) for item in some
        ]
        unread[at_random] = unread[by_value] = False
        looks[unread] += 0.1 * wrong[at_random].mean()
    return pl.DataFrame(rows, schema=DRAWN, orient="row"), wrong


def estimates(batches, seeds=250):
    """Say how far the share of errors in the sample, in the random cases and in all cases is off, on average."""
    off = []
    for seed in range(seeds):
        drawn, wrong = study(seed, batches)
        sample, chance = fair_sample(drawn, items=ITEMS, seed=seed)
        random = drawn.filter(pl.col("how") == "random")["item"]
        told = [wrong[some.cast(pl.Int64).to_numpy()].mean() - wrong.mean() for some in (sample, random, drawn["item"])]
        off.append([*told, len(sample) / ITEMS - chance])
    return np.mean(off, axis=0), np.std(off, axis=0) / np.sqrt(seeds)


def test_the_sample_is_right_on_average_whatever_was_chosen():
    """Two thirds were read: the random cases alone miss errors that were taken before, and all cases hold too many."""
    (sample, random, every, size), (noise, *_, of_size) = estimates(4)
    assert abs(sample) < 4 * noise
    assert random < -0.02
    assert every > 0.05
    assert abs(size) < 4 * of_size + 0.005


def test_in_the_first_batch_it_is_the_random_cases():
    """Nothing was taken before."""
    drawn, _ = study(1, 1)
    sample, chance = fair_sample(drawn, items=ITEMS)
    assert set(sample) == set(drawn.filter(pl.col("how") == "random")["item"])
    assert chance == pytest.approx(RANDOM / ITEMS)


def test_what_was_drawn_and_not_read_is_no_sample():
    """Half of the random cases were read: the chance is half as large."""
    drawn, _ = study(1, 1)
    half = drawn.with_columns(read=pl.int_range(pl.len()) % 2 == 0)
    sample, chance = fair_sample(half, items=ITEMS)
    assert set(sample) == set(half.filter((pl.col("how") == "random") & pl.col("read"))["item"])
    assert chance == pytest.approx(len(sample) / ITEMS)


def test_the_same_reads_give_the_same_sample_in_any_order():
    """The lot of an item hangs on its name and the seed alone."""
    drawn, _ = study(5, 4)
    sample, chance = fair_sample(drawn, items=ITEMS, seed=3)
    again, same = fair_sample(drawn.sample(fraction=1.0, shuffle=True, seed=1), items=ITEMS, seed=3)
    assert (set(sample), chance) == (set(again), same)
    assert set(fair_sample(drawn, items=ITEMS, seed=4)[0]) != set(sample)


def test_nothing_drawn_is_no_sample():
    """A room that only holds reads from files."""
    sample, chance = fair_sample(pl.DataFrame(schema=DRAWN), items=ITEMS)
    assert sample.is_empty()
    assert chance == 0
