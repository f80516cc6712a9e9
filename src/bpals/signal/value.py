"""The value of a read: what an expert minute spent on a pair is worth, and the order of reading that follows.

value = (P(error) x gain + weight x information) / (expected reads x minutes a read)

P(error)        1 - trust where the trust was fitted on expert labels; else what such a trust has meant (`TEMPERED`),
                a finding that is rarer than any this was learned on being taken as if it were as common (`RAREST`)
information     bits that a read tells about the signal's own estimate: much where its interval is wide
expected reads  1 + P(the first two readers disagree), so that an image that splits its readers costs more

The constants were fitted once, on the 2,414 adjudicated validation images of the four-findings set and their reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import UnknownName, UsageError
from bpals.numeric import NORMAL_95, SMALLEST, logit, order, sigmoid

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FITTED = "+experts"
"""In the method of a row whose trust was fitted on expert labels."""
TEMPERED = (-0.6, 0.5)
"""Without expert labels, presence labelled: logit P(error) = -0.6 + 0.5 x logit(1 - trust)."""
RAREST = 0.047
"""The share of presences among the labels of the rarest finding that this was fitted on."""
SPLIT = (0.035, 0.26)
"""P(the first two readers disagree) = 0.035 + 0.26 x 4 p (1 - p), p the trust."""
FIRST_TWO = 2 / 3
"""Where three readers split two to one, so often the first two are not the two that agree."""
SATURATION = 0.18
"""A pair cannot tell more than one bit: this bends p (1 - p) spread^2 / (2 ln 2) down where the spread is large."""
BLOCK = 32_768
"""Claims that are valued at a time: so few that the numbers stay in the processor's cache."""
SECONDS = 30.0
"""What one read of one finding takes, where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What finding an error is worth, what a bit is, and what a read takes."""

    gains: Mapping[str, float] = field(default_factory=dict)
    """Finding -> what one error found there is worth; 1 where it is not named."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Finding -> how long one read takes; 30 where it is not named."""
    information: float = 1.0
    """What one bit is worth, in errors of gain 1."""
    common: Mapping[str, float] = field(default_factory=dict)
    """Finding -> the share of its labels that are presences; counted in the labels that are valued, where not named."""

    def __post_init__(self) -> None:
        """Refuse a worth that would turn the order round or divide by nothing."""
        for name, gain in self.gains.items():
            if not (math.isfinite(gain) and gain >= 0):
                raise UsageError(f"a gain of {gain} for {name}: it must be 0 or more. Type: --gain {name}=2")
        for name, took in self.seconds.items():
            if not (math.isfinite(took) and took > 0):
                raise UsageError(f"{took} seconds a read of {name}: it must be more than 0. Name how long one takes")
        if not (math.isfinite(self.information) and self.information >= 0):
            raise UsageError(f"a bit cannot be worth {self.information}: it must be 0 or more. Leave it at 1")


def values(signal: pl.DataFrame, worth: Worth | None = None) -> Floats:
    """Say what an expert minute is worth on each label; NaN where there is no trust.

    Needs the columns `finding, says, trust, trust_low, trust_high, method` of a signal. A column `p_split`, where there
    is one, is P(three readers split) as it was learnt from reads, and stands instead of the constants; null is none.
    """
    price = worth or Worth()
    for given in (price.gains, price.seconds):
        _refuse_strangers(signal["finding"], given)
    rarer = _rarer(signal, price)
    return np.concatenate([np.zeros(0), *(_values(some, price, rarer) for some in signal.iter_slices(BLOCK))])


def _rarer(signal: pl.DataFrame, price: Worth) -> dict[str, float]:
    """Say how much rarer, in logits, a finding is than the rarest that a correction was fitted on; others are left out.

    A rare finding has a low trust wherever it is labelled. Beyond what was fitted that says how rare it is, not that
    its labels are wrong.
    """
    said = signal.group_by("finding").agg((pl.col("says") == "present").mean().alias("share"))
    shares = {str(finding): share for finding, share in said.iter_rows()} | dict(price.common)
    rare = {finding: min(max(share, SMALLEST), RAREST) for finding, share in shares.items()}
    return {
        name: math.log(RAREST / (1 - RAREST) / (share / (1 - share))) for name, share in rare.items() if share < RAREST
    }


