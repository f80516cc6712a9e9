"""Single readers as error finders: each against the majority of the other readers of the image.

A reader flags a label by contradicting it. The signal flags as many of the same pairs, the most suspect first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.errors import TruthError
from bpals.findings import Group
from bpals.metrics import Curve
from bpals.numeric import PAIR
from bpals.score.intervals import Resamples, Resampling, Row, interval, spread
from bpals.score.opinions import Audited, about, by_finding
from bpals.text import several
from bpals.types import Notice

Floats = NDArray[np.float64]

ALL = "all"


@dataclass(frozen=True, slots=True)
class Tally:
    """Weights of flags and errors, one number per draw."""

    flags: Floats
    errors: Floats
    caught: Floats
    signal_caught: Floats

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in Tally.__slots__))

    def figures(self) -> dict[str, Floats]:
        """Precision and recall of the reader and of the signal; NaN where there is nothing to divide by."""
        parts = {"precision": self.flags, "recall": self.errors}
        return {
            f"{who}{name}": np.divide(hits, whole, out=np.full_like(whole, np.nan), where=whole > 0)
            for who, hits in (("", self.caught), ("signal_", self.signal_caught))
            for name, whole in parts.items()
        }


def readers(
    reads: pl.DataFrame, audited: Audited, groups: Iterable[Group], resampling: Resampling
) -> tuple[list[Row], list[Notice]]:
    """Score each reader by finding and pooled, and all readers together, beside the signal at the same flags."""
    judged, notices = _against_the_others(reads)
    pairs, more = about(judged, audited, groups, baselines=False)
    notices += more
    # One set of draws for all readers, so that reader and signal are compared on the same patients.
    everyone = Resamples.of(pairs["patient"].to_numpy(), resampling)
    reader = pairs["reader"].to_numpy()
    rows = []
    for name, of_finding in by_finding(pairs):
        once: list[tuple[int, Tally, Tally]] = []
        for who in pairs["reader"].unique().sort():
            chosen = of_finding & (reader == who)
            if chosen.any():
                part = pairs.filter(pl.Series(chosen))
                once.append((part.height, _tally(part, None), _drawn(part, everyone.take(chosen))))
                rows.append(_row(name, who, *once[-1]))
        n, points, draws = (sum(column[1:], start=column[0]) for column in zip(*once, strict=True))
        rows.append(_row(name, ALL, n, points, draws))
    return rows, notices


def _against_the_others(reads: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Add the majority of the other readers to each read; uncertain verdicts and ties are left out and counted."""
    notices = []
    certain = reads.filter(pl.col("verdict").is_in(["present", "absent"]))
    for code, verdict in (("hedges", "uncertain"), ("unreadable", "unreadable")):
        if count := reads.filter(pl.col("verdict") == verdict).height:
            those = several(count, f"{verdict} verdict was", f"{verdict} verdicts were")
            notices.append(Notice(code=code, count=count, message=f"{those} left out"))
    present = (pl.col("verdict") == "present").cast(pl.Int64)
    others = certain.with_columns(
        read=present == 1, yes=present.sum().over(PAIR) - present, reads=pl.len().over(PAIR).cast(pl.Int64) - 1
    )
    tied = (pl.col("yes") * 2 == pl.col("reads")) & (pl.col("reads") > 0)
    alone = pl.col("reads") == 0
    for code, condition, words in (
        ("reader_ties", tied, "because the other readers split evenly"),
        ("single_reads", alone, "because nobody else read the pair"),
    ):
        if count := others.filter(condition).height:
            those = several(count, "verdict was", "verdicts were")
            notices.append(Notice(code=code, count=count, message=f"{those} left out {words}"))
    settled = others.filter(~(tied | alone))
    if settled.is_empty():
        raise TruthError(
            "no image was read by enough readers to compare one with the others. Name another --readers PATH"
        )
    return settled.select(*PAIR, "reader", "read", present=pl.col("yes") * 2 > pl.col("reads")), notices


def _tally(pairs: pl.DataFrame, weights: Floats | None) -> Tally:
    error = (pairs["claimed"] != pairs["present"]).to_numpy()
    flag = (pairs["claimed"] != pairs["read"]).to_numpy()
    heavy = np.ones((1, pairs.height)) if weights is None else weights
    flags = heavy @ flag.astype(np.float64)
    # Rounded, because a sum taken in another order must not break a tie.
    signal = Curve.of(np.round(1.0 - pairs["trust"].to_numpy(), 12), error, heavy)
    return Tally(flags, signal.errors, heavy @ (flag & error).astype(np.float64), signal.caught(flags))


def _drawn(pairs: pl.DataFrame, resamples: Resamples) -> Tally:
    parts = [_tally(pairs, weights) for weights in resamples.weights()]
    return Tally(*(np.concatenate([getattr(part, name) for part in parts]) for name in Tally.__slots__))


def _row(finding: str, reader: str, n: int, point: Tally, draws: Tally) -> Row:
    counts = {"n": n, "flags": int(point.flags[0]), "errors": int(point.errors[0])}
    row: Row = {"finding": finding, "reader": reader, **counts}
    drawn = draws.figures()
    for figure, (value, *_) in point.figures().items():
        row |= spread(figure) if np.isnan(value) else spread(figure, float(value), *interval(drawn[figure]))
    return row
