"""Error rates by finding, overall and by group, from reads to a table."""

import numpy as np
import polars as pl
import pytest

import shape
from bpals.errors import TruthError
from bpals.signal.monitoring import watch
from bpals.signal.rates import OVERALL, RATES, Rating, rates
from bpals.signal.strata import draw, reading_list, stratify
from bpals.types import VERDICT
from world import known_labels

TABLE = known_labels.claims()
SEX = TABLE.select("image_id", "finding", "sex")
DRAWN = draw(stratify(TABLE), reads=200).join(SEX, on=["image_id", "finding"])
LISTED = reading_list(DRAWN)
READS = known_labels.read(LISTED, TABLE)


def row(table, finding, says="all", group=None):
    """One row, by name."""
    own = table.filter(pl.col("finding") == finding, pl.col("says") == says, pl.col("group").eq_missing(group))
    return own.row(0, named=True)


@pytest.fixture(scope="module")
def told():
    """The rates of a plan that one perfect reader read."""
    table, notices = rates(READS, DRAWN, by=["sex"])
    assert not notices
    return table


def test_every_row_is_made(told):
    """All claims, presences and absences of each finding and of all, and each group."""
    assert told.schema == RATES
    assert told.height == 3 * (3 + 2)
    assert set(told["finding"]) == {"Effusion", "Hernia", OVERALL}


def test_the_intervals_hold_the_truth(told):
    """The rate of the whole dataset, by finding, kind of claim and sex."""
    for found in told.iter_rows(named=True):
        own = TABLE if found["finding"] == OVERALL else TABLE.filter(pl.col("finding") == found["finding"])
        own = own if found["says"] == "all" else own.filter(pl.col("says") == found["says"])
        own = own if found["group"] is None else own.filter(pl.col("sex") == found["group"])
        assert found["claims"] == own.height
        assert found["low"] <= own["wrong"].mean() <= found["high"], found


def test_the_estimate_weighs_the_strata(told):
    """Horvitz and Thompson: each error counts for as many claims as its pair stood for."""
    wrong = LISTED.join(TABLE.select("image_id", "finding", "wrong"), on=["image_id", "finding"])
    for finding in ("Effusion", "Hernia"):
        own = wrong.filter(pl.col("finding") == finding)
        weighed = (own["wrong"] / own["inclusion"]).sum() / 2000
        assert row(told, finding)["rate"] == pytest.approx(weighed)


def test_a_biased_look_is_not_taken_for_the_rate(told):
    """Half of the pairs read are presences or suspects, where errors are; the rate is far below their share."""
    found = row(told, "Effusion")
    assert found["rate"] < 0.75 * found["wrong"] / found["read"]


def test_hedges_and_unreadable_films_are_counted_and_bounded(told):
    """They leave the count of reads, and the bounds say what they could do."""
    word = (
        pl.when(pl.int_range(pl.len()) % 10 == 0).then(pl.lit("uncertain")).otherwise(pl.col("verdict").cast(pl.String))
    )
    hedged, _ = rates(READS.with_columns(verdict=word.cast(VERDICT)), DRAWN)
    found, sure = row(hedged, "Effusion"), row(told, "Effusion")
    assert found["unsettled"] + found["read"] == sure["read"]
    assert found["unsettled"] > 0
    assert found["low_if_right"] <= found["low"]
    assert found["high_if_wrong"] > found["high"] + 0.03
    assert sure["low_if_right"] == sure["low"]
    assert sure["high_if_wrong"] == sure["high"]


def test_the_anytime_interval_is_wider(told):
    """It pays for looking often."""
    found = row(told, "Effusion")
    assert found["anytime_low"] <= found["low"] < found["high"] <= found["anytime_high"]
    for part in (row(told, "Effusion", "present"), row(told, "Effusion", group="F"), row(told, OVERALL, group="M")):
        assert part["anytime_high"] - part["anytime_low"] > part["high"] - part["low"]


def test_part_of_a_plan_is_a_smaller_sample(told):
    """The list is in random order, so its first half gives a rate, too: a wider one."""
    half, _ = rates(known_labels.read(LISTED.head(200), TABLE), DRAWN)
    found, whole = row(half, "Effusion"), row(told, "Effusion")
    assert found["read"] < whole["read"]
    assert found["high"] - found["low"] > whole["high"] - whole["low"]


