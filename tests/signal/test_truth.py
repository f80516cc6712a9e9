"""Tests of signal.truth."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from bpals.signal.truth import HEAVIEST, WORDS, Truths, _weight, settle_reads, verdicts_of
from bpals.testing import tiny_dataset
from bpals.types import REVIEWS, SETTLED, SETTLED_COLUMNS, TRUTH, VERDICT, Reference, Reviews

# Readers: how each errs comes back from made-up reads, and what their reads make of a truth.

GOOD, POOR = ((0.92, 0.04, 0.04), (0.03, 0.94, 0.03)), ((0.55, 0.35, 0.10), (0.25, 0.65, 0.10))
"""P(present, absent, uncertain) of films with the finding, and without."""


def table(rows, readers, verdicts, inclusion=None):
    """Reads of one finding."""
    chances = [None] * len(rows) if inclusion is None else inclusion
    return pl.DataFrame(
        {
            "row": pl.Series(rows, dtype=pl.UInt32),
            "reader": pl.Series(readers, dtype=pl.String),
            "verdict": pl.Series(verdicts, dtype=pl.String).cast(VERDICT),
            "inclusion": pl.Series(chances, dtype=pl.Float64),
        }
    )


@pytest.fixture(scope="module")
def made():
    """Make films, claims that are mostly right, and reads of them by readers of known skill."""

    def made(skills, *, films=1500, share=0.3, seed=0):
        draw = np.random.default_rng(seed)
        shows = draw.random(films) < share
        said = (shows ^ (draw.random(films) < 0.15)).astype(float)
        parts = []
        for reader, skill in skills.items():
            chance = np.cumsum(np.array(skill)[np.where(shows, 0, 1)], axis=1)
            word = (draw.random(films)[:, None] > chance[:, :2]).sum(axis=1)
            parts.append(table(np.arange(films), [reader] * films, np.array(WORDS)[word]))
        return pl.concat(parts), said, shows

    return made


def test_the_readers_own_error_rates_come_back(made):
    """Sensitivity, specificity and hedges of four readers, within a few hundredths."""
    skills = {"ann": GOOD, "ben": ((0.8, 0.15, 0.05), (0.05, 0.9, 0.05)), "cid": GOOD, "dot": POOR}
    reads, said, shows = made(skills)
    settled = settle_reads(reads, said)
    for reader, skill in skills.items():
        assert settled.readers[reader] == pytest.approx(np.array(skill), abs=0.05), reader
        assert settled.readers[reader].sum(axis=1) == pytest.approx(1)
    assert ((settled.present > 0.5) == shows).mean() > 0.98
    assert (settled.reads == 4).all()


def test_the_chances_are_as_often_right_as_they_say(made):
    """In five bins, from three middling readers."""
    middling = ((0.75, 0.2, 0.05), (0.12, 0.83, 0.05))
    reads, said, shows = made({"ann": middling, "ben": middling, "cid": middling}, films=4000)
    settled = settle_reads(reads, said)
    for low in np.arange(0, 1, 0.2):
        its = (settled.present >= low) & (settled.present < low + 0.2)
        if its.sum() > 40:
            assert shows[its].mean() == pytest.approx(settled.present[its].mean(), abs=0.1)


def test_a_poor_reader_counts_less_than_a_good_one(made):
    """Where the two contradict each other, the good one's word is nearer to what is believed."""
    reads, said, _ = made({"ann": GOOD, "ben": GOOD, "cid": GOOD, "dot": POOR})
    films = len(said)
    more = table([films, films, films + 1, films + 1], ["ann", "dot"] * 2, ["present", "absent", "absent", "present"])
    settled = settle_reads(pl.concat([reads, more]), np.append(said, [1.0, 1.0]))
    good_says_present, good_says_absent = settled.present[-2:]
    assert good_says_present > 0.8
    assert good_says_absent < 0.3


@pytest.mark.parametrize(("verdict", "low", "high"), [("present", 0.5, 0.98), ("absent", 0.02, 0.45)])
def test_one_read_is_not_the_truth(verdict, low, high):
    """A single read by a reader nobody knows moves the chance, and leaves doubt."""
    settled = settle_reads(table([0], ["ann"], [verdict]), np.array([1.0]))
    assert low < settled.present[0] < high
    assert settled.reads.tolist() == [1]


def test_a_hedge_says_little(made):
    """It lies between a yes and a no."""
    reads, said, _ = made({"ann": GOOD, "ben": GOOD})
    films = len(said)
    more = table([films, films + 1, films + 2], ["ann"] * 3, ["present", "uncertain", "absent"])
    yes, hedge, no = settle_reads(pl.concat([reads, more]), np.append(said, [1.0] * 3)).present[-3:]
    assert no < hedge < yes


