"""Answers of a judge whose skill is known."""

import polars as pl
import pytest

from bpals.errors import UsageError
from bpals.metrics import Curve
from bpals.testing import skilled, tiny_dataset, tiny_film
from bpals.types import answers_schema


def truth_of(dataset):
    """The claims, taken for the truth."""
    return dataset.claims.select("image_id", "finding", present=pl.col("says") == "present")


@pytest.mark.parametrize("auroc", [0.2, 0.5, 0.7, 0.95])
def test_the_skill_is_the_one_that_was_asked_for(auroc):
    """But for chance: 6,000 pairs leave about .01."""
    dataset = tiny_dataset(patients=800)
    truth = truth_of(dataset)
    answers = skilled(truth, dataset.vocabulary, auroc=auroc, seed=3)
    found = Curve.of(answers["p_present"].to_numpy(), truth["present"].to_numpy()).auroc()[0]
    assert found == pytest.approx(auroc, abs=0.03)


def test_it_is_seeded_and_has_the_columns_of_a_judge():
    """The same seed gives the same answers, in the schema that a sealed judge has."""
    dataset = tiny_dataset()
    one, two, other = (skilled(truth_of(dataset), dataset.vocabulary, auroc=0.8, seed=seed) for seed in (1, 1, 2))
    assert one.equals(two)
    assert not one.equals(other)
    assert one.schema == answers_schema(dataset.vocabulary)


@pytest.mark.parametrize("auroc", [0, 1, -1, 2])
def test_a_skill_that_nobody_has_is_refused(auroc):
    """0 and 1 would need answers infinitely far apart."""
    dataset = tiny_dataset()
    with pytest.raises(UsageError, match="is not between 0 and 1"):
        skilled(truth_of(dataset), dataset.vocabulary, auroc=auroc)


def test_a_tiny_film_is_the_same_each_time():
    """And another seed or grey gives another film, with its own hash."""
    assert tiny_film() == tiny_film()
    assert len({tiny_film(seed=0).sha256, tiny_film(seed=1).sha256, tiny_film(grey=0).sha256}) == 3
    assert (tiny_film(side_px=32).width_px, tiny_film().png[:4]) == (32, b"\x89PNG")
