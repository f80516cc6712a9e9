"""Tests of signal.strata."""

import numpy as np
import polars as pl
import pytest

from bpals.errors import UsageError
from bpals.signal.strata import STRATIFIED, WIDTHS, allocate, draw, reading_list, reads_for, stratify, widths
from world import known_labels

# Strata, allocation and draws: what is to be read.

TABLE = known_labels.claims()


def test_absences_are_split_at_a_tenth_of_suspicion():
    """Presences, the tenth of the absences that is trusted least, and the rest."""
    placed = stratify(TABLE)
    assert placed.schema == STRATIFIED
    for (_,), own in placed.group_by("finding"):
        absent = own.filter(pl.col("says") == "absent")
        suspect = absent.filter(pl.col("stratum") == "suspect")
        assert suspect.height == np.ceil(absent.height / 10)
        assert suspect["suspicion"].min() >= absent.filter(pl.col("stratum") == "rest")["suspicion"].max()
        assert own.filter((pl.col("stratum") == "present") != (pl.col("says") == "present")).is_empty()


def test_the_order_of_the_rows_does_not_matter():
    """Also where many claims are trusted alike, and so is the draw."""
    rounded = TABLE.with_columns(pl.col("trust").round(1))
    shuffled = rounded.sample(fraction=1, shuffle=True, seed=3)
    assert stratify(rounded).equals(stratify(shuffled))
    assert draw(stratify(rounded), reads=50).equals(draw(stratify(shuffled), reads=50))


def test_uncertain_claims_are_no_claims_and_unjudged_ones_are_kept():
    """An uncertain claim cannot be wrong; one without a trust can."""
    table = pl.DataFrame({"image_id": ["a", "b", "c"], "finding": "Mass", "says": ["uncertain", "absent", "present"],
                          "trust": [None, None, 0.9]}, schema_overrides={"trust": pl.Float64})  # fmt: skip
    assert sorted(stratify(table)["image_id"]) == ["b", "c"]


@pytest.mark.parametrize("reads", [9, 50, 300, 1000, 112_000, 200_000])
def test_reads_are_shared_out_whole(reads):
    """They add up, no stratum gets fewer than three or more than it has."""
    size, suspicion = np.array([227, 11_190, 100_703]), np.array([0.4, 0.01, 0.001])
    counts = allocate(size, suspicion, reads)
    assert counts.sum() == min(reads, size.sum())
    assert (counts >= 3).all()
    assert (counts <= size).all()


def test_the_allocation_is_half_by_size_and_half_by_deviation():
    """n_h = n [W_h / 2 + W_h sigma_h / (2 sum W sigma)]."""
    size, suspicion = np.array([5000, 10_000, 85_000]), np.array([0.5, 0.1, 0.01])
    weights, sigma = size / size.sum(), np.sqrt(suspicion * (1 - suspicion))
    wanted = 1000 * (weights / 2 + weights * sigma / (2 * (weights * sigma).sum()))
    assert allocate(size, suspicion, 1000) == pytest.approx(wanted, abs=1)


def test_too_few_reads_are_refused():
    """Three strata take nine."""
    with pytest.raises(UsageError, match=r"^8 reads .* 3 .*--reads 9"):
        allocate(np.array([50, 50, 50]), np.zeros(3), 8)


def test_one_read_is_no_plural():
    """Nor is one stratum, which takes three."""
    with pytest.raises(UsageError, match=r"^1 read .* 1 .*--reads 3"):
        allocate(np.array([50]), np.zeros(1), 1)


def test_a_draw_gives_each_pair_of_a_stratum_the_same_chance():
    """The inclusion is reads over claims of the stratum; over many seeds each pair comes as often as it says."""
    small = stratify(known_labels.claims(films=150))
    times = sum((draw(small, reads=30, seed=seed)["inclusion"].is_not_null()).cast(pl.Int64) for seed in range(300))
    drawn = draw(small, reads=30).with_columns(times=times)
    for (_, _), part in drawn.group_by("finding", "stratum"):
        inclusion = part["inclusion"].max()
        assert part["inclusion"].count() == round(inclusion * part.height)
        error = np.sqrt(inclusion * (1 - inclusion) / 300)
        assert abs(part["times"] / 300 - inclusion).max() <= 4.5 * error + 1e-9


