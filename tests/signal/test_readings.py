"""Reads made into one word a pair, and placed where they were drawn from."""

import polars as pl
import pytest

from bpals.errors import TruthError
from bpals.signal.readings import cells, place, settle, tally
from bpals.signal.strata import draw, reading_list, stratify
from bpals.types import REVIEWS
from world import known_labels

TABLE = known_labels.claims()
PLACED = stratify(TABLE)


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
    read = settle(known_labels.read(PLACED.head(50), TABLE))
    with pytest.raises(TruthError, match=r" 50 .*rate plan.*--simple-random"):
        cells(place(read, PLACED)[0])


def test_some_reads_without_a_known_chance_are_counted():
    """The others go on."""
    known = known_labels.read(PLACED.head(30), TABLE, inclusion=0.1)
    unknown = known_labels.read(PLACED[100:107], TABLE)
    told, notices = cells(place(settle(pl.concat([known, unknown])), PLACED)[0])
    assert codes(notices) == {"unknown_inclusion": 7}
    assert told["looked"].sum() == 30


@pytest.mark.parametrize(("count", "pair", "was"), [(1, "1 pair", "was"), (2, "2 pairs", "were")])
def test_one_read_without_a_known_chance_is_no_plural(count, pair, was):
    """The count agrees with its verb, in the notice and in the refusal."""
    known = known_labels.read(PLACED.head(30), TABLE, inclusion=0.1)
    unknown = known_labels.read(PLACED[100 : 100 + count], TABLE)
    (notice,) = cells(place(settle(pl.concat([known, unknown])), PLACED)[0])[1]
    assert notice.message.startswith(f"{pair} {was} read")
    with pytest.raises(TruthError, match=f"^of {pair} .*known chance"):
        cells(place(settle(unknown), PLACED)[0])


def test_a_simple_random_sample_is_one_cell_a_finding():
    """Whatever the strata are."""
    read = settle(known_labels.read(PLACED.sample(80, seed=1), TABLE))
    told, notices = cells(place(read, PLACED)[0], simple_random=True)
    assert set(told["cell"]) == {"every"}
    assert not notices


def test_pairs_that_claim_nothing_are_counted():
    """A read of a pair without a claim is no evidence about one."""
    read = pl.concat(
        [known_labels.read(PLACED.head(20), TABLE, inclusion=0.1), reads(("nowhere", "1", "present", 0.1))]
    )
    placed, notices = place(settle(read), PLACED)
    assert codes(notices) == {"unclaimed_reads": 1}
    assert "nowhere" in notices[0].message
    assert placed["looked"].sum() == 20


def test_a_plan_stands_over_the_file():
    """Its chances are used, its strata are the cells, and reads of other pairs are left out."""
    drawn = draw(PLACED, reads=60)
    listed = reading_list(drawn)
    others = PLACED.join(listed, on=["image_id", "finding"], how="anti").head(5)
    read = pl.concat([known_labels.read(listed, TABLE, inclusion=0.9), known_labels.read(others, TABLE, inclusion=0.9)])
    placed, notices = place(settle(read), drawn)
    told, more = cells(placed)
    assert codes([*notices, *more]) == {"unplanned_reads": 5}
    assert set(told["cell"]) == {"present", "suspect", "rest"}
    counts = tally(told, ["finding", "cell"])
    assert counts["size"].sum() == PLACED.height
    assert counts["read"].sum() == 120


def test_reads_that_meet_a_plan_by_chance_are_refused():
    """Suspects that somebody chose are no sample, although the plan drew some of them, too."""
    drawn = draw(PLACED, reads=60)
    worst = PLACED.sort("suspicion", descending=True).head(200)
    with pytest.raises(TruthError, match=r"passed over.*enriched"):
        place(settle(known_labels.read(worst, TABLE)), drawn)


def test_pairs_of_the_list_that_were_passed_over_are_counted():
    """A list that two readers shared may have a hole, and a large one; it is said."""
    drawn = draw(PLACED, reads=60)
    listed = reading_list(drawn)
    some = pl.concat([listed.head(30), listed[80:]])
    _, notices = place(settle(known_labels.read(some, TABLE)), drawn)
    assert codes(notices) == {"skipped_pairs": 50}


