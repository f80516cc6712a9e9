"""Tests of signal.rates."""

import numpy as np
import polars as pl
import pytest

import shape
from bpals.errors import TruthError
from bpals.signal.bounds import Strata, interval
from bpals.signal.rates import (
    DRAWN,
    OVERALL,
    RATES,
    Rating,
    cells,
    correct,
    corrected,
    design_effect,
    fair_sample,
    place,
    rates,
    settle,
    tally,
    together,
    watch,
    widened,
)
from bpals.signal.strata import draw, reading_list, stratify
from bpals.types import REVIEWS, VERDICT
from world import known_labels

# Pairs that come in clusters.


def test_pairs_that_err_alone_count_one_by_one():
    """Independent pairs of 500 films: the factor is near 1."""
    draw = np.random.default_rng(0)
    film = pl.Series(np.repeat(np.arange(500), 14))
    wrong = pl.Series(draw.random(7000) < 0.1)
    assert 1 <= design_effect(film, wrong) < 1.25


def test_a_film_that_is_wrong_as_a_whole_is_one_pair():
    """Where all 14 of a film err together the variance is 14 times as large."""
    draw = np.random.default_rng(0)
    film = pl.Series(np.repeat(np.arange(500), 14))
    wrong = pl.Series(np.repeat(draw.random(500) < 0.1, 14))
    assert design_effect(film, wrong) == pytest.approx(14, rel=0.05)


def test_without_an_error_a_film_says_no_more_than_one_pair():
    """Nothing can be seen of how errors go together, so the worst is taken; nothing read is no effect."""
    film = pl.Series(np.repeat(np.arange(20), 14))
    assert design_effect(film, pl.Series([False] * 280)) == 14
    assert design_effect(film.head(0), pl.Series([], dtype=pl.Boolean)) == 1
    assert design_effect(film.head(14), pl.Series([True, *[False] * 13])) == 14


@pytest.mark.parametrize("together", [0.0, 1.0])
def test_the_widened_interval_covers_where_errors_go_together(together):
    """200 samples of 60 films with 14 pairs each: the plain interval of the pairs misses often, the widened one not."""
    draw, rate, hits, plain = np.random.default_rng(1), 0.15, 0, 0
    for _ in range(200):
        whole = np.repeat(draw.random(60) < rate, 14)
        wrong = np.where(np.repeat(draw.random(60) < together, 14), whole, draw.random(840) < rate)
        share = wrong.mean()
        half = 1.96 * np.sqrt(share * (1 - share) / 840)
        effect = design_effect(pl.Series(np.repeat(np.arange(60), 14)), pl.Series(wrong))
        low, high = widened(share, share - half, share + half, effect)
        hits += low <= rate <= high
        plain += share - half <= rate <= share + half
    assert hits >= 180
    assert plain < 100 or not together


# A fair sample of a room's reads: on average the truth, although most cases were chosen because they looked wrong.

ITEMS = 240
BATCH = 40
RANDOM = 10


def study(seed, batches):
    """Read batches of a small world: in each, ten at random of what is unread, and thirty that look most wrong.

    What looks wrong is wrong more often, and after every batch the looks follow what was read.
    """
    dice = np.random.default_rng(seed)
    wrong = dice.random(ITEMS) < 0.2
    looks = wrong + dice.normal(size=ITEMS)
    rows, unread = [], np.ones(ITEMS, dtype=bool)
    for batch in range(batches):
        left = np.flatnonzero(unread)
        at_random = dice.choice(left, min(RANDOM, len(left)), replace=False)
        rest = np.setdiff1d(left, at_random)
        by_value = rest[np.argsort(-looks[rest])][: BATCH - RANDOM]
        rows += [
            (str(item), batch, how, True) for how, some in (("random", at_random), ("value", by_value)) for item in some
        ]
        unread[at_random] = unread[by_value] = False
        looks[unread] += 0.1 * wrong[at_random].mean()
    return pl.DataFrame(rows, schema=DRAWN, orient="row"), wrong


def estimates(batches, seeds=250):
    """Say how far the share of errors in the sample, in the random cases and in all cases is off, on average."""
    off = []
    for seed in range(seeds):
        drawn, wrong = study(seed, batches)
        sample, chance = fair_sample(drawn, items=ITEMS, seed=seed)
        random = drawn.filter(pl.col("how") == "random")["item"]
        told = [wrong[some.cast(pl.Int64).to_numpy()].mean() - wrong.mean() for some in (sample, random, drawn["item"])]
        off.append([*told, len(sample) / ITEMS - chance])
    return np.mean(off, axis=0), np.std(off, axis=0) / np.sqrt(seeds)


