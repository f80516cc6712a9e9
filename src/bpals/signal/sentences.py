"""Sentences: every reason is written once, and each pair only says which of them it gets.

1.6 million pairs have some ten million reasons, but only a few thousand of them differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Places = npt.NDArray[np.int32]

BLOCK = 32_768
"""Claims whose reasons are gathered at a time: so few that what is in hand stays in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """One kind of reason: its sentences, and which of them each pair gets."""

    words: Sequence[str | None]
    """The first is None: nothing is said."""
    which: npt.NDArray[np.integer[Any] | np.bool_]
    """A row a film, a column a finding: a place among the words."""

    def of(self, column: int) -> pl.Series:
        """Give one finding's sentences, a film each; null where nothing is said."""
        return pl.Series(self.words, dtype=pl.String).gather(self.which[:, column])


def listed(kinds: Sequence[Sentences], claimed: npt.NDArray[np.bool_]) -> pl.Series:
    """List each claim's sentences in the order of the kinds, film by film and finding by finding."""
    kinds = [kind for kind in kinds if kind.which.any()]
    starts = np.cumsum([0, *(len(kind.words) for kind in kinds)]).tolist()
    words = pl.Series([word for kind in kinds for word in kind.words], dtype=pl.String)
    picked = [kind.which.ravel() for kind in kinds]
    places = np.flatnonzero(claimed)
    every = len(places) == claimed.size

    def block(start: int) -> pl.Series:
        stop = min(start + BLOCK, len(places))
        its = slice(start, stop) if every else places[start:stop]
        said = np.empty((stop - start, len(kinds)), dtype=np.uint32)
        told = np.empty(said.shape, dtype=bool)
        counts = np.zeros(len(said), dtype=np.int64)
        for column, which in enumerate(picked):
            here = which[its]
            np.not_equal(here, 0, out=told[:, column])
            counts += told[:, column]
            said[:, column] = here + starts[column]
        return _lists(words.gather(pl.Series(said[told])), counts)

    with ThreadPoolExecutor(pl.thread_pool_size()) as pool:
        blocks = list(pool.map(block, range(0, len(places), BLOCK)))
    return pl.concat([pl.Series("reasons", [], dtype=pl.List(pl.String)), *blocks])


def _lists(sentences: pl.Series, counts: npt.NDArray[np.integer[Any]]) -> pl.Series:
    """Cut sentences into lists of the given lengths."""
    row = pl.Series("row", np.repeat(np.arange(len(counts), dtype=np.uint32), counts)).set_sorted()
    frame = pl.DataFrame([row, sentences.alias("reasons")]).group_by("row", maintain_order=True).agg("reasons")
    if (counts == 0).any():
        every = pl.DataFrame({"row": np.arange(len(counts), dtype=np.uint32)})
        frame = every.join(frame, on="row", how="left", maintain_order="left").with_columns(
            pl.col("reasons").fill_null(pl.lit([], dtype=pl.List(pl.String)))
        )
    return frame["reasons"]