def test_a_simple_random_sample_needs_no_inclusion():
    """If the user says so; the strata are then not used, and the rate is the share of errors."""
    some = stratify(TABLE).sample(300, seed=3)
    table, _ = rates(known_labels.read(some, TABLE), stratify(TABLE), rating=Rating(simple_random=True))
    found = row(table, "Effusion")
    assert found["rate"] == pytest.approx(found["wrong"] / found["read"])
    assert found["anytime_low"] is None


def test_reads_of_an_enriched_set_are_refused():
    """Suspects read on purpose would double the rate."""
    worst = stratify(TABLE).sort("suspicion", descending=True).head(100)
    with pytest.raises(TruthError, match="enriched"):
        rates(known_labels.read(worst, TABLE), stratify(TABLE))


def test_reading_the_whole_dataset_gives_its_rate():
    """No doubt is left, in any group."""
    small = known_labels.claims(films=60, presences=(("Effusion", 0.2),))
    drawn = draw(stratify(small), reads=60).join(small.select("image_id", "sex"), on="image_id")
    table, _ = rates(known_labels.read(reading_list(drawn), small), drawn, by=["sex"])
    assert (table["low"] == table["high"]).all()
    assert row(table, "Effusion")["rate"] == pytest.approx(small["wrong"].mean())


def test_the_rates_of_groups_cover():
    """Over 100 draws the interval of a sex, which the plan did not draw by, covers."""
    covered = []
    placed = stratify(TABLE.filter(pl.col("finding") == "Effusion"))
    true = TABLE.filter(pl.col("finding") == "Effusion", pl.col("sex") == "F")["wrong"].mean()
    for seed in range(100):
        drawn = draw(placed, reads=60, seed=seed).join(SEX, on=["image_id", "finding"])
        said = known_labels.read(reading_list(drawn).filter(pl.col("sex") == "F"), TABLE)
        only = drawn.filter(pl.col("sex") == "F")
        found = row(rates(said, only)[0], "Effusion")
        covered.append(found["low"] <= true <= found["high"])
    assert np.mean(covered) >= 0.94 - 3 * np.sqrt(0.94 * 0.06 / 100)


def test_doubled_reads_correct_the_rate():
    """With two readers there is a corrected rate beside the other, never in its place."""
    both = pl.concat(known_labels.read(LISTED, TABLE, name, skill=(0.9, 0.95)) for name in ("Ann", "Ben"))
    found = row(rates(both, DRAWN)[0], "Effusion")
    assert found["read_twice"] > 100
    assert found["corrected_low"] <= found["corrected"] <= found["corrected_high"]
    assert found["corrected"] != found["rate"]
    alone = row(rates(READS, DRAWN)[0], "Effusion")
    assert alone["corrected"] is None
    assert alone["read_twice"] == 0
    assert "30 are needed" in alone["why_not_corrected"]


def test_all_findings_are_corrected_together_or_not_at_all():
    """Hernia's double reads show too few films with it, so the pooled rate says that it is missing."""
    both = pl.concat(known_labels.read(LISTED, TABLE, name, skill=(0.9, 0.95)) for name in ("Ann", "Ben"))
    table = rates(both, DRAWN)[0]
    pooled = row(table, OVERALL)
    known = row(table, "Effusion")["corrected"] is not None and row(table, "Hernia")["corrected"] is not None
    assert (pooled["corrected"] is not None) == known
    assert pooled["read_twice"] == row(table, "Effusion")["read_twice"] + row(table, "Hernia")["read_twice"]
    assert known or pooled["why_not_corrected"] == "not corrected: Hernia"


def test_the_anytime_interval_of_a_group_holds_at_all_looks():
    """Over 100 lists, the share in which a sex's interval ever loses its rate is at most 5 %, and three errors."""
    effusion = TABLE.filter(pl.col("finding") == "Effusion")
    placed = stratify(effusion)
    true = effusion.filter(pl.col("sex") == "F")["wrong"].mean()
    known = effusion.select("image_id", "sex", "wrong")
    lost = 0
    for seed in range(100):
        drawn = draw(placed, reads=60, seed=seed).rename({"inclusion": "drawn"}).join(known, on="image_id")
        looked = drawn.with_columns(looked=pl.col("drawn").is_not_null())
        steps = watch(looked.with_columns(wrong=pl.when("looked").then("wrong")).filter(pl.col("sex") == "F"))
        lost += bool(((steps["low"] > true) | (steps["high"] < true)).any())
    assert lost / 100 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_every_column_is_explained():
    """docs/rate.md says in words what each column means."""
    meanings = (shape.ROOT / "docs" / "rate.md").read_text(encoding="utf-8").split("## The columns")[1]
    assert not [column for column in RATES if f"`{column}`" not in meanings]