def test_the_sample_is_right_on_average_whatever_was_chosen():
    """Two thirds were read: the random cases alone miss errors that were taken before, and all cases hold too many."""
    (sample, random, every, size), (noise, *_, of_size) = estimates(4)
    assert abs(sample) < 4 * noise
    assert random < -0.02
    assert every > 0.05
    assert abs(size) < 4 * of_size + 0.005


def test_in_the_first_batch_it_is_the_random_cases():
    """Nothing was taken before."""
    drawn, _ = study(1, 1)
    sample, chance = fair_sample(drawn, items=ITEMS)
    assert set(sample) == set(drawn.filter(pl.col("how") == "random")["item"])
    assert chance == pytest.approx(RANDOM / ITEMS)


def test_what_was_drawn_and_not_read_is_no_sample():
    """Half of the random cases were read: the chance is half as large."""
    drawn, _ = study(1, 1)
    half = drawn.with_columns(read=pl.int_range(pl.len()) % 2 == 0)
    sample, chance = fair_sample(half, items=ITEMS)
    assert set(sample) == set(half.filter((pl.col("how") == "random") & pl.col("read"))["item"])
    assert chance == pytest.approx(len(sample) / ITEMS)


def test_the_same_reads_give_the_same_sample_in_any_order():
    """The lot of an item hangs on its name and the seed alone."""
    drawn, _ = study(5, 4)
    sample, chance = fair_sample(drawn, items=ITEMS, seed=3)
    again, same = fair_sample(drawn.sample(fraction=1.0, shuffle=True, seed=1), items=ITEMS, seed=3)
    assert (set(sample), chance) == (set(again), same)
    assert set(fair_sample(drawn, items=ITEMS, seed=4)[0]) != set(sample)


def test_nothing_drawn_is_no_sample():
    """A room that only holds reads from files."""
    sample, chance = fair_sample(pl.DataFrame(schema=DRAWN), items=ITEMS)
    assert sample.is_empty()
    assert chance == 0


# The interval that may be looked at after every read.

TABLE = known_labels.claims(films=1200, presences=(("Effusion", 0.15),))
PLACED = stratify(TABLE)
TRUE = TABLE["wrong"].mean()


def steps(seed, reads=120, looked=None, hedged=()):
    """Read a plan, or the first part of it, and watch."""
    drawn = draw(PLACED, reads=reads, seed=seed)
    said = known_labels.read(reading_list(drawn).head(looked or reads), TABLE)
    hedge = pl.int_range(pl.len()).is_in(list(hedged))
    word = pl.when(hedge).then(pl.lit("uncertain")).otherwise(pl.col("verdict").cast(pl.String)).cast(VERDICT)
    told, _ = cells(place(settle(said.with_columns(verdict=word)), drawn)[0])
    return watch(told), told


def test_the_interval_holds_at_all_times_at_once():
    """Over 200 draws, the share of those in which it ever loses the truth is at most 5 %, and three standard errors."""
    lost = 0
    for seed in range(200):
        seen, _ = steps(seed)
        lost += bool(((seen["low"] > TRUE) | (seen["high"] < TRUE)).any())
    assert lost / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_an_interval_for_one_look_would_not_hold_so():
    """Looking after every twentieth read at the fixed interval loses the truth more often than one look does."""
    ever, last = 0, 0
    for seed in range(40):
        drawn = draw(PLACED, reads=120, seed=seed)
        listed = reading_list(drawn)
        said = settle(known_labels.read(listed, TABLE))
        missed = []
        for looked in range(20, 121, 20):
            told, _ = cells(place(said.head(looked), drawn)[0])
            counts = tally(told, ["cell"])
            found = interval(Strata.of(counts["size"], counts["read"], counts["wrong"]))
            missed.append(not found.low <= TRUE <= found.high)
        ever, last = ever + any(missed), last + missed[-1]
    assert ever > last


def test_the_interval_only_narrows():
    """What was excluded stays so, and it ends around the truth."""
    seen, _ = steps(1, reads=400)
    assert seen.height == 400
    assert (seen["low"].diff().drop_nulls() >= 0).all()
    assert (seen["high"].diff().drop_nulls() <= 0).all()
    assert seen["high"][-1] - seen["low"][-1] < 0.15
    assert seen["low"][-1] < TRUE < seen["high"][-1]


