"""Readers' own errors, from pairs that two of them read."""

import polars as pl
import pytest

from bpals.signal.readerskill import correct, corrected, together
from bpals.signal.readings import cells, place, settle
from bpals.signal.strata import draw, reading_list, stratify
from world import known_labels
from world.words import mentions

TABLE = known_labels.claims(films=6000, presences=(("Effusion", 0.15),))
DRAWN = draw(stratify(TABLE), reads=2500)


def told(*readers, reads=None):
    """What several readers of given skill say, in cells."""
    listed = reading_list(DRAWN) if reads is None else reading_list(DRAWN).head(reads)
    said = pl.concat(known_labels.read(listed, TABLE, name, skill=skill) for name, skill in readers)
    return cells(place(settle(said), DRAWN)[0])[0]


def test_two_readers_tell_their_own_errors():
    """Sensitivity, specificity and the rate are found again from reads alone, where each reader errs by himself."""
    true = TABLE["wrong"].mean()
    said = told(("Ann", (0.85, 0.95)), ("Ben", (0.85, 0.95)))
    found = correct(said)
    assert found.sensitivity == pytest.approx(0.85, abs=0.04)
    assert found.specificity == pytest.approx(0.95, abs=0.02)
    assert found.low < true < found.high
    assert found.twice == 2500


def test_the_uncorrected_rate_is_too_high_where_the_corrected_one_is_not():
    """One reader in twenty wrong doubles a rate of 6 %."""
    said = told(("Ann", (0.85, 0.95)), ("Ben", (0.85, 0.95)))
    seen = said.group_by("cell").agg(pl.col("wrong").mean(), pl.len())
    raw = (seen["wrong"] * seen["len"]).sum() / seen["len"].sum()
    true = TABLE["wrong"].mean()
    assert abs(correct(said).rate - true) < abs(raw - true) / 2


def test_readers_without_errors_correct_nothing():
    """Perfect readers agree, and the rate stays."""
    found = correct(told(("Ann", (1.0, 1.0)), ("Ben", (1.0, 1.0))))
    assert found.rate == pytest.approx(TABLE["wrong"].mean(), abs=0.012)
    assert found.sensitivity > 0.99


def test_few_double_reads_correct_nothing_and_say_why():
    """One reader alone, or a handful of films with the finding, does not tell a skill."""
    assert mentions(correct(told(("Ann", (0.9, 0.9)))).why_not, "0 pairs", "30")
    rare = known_labels.claims(films=6000, presences=(("Hernia", 0.001),))
    drawn = draw(stratify(rare), reads=60)
    both = pl.concat(known_labels.read(reading_list(drawn), rare, name) for name in ("Ann", "Ben"))
    few = correct(cells(place(settle(both), drawn)[0])[0])
    assert few.rate is None
    assert "show the finding; 10 with it" in few.why_not


def test_the_correction_is_seeded():
    """The same reads and seed give the same interval."""
    said = told(("Ann", (0.85, 0.95)), ("Ben", (0.85, 0.95)), reads=600)
    assert correct(said, 3) == correct(said, 3)
    assert correct(said, 3) != correct(said, 4)


def test_findings_are_pooled_by_their_claims():
    """The corrected rate of all is the mean over claims, with an interval narrower than the widest of them."""
    found = correct(told(("Ann", (0.85, 0.95)), ("Ben", (0.85, 0.95)), reads=600))
    other = correct(told(("Ann", (0.9, 0.9)), ("Ben", (0.9, 0.9)), reads=600))
    both = together({"Effusion": (3000, found), "Mass": (1000, other)})
    assert both.rate == pytest.approx(0.75 * found.rate + 0.25 * other.rate)
    assert both.low < both.rate < both.high
    assert both.high - both.low < max(found.high - found.low, other.high - other.low)
    assert both.twice == 1200
    assert both.sensitivity is None


def test_findings_are_not_pooled_where_one_is_not_corrected():
    """It is named."""
    found = correct(told(("Ann", (0.85, 0.95)), ("Ben", (0.85, 0.95)), reads=600))
    both = together({"Effusion": (3000, found), "Hernia": (3000, correct(told(("Ann", (0.9, 0.9)))))})
    assert both.rate is None
    assert both.why_not == "not corrected: Hernia"


def test_a_cell_without_an_error_is_still_in_doubt():
    """Thirty pairs in which both readers always agree with the claim do not show that none of a million is wrong."""
    patterns = pl.DataFrame(
        [("p", "present", 2, 0, 30), ("r", "absent", 0, 2, 30)],
        schema=["cell", "says", "yes", "no", "len"],
        orient="row",
    )
    sizes = pl.DataFrame({"cell": ["p", "r"], "says": ["present", "absent"], "size": [1000, 1_000_000]})
    found = corrected(patterns, sizes)
    assert found.low < 0.001
    assert found.high > 0.02
