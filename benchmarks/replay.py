"""A replay of real reads: how many label errors does an order of reading find, and how soon?

Every pair has its claim, its adjudicated truth and the reads that were made of it. An order offers the pairs one after
the other and spends their reads, in a seeded order of readers. An error, a claim that differs from the truth, is found
when the first read of its pair is spent. Three ways to spend:

    first     one read a pair
    settled   until two readers say the same, or nobody is left: two reads where they agree at once, else three
    every     every read that there is of the pair

The measure is the area under the share of errors found, up to 20 % of the reads that all pairs would take, as a share
of that rectangle: the mean share found over those budgets. Any order at all has .10 on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from bpals.errors import TruthError, UnknownName
from bpals.score.intervals import Resamples, Resampling, interval
from bpals.text import several
from bpals.types import Notice

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Row = dict[str, Any]

OURS = "bpals"
BUDGET = 0.2
SPENDING = ("first", "settled", "every")
CLEAR = 0.3
"""Bits of entropy that active label cleaning does not hold against a pair."""
LESSONS = 50
"""How often somebody who learns while reading fits anew."""
STEPS = 20
POINTS = 101
"""Of a curve that is drawn."""
_PAIR = ["image_id", "finding"]
_SMALLEST = 1e-6
_HALVES = {"present": 1.0, "absent": 0.0, "uncertain": 0.5, "unreadable": 0.5}


def rivals(trust: ArrayLike) -> dict[str, Floats]:
    """How other methods would order pairs, from a probability that each claim is right; the highest is read first.

    Entropy reads what is least certain, self-confidence what is least probable, active label cleaning what is
    improbable and clear: cross-entropy less the entropy above .3, in bits (Bernhardt et al. 2022).
    """
    right = np.clip(np.asarray(trust, dtype=np.float64), _SMALLEST, 1 - _SMALLEST)
    entropy = -(right * np.log2(right) + (1 - right) * np.log2(1 - right))
    return {
        "entropy": entropy,
        "self_confidence": 1 - right,
        "active_label_cleaning": -np.log2(right) - np.maximum(0.0, entropy - CLEAR),
    }


def yardsticks(pairs: pl.DataFrame) -> dict[str, Floats]:
    """The least and the most that an order can do: any order, and the errors first."""
    wrong = (pairs["claimed"] != pairs["present"]).to_numpy()
    return {"random": np.zeros(len(wrong)), "oracle": wrong.astype(np.float64)}


def with_reads(pairs: pl.DataFrame, reads: pl.DataFrame, *, seed: int = 0) -> tuple[pl.DataFrame, list[Notice]]:
    """Add what reading each pair takes, `first, settled, every`, and what the first reader said; leave out the unread.

    `reads` is REVIEWS. The readers of a pair come in a seeded order, which does not depend on the order of rows; `read`
    is 1 where the first of them says present, 0 absent, 0.5 neither.
    """
    ordered = reads.select(*_PAIR, "reader", "verdict").sort(*_PAIR, "reader")
    ordered = ordered.with_columns(turn=pl.Series(np.random.default_rng(seed).permutation(ordered.height)))
    ordered = ordered.sort(*_PAIR, "turn").with_columns(
        turn=pl.int_range(1, pl.len() + 1).over(_PAIR), again=pl.int_range(pl.len()).over(*_PAIR, "verdict")
    )
    taken = ordered.group_by(_PAIR).agg(
        first=pl.lit(1, pl.Int64),
        settled=pl.coalesce(pl.col("turn").filter(pl.col("again") == 1).min(), pl.len()).cast(pl.Int64),
        every=pl.len().cast(pl.Int64),
        read=pl.col("verdict").first().cast(pl.String).replace_strict(_HALVES, return_dtype=pl.Float64),
    )
    joined = pairs.join(taken, on=_PAIR, how="left", maintain_order="left")
    read = joined.drop_nulls("first")
    if read.is_empty():
        raise TruthError("no read is about a pair that was adjudicated. Name the reads of the same films")
    notices = []
    if unread := joined.height - read.height:
        pairs_unread = several(unread, "pair that nobody read was", "pairs that nobody read were")
        message = f"{pairs_unread} left out of the replay"
        notices.append(Notice(code="unread", count=unread, message=message))
    return read, notices


def learning(pairs: pl.DataFrame, suspicion: Floats) -> Floats:
    """Order the pairs as somebody would who learns while reading; the first to be read has the highest score.

    After every 2 % of a finding's pairs two intercepts are fitted on the first reads so far, one for claimed presences
    and one for absences, each with a standard normal prior, and added to the logits of what is still unread.
    """
    claimed, read = pairs["claimed"].to_numpy(), pairs["read"].to_numpy()
    against = np.where(claimed, 1 - read, read)
    score = np.zeros(pairs.height)
    for _, chosen in _findings(pairs):
        places = np.flatnonzero(chosen)
        kept = np.clip(suspicion[places], _SMALLEST, 1 - _SMALLEST)
        z, side, said = np.log(kept / (1 - kept)), claimed[places], against[places]
        turn = np.full(len(places), np.inf)
        step = max(1, len(places) // LESSONS)
        for start in range(0, len(places), step):
            done = np.isfinite(turn)
            shift = [_intercept(z[done & (side == way)], said[done & (side == way)]) for way in (False, True)]
            now = np.where(done, -np.inf, z + np.where(side, shift[1], shift[0]))
            batch = np.argsort(-now, kind="stable")[: min(step, len(places) - start)]
            turn[batch] = start + np.arange(len(batch))
        score[places] = -turn
    return score


def _intercept(z: Floats, said: Floats) -> float:
    """Fit what must be added to the logits, by Newton's steps from 0."""
    shift = 0.0
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-(z + shift)))
        shift += float(((said - p).sum() - shift) / ((p * (1 - p)).sum() + 1))
    return shift