def test_a_reader_with_few_reads_is_held_near_all_readers(made):
    """Three contradictions do not make a stranger a bad reader."""
    reads, said, shows = made({"ann": GOOD, "ben": GOOD})
    films = np.flatnonzero(shows)[:3]
    settled = settle_reads(pl.concat([reads, table(films, ["new"] * 3, ["absent"] * 3)]), said)
    assert 0.7 < settled.readers["new"][0, 0] < settled.readers["ann"][0, 0]


def test_a_film_nobody_can_read_is_no_read():
    """It is left out, and with it the pair if there is no other."""
    settled = settle_reads(table([3, 3, 5], ["a", "b", "a"], ["present", "unreadable", "unreadable"]), np.ones(9))
    assert settled.rows.tolist() == [3]
    assert settled.reads.tolist() == [1]
    nobody = settle_reads(table([5], ["a"], ["unreadable"]), np.ones(9))
    assert len(nobody.rows) == len(nobody.present) == 0
    assert not nobody.readers


def test_the_order_of_the_reads_does_not_matter(made):
    """To the last bit: they are sorted first."""
    reads, said, _ = made({"ann": GOOD, "ben": POOR}, films=200)
    one, other = settle_reads(reads, said), settle_reads(reads.sample(fraction=1.0, shuffle=True, seed=3), said)
    assert (one.present == other.present).all()
    assert (one.readers["ben"] == other.readers["ben"]).all()


def test_the_chance_of_the_draw_is_kept_with_the_pair():
    """NaN where nobody knows it."""
    settled = settle_reads(table([4, 2, 2], ["a", "a", "b"], ["present"] * 3, [None, 0.25, 0.25]), np.ones(9))
    assert settled.rows.tolist() == [2, 4]
    assert settled.inclusion[0] == 0.25
    assert np.isnan(settled.inclusion[1])


def test_pairs_that_were_chosen_say_nothing_about_pairs_that_were_drawn():
    """Of thirty absences that looked wrong nearly all are; a drawn absence that is read as absent stays absent."""
    chosen = table(range(30), ["a"] * 30, ["present"] * 27 + ["absent"] * 3, [0.99] * 30)
    drawn = table(range(30, 70), ["a"] * 40, ["absent"] * 40, [0.002] * 40)
    settled = settle_reads(pl.concat([chosen, drawn]), np.zeros(70))
    assert settled.present[:27].min() > 0.9
    assert settled.present[30:].max() < 0.02
    unknown = settle_reads(pl.concat([chosen, drawn]).with_columns(inclusion=pl.lit(None, pl.Float64)), np.zeros(70))
    assert unknown.present[30:].min() > 5 * settled.present[30:].max()


def test_a_truth_that_is_known_stands_over_the_reads_and_teaches_about_readers(made):
    """Two poor readers miss a finding on 200 films; an adjudicator's word is taken, and shows how they err."""
    reads, said, shows = made({"ann": POOR, "ben": POOR})
    known = pl.DataFrame(
        {"row": np.arange(200), "settled": shows[:200].astype(float)}, schema_overrides={"row": pl.UInt32}
    )
    told = settle_reads(reads.join(known, on="row", how="left", maintain_order="left"), said)
    alone = settle_reads(reads, said)
    assert (told.present[:200] == shows[:200]).all()
    assert ((alone.present[:200] > 0.5) != shows[:200]).sum() > 20

    def off(settled):
        return np.abs(settled.readers["ann"] - np.array(POOR)).sum()

    assert off(told) < off(alone)


def test_where_nothing_is_known_a_column_of_it_changes_nothing(made):
    """Bit by bit."""
    reads, said, _ = made({"ann": GOOD, "ben": POOR}, films=200)
    told = settle_reads(reads.with_columns(settled=pl.lit(None, pl.Float64)), said)
    assert (told.present == settle_reads(reads, said).present).all()


# Truths: adjudicated labels stand over reads, and each review counts as it was drawn.


@pytest.fixture(scope="module")
def dataset():
    """Twenty patients with one to four films."""
    return tiny_dataset(patients=20)


def reads(rows):
    """Single reads: film, finding, reader, verdict, chance."""
    return Reviews(table=pl.DataFrame(rows, schema=REVIEWS, orient="row"))


def labels(rows):
    """Adjudicated labels: film, finding, present."""
    return Reference(kind="table", truth=pl.DataFrame([(*row, None) for row in rows], schema=TRUTH, orient="row"))


def gathered(dataset, reference=None, reviews=None):
    """Both together; every film is claimed to have everything."""
    return Truths.of(dataset, reference, reviews, lambda _: np.ones(dataset.images.height))