def _values(signal: pl.DataFrame, price: Worth, rarer: Mapping[str, float]) -> Floats:
    trust, low, high = (_floats(signal[name]) for name in ("trust", "trust_low", "trust_high"))
    said = (signal["says"] == "present").to_numpy()
    fitted = said.copy()  # of absences nobody asks
    fitted[said] = signal["method"].filter(pl.Series(said)).str.contains(FITTED, literal=True).to_numpy()
    split = disagreement(trust)
    if "p_split" in signal.columns:
        learned = _floats(signal["p_split"])
        split = np.where(np.isnan(learned), split, FIRST_TWO * learned)
    rare = _named(signal["finding"], rarer, 0.0)
    found = chance_of_error(trust, said, fitted, rare) * _named(signal["finding"], price.gains, 1.0)
    minutes = _named(signal["finding"], price.seconds, SECONDS) / 60
    return np.asarray((found + price.information * information(trust, low, high)) / ((1 + split) * minutes))


def ranks(signal: pl.DataFrame, worth: Worth | None = None) -> pl.Series:
    """Rank the labels by value: 1 is read first, ties stay in the order of rows.

    Labels without a trust come behind the others, and those that people settled (`verdict`) last of all.
    """
    rank = np.empty(signal.height, dtype=np.int64)
    value = values(signal, worth)
    # Below every value, so that labels without a trust come last.
    value[np.isnan(value)] = -1
    if "verdict" in signal.columns:
        value[signal["verdict"].is_not_null().to_numpy()] = -2
    rank[order(np.negative(value, out=value))] = np.arange(1, signal.height + 1)
    return pl.Series("review_rank", rank)


def chance_of_error(trust: Floats, present: Bools, fitted: Bools, rarer: Floats | float = 0.0) -> Floats:
    """Give P(the label is wrong): 1 - trust where it was fitted; an unfitted presence is tempered.

    Unfitted, a low trust of a presence says only that the rest of the record does not show the finding: a trust of .05
    has meant 70 % wrong, not 95. `rarer` is how much rarer the finding is than those on which that was learned, in
    logits: so much of a low trust is taken off. Absences needed no correction.
    """
    wrong = 1 - trust
    rest, slope = TEMPERED
    unfitted = present & ~fitted
    rare = np.broadcast_to(rarer, trust.shape)[unfitted]
    # A trust of .05 has meant 70 % wrong, not 95: the judges learned from the same labels.
    wrong[unfitted] = sigmoid(rest + slope * (logit(wrong[unfitted]) - rare))
    return np.asarray(wrong)


def information(trust: Floats, low: Floats, high: Floats) -> Floats:
    """Give the bits that a read tells about the estimate itself: those its outcome shares with the estimate's error.

    To second order p (1 - p) spread^2 / (2 ln 2), with the standard deviation of the logit from the 95 % interval; a
    coin that is known to be fair tells nothing.
    """
    spread = (logit(high) - logit(low)) / (2 * NORMAL_95)
    bits = trust * (1 - trust) * spread**2 / (2 * math.log(2)) / (1 + SATURATION * spread**2)
    return np.asarray(np.where(np.isnan(spread) & ~np.isnan(trust), 0.0, bits))


def disagreement(trust: Floats) -> Floats:
    """Give P(the first two readers disagree): most where the trust is a half."""
    least, slope = SPLIT
    return np.asarray(least + slope * 4 * trust * (1 - trust))


def _floats(column: pl.Series) -> Floats:
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _refuse_strangers(findings: pl.Series, given: Mapping[str, float]) -> None:
    """Refuse what is given for a finding that is not here: it is a slip of the pen."""
    if not given:
        return
    known = [
        str(name)
        for name in (findings.dtype.categories if isinstance(findings.dtype, pl.Enum) else findings.unique().sort())
    ]
    for name in given:
        if name not in known:
            raise UnknownName.of("finding", name, known)


def _named(findings: pl.Series, given: Mapping[str, float], usual: float) -> Floats | float:
    """Lay what is given by finding out over the rows."""
    if not given:
        return usual
    if isinstance(findings.dtype, pl.Enum):
        known = np.array([given.get(name, usual) for name in findings.dtype.categories])
        return np.asarray(known[findings.to_physical().to_numpy()])
    words = findings.cast(pl.String).replace_strict(dict(given), default=usual, return_dtype=pl.Float64)
    return words.to_numpy()
