"""The films that most audits of the tests are made of."""

import polars as pl

from bpals.judges.record import RecordJudge, fold_of
from world import datasets


def test_they_are_those_of_the_examples_but_for_the_folds_of_their_patients():
    """The file is what is made of the examples; no two patients became one, and both folds have films."""
    films, examples = pl.read_csv(datasets.FILMS), pl.read_csv(datasets.EXAMPLES / "films.csv")
    assert films.equals(datasets.of_two_folds(examples))
    assert films["patient"].n_unique() == examples["patient"].n_unique()
    folds = fold_of(films["patient"].to_numpy().astype(str), RecordJudge().folds)
    assert {fold: int((folds == fold).sum()) > 200 for fold in set(folds.tolist())} == {0: True, 1: True}
