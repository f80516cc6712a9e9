"""How each reader errs, and what a pair's reads make of its truth.

P(verdict | truth) is a row of three for each reader and truth: present, absent, uncertain. It is estimated together
with the truths by expectation-maximisation, finding by finding. A reader with few reads is held near all readers, and
they near what is usual for radiologists. How common the finding is among claimed presences, and among claimed absences,
comes out too: no judge's answer enters, so that what readers teach about a judge is their own. Pairs that were chosen
to be read are told apart from pairs that were drawn: among the first, where most may be wrong, it is another thing.
A pair that an adjudicator or a discussion settled has that truth, and teaches how its readers err.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from bpals.signal.pairs import Matrix
from bpals.signal.voices import Ints

WORDS = ("present", "absent", "uncertain")
USUAL: Matrix = np.array([[7.0, 2.0, 1.0], [0.5, 9.0, 0.5]])
"""Reads that are added for all readers together: of films with the finding, and of films without."""
STRENGTH = 20.0
"""Reads of all readers that are added for each single one."""
EVEN = 2.0
"""Pairs that are added, half with the finding, to how common it is."""
CHOSEN = 0.5
"""A pair with at least this chance to be read was chosen; with less, or none that is known, it was drawn."""
ROUNDS = 200
STILL = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The pairs of one finding, with the chance that each shows it, and how their readers err."""

    rows: Ints
    """A film a pair."""
    present: Matrix
    inclusion: Matrix
    """The chance with which the pair was drawn; NaN where nobody knows."""
    reads: Ints
    readers: Mapping[str, Matrix]
    """Reader -> P(verdict | truth): a row for films with the finding, a row for films without."""


def settle(reads: pl.DataFrame, said: Matrix) -> Settled:
    """Settle one finding's reads: `row` (of a film), `reader`, `verdict` and `inclusion`; `said` is each film's claim.

    Unreadable films are no reads. A column `settled` holds 1 or 0 where the truth of a pair is known without them.
    """
    kept = reads.filter(pl.col("verdict").cast(pl.String).is_in(WORDS)).sort("row", "reader")
    rows, pair = np.unique(kept["row"].to_numpy().astype(np.int64), return_inverse=True)
    names, reader = np.unique(kept["reader"].to_numpy().astype(np.str_), return_inverse=True)
    words = {word: place for place, word in enumerate(WORDS)}
    verdict = kept["verdict"].cast(pl.String).replace_strict(words, return_dtype=pl.Int64).to_numpy()
    chance = _of_pairs(kept, "inclusion")
    known = _of_pairs(kept, "settled") if "settled" in kept.columns else np.full(len(rows), np.nan)
    kind = 2 * (chance >= CHOSEN) + (said[rows] == 1)
    present = np.full(len(rows), 0.5)
    errs = np.zeros((len(names), 2, len(WORDS)))
    for turn in range(ROUNDS):
        sure = _vote(pair, verdict, len(rows)) if turn == 0 else present
        sure = np.where(np.isnan(known), sure, known)
        errs = _confusion(sure[pair], reader, verdict, len(names))
        before, present = present, _posterior(errs, sure, kind, (pair, reader, verdict))
        present = np.where(np.isnan(known), present, known)
        if np.abs(present - before).max(initial=0) < STILL:
            break
    return Settled(
        rows=rows,
        present=present,
        inclusion=chance,
        reads=np.bincount(pair, minlength=len(rows)),
        readers=dict(zip(names.tolist(), errs, strict=True)),
    )


def _of_pairs(reads: pl.DataFrame, column: str) -> Matrix:
    """Give the first value of a column that a pair's reads know, in the order of the films; NaN where none does."""
    first = reads.group_by("row").agg(pl.col(column).drop_nulls().first()).sort("row")[column]
    return first.fill_null(float("nan")).to_numpy().astype(np.float64)


def _vote(pair: Ints, verdict: Ints, pairs: int) -> Matrix:
    """Begin with the share of reads that say present; a hedge is half a one."""
    worth = np.array([1.0, 0.0, 0.5])[verdict]
    return np.bincount(pair, worth, minlength=pairs) / np.maximum(np.bincount(pair, minlength=pairs), 1)


def _confusion(present: Matrix, reader: Ints, verdict: Ints, readers: int) -> Matrix:
    """Count each reader's verdicts by truth, and shrink them: a reader to all readers, all readers to the usual."""
    place, size = reader * len(WORDS) + verdict, readers * len(WORDS)
    sides = [np.bincount(place, side, minlength=size).reshape(readers, len(WORDS)) for side in (present, 1 - present)]
    counts = np.stack(sides, axis=1)
    every = counts.sum(axis=0) + USUAL
    own = counts + STRENGTH * every / every.sum(axis=1, keepdims=True)
    return np.asarray(own / own.sum(axis=2, keepdims=True))


def _posterior(errs: Matrix, sure: Matrix, kind: Ints, reads: tuple[Ints, Ints, Ints]) -> Matrix:
    """Weigh each pair's reads by how their readers err, beside how common the finding is among pairs of its kind."""
    pair, reader, verdict = reads
    odds = np.log(errs[reader, 0, verdict] / errs[reader, 1, verdict])
    z = np.bincount(pair, odds, minlength=len(sure)).astype(np.float64)
    for one in np.unique(kind):
        side = kind == one
        share = (sure[side].sum() + EVEN / 2) / (side.sum() + EVEN)
        z[side] += np.log(share / (1 - share))
    return np.asarray(1 / (1 + np.exp(-z)))