def test_looking_early_shows_what_a_shorter_reading_shows():
    """The interval after 50 reads does not depend on what is read later."""
    whole, _ = steps(2)
    early, _ = steps(2, looked=50)
    assert whole.head(50).equals(early)


def test_an_unsettled_pair_counts_against_both_ends():
    """Hedges can only widen the interval."""
    sure, _ = steps(3)
    hedged, _ = steps(3, hedged=range(0, 120, 10))
    assert hedged["low"][-1] <= sure["low"][-1]
    assert hedged["high"][-1] >= sure["high"][-1]


def test_reading_everything_ends_at_the_truth():
    """With nothing left unread the errors are counted; the interval cannot exclude their share."""
    seen, _ = steps(4, reads=1200)
    assert seen["low"][-1] <= TRUE <= seen["high"][-1]
    assert seen["high"][-1] - seen["low"][-1] < 0.06


def test_nothing_read_is_nothing_to_watch():
    """No step, no interval."""
    drawn = draw(PLACED, reads=30)
    told = drawn.rename({"inclusion": "drawn"}).with_columns(looked=pl.lit(False), wrong=pl.lit(None, pl.Boolean))
    assert watch(told).is_empty()


# Readers' own errors, from pairs that two of them read.

TABLE_OF_READERSKILL = known_labels.claims(films=6000, presences=(("Effusion", 0.15),))
DRAWN_OF_READERSKILL = draw(stratify(TABLE_OF_READERSKILL), reads=2500)


def told(*readers, reads=None):
    """What several readers of given skill say, in cells."""
    listed = reading_list(DRAWN_OF_READERSKILL) if reads is None else reading_list(DRAWN_OF_READERSKILL).head(reads)
    said = pl.concat(known_labels.read(listed, TABLE_OF_READERSKILL, name, skill=skill) for name, skill in readers)
    return cells(place(settle(said), DRAWN_OF_READERSKILL)[0])[0]


def test_two_readers_tell_their_own_errors():
    """Sensitivity, specificity and the rate are found again from reads alone, where each reader errs by himself."""
    true = TABLE_OF_READERSKILL["wrong"].mean()
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
    true = TABLE_OF_READERSKILL["wrong"].mean()
    assert abs(correct(said).rate - true) < abs(raw - true) / 2


def test_readers_without_errors_correct_nothing():
    """Perfect readers agree, and the rate stays."""
    found = correct(told(("Ann", (1.0, 1.0)), ("Ben", (1.0, 1.0))))
    assert found.rate == pytest.approx(TABLE_OF_READERSKILL["wrong"].mean(), abs=0.012)
    assert found.sensitivity > 0.99


def test_few_double_reads_correct_nothing_and_say_why():
    """One reader alone, or a handful of films with the finding, does not tell a skill."""
    assert "0 pairs were read twice; 30 are needed" in correct(told(("Ann", (0.9, 0.9)))).why_not
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


# Reads made into one word a pair, and placed where they were drawn from.

TABLE_OF_READINGS = known_labels.claims()
PLACED_OF_READINGS = stratify(TABLE_OF_READINGS)


def reads(*rows):
    """REVIEWS of one finding, from (image, reader, verdict, inclusion)."""
    filled = [(image, "Effusion", reader, verdict, inclusion) for image, reader, verdict, inclusion in rows]
    return pl.DataFrame(filled, schema=REVIEWS, orient="row")


def codes(notices):
    """The codes and counts of notices."""
    return {notice.code: notice.count for notice in notices}


def test_readers_outvote_one_another_and_a_tie_settles_nothing():
    """Two against one is a verdict; one against one, a hedge and an unreadable film are not."""
    pairs = settle(
        reads(
            ("a", "1", "present", 0.5), ("a", "2", "present", 0.5), ("a", "3", "absent", 0.5),
            ("b", "1", "present", 0.5), ("b", "2", "absent", 0.5),
            ("c", "1", "uncertain", 0.5), ("d", "1", "unreadable", 0.5), ("e", "1", "absent", None),
        )
    )  # fmt: skip
    assert pairs["says_present"].to_list() == [True, None, None, None, False]
    assert pairs.select("hedged", "unreadable").sum().row(0) == (1, 1)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("a", "1", "present", 0.0)], "inclusion 0.0, which is no chance"),
        ([("a", "1", "present", 1.5)], "inclusion 1.5"),
        ([("a", "1", "present", float("nan"))], "inclusion nan"),
        ([("a", "1", "present", 0.2), ("a", "2", "present", 0.3)], "two inclusions"),
    ],
)
def test_an_inclusion_that_is_no_chance_is_refused(rows, words):
    """The pair is named."""
    with pytest.raises(TruthError, match=f"the pair a, Effusion.*{words}"):
        settle(reads(*rows))