@dataclass(frozen=True, slots=True)
class Spent:
    """Reads spent and errors found, step by step along an order, one row a draw of patients."""

    reads: Floats
    found: Floats

    @classmethod
    def along(cls, order: ArrayLike, wrong: Bools, reads: ArrayLike, weights: Floats | None = None) -> Spent:
        """Spend the reads of the pairs in the order of a score, the highest first; pairs that tie are one step.

        A pair alone takes two steps: its first read, in which an error is found, and its other reads, in which none is.
        """
        score, taken = np.asarray(order, dtype=np.float64), np.asarray(reads, dtype=np.float64)
        weight = np.ones((1, len(score))) if weights is None else weights
        place = np.argsort(-score, kind="stable")
        tie = np.cumsum(np.diff(score[place], prepend=np.inf) != 0)
        alone = np.bincount(tie)[tie] == 1
        begins = np.stack([np.diff(tie, prepend=0) > 0, alone], axis=1).ravel()
        starts = np.flatnonzero(begins)
        heavy = np.repeat(weight[:, place], 2, axis=1)
        spent = np.stack([np.ones(len(score)), taken[place] - 1], axis=1).ravel()
        gained = np.stack([wrong[place].astype(np.float64), np.zeros(len(score))], axis=1).ravel()
        steps = [np.cumsum(np.add.reduceat(heavy * each, starts, axis=1), axis=1) for each in (spent, gained)]
        return cls(*(np.pad(step, ((0, 0), (1, 0))) for step in steps))

    @property
    def errors(self) -> Floats:
        """The weight of all errors."""
        return self.found[:, -1]

    def found_by(self, share: float) -> Floats:
        """The share of errors that is found when this share of all reads is spent."""
        step, within = self._at(share)
        return _ratio(self._between(step, within), self.errors)

    def area(self, share: float = BUDGET) -> Floats:
        """The mean share of errors found over all budgets up to this share of all reads."""
        step, within = self._at(share)
        row = np.arange(len(step))
        widths, heights = np.diff(self.reads, axis=1), (self.found[:, 1:] + self.found[:, :-1]) / 2
        whole = np.pad(np.cumsum(widths * heights, axis=1), ((0, 0), (1, 0)))[row, step]
        begun = within * widths[row, step] * (self.found[row, step] + self._between(step, within)) / 2
        return _ratio(whole + begun, self.errors * share * self.reads[:, -1])

    def _at(self, share: float) -> tuple[NDArray[np.int64], Floats]:
        """Find the step in which a budget ends, and the part of it that is spent."""
        budget = share * self.reads[:, -1]
        step = np.clip((self.reads <= budget[:, None]).sum(axis=1) - 1, 0, self.reads.shape[1] - 2)
        row = np.arange(len(step))
        width = self.reads[row, step + 1] - self.reads[row, step]
        over = budget - self.reads[row, step]
        return step, np.divide(over, width, out=np.zeros_like(over), where=width > 0).clip(0, 1)

    def _between(self, step: NDArray[np.int64], within: Floats) -> Floats:
        row = np.arange(len(step))
        return np.asarray(self.found[row, step] + within * (self.found[row, step + 1] - self.found[row, step]))