def test_an_adjudicated_label_stands_over_single_reads(dataset):
    """Of its own pair; the reads of other pairs, and of other findings of the film, are settled."""
    one, other = dataset.images["image_id"][:2]
    said = reads([(one, "Mass", "ann", "present", 0.5), (other, "Mass", "ann", "present", 0.5),
                  (one, "Nodule", "ann", "absent", 0.5)])  # fmt: skip
    table = gathered(dataset, labels([(one, "Mass", False)]), said).table
    found = {(row["image_id"], row["finding"]): (row["present"], row["inclusion"]) for row in table.to_dicts()}
    assert len(found) == table.height == 3
    assert found[one, "Mass"] == (0.0, None)
    assert 0.5 < found[other, "Mass"][0] < 1
    assert found[other, "Mass"][1] == 0.5
    assert 0 < found[one, "Nodule"][0] < 0.5


def test_what_is_said_of_other_films_is_passed_over(dataset):
    """Labels and reads, and the readers are those of this dataset's films."""
    film = dataset.images["image_id"][3]
    said = reads([("elsewhere", "Mass", "ben", "present", None), (film, "Mass", "ann", "present", None)])
    truths = gathered(dataset, labels([("elsewhere", "Mass", True)]), said)
    assert truths.table["image_id"].to_list() == [film]
    assert truths.table["row"].to_list() == [3]
    assert set(truths.readers["Mass"]) == {"ann"}


def test_nobody_said_anything(dataset):
    """No pair, no patient, nothing to learn."""
    truths = gathered(dataset)
    assert truths.table.is_empty()
    assert truths.patients == 0
    height = dataset.images.height
    assert truths.about("Mass", np.ones(height, dtype=bool), np.zeros(height, dtype=np.int64)) is None


def test_patients_are_counted_and_a_film_of_nobody_is_one(dataset):
    """Not films."""
    films = dataset.images.filter(pl.col("patient_id") == "p0003")["image_id"]
    assert len(films) == 4
    assert gathered(dataset, labels([(film, "Mass", True) for film in films])).patients == 1
    bare = dataclasses.replace(dataset, images=dataset.images.with_columns(patient_id=pl.lit(None, pl.String)))
    assert gathered(bare, labels([(film, "Mass", True) for film in films])).patients == 4


def test_only_films_that_a_judge_answered_are_learned_from(dataset):
    """One verdict is enough, whatever it is; none is nothing."""
    names = dataset.images["image_id"][:6]
    truths = gathered(dataset, labels([(film, "Mass", place % 2 == 0) for place, film in enumerate(names)]))
    fold = np.arange(dataset.images.height)
    answered = np.ones(dataset.images.height, dtype=bool)
    answered[2] = False
    reviewed = truths.about("Mass", answered, fold)
    assert reviewed.rows.tolist() == [0, 1, 3, 4, 5]
    assert reviewed.present.tolist() == [1, 0, 0, 1, 0]
    assert reviewed.fold.tolist() == [0, 1, 3, 4, 5]
    assert reviewed.weight.tolist() == [1] * 5
    answered[:5] = False
    assert truths.about("Mass", answered, fold).present.tolist() == [0]
    answered[5] = False
    assert truths.about("Mass", answered, fold) is None


def test_a_review_counts_as_many_pairs_as_had_its_chance():
    """In units of the mean review; unknown chances count one."""
    weights = _weight(pl.Series([0.1, 0.1, 0.05, 0.05]))
    assert weights == pytest.approx(np.array([10, 10, 20, 20]) / 15)
    assert weights.mean() == pytest.approx(1)
    assert _weight(pl.Series([None, None], dtype=pl.Float64)).tolist() == [1, 1]
    assert _weight(pl.Series([0.2, None, 0.2])).tolist() == [1, 1, 1]


def test_one_rare_draw_must_not_decide():
    """A review counts ten times the mean one at most."""
    weights = _weight(pl.Series([1.0] * 99 + [1e-4]))
    assert weights.max() == HEAVIEST