def test_reads_without_a_known_chance_give_no_rate():
    """They may be enriched in errors; the message says what to do."""
    read = settle(known_labels.read(PLACED_OF_READINGS.head(50), TABLE_OF_READINGS))
    with pytest.raises(TruthError, match=r"of 50 pairs .*enriched.*bpals rate plan.*--simple-random"):
        cells(place(read, PLACED_OF_READINGS)[0])


def test_some_reads_without_a_known_chance_are_counted():
    """The others go on."""
    known = known_labels.read(PLACED_OF_READINGS.head(30), TABLE_OF_READINGS, inclusion=0.1)
    unknown = known_labels.read(PLACED_OF_READINGS[100:107], TABLE_OF_READINGS)
    told, notices = cells(place(settle(pl.concat([known, unknown])), PLACED_OF_READINGS)[0])
    assert codes(notices) == {"unknown_inclusion": 7}
    assert told["looked"].sum() == 30


@pytest.mark.parametrize(("count", "pair", "was"), [(1, "1 pair", "was"), (2, "2 pairs", "were")])
def test_one_read_without_a_known_chance_is_no_plural(count, pair, was):
    """The count agrees with its verb, in the notice and in the refusal."""
    known = known_labels.read(PLACED_OF_READINGS.head(30), TABLE_OF_READINGS, inclusion=0.1)
    unknown = known_labels.read(PLACED_OF_READINGS[100 : 100 + count], TABLE_OF_READINGS)
    (notice,) = cells(place(settle(pl.concat([known, unknown])), PLACED_OF_READINGS)[0])[1]
    assert notice.message.startswith(f"{pair} {was} read without a known chance")
    with pytest.raises(TruthError, match=f"^of {pair} that {was} read none has a known chance"):
        cells(place(settle(unknown), PLACED_OF_READINGS)[0])


def test_a_simple_random_sample_is_one_cell_a_finding():
    """Whatever the strata are."""
    read = settle(known_labels.read(PLACED_OF_READINGS.sample(80, seed=1), TABLE_OF_READINGS))
    told, notices = cells(place(read, PLACED_OF_READINGS)[0], simple_random=True)
    assert set(told["cell"]) == {"every"}
    assert not notices


def test_pairs_that_claim_nothing_are_counted():
    """A read of a pair without a claim is no evidence about one."""
    read = pl.concat(
        [
            known_labels.read(PLACED_OF_READINGS.head(20), TABLE_OF_READINGS, inclusion=0.1),
            reads(("nowhere", "1", "present", 0.1)),
        ]
    )
    placed, notices = place(settle(read), PLACED_OF_READINGS)
    assert codes(notices) == {"unclaimed_reads": 1}
    assert "nowhere" in notices[0].message
    assert placed["looked"].sum() == 20


def test_a_plan_stands_over_the_file():
    """Its chances are used, its strata are the cells, and reads of other pairs are left out."""
    drawn = draw(PLACED_OF_READINGS, reads=60)
    listed = reading_list(drawn)
    others = PLACED_OF_READINGS.join(listed, on=["image_id", "finding"], how="anti").head(5)
    read = pl.concat(
        [
            known_labels.read(listed, TABLE_OF_READINGS, inclusion=0.9),
            known_labels.read(others, TABLE_OF_READINGS, inclusion=0.9),
        ]
    )
    placed, notices = place(settle(read), drawn)
    told, more = cells(placed)
    assert codes([*notices, *more]) == {"unplanned_reads": 5}
    assert set(told["cell"]) == {"present", "suspect", "rest"}
    counts = tally(told, ["finding", "cell"])
    assert counts["size"].sum() == PLACED_OF_READINGS.height
    assert counts["read"].sum() == 120


