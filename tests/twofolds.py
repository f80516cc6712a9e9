"""The made-up films of examples/ with patients of two folds only: an audit fits its judge twice and not five times."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl

from bpals.judges.record import RecordJudge, fold_of

EXAMPLES = Path(__file__).parents[1] / "examples"
FILMS = Path(__file__).with_name("twofolds") / "films.csv"
"""What `of_two_folds` makes of the films of the examples; tests/test_twofolds.py keeps it so."""
SOURCE, MAPPING = f"table:{FILMS}", str(EXAMPLES / "films.toml")


def of_two_folds(films: pl.DataFrame) -> pl.DataFrame:
    """Lengthen the names of patients until they fall into the first two folds."""
    names = {name: _lengthened(name) for name in films["patient"].unique()}
    return films.with_columns(pl.col("patient").replace_strict(names))


def _lengthened(patient: str) -> str:
    names = (f"{patient}{'+' * more}" for more in itertools.count())
    return next(name for name in names if fold_of(np.array([name]), RecordJudge().folds)[0] < 2)
