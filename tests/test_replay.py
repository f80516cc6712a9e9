"""The replay: what an order of reading finds, worked out by hand, on made-up readers and on real ones."""

import numpy as np
import polars as pl
import pytest

from bpals.errors import TruthError, UnknownName
from bpals.findings import NIH
from bpals.reviews import verdicts
from bpals.score.intervals import Resampling
from bpals.testing.fakes import made_up_reads
from bpals.types import REVIEWS
from replay import OURS, SPENDING, Spent, curves, holds, learning, replay, rivals, with_reads, yardsticks

FEW = Resampling(draws=60)


def reviews(rows):
    """Rows `(image, finding, reader, verdict)` as REVIEWS."""
    return pl.DataFrame([(*row, None) for row in rows], schema=REVIEWS, orient="row")


def pairs(films, wrong, finding="Mass"):
    """Pairs that claim presence, of a patient each; the wrong ones are absent."""
    return pl.DataFrame(
        {"image_id": films, "finding": finding, "claimed": True, "present": [film not in wrong for film in films],
         "patient": range(len(films))}
    )  # fmt: skip


def test_an_error_is_found_when_its_first_read_is_spent():
    """Four pairs of 1, 3, 2, 2 reads; the second and fourth are wrong: found after 2 reads and after 7 of 8."""
    spent = Spent.along([4, 3, 2, 1], np.array([False, True, False, True]), [1, 3, 2, 2])
    found = [float(spent.found_by(reads / 8)[0]) for reads in range(9)]
    assert found == pytest.approx([0, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 1, 1])


def test_the_area_is_the_mean_share_found_up_to_the_budget():
    """Half the errors found during the second of eight reads, then none up to the sixth: by hand, and by a fine sum."""
    spent = Spent.along([4, 3, 2, 1], np.array([False, True, False, True]), [1, 3, 2, 2])
    assert spent.area(0.5)[0] == pytest.approx((0.25 + 0.5 + 0.5) / 4)
    fine = np.mean([spent.found_by(share)[0] for share in (np.arange(4000) + 0.5) / 4000 * 0.9])
    assert spent.area(0.9)[0] == pytest.approx(fine, abs=1e-3)


def test_pairs_that_tie_are_read_in_any_order():
    """With no order at all the share found is the share spent, and the area half of it, whatever a pair takes."""
    rng = np.random.default_rng(0)
    wrong, reads = rng.random(500) < 0.1, rng.integers(1, 4, 500)
    spent = Spent.along(np.zeros(500), wrong, reads)
    assert spent.found_by(0.2)[0] == pytest.approx(0.2)
    assert spent.area(0.2)[0] == pytest.approx(0.1)


def test_the_oracle_is_the_most_and_no_order_the_least():
    """The errors first find them all as soon as can be; on the same pairs any method lies between."""
    found, reads = made_up_reads(films=300)
    replayed, _ = with_reads(found, reads)
    orders = {OURS: 1 - replayed["trust"].to_numpy(), **yardsticks(replayed)}
    for row in replay(replayed, orders, FEW):
        assert row["method"] != "random" or row["area"] == pytest.approx(0.1)
        assert row["method"] != "random" or row["factor"] == pytest.approx(1)
        if row["method"] == "oracle":
            assert row["gain"] < 0
            assert row["gain_high"] <= 0


def test_a_patient_drawn_twice_counts_twice():
    """Weights are copies: a curve with weights is that of the table with its rows repeated."""
    order, wrong, reads = np.array([3.0, 2.0, 1.0]), np.array([True, False, True]), np.array([1, 1, 1])
    heavy = Spent.along(order, wrong, reads, np.array([[2.0, 0.0, 1.0]]))
    copies = Spent.along([3, 3, 1], np.array([True, True, True]), [1, 1, 1])
    for share in (0.1, 0.2, 0.5, 1.0):
        assert heavy.found_by(share)[0] == pytest.approx(copies.found_by(share)[0])
        assert heavy.area(share)[0] == pytest.approx(copies.area(share)[0])


def test_a_pair_is_settled_when_two_readers_say_the_same():
    """Two reads where they agree, three where the third decides, all of them where nobody agrees."""
    reads = reviews(
        [
            *(("a", "Mass", reader, "present") for reader in "123"),
            *(
                ("b", "Mass", reader, word)
                for reader, word in zip("123", ("present", "absent", "uncertain"), strict=True)
            ),
            ("c", "Mass", "1", "present"),
        ]
    )
    taken, notices = with_reads(pairs(["a", "b", "c"], {"b"}), reads)
    assert taken.select(SPENDING).rows() == [(1, 2, 3), (1, 3, 3), (1, 1, 1)]
    assert notices == []


def test_the_third_reader_comes_by_a_seeded_order():
    """Of two that agree and one that does not, the first two agree for a third of the seeds; rows do not matter."""
    reads = reviews([("a", "Mass", "1", "present"), ("a", "Mass", "2", "present"), ("a", "Mass", "3", "absent")])
    took = [with_reads(pairs(["a"], {"a"}), reads, seed=seed)[0]["settled"][0] for seed in range(60)]
    assert 9 < took.count(2) < 33
    assert took == [with_reads(pairs(["a"], {"a"}), reads.reverse(), seed=seed)[0]["settled"][0] for seed in range(60)]