def test_reads_that_meet_a_plan_by_chance_are_refused():
    """Suspects that somebody chose are no sample, although the plan drew some of them, too."""
    drawn = draw(PLACED_OF_READINGS, reads=60)
    worst = PLACED_OF_READINGS.sort("suspicion", descending=True).head(200)
    with pytest.raises(TruthError, match=r"passed over.*enriched in errors and give no rate"):
        place(settle(known_labels.read(worst, TABLE_OF_READINGS)), drawn)


def test_pairs_of_the_list_that_were_passed_over_are_counted():
    """A list that two readers shared may have a hole, and a large one; it is said."""
    drawn = draw(PLACED_OF_READINGS, reads=60)
    listed = reading_list(drawn)
    some = pl.concat([listed.head(30), listed[80:]])
    _, notices = place(settle(known_labels.read(some, TABLE_OF_READINGS)), drawn)
    assert codes(notices) == {"skipped_pairs": 50}


@pytest.mark.parametrize("honest", [0, 80])
def test_reads_that_were_picked_from_a_list_are_refused(honest):
    """Here and there, also below a part that was read whole: the pair to go on with is named."""
    drawn = draw(PLACED_OF_READINGS, reads=120)
    listed = reading_list(drawn)
    picked = pl.concat([listed[:honest], listed[honest + 1 :: 9]])
    blank = listed.join(picked, on=["image_id", "finding"], how="anti", maintain_order="left")
    first = blank.filter(pl.col("finding") == "Effusion")["image_id"][0]
    with pytest.raises(TruthError, match=rf"of Effusion.*passed over while others below.*{first} first"):
        place(settle(known_labels.read(picked, TABLE_OF_READINGS)), drawn)


def test_pairs_that_were_left_blank_are_unsettled():
    """A doubtful reader leaves what is hard: such pairs count as those that nobody could settle."""
    drawn = draw(PLACED_OF_READINGS, reads=60)
    listed = reading_list(drawn)
    some = listed.filter(pl.int_range(pl.len()) % 8 != 3)
    placed, notices = place(settle(known_labels.read(some, TABLE_OF_READINGS)), drawn)
    blank = listed.height - some.height
    assert codes(notices) == {"skipped_pairs": blank}
    assert f"{blank} count as unsettled" in notices[0].message
    counts = tally(cells(placed)[0], ["finding", "cell"])
    assert counts["unsettled"].sum() == blank
    assert counts["read"].sum() == some.height


def test_chances_that_differ_are_no_simple_random_sample():
    """Whatever the option says: a plan, or a key, says that they do."""
    drawn = draw(PLACED_OF_READINGS, reads=60)
    placed, _ = place(settle(known_labels.read(reading_list(drawn), TABLE_OF_READINGS)), drawn)
    with pytest.raises(TruthError, match=r"with chances from .* to .*Leave --simple-random out"):
        cells(placed, simple_random=True)


def test_pairs_that_were_sure_to_be_read_are_a_cell_of_their_own():
    """What was looked at on purpose is known, and says nothing about the rest."""
    chosen = PLACED_OF_READINGS.filter(pl.col("finding") == "Effusion")
    sure = known_labels.read(chosen.head(25), TABLE_OF_READINGS, inclusion=1.0)
    random = known_labels.read(chosen[25:].sample(100, seed=2), TABLE_OF_READINGS, inclusion=0.05)
    told, _ = cells(place(settle(pl.concat([sure, random])), PLACED_OF_READINGS)[0])
    counts = {row["cell"]: row for row in tally(told, ["cell"]).to_dicts()}
    assert (counts["whole"]["size"], counts["whole"]["read"]) == (25, 25)
    assert (counts["every"]["size"], counts["every"]["read"]) == (chosen.height - 25, 100)


def test_unequal_chances_inside_a_stratum_are_evened_by_lot():
    """Pairs that were three times as likely to be read keep a third of their reads; it is counted, and seeded."""
    chosen = PLACED_OF_READINGS.filter(pl.col("stratum") == "rest", pl.col("finding") == "Effusion")
    halves = chosen.head(900).sample(300, seed=1), chosen[900:].sample(100, seed=1)
    other = PLACED_OF_READINGS.filter(pl.col("stratum") == "present", pl.col("finding") == "Effusion").head(40)
    read = pl.concat(
        known_labels.read(part, TABLE_OF_READINGS, inclusion=share)
        for part, share in zip((*halves, other), (0.3, 0.1, 0.4), strict=True)
    )
    placed, _ = place(settle(read), PLACED_OF_READINGS)
    told, notices = cells(placed)
    aside = codes(notices)["uneven_inclusion"]
    assert 160 <= aside <= 240
    assert tally(told, ["cell"])["read"].sum() == 440 - aside
    assert told.equals(cells(placed)[0])