def replay(
    pairs: pl.DataFrame, orders: Mapping[str, Floats], resampling: Resampling, *, spending: str = "first"
) -> list[Row]:
    """Replay the reads of each finding by every order: one row a finding and method.

    `pairs` is what `with_reads` gives. `orders` has a score a pair for each method; the one called `bpals` is compared
    with the others, on the same draws of patients.
    """
    if spending not in SPENDING:
        raise UnknownName.of("way to spend reads", spending, SPENDING)
    everyone = Resamples.of(pairs["patient"].to_numpy(), resampling)
    rows: list[Row] = []
    for finding, chosen in _findings(pairs):
        part = pairs.filter(pl.Series(chosen))
        wrong, reads = (part["claimed"] != part["present"]).to_numpy(), part[spending].to_numpy()
        key = {"finding": finding, "spending": spending, "n": part.height, "reads": int(reads.sum())}
        kept = {method: np.round(score[chosen], 12) for method, score in orders.items()}
        once = {method: _figures(Spent.along(score, wrong, reads)) for method, score in kept.items()}
        drawn = _drawn(kept, wrong, reads, everyone.take(chosen))
        rows += [{**key, "errors": int(wrong.sum()), "method": method, **_row(once, drawn, method)} for method in kept]
    return rows


def curves(pairs: pl.DataFrame, orders: Mapping[str, Floats], *, spending: str = "first") -> pl.DataFrame:
    """The share of errors found at each share of reads, to be drawn: `finding, method, reads, found`."""
    shares = np.linspace(0, 1, POINTS)
    parts = []
    for finding, chosen in _findings(pairs):
        part = pairs.filter(pl.Series(chosen))
        wrong, reads = (part["claimed"] != part["present"]).to_numpy(), part[spending].to_numpy()
        for method, score in orders.items():
            spent = Spent.along(np.round(score[chosen], 12), wrong, reads)
            found = [float(spent.found_by(share)[0]) for share in shares]
            parts.append(pl.DataFrame({"reads": shares, "found": found}).with_columns(
                finding=pl.lit(finding), method=pl.lit(method)))  # fmt: skip
    return pl.concat(parts).select("finding", "method", "reads", "found")


def holds(rows: list[Row], ours: str, others: list[str]) -> bool:
    """Say whether ours has the largest area in each finding, or lies within the paired interval of the largest."""
    for finding in dict.fromkeys(row["finding"] for row in rows):
        by_method = {row["method"]: row for row in rows if row["finding"] == finding}
        best = max((by_method[method] for method in others), key=lambda row: row["area"])
        if by_method[ours]["area"] < best["area"] and best["gain_high"] < 0:
            return False
    return True


def _findings(pairs: pl.DataFrame) -> Iterator[tuple[str, Bools]]:
    finding = pairs["finding"].to_numpy()
    for name in pairs["finding"].unique(maintain_order=True):
        yield name, finding == name


def _figures(spent: Spent) -> dict[str, Floats]:
    found = spent.found_by(BUDGET)
    return {"area": spent.area(), "found": found, "factor": found / BUDGET}


def _drawn(
    orders: Mapping[str, Floats], wrong: Bools, reads: ArrayLike, resamples: Resamples
) -> dict[str, dict[str, Floats]]:
    """The figures of every order on every draw of patients."""
    parts: dict[str, list[dict[str, Floats]]] = {method: [] for method in orders}
    for weights in resamples.weights():
        for method, score in orders.items():
            parts[method].append(_figures(Spent.along(score, wrong, reads, weights)))
    return {
        method: {figure: np.concatenate([part[figure] for part in of_method]) for figure in of_method[0]}
        for method, of_method in parts.items()
    }


def _row(once: Mapping[str, Any], drawn: Mapping[str, Any], method: str) -> Row:
    """Figures with their intervals; `gain` is the area of bpals less this method's, on the same draws."""
    row: Row = {}
    for figure, value in once[method].items():
        row[figure] = float(value[0])
        row[f"{figure}_low"], row[f"{figure}_high"] = interval(drawn[method][figure])
    if OURS in once:
        row["gain"] = float(once[OURS]["area"][0] - once[method]["area"][0])
        row["gain_low"], row["gain_high"] = interval(drawn[OURS]["area"] - drawn[method]["area"])
    return row


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.asarray(np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > 0))
