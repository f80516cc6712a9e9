"""Bad input to the signal: a clear error or a counted, reported exclusion, never a silent drop."""

import dataclasses

import polars as pl
import pytest

from bpals.errors import ContractBroken
from bpals.testing import tiny_dataset
from world.estimating import estimate
from world.words import mentions

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def dataset():
    """A small dataset."""
    return tiny_dataset(patients=30)


def refused(dataset, judgments):
    """Say why a table of judgments is refused."""
    with pytest.raises(ContractBroken) as why:
        estimate(dataset, judgments)
    assert "\n" not in str(why.value)
    return str(why.value)


def test_judgments_about_unknown_findings_are_refused(dataset, judged):
    """With their number and the first of them."""
    table = judged(dataset).with_columns(pl.col("finding").cast(pl.String))
    strange = table.with_columns(finding=pl.when(pl.int_range(pl.len()) < 2).then(pl.lit("Gout")).otherwise("finding"))
    assert mentions(refused(dataset, strange), "2 judgments", "'Gout'")


def test_judgments_about_unknown_films_are_refused(dataset, judged):
    """They would otherwise land on some other film."""
    strange = judged(dataset).with_columns(
        image_id=pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("elsewhere.png")).otherwise("image_id")
    )
    assert mentions(refused(dataset, strange), "1 judgments", "elsewhere.png")


@pytest.mark.parametrize("strange", [1.01, -0.5, float("nan"), None])
def test_judgments_without_a_probability_are_refused(dataset, judged, strange):
    """Whatever it is instead."""
    table = judged(dataset).with_columns(
        p_present=pl.when(pl.int_range(pl.len()) < 3).then(pl.lit(strange, pl.Float64)).otherwise("p_present")
    )
    assert mentions(refused(dataset, table), "3 judgments", "0 to 1")


def test_a_judge_that_answers_twice_is_refused(dataset, judged):
    """Even if it says the same."""
    table = judged(dataset)
    assert mentions(refused(dataset, pl.concat([table, table.head(4)])), "record", "twice", "4 pairs")


def test_the_same_findings_under_another_type_are_heard_alike(dataset, judged):
    """Text, or the vocabulary in another order: what is said of a finding is said of it, not of its place in a list."""
    table = judged(dataset)
    names = list(dataset.vocabulary.findings)
    text = table.with_columns(pl.col("finding").cast(pl.String))
    turned = text.with_columns(pl.col("finding").cast(pl.Enum(names[::-1])))
    whole = estimate(dataset, table).table
    assert estimate(dataset, text).table.equals(whole)
    assert estimate(dataset, turned).table.equals(whole)


def test_claims_of_no_film_are_no_dataset(dataset, judged):
    """A claim about a film that is not there is refused, too."""
    strange = dataclasses.replace(dataset, images=dataset.images.tail(-1))
    with pytest.raises(ContractBroken, match="not in the dataset"):
        estimate(strange, judged(dataset).filter(pl.col("image_id").is_in(strange.images["image_id"].implode())))
