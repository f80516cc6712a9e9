"""Made-up readers: the trust is what it says, and readers differ most where the judge is in doubt."""

import numpy as np
import polars as pl

from bpals.testing.fakes import made_up_reads
from bpals.types import REVIEWS


def test_the_trust_is_the_share_that_is_right():
    """In five bins of trust, of 60,000 films, the claims are right as often as is said."""
    pairs, _ = made_up_reads(films=60_000)
    right = (pairs["claimed"] == pairs["present"]).to_numpy()
    trust = pairs["trust"].to_numpy()
    for low in np.arange(0, 1, 0.2):
        inside = (trust >= low) & (trust < low + 0.2)
        off = right[inside].mean() - trust[inside].mean()
        assert abs(off) < 4 * np.sqrt((trust * (1 - trust))[inside].mean() / inside.sum())


def test_readers_differ_where_the_judge_is_in_doubt():
    """Three reads of each pair, a schema that a replay takes; a seed gives the same again."""
    pairs, reads = made_up_reads()
    assert reads.schema == REVIEWS
    assert reads.height == 3 * pairs.height
    split = reads.group_by("image_id", "finding").agg(split=pl.col("verdict").n_unique() > 1)
    joined = pairs.join(split, on=["image_id", "finding"])
    doubt = (joined["trust"] > 0.2) & (joined["trust"] < 0.8)
    assert joined.filter(doubt)["split"].mean() > 2 * joined.filter(~doubt)["split"].mean()
    assert made_up_reads()[0].equals(pairs)
    assert not made_up_reads(seed=1)[0].equals(pairs)
