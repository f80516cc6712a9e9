"""The value of a read: what it rises and falls with, and the ranks that follow."""

import math

import numpy as np
import polars as pl
import pytest

from bpals.errors import UnknownName, UsageError
from bpals.signal.value import Worth, chance_of_error, disagreement, information, ranks, values
from bpals.types import SAYS, SETTLED_AS

WHERE = np.linspace(0.01, 0.99, 99)


def claims(trust, *, says="present", low=None, high=None, finding="Mass", method="record-1+experts", **more):
    """Rows of a signal with the columns that a value needs."""
    trust = [trust] if isinstance(trust, float) or trust is None else list(trust)
    rows = pl.DataFrame({"trust": trust}, schema={"trust": pl.Float64})
    return rows.with_columns(
        image_id=pl.format("{}.png", pl.int_range(pl.len())),
        finding=pl.lit(finding),
        says=pl.lit(says, dtype=SAYS),
        trust_low=pl.col("trust") if low is None else pl.lit(low),
        trust_high=pl.col("trust") if high is None else pl.lit(high),
        method=pl.lit(method),
        **{name: pl.lit(value, dtype=pl.Float64) for name, value in more.items()},
    )


def test_value_is_errors_found_an_expert_minute():
    """A claim that is surely wrong and clear takes 1.035 reads of half a minute: just under two errors a minute."""
    assert values(claims(0.0)).tolist() == pytest.approx([1 / (1.035 * 0.5)], abs=1e-4)
    assert values(claims(0.0), Worth(seconds={"Mass": 15}))[0] == pytest.approx(2 * values(claims(0.0))[0])
    assert values(claims(0.0), Worth(gains={"Mass": 3}))[0] == pytest.approx(3 * values(claims(0.0))[0], rel=1e-3)


def test_less_trust_is_more_value():
    """With the same spread everywhere the order of value is the order of trust, fitted or not, in both directions."""
    for method in ("record-1", "record-1+experts/crossfit"):
        for says in ("present", "absent"):
            assert (np.diff(values(claims(WHERE, says=says, method=method))) < 0).all()


def test_a_presence_without_expert_labels_is_tempered():
    """Trust .05 means 70 % wrong there; with expert labels, and for an absence, it means what it says."""
    trust = np.array([0.05, 0.05, 0.05])
    chance = chance_of_error(trust, np.array([True, True, False]), np.array([False, True, False]))
    assert chance.tolist() == pytest.approx([0.705, 0.95, 0.95], abs=0.001)


def test_a_read_tells_most_where_the_estimate_is_least_sure():
    """No interval, no information; a wider one, more; never more than a bit."""
    sure, unsure, lost = (information(*(np.array([x]) for x in (0.5, 0.5 - r, 0.5 + r)))[0] for r in (0, 0.1, 0.4999))
    assert sure == 0 < unsure < lost <= 1
    assert values(claims(0.5, low=0.3, high=0.7))[0] > values(claims(0.5, low=0.5, high=0.5))[0]
    assert values(claims(0.5, low=0.3, high=0.7), Worth(information=0))[0] == values(claims(0.5))[0]


def test_information_is_what_a_sum_over_the_estimate_gives():
    """The formula is the mutual information of read and estimate, by quadrature, for spreads up to 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights /= weights.sum()
    for p in (0.5, 0.2):
        for spread in (0.2, 0.5, 1.0):
            z = math.log(p / (1 - p))
            at = 1 / (1 + np.exp(-(z + spread * nodes)))
            exact = entropy(weights @ at) - weights @ entropy(at)
            ends = (1 / (1 + np.exp(-(z + side * 1.96 * spread))) for side in (-1, 1))
            assert information(np.array([p]), *(np.array([end]) for end in ends))[0] == pytest.approx(exact, rel=0.15)


def entropy(p):
    """In bits."""
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def test_a_film_that_splits_its_readers_is_worth_less():
    """What was learnt from reads stands instead of the constants; where nothing was, the constants stand."""
    assert disagreement(np.array([0.5]))[0] == pytest.approx(0.295)
    hard, easy = (values(claims(0.2, p_split=split))[0] for split in (0.9, 0.0))
    assert hard == pytest.approx(easy / 1.6)
    assert values(claims(0.2, p_split=None))[0] == values(claims(0.2))[0]


def test_what_nobody_judged_has_no_value_and_comes_last():
    """Ranks run from 1 without a gap, ties in the order of rows."""
    table = pl.concat([claims([None, 0.4, 0.1, 0.4])])
    assert np.isnan(values(table)[0])
    assert ranks(table).to_list() == [4, 2, 1, 3]
    assert ranks(table.head(0)).to_list() == []


def test_what_people_settled_comes_behind_everything():
    """Whatever it would be worth; a table without verdicts has none."""
    table = claims([None, 0.4, 0.1, 0.3])
    settled = table.with_columns(verdict=pl.Series([None, None, "present", None], dtype=SETTLED_AS))
    assert ranks(settled).to_list() == [3, 2, 4, 1]
    assert ranks(table).to_list() == [4, 3, 1, 2]


def test_an_unfitted_presence_no_longer_stands_before_every_fitted_one():
    """A rare finding's presence with trust .02 and no expert label ranks behind a fitted one with .1."""
    rare = claims(0.02, finding="Hernia", method="record-1")
    assert ranks(pl.concat([rare, claims(0.1)])).to_list() == [2, 1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gains": {"Mass": -1.0}}, "gain of -1.0"),
        ({"gains": {"Mass": float("nan")}}, "gain of nan"),
        ({"seconds": {"Mass": 0.0}}, "0.0 seconds"),
        ({"information": float("inf")}, "a bit cannot be worth inf"),
    ],
)
def test_an_impossible_worth_is_refused(given, says):
    """What would turn the order round or divide by nothing."""
    with pytest.raises(UsageError, match=says):
        Worth(**given)


def test_a_gain_for_an_unknown_finding_is_a_slip_of_the_pen():
    """It is answered with what was meant."""
    with pytest.raises(UnknownName, match="Did you mean 'Mass'"):
        values(claims(0.5), Worth(gains={"Mas": 2.0}))


def test_a_finding_rarer_than_any_that_was_fitted_counts_as_if_it_were_as_common():
    """A hernia in 500 claims has a trust of .002 where it is claimed: as doubtful as .05 is in 1 of 20 claims."""
    rare = {"finding": "Hernia", "method": "record-1"}
    hernia = pl.concat([claims(0.002, **rare), claims([0.998] * 499, says="absent", **rare)])
    usual = pl.concat([claims([0.05] * 5, method="record-1"), claims([0.95] * 95, says="absent", method="record-1")])
    both = values(pl.concat([hernia, usual]))
    assert both[0] == pytest.approx(both[hernia.height], rel=0.08)
    told = values(pl.concat([hernia, usual]), Worth(common={"Hernia": 0.1}))
    assert told[0] > 1.25 * both[0]
    assert (values(usual) == both[hernia.height :]).all()


def test_where_experts_taught_a_rare_finding_its_trust_is_believed():
    """Nothing is taken off a fitted trust, nor off an absence."""
    rare = pl.concat([claims(0.002, finding="Hernia"), claims([0.1] * 499, says="absent", finding="Hernia")])
    assert values(rare)[0] == pytest.approx(values(claims(0.002))[0])
    assert values(rare)[1] == pytest.approx(values(claims(0.1, says="absent"))[0])