def test_the_same_seed_draws_the_same_and_another_draws_others():
    """Seeded, and independent of which other findings are drawn."""
    placed = stratify(TABLE)
    one, again, other = (reading_list(draw(placed, reads=60, seed=seed)) for seed in (4, 4, 5))
    assert one.equals(again)
    assert not one.equals(other)
    alone = draw(placed.filter(pl.col("finding") == "Hernia"), reads=60, seed=4).filter(
        pl.col("inclusion").is_not_null()
    )
    assert set(alone["image_id"]) == set(one.filter(pl.col("finding") == "Hernia")["image_id"])


def test_a_larger_draw_holds_the_smaller_one():
    """What was drawn before stays drawn; what is new is a batch of its own."""
    first = draw(stratify(TABLE), reads=60)
    second = draw(first, reads=100)
    kept = reading_list(second).join(reading_list(first), on=["image_id", "finding"], how="semi")
    assert kept.height == reading_list(first).height == 120
    assert reading_list(second, 2).height == 80
    assert reading_list(second)["position"].to_list() == [*range(1, 121), *range(1, 81)]
    with pytest.raises(UsageError, match="another seed"):
        draw(first, reads=100, seed=9)


def test_the_reading_list_is_shuffled():
    """A reader cannot tell a stratum by its place: each is spread over the list."""
    listed = reading_list(draw(stratify(TABLE), reads=300))
    for stratum in ("present", "suspect", "rest"):
        places = listed.filter(pl.col("stratum") == stratum)["position"]
        assert abs(places.mean() / listed.height - 0.5) < 0.12


def test_nothing_to_draw_is_refused():
    """No claim, no list."""
    with pytest.raises(UsageError, match="no claim"):
        draw(stratify(TABLE).clear(), reads=10)


# How many reads buy which width.

PLACED = stratify(known_labels.claims())
TABLE_OF_PLANNING = widths(PLACED, reads=(30, 100, 300))


def test_more_reads_buy_a_narrower_interval():
    """One row a finding and number of reads; the width falls."""
    assert TABLE_OF_PLANNING.schema == WIDTHS
    for (_,), part in TABLE_OF_PLANNING.group_by("finding"):
        assert part["reads"].to_list() == [30, 100, 300]
        assert part["width"].to_list() == sorted(part["width"], reverse=True)
    assert TABLE_OF_PLANNING.equals(widths(PLACED, reads=(30, 100, 300)))


def test_no_more_is_planned_than_there_is():
    """60 claims cannot be read 100 times."""
    few = stratify(known_labels.claims(films=60, presences=(("Mass", 0.2),)))
    assert widths(few, reads=(30, 100))["reads"].to_list() == [30]
    assert widths(few, reads=(100,))["width"].to_list() == [0.0]


def test_the_reads_for_a_width_lie_between_those_of_the_table():
    """And every finding gets its width."""
    wanted = TABLE_OF_PLANNING.filter(pl.col("reads") == 100)["width"].max()
    assert reads_for(TABLE_OF_PLANNING, wanted) == 100
    assert 30 < reads_for(TABLE_OF_PLANNING, wanted * 1.2) < 100 < reads_for(TABLE_OF_PLANNING, wanted / 1.2) < 300
    assert 300 < reads_for(TABLE_OF_PLANNING, TABLE_OF_PLANNING["width"].min() / 1.5) < 2000


@pytest.mark.parametrize("width", [0.0, -0.1, 1.0, float("nan")])
def test_a_width_that_cannot_be_is_refused(width):
    """A width lies between 0 and 1."""
    with pytest.raises(UsageError, match=r"--width 0\.02"):
        reads_for(TABLE_OF_PLANNING, width)
