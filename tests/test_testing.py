"""The contracts themselves: each says in words what is wrong, and none cries wolf."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from bpals.errors import BpalsError, ContractBroken
from bpals.sources import nih
from bpals.testing import (
    check_judgments,
    check_record_judge,
    check_signal,
    check_source,
    flipped,
    moved,
    sample_claims,
    tiny_dataset,
)
from bpals.types import FLAG, KIND, OUTCOME, SAYS, judgments_schema
from world.estimating import estimate


def make_judgments(dataset, seed=0):
    """Answers out of the air."""
    p = np.random.default_rng(seed).uniform(0.05, 0.95, dataset.claims.height).round(6)
    return dataset.claims.select(
        "image_id",
        "finding",
        judge=pl.lit("air"),
        kind=pl.lit("record", dtype=KIND),
        outcome=pl.lit("answered", dtype=OUTCOME),
        p_present=pl.Series(p),
        p_low=pl.Series(p - 0.05),
        p_high=pl.Series(p + 0.05),
    ).cast(judgments_schema(dataset.vocabulary))


@pytest.mark.parametrize("patients", [0, 1, 12])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_tiny_dataset_keeps_the_contract_of_a_source(patients, share):
    """Whatever its size, and however much of it is silent or uncertain."""
    check_source(tiny_dataset(patients=patients, silent=share / 2, uncertain=share / 2))


def test_the_tiny_dataset_is_the_same_each_time():
    """Seeded; another seed gives another."""
    assert tiny_dataset(seed=1).claims.equals(tiny_dataset(seed=1).claims)
    assert not tiny_dataset(seed=1).claims.equals(tiny_dataset(seed=2).claims)


def test_the_embedded_record_keeps_the_contract_of_a_source():
    """1,569,680 claims in order, each about a film that there is."""
    check_source(nih.load())


SOURCES = {
    "images: age is String, not Float64": lambda d: {"images": d.images.with_columns(pl.col("age").cast(pl.String))},
    "images: sex is missing, not String": lambda d: {"images": d.images.drop("sex")},
    "images: colour is not asked for": lambda d: {"images": d.images.with_columns(colour=1)},
    "images: the columns are not in order": lambda d: {"images": d.images.select(reversed(d.images.columns))},
    "images: an image has no image_id": lambda d: {"images": d.images.with_columns(image_id=pl.lit(None, pl.String))},
    "images: this image stands there twice": lambda d: {"images": pl.concat([d.images, d.images.head(1)])},
    "images: an age that nobody has": lambda d: {"images": d.images.with_columns(age=412.0)},
    "claims: a label has a hole": lambda d: {"claims": d.claims.with_columns(says=pl.lit(None, SAYS))},
    "claims: this pair is labelled twice": lambda d: {"claims": pl.concat([d.claims, d.claims.head(1)])},
    "claims: the image of this label is not in the images": lambda d: {"images": d.images.tail(-1)},
    "claims: not in the order of the images and the vocabulary": lambda d: {"claims": d.claims.reverse()},
    "inputs: a.csv has 'abc' where its sha256 belongs": lambda _: {"inputs": {"a.csv": "abc"}},
    "the dataset has no name or no title": lambda _: {"title": ""},
    "unaudited: a count is negative": lambda _: {"unaudited": {"Hernia": -1}},
}


@pytest.mark.parametrize("broken", SOURCES)
def test_a_broken_source_is_told_what_is_broken(broken):
    """Each clause, in one line, with the first row that breaks it."""
    dataset = tiny_dataset()
    with pytest.raises(ContractBroken) as caught:
        check_source(dataclasses.replace(dataset, **SOURCES[broken](dataset)))
    assert broken in str(caught.value)
    assert "\n" not in str(caught.value)


JUDGMENTS = {
    "judgments: not one answer per label": lambda j: j.tail(-1),
    "judgments: p_present is String, not Float64": lambda j: j.with_columns(pl.col("p_present").cast(pl.String)),
    "judgments: a probability though it did not answer": lambda j: j.with_columns(
        outcome=pl.lit("failed", dtype=OUTCOME)
    ),
    "judgments: a probability outside 0-1 or NaN": lambda j: j.with_columns(p_high=1.5),
    "judgments: the interval does not hold the probability": lambda j: j.with_columns(p_low=0.99),
    "judgments: the kind of a metadata judge is 'record'": lambda j: j.with_columns(kind=pl.lit("image", dtype=KIND)),
}


@pytest.mark.parametrize("broken", JUDGMENTS)
def test_broken_judgments_are_told_what_is_broken(broken):
    """Each clause, in one line."""
    dataset = tiny_dataset()
    check_judgments(make_judgments(dataset), dataset)
    with pytest.raises(ContractBroken, match=broken):
        check_judgments(JUDGMENTS[broken](make_judgments(dataset)), dataset)


class Moody:
    """A judge that answers something else each time."""

    def __init__(self):
        """Start in one mood."""
        self.seed = 0

    def read(self, images, claims, vocabulary):
        """Answer out of the air."""
        self.seed += 1
        told = dataclasses.replace(tiny_dataset(), images=images, claims=claims, vocabulary=vocabulary)
        return make_judgments(told, self.seed)


def test_a_judge_must_answer_the_same_twice():
    """Else nothing about it could be checked again."""
    with pytest.raises(ContractBroken, match="other answers"):
        check_record_judge(Moody(), tiny_dataset())


def test_claims_are_drawn_from_both_sides():
    """Half of presence, half of absence, never an uncertain one, and no more than there are."""
    claims = tiny_dataset(uncertain=0.3).claims
    drawn = sample_claims(claims, 9, seed=4)
    assert dict(drawn["says"].value_counts().iter_rows()) == {"present": 5, "absent": 4}
    assert set(sample_claims(claims, 10_000)["says"]) == {"present", "absent"}
    assert not sample_claims(claims, 9, seed=4).equals(sample_claims(claims, 9, seed=5))


def test_flipping_turns_the_chosen_claims_and_no_other():
    """Twice flipped is as it was."""
    claims = tiny_dataset().claims
    chosen = sample_claims(claims, 6)
    turned = flipped(claims, chosen)
    assert (turned["says"] != claims["says"]).sum() == 6
    assert flipped(turned, chosen).equals(claims)
    assert turned.schema == claims.schema


def test_the_smallest_move_is_a_move():
    """One unit in the last place, or an answer that is gone."""
    dataset = tiny_dataset()
    before = make_judgments(dataset)
    nudged = before.with_columns(pl.Series("p_low", np.nextafter(before["p_low"].to_numpy(), 1)))
    assert moved(before, before, dataset.claims).is_empty()
    assert moved(before, nudged, dataset.claims).height == before.height
    gone = before.with_columns(p_present=pl.lit(None, pl.Float64))
    assert moved(before, gone, dataset.claims.head(3)).height == 3


SIGNALS = {
    "signal: devices is missing": lambda s: s.drop("devices"),
    "signal: not one row per label": lambda s: s.sort(pl.int_range(pl.len()), descending=True),
    "signal: a number outside 0-1 or NaN": lambda s: s.with_columns(agreement=pl.lit(float("nan"))),
    "signal: the trust is not p_present of a presence": lambda s: s.with_columns(trust=0.5),
    "signal: the interval does not hold the trust": lambda s: s.with_columns(trust_high=pl.col("trust_low")),
    "signal: a probability though no judge answered": lambda s: s.with_columns(answered=pl.lit(0, pl.Int32)),
    "signal: `unjudged` is the flag exactly where there is no trust": lambda s: s.with_columns(
        flag=pl.lit("unjudged", dtype=FLAG)
    ),
    "signal: no reason, or one that is not `code: sentence`": lambda s: s.with_columns(reasons=pl.lit(["because"])),
    "signal: no method": lambda s: s.with_columns(method=pl.lit("")),
    "signal: review_rank does not run from 1": lambda s: s.with_columns(review_rank=pl.col("review_rank") - 1),
    "signal: the unjudged labels are not read last": lambda s: s.with_columns(
        review_rank=s.height + 1 - pl.col("review_rank")
    ),
}


@pytest.mark.parametrize("broken", SIGNALS)
def test_a_broken_signal_is_told_what_is_broken(broken):
    """Each clause, in one line."""
    dataset = tiny_dataset(uncertain=0.2)
    signal = estimate(dataset, make_judgments(dataset)).table
    check_signal(signal, dataset.claims)
    with pytest.raises(ContractBroken) as caught:
        check_signal(SIGNALS[broken](signal), dataset.claims)
    assert broken in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_signal_is_held_against_claims_with_a_vocabulary():
    """Claims whose findings are mere words are refused before the signal is."""
    claims = tiny_dataset().claims.with_columns(pl.col("finding").cast(pl.String))
    with pytest.raises(ContractBroken, match="finding is String"):
        check_signal(claims, claims)


def test_a_broken_contract_is_an_error_of_bpals():
    """Who catches BpalsError catches it too."""
    assert issubclass(ContractBroken, BpalsError)