@pytest.mark.parametrize("honest", [0, 80])
def test_reads_that_were_picked_from_a_list_are_refused(honest):
    """Here and there, also below a part that was read whole: the pair to go on with is named."""
    drawn = draw(PLACED, reads=120)
    listed = reading_list(drawn)
    picked = pl.concat([listed[:honest], listed[honest + 1 :: 9]])
    blank = listed.join(picked, on=["image_id", "finding"], how="anti", maintain_order="left")
    first = blank.filter(pl.col("finding") == "Effusion")["image_id"][0]
    with pytest.raises(TruthError, match=rf"Effusion.*passed over.*{first}"):
        place(settle(known_labels.read(picked, TABLE)), drawn)


def test_pairs_that_were_left_blank_are_unsettled():
    """A doubtful reader leaves what is hard: such pairs count as those that nobody could settle."""
    drawn = draw(PLACED, reads=60)
    listed = reading_list(drawn)
    some = listed.filter(pl.int_range(pl.len()) % 8 != 3)
    placed, notices = place(settle(known_labels.read(some, TABLE)), drawn)
    blank = listed.height - some.height
    assert codes(notices) == {"skipped_pairs": blank}
    assert f"{blank} count as unsettled" in notices[0].message
    counts = tally(cells(placed)[0], ["finding", "cell"])
    assert counts["unsettled"].sum() == blank
    assert counts["read"].sum() == some.height


def test_chances_that_differ_are_no_simple_random_sample():
    """Whatever the option says: a plan, or a key, says that they do."""
    drawn = draw(PLACED, reads=60)
    placed, _ = place(settle(known_labels.read(reading_list(drawn), TABLE)), drawn)
    with pytest.raises(TruthError, match=r"chances from .*--simple-random"):
        cells(placed, simple_random=True)


def test_pairs_that_were_sure_to_be_read_are_a_cell_of_their_own():
    """What was looked at on purpose is known, and says nothing about the rest."""
    chosen = PLACED.filter(pl.col("finding") == "Effusion")
    sure = known_labels.read(chosen.head(25), TABLE, inclusion=1.0)
    random = known_labels.read(chosen[25:].sample(100, seed=2), TABLE, inclusion=0.05)
    told, _ = cells(place(settle(pl.concat([sure, random])), PLACED)[0])
    counts = {row["cell"]: row for row in tally(told, ["cell"]).to_dicts()}
    assert (counts["whole"]["size"], counts["whole"]["read"]) == (25, 25)
    assert (counts["every"]["size"], counts["every"]["read"]) == (chosen.height - 25, 100)


def test_unequal_chances_inside_a_stratum_are_evened_by_lot():
    """Pairs that were three times as likely to be read keep a third of their reads; it is counted, and seeded."""
    chosen = PLACED.filter(pl.col("stratum") == "rest", pl.col("finding") == "Effusion")
    halves = chosen.head(900).sample(300, seed=1), chosen[900:].sample(100, seed=1)
    other = PLACED.filter(pl.col("stratum") == "present", pl.col("finding") == "Effusion").head(40)
    read = pl.concat(
        known_labels.read(part, TABLE, inclusion=share)
        for part, share in zip((*halves, other), (0.3, 0.1, 0.4), strict=True)
    )
    placed, _ = place(settle(read), PLACED)
    told, notices = cells(placed)
    aside = codes(notices)["uneven_inclusion"]
    assert 160 <= aside <= 240
    assert tally(told, ["cell"])["read"].sum() == 440 - aside
    assert told.equals(cells(placed)[0])


def test_more_reads_than_the_chances_lead_to_are_refused():
    """A hundred reads of a thousand claims do not have a chance of one in a thousand."""
    read = settle(known_labels.read(PLACED.head(200), TABLE, inclusion=0.001))
    with pytest.raises(TruthError, match="not the chances of this draw"):
        cells(place(read, PLACED)[0])