def test_more_reads_than_the_chances_lead_to_are_refused():
    """A hundred reads of a thousand claims do not have a chance of one in a thousand."""
    read = settle(known_labels.read(PLACED_OF_READINGS.head(200), TABLE_OF_READINGS, inclusion=0.001))
    with pytest.raises(TruthError, match="not the chances of this draw"):
        cells(place(read, PLACED_OF_READINGS)[0])


# Error rates by finding, overall and by group, from reads to a table.

TABLE_OF_RATES = known_labels.claims()
SEX = TABLE_OF_RATES.select("image_id", "finding", "sex")
DRAWN_OF_RATES = draw(stratify(TABLE_OF_RATES), reads=200).join(SEX, on=["image_id", "finding"])
LISTED = reading_list(DRAWN_OF_RATES)
READS = known_labels.read(LISTED, TABLE_OF_RATES)


def row(table, finding, says="all", group=None):
    """One row, by name."""
    own = table.filter(pl.col("finding") == finding, pl.col("says") == says, pl.col("group").eq_missing(group))
    return own.row(0, named=True)


@pytest.fixture(scope="module")
def told_of_rates():
    """The rates of a plan that one perfect reader read."""
    table, notices = rates(READS, DRAWN_OF_RATES, by=["sex"])
    assert not notices
    return table


def test_every_row_is_made(told_of_rates):
    """All claims, presences and absences of each finding and of all, and each group."""
    assert told_of_rates.schema == RATES
    assert told_of_rates.height == 3 * (3 + 2)
    assert set(told_of_rates["finding"]) == {"Effusion", "Hernia", OVERALL}


def test_the_intervals_hold_the_truth(told_of_rates):
    """The rate of the whole dataset, by finding, kind of claim and sex."""
    for found in told_of_rates.iter_rows(named=True):
        own = (
            TABLE_OF_RATES
            if found["finding"] == OVERALL
            else TABLE_OF_RATES.filter(pl.col("finding") == found["finding"])
        )
        own = own if found["says"] == "all" else own.filter(pl.col("says") == found["says"])
        own = own if found["group"] is None else own.filter(pl.col("sex") == found["group"])
        assert found["claims"] == own.height
        assert found["low"] <= own["wrong"].mean() <= found["high"], found


def test_the_estimate_weighs_the_strata(told_of_rates):
    """Horvitz and Thompson: each error counts for as many claims as its pair stood for."""
    wrong = LISTED.join(TABLE_OF_RATES.select("image_id", "finding", "wrong"), on=["image_id", "finding"])
    for finding in ("Effusion", "Hernia"):
        own = wrong.filter(pl.col("finding") == finding)
        weighed = (own["wrong"] / own["inclusion"]).sum() / 2000
        assert row(told_of_rates, finding)["rate"] == pytest.approx(weighed)


def test_a_biased_look_is_not_taken_for_the_rate(told_of_rates):
    """Half of the pairs read are presences or suspects, where errors are; the rate is far below their share."""
    found = row(told_of_rates, "Effusion")
    assert found["rate"] < 0.75 * found["wrong"] / found["read"]


def test_hedges_and_unreadable_films_are_counted_and_bounded(told_of_rates):
    """They leave the count of reads, and the bounds say what they could do."""
    word = (
        pl.when(pl.int_range(pl.len()) % 10 == 0).then(pl.lit("uncertain")).otherwise(pl.col("verdict").cast(pl.String))
    )
    hedged, _ = rates(READS.with_columns(verdict=word.cast(VERDICT)), DRAWN_OF_RATES)
    found, sure = row(hedged, "Effusion"), row(told_of_rates, "Effusion")
    assert found["unsettled"] + found["read"] == sure["read"]
    assert found["unsettled"] > 0
    assert found["low_if_right"] <= found["low"]
    assert found["high_if_wrong"] > found["high"] + 0.03
    assert sure["low_if_right"] == sure["low"]
    assert sure["high_if_wrong"] == sure["high"]


