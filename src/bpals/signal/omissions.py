"""How often the labeller leaves a finding out, seen on patients' timelines, and what that does to a probability.

Between two reports of a patient that claim a finding, the one in the middle claims it in only some: of Nodule in 55 %,
of Pneumothorax in 79 % of NIH's. Some of these gaps are real, some are labels that are missing, and a judge that was
fitted to the claims has learned to leave them out too. So the odds that it gives are divided by the share, half of it
on the scale of logits: chosen on validation images (LOG.md). A dataset without timelines has no such evidence.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from bpals.signal.pairs import Matrix
from bpals.signal.voices import Ints

BELIEVED = 0.5
"""The part of the gaps that counts as missing labels."""
CAREFUL = 10.0
"""Gaps without a miss that are added, so that few gaps say little."""


def omissions(states: Matrix, reports: pl.DataFrame, fold: Ints) -> Matrix:
    """Give what to add to each film's logits, a column a finding, from the timelines of the other folds' patients.

    `reports` are those of the films (`reports_of_films`).
    """
    report, rank, size = (reports[name].to_numpy() for name in ("report", "rank", "size"))
    # The loudest film of a report speaks for it; an uncertain or silent one is neither.
    order = np.argsort(report, kind="stable")
    starts = np.flatnonzero(np.diff(report[order], prepend=-1))
    said = np.logical_or.reduceat((states == 1)[order], starts, axis=0)
    first = order[starts]
    inner = np.flatnonzero((rank[first] > 0) & (rank[first] < size[first] - 1))
    between = said[inner - 1] & said[inner + 1]
    repeated = between & said[inner]
    whose = fold[first][inner]
    shift = np.zeros(states.shape)
    for number in np.unique(fold):
        others = whose != number
        gaps, hits = between[others].sum(axis=0), repeated[others].sum(axis=0)
        share = (hits + CAREFUL) / (gaps + CAREFUL)
        shift[fold == number] = -BELIEVED * np.log(share)
    return shift
