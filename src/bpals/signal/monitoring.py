"""An error rate that may be looked at after every read: its interval holds at all times at once, so one may stop early.

The reading list is in random order, so at each place the chance q_h that the next pair comes from stratum h is known:
what is left of h in the list over what is left in all. With M_h claims of h not yet read, of N in all, and e = 1 for an
error, z = M_h e / (N q_h) has, whatever went before, the mean theta - (errors found so far) / N. So a gambler who bets
on z against a share m that is true cannot be expected to win; a share is dropped when the gambler has.

A stratum of which nothing is left in the list may be all right or all wrong: what is unread of it is allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

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