def test_the_anytime_interval_is_wider(told_of_rates):
    """It pays for looking often."""
    found = row(told_of_rates, "Effusion")
    assert found["anytime_low"] <= found["low"] < found["high"] <= found["anytime_high"]
    for part in (
        row(told_of_rates, "Effusion", "present"),
        row(told_of_rates, "Effusion", group="F"),
        row(told_of_rates, OVERALL, group="M"),
    ):
        assert part["anytime_high"] - part["anytime_low"] > part["high"] - part["low"]


def test_part_of_a_plan_is_a_smaller_sample(told_of_rates):
    """The list is in random order, so its first half gives a rate, too: a wider one."""
    half, _ = rates(known_labels.read(LISTED.head(200), TABLE_OF_RATES), DRAWN_OF_RATES)
    found, whole = row(half, "Effusion"), row(told_of_rates, "Effusion")
    assert found["read"] < whole["read"]
    assert found["high"] - found["low"] > whole["high"] - whole["low"]


def test_a_simple_random_sample_needs_no_inclusion():
    """If the user says so; the strata are then not used, and the rate is the share of errors."""
    some = stratify(TABLE_OF_RATES).sample(300, seed=3)
    table, _ = rates(
        known_labels.read(some, TABLE_OF_RATES), stratify(TABLE_OF_RATES), rating=Rating(simple_random=True)
    )
    found = row(table, "Effusion")
    assert found["rate"] == pytest.approx(found["wrong"] / found["read"])
    assert found["anytime_low"] is None


def test_reads_of_an_enriched_set_are_refused():
    """Suspects read on purpose would double the rate."""
    worst = stratify(TABLE_OF_RATES).sort("suspicion", descending=True).head(100)
    with pytest.raises(TruthError, match="enriched"):
        rates(known_labels.read(worst, TABLE_OF_RATES), stratify(TABLE_OF_RATES))


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
    placed = stratify(TABLE_OF_RATES.filter(pl.col("finding") == "Effusion"))
    true = TABLE_OF_RATES.filter(pl.col("finding") == "Effusion", pl.col("sex") == "F")["wrong"].mean()
    for seed in range(100):
        drawn = draw(placed, reads=60, seed=seed).join(SEX, on=["image_id", "finding"])
        said = known_labels.read(reading_list(drawn).filter(pl.col("sex") == "F"), TABLE_OF_RATES)
        only = drawn.filter(pl.col("sex") == "F")
        found = row(rates(said, only)[0], "Effusion")
        covered.append(found["low"] <= true <= found["high"])
    assert np.mean(covered) >= 0.94 - 3 * np.sqrt(0.94 * 0.06 / 100)


def test_doubled_reads_correct_the_rate():
    """With two readers there is a corrected rate beside the other, never in its place."""
    both = pl.concat(known_labels.read(LISTED, TABLE_OF_RATES, name, skill=(0.9, 0.95)) for name in ("Ann", "Ben"))
    found = row(rates(both, DRAWN_OF_RATES)[0], "Effusion")
    assert found["read_twice"] > 100
    assert found["corrected_low"] <= found["corrected"] <= found["corrected_high"]
    assert found["corrected"] != found["rate"]
    alone = row(rates(READS, DRAWN_OF_RATES)[0], "Effusion")
    assert alone["corrected"] is None
    assert alone["read_twice"] == 0
    assert "30 are needed" in alone["why_not_corrected"]


def test_all_findings_are_corrected_together_or_not_at_all():
    """Hernia's double reads show too few films with it, so the pooled rate says that it is missing."""
    both = pl.concat(known_labels.read(LISTED, TABLE_OF_RATES, name, skill=(0.9, 0.95)) for name in ("Ann", "Ben"))
    table = rates(both, DRAWN_OF_RATES)[0]
    pooled = row(table, OVERALL)
    known = row(table, "Effusion")["corrected"] is not None and row(table, "Hernia")["corrected"] is not None
    assert (pooled["corrected"] is not None) == known
    assert pooled["read_twice"] == row(table, "Effusion")["read_twice"] + row(table, "Hernia")["read_twice"]
    assert known or pooled["why_not_corrected"] == "not corrected: Hernia"


def test_the_anytime_interval_of_a_group_holds_at_all_looks():
    """Over 100 lists, the share in which a sex's interval ever loses its rate is at most 5 %, and three errors."""
    effusion = TABLE_OF_RATES.filter(pl.col("finding") == "Effusion")
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