def test_a_pair_that_nobody_read_is_counted_and_left_out():
    """Without any read at all there is nothing to replay."""
    reads = reviews([("a", "Mass", "1", "present")])
    taken, notices = with_reads(pairs(["a", "b"], {"b"}), reads)
    assert taken["image_id"].to_list() == ["a"]
    assert [(notice.code, notice.count) for notice in notices] == [("unread", 1)]
    with pytest.raises(TruthError, match="no read is about a pair"):
        with_reads(pairs(["z"], set()), reads)


def test_rivals_order_as_their_authors_do():
    """Entropy: a half first. Self-confidence: the improbable. Active label cleaning: improbable, less unclear."""
    orders = rivals([0.01, 0.4, 0.5, 0.99])
    assert np.argsort(-orders["entropy"])[0] == 2
    assert np.argsort(-orders["self_confidence"]).tolist() == [0, 1, 2, 3]
    clear = -np.log2(0.01) - max(0, 0.0807931 - 0.3)
    unclear = 1 - (1 - 0.3)
    assert orders["active_label_cleaning"][[0, 2]].tolist() == pytest.approx([clear, unclear], abs=1e-6)


def test_on_made_up_readers_the_exact_chance_of_error_finds_most():
    """A trust that is the exact probability finds at least as much as any rival, and 2.5 times as much as chance."""
    replayed, _ = with_reads(*made_up_reads(films=1200, seed=1))
    claimed, p_judge = replayed["claimed"].to_numpy(), replayed["p_judge"].to_numpy()
    others = rivals(np.where(claimed, p_judge, 1 - p_judge))
    orders = {OURS: 1 - replayed["trust"].to_numpy(), **others, **yardsticks(replayed)}
    for spending in SPENDING:
        rows = replay(replayed, orders, FEW, spending=spending)
        assert holds(rows, OURS, [*others, "random"])
        ours = [row for row in rows if row["method"] == OURS]
        assert all(row["factor_low"] > 2.5 for row in ours)
        entropy = [row for row in rows if row["method"] == "entropy"]
        assert all(row["gain_low"] > 0 for row in entropy)


def test_what_is_worse_than_a_rival_beyond_chance_does_not_hold():
    """The check is not blind: the reverse of the best order is refused."""
    replayed, _ = with_reads(*made_up_reads(films=600))
    trust = replayed["trust"].to_numpy()
    rows = replay(replayed, {OURS: trust, **rivals(trust)}, FEW)
    assert not holds(rows, OURS, ["self_confidence"])


def test_who_learns_while_reading_mends_a_wrong_start():
    """A trust that is far too low for presences finds fewer errors; intercepts learnt on the way bring some back."""
    replayed, _ = with_reads(*made_up_reads(films=1200, seed=2))
    right = 1 - replayed["trust"].to_numpy()
    z = np.log(right / (1 - right)) + np.where(replayed["claimed"], 4.0, 0.0)
    wrong = 1 / (1 + np.exp(-z))
    orders = {OURS: wrong, "learnt": learning(replayed, wrong), "right": right}
    for finding in ("Effusion", "Mass"):
        rows = {row["method"]: row["area"] for row in replay(replayed, orders, FEW) if row["finding"] == finding}
        assert rows[OURS] + 0.02 < rows["learnt"] < rows["right"]
    again = learning(replayed, right)
    assert np.unique(again).size == 1200


def test_a_curve_runs_from_nothing_to_everything():
    """Monotone, and the area of the table is that of the curve."""
    replayed, _ = with_reads(*made_up_reads(films=200))
    drawn = curves(replayed, {OURS: 1 - replayed["trust"].to_numpy()})
    for (_,), curve in drawn.group_by("finding"):
        found = curve.sort("reads")["found"]
        assert (found[0], found[-1]) == (0.0, 1.0)
        assert found.is_sorted()


def test_an_unknown_way_to_spend_is_refused():
    """With the ways that there are."""
    replayed, _ = with_reads(*made_up_reads(films=20))
    with pytest.raises(UnknownName, match="way to spend reads"):
        replay(replayed, yardsticks(replayed), FEW, spending="all")


def test_the_real_reads_can_be_replayed(expert_folder):
    """All pairs of the validation images were read, two settle most, and reads without an order find as chance does."""
    reads = verdicts.load_reads(expert_folder / "four_findings_readers.csv", vocabulary=NIH, split="val")
    truth = verdicts.load(f"four-findings={expert_folder}", vocabulary=NIH, split="val").truth
    asked = truth.with_columns(claimed=pl.lit(False), patient=pl.col("image_id").str.head(8).cast(pl.Int64))
    taken, notices = with_reads(asked, reads.table)
    assert notices == []
    assert taken.height == 3 * 2414
    assert taken["settled"].mean() == pytest.approx(2.12, abs=0.02)
    rows = replay(taken, yardsticks(taken), Resampling(draws=20), spending="settled")
    assert [row["factor"] for row in rows if row["method"] == "random"] == pytest.approx([1, 1, 1])
