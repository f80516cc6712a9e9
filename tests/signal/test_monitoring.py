"""The interval that may be looked at after every read."""

import numpy as np
import polars as pl

from bpals.signal.coverage import Strata, interval
from bpals.signal.monitoring import watch
from bpals.signal.readings import cells, place, settle, tally
from bpals.signal.strata import draw, reading_list, stratify
from bpals.types import VERDICT
from world import known_labels

TABLE = known_labels.claims(films=1200, presences=(("Effusion", 0.15),))
PLACED = stratify(TABLE)
TRUE = TABLE["wrong"].mean()


def steps(seed, reads=120, looked=None, hedged=()):
    """Read a plan, or the first part of it, and watch."""
    drawn = draw(PLACED, reads=reads, seed=seed)
    said = known_labels.read(reading_list(drawn).head(looked or reads), TABLE)
    hedge = pl.int_range(pl.len()).is_in(list(hedged))
    word = pl.when(hedge).then(pl.lit("uncertain")).otherwise(pl.col("verdict").cast(pl.String)).cast(VERDICT)
    told, _ = cells(place(settle(said.with_columns(verdict=word)), drawn)[0])
    return watch(told), told


def test_the_interval_holds_at_all_times_at_once():
    """Over 200 draws, the share of those in which it ever loses the truth is at most 5 %, and three standard errors."""
    lost = 0
    for seed in range(200):
        seen, _ = steps(seed)
        lost += bool(((seen["low"] > TRUE) | (seen["high"] < TRUE)).any())
    assert lost / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_an_interval_for_one_look_would_not_hold_so():
    """Looking after every twentieth read at the fixed interval loses the truth more often than one look does."""
    ever, last = 0, 0
    for seed in range(40):
        drawn = draw(PLACED, reads=120, seed=seed)
        listed = reading_list(drawn)
        said = settle(known_labels.read(listed, TABLE))
        missed = []
        for looked in range(20, 121, 20):
            told, _ = cells(place(said.head(looked), drawn)[0])
            counts = tally(told, ["cell"])
            found = interval(Strata.of(counts["size"], counts["read"], counts["wrong"]))
            missed.append(not found.low <= TRUE <= found.high)
        ever, last = ever + any(missed), last + missed[-1]
    assert ever > last


def test_the_interval_only_narrows():
    """What was excluded stays so, and it ends around the truth."""
    seen, _ = steps(1, reads=400)
    assert seen.height == 400
    assert (seen["low"].diff().drop_nulls() >= 0).all()
    assert (seen["high"].diff().drop_nulls() <= 0).all()
    assert seen["high"][-1] - seen["low"][-1] < 0.15
    assert seen["low"][-1] < TRUE < seen["high"][-1]


def test_looking_early_shows_what_a_shorter_reading_shows():
    """The interval after 50 reads does not depend on what is read later."""
    whole, _ = steps(2)
    early, _ = steps(2, looked=50)
    assert whole.head(50).equals(early)


def test_an_unsettled_pair_counts_against_both_ends():
    """Hedges can only widen the interval."""
    sure, _ = steps(3)
    hedged, _ = steps(3, hedged=range(0, 120, 10))
    assert hedged["low"][-1] <= sure["low"][-1]
    assert hedged["high"][-1] >= sure["high"][-1]


def test_reading_everything_ends_at_the_truth():
    """With nothing left unread the errors are counted; the interval cannot exclude their share."""
    seen, _ = steps(4, reads=1200)
    assert seen["low"][-1] <= TRUE <= seen["high"][-1]
    assert seen["high"][-1] - seen["low"][-1] < 0.06


def test_nothing_read_is_nothing_to_watch():
    """No step, no interval."""
    drawn = draw(PLACED, reads=30)
    told = drawn.rename({"inclusion": "drawn"}).with_columns(looked=pl.lit(False), wrong=pl.lit(None, pl.Boolean))
    assert watch(told).is_empty()