def test_without_some_patients_the_reads_are_settled_by_the_others_alone(dataset):
    """What left-out patients taught about a reader is forgotten; adjudicated labels stand."""
    names = dataset.images["image_id"][:40]
    draw = np.random.default_rng(0)
    shows = draw.random((40, 1)) < 0.5
    words = np.where(shows ^ (draw.random((40, 2)) < 0.15), "present", "absent")
    said = [(film, "Mass", reader, words[row, place], None) for row, film in enumerate(names)
            for place, reader in enumerate(("ann", "ben"))][:-4]  # fmt: skip
    fold, answered = np.arange(dataset.images.height) % 5, np.ones(dataset.images.height, dtype=bool)
    label = labels([(names[-1], "Mass", True)])
    reviewed = gathered(dataset, label, reads(said)).about("Mass", answered, fold)
    left = reviewed.without(frozenset({3}))
    alone = [row for row in said if names.to_list().index(row[0]) % 5 != 3]
    same = gathered(dataset, label, reads(alone)).about("Mass", answered, fold).without(frozenset({3}))
    assert left.rows.tolist() == same.rows.tolist()
    assert (left.present == same.present).all()
    assert (left.present != reviewed.present[reviewed.fold != 3]).any()
    assert (reviewed.without(frozenset()).present == reviewed.present).all()
    adjudicated = reviewed.without(frozenset({0}))
    assert adjudicated.present[adjudicated.rows == 39].tolist() == [1.0]


# Verdicts: what people settled, and what they only read.


def votes(**by_reader):
    """Reads of one pair: reader=verdict."""
    return reads([("a", "Mass", reader, verdict, None) for reader, verdict in by_reader.items()])


@pytest.mark.parametrize(
    ("given", "verdict", "counts"),
    [
        ({"ann": "absent", "ben": "absent"}, "absent", (0, 2)),
        ({"ann": "present", "ben": "absent", "cid": "present"}, "present", (2, 1)),
        ({"ann": "present", "ben": "absent"}, None, (1, 1)),
        ({"ann": "absent"}, None, (0, 1)),
        ({"ann": "absent", "ben": "uncertain", "cid": "unreadable"}, None, (0, 1)),
        ({"ann": "absent", "ben": "uncertain", "cid": "absent"}, "absent", (0, 2)),
        ({"ann": "uncertain"}, None, (0, 0)),
    ],
    ids=["both", "most", "tie", "one", "one and two hedges", "two and a hedge", "a hedge"],
)
def test_a_majority_of_at_least_two_readers_settles_a_pair(given, verdict, counts):
    """A tie, a single read and a hedge do not; the votes are counted all the same."""
    by = None if verdict is None else "readers"
    assert verdicts_of(reviews=votes(**given)).rows() == [("a", "Mass", verdict, by, *counts)]


def test_one_reader_is_not_two():
    """Who says the same again is one reader, and who says both things stands on both sides."""
    again = reads([("a", "Mass", "ann", "absent", None)] * 2)
    assert verdicts_of(reviews=again).rows() == [("a", "Mass", None, None, 0, 1)]
    both = reads([("a", "Mass", "ann", word, None) for word in ("absent", "present")])
    assert verdicts_of(reviews=both).rows() == [("a", "Mass", None, None, 1, 1)]


def test_an_adjudicated_label_stands_over_the_votes_and_keeps_their_counts():
    """A label to calibrate on before what the readers settled, and that before a label of a random sample."""
    said = votes(ann="absent", ben="absent")
    settled = pl.DataFrame([("a", "Mass", 1.0), ("b", "Mass", 0.0)], schema=SETTLED, orient="row")
    adjudicated = dataclasses.replace(said, settled=settled)
    made = verdicts_of(reviews=adjudicated).sort("image_id")
    assert made.schema == {"image_id": pl.String, "finding": pl.String, **SETTLED_COLUMNS}
    assert made.rows() == [("a", "Mass", "present", "adjudicated", 0, 2), ("b", "Mass", "absent", "adjudicated", 0, 0)]
    sample = labels([("a", "Mass", False), ("c", "Mass", True)])
    made = verdicts_of(labels([("b", "Mass", True)]), adjudicated, sample).sort("image_id")
    assert made["verdict"].to_list() == ["present"] * 3
    assert set(made["verdict_by"]) == {"adjudicated"}
    assert verdicts_of(random_sample=sample).sort("image_id")["verdict"].to_list() == ["absent", "present"]
    assert verdicts_of().is_empty()


def test_a_reference_that_is_a_vote_is_no_adjudication():
    """Its single reads settle nothing; the same reads given twice count once."""
    one = labels([("a", "Mass", False), ("b", "Mass", True)])
    counted = pl.DataFrame({"image_id": ["a", "b"], "finding": "Mass", "yes": [0, 2], "no": [1, 1]})
    voted = dataclasses.replace(one, votes=counted)
    rows = [("a", "Mass", None, None, 0, 1), ("b", "Mass", "present", "readers", 2, 1)]
    assert verdicts_of(voted).sort("image_id").rows() == rows
    assert verdicts_of(voted, votes(ann="absent")).sort("image_id").rows() == rows
    more = verdicts_of(voted, votes(ann="absent", ben="absent")).sort("image_id")
    assert more.rows() == [("a", "Mass", "absent", "readers", 0, 2), rows[1]]
