"""The queue: what is offered, in which order, and with what chance."""

import time

import numpy as np
import polars as pl
import pytest

from bpals.errors import UsageError
from bpals.findings import Group
from bpals.signal.queue import READING_LIST, Draw, next_reviews
from bpals.signal.value import Worth, values
from bpals.types import REVIEWS, SETTLED_AS, Reviews
from world.workspaces import signal_of as dataset

PAIR = ["image_id", "finding"]


def reads(pairs, readers=("a",), verdict="absent", groups=()):
    """One read of each pair by each reader."""
    rows = pairs.select(PAIR).cast(pl.String).join(pl.DataFrame({"reader": list(readers)}), how="cross")
    table = rows.with_columns(verdict=pl.lit(verdict), inclusion=pl.lit(None)).select(REVIEWS.names()).cast(REVIEWS)
    return Reviews(table=table, groups=tuple(groups))


def patients(listed, images):
    """The patient of each pair of a list."""
    return listed.join(images, on="image_id", how="left", maintain_order="left")["patient_id"]


def test_the_most_valuable_pair_of_each_patient_is_read_first():
    """Without a random share the list is the patients' best pairs in the order of value, each certain."""
    signal, images = dataset()
    listed = next_reviews(signal, images, n=10, draw=Draw(random_share=0))
    assert listed.schema == READING_LIST
    best = (
        signal.with_columns(value=pl.Series(values(signal)))
        .join(images, on="image_id")
        .sort("value", descending=True)
        .unique("patient_id", keep="first", maintain_order=True)
    )
    assert listed["image_id"].to_list() == best["image_id"].head(10).to_list()
    assert listed["value"].is_sorted(descending=True)
    assert listed["inclusion"].to_list() == [1.0] * 10


def test_a_share_is_random_and_lies_anywhere():
    """Ten of fifty, and over many seeds a random pair is as often at one place of the list as at another."""
    signal, images = dataset(films=400)
    places = np.zeros(50)
    for seed in range(120):
        listed = next_reviews(signal, images, n=50, draw=Draw(seed=seed))
        random = (listed["drawn"] == "random").to_numpy()
        assert random.sum() == 10
        assert listed.filter(pl.col("drawn") == "value")["value"].is_sorted(descending=True)
        places += random
    assert places.min() > 6
    assert places.max() < 48


CELLS = [(4, 0.2, True), (9, 0.5, True), (12, 1.0, True), (25, 0.3, True), (9, 0.5, False), (70, 0.3, False)]


@pytest.mark.parametrize(("n", "share", "one_per_patient"), CELLS)
def test_the_inclusion_is_how_often_a_pair_is_drawn(n, share, one_per_patient):
    """Over many seeds each pair is in the batch as often as was said when it was drawn."""
    check_frequencies(150, n, share, one_per_patient)


@pytest.mark.sweep
@pytest.mark.parametrize(("n", "share", "one_per_patient"), CELLS)
def test_the_inclusion_is_how_often_a_pair_is_drawn_long_form(n, share, one_per_patient):
    """The same over 10,000 seeds: each frequency within a few thousandths."""
    check_frequencies(10_000, n, share, one_per_patient)


def check_frequencies(rounds, n, share, one_per_patient):
    """Each frequency within 4.5 standard deviations of its chance; the chances of all pairs add up to the batch."""
    signal, images = dataset(films=40, findings=("Edema", "Mass"), seed=3)
    batch = min(n, images["patient_id"].n_unique() if one_per_patient else signal.height)
    lists = [
        next_reviews(signal, images, n=n, draw=Draw(seed=s, random_share=share, one_per_patient=one_per_patient))
        for s in range(rounds)
    ]
    assert {listed.height for listed in lists} == {batch}
    pairs = pl.concat(lists).group_by(PAIR).agg(pl.len(), pl.col("inclusion").unique().alias("said"))
    assert pairs["said"].list.len().max() == 1
    said, frequency = pairs["said"].list.first().to_numpy(), pairs["len"].to_numpy() / rounds
    assert (np.abs(frequency - said) <= 4.5 * np.sqrt(said * (1 - said) / rounds) + 1e-12).all()
    if pairs.height == signal.height:
        assert said.sum() == pytest.approx(batch)


def test_a_total_weighted_by_inclusion_is_unbiased():
    """The wrong claims of a dataset, from batches of 30 that were drawn for their value: right on average."""
    signal, images = dataset(films=300, seed=5)
    wrong = signal.select(PAIR, wrong=pl.Series(np.random.default_rng(1).random(signal.height)) < 1 - pl.col("trust"))
    wrong = wrong.with_columns(pl.col("finding").cast(pl.String), pl.col("wrong").cast(pl.Float64))
    totals, naive = [], []
    for seed in range(400):
        listed = next_reviews(signal, images, n=30, draw=Draw(seed=seed, random_share=0.5)).join(wrong, on=PAIR)
        totals.append((listed["wrong"] / listed["inclusion"]).sum())
        naive.append(listed["wrong"].mean() * signal.height)
    off = (np.mean(totals) - wrong["wrong"].sum()) / (np.std(totals) / np.sqrt(len(totals)))
    assert abs(off) < 4
    assert np.mean(naive) > 1.3 * wrong["wrong"].sum()


def test_the_order_of_rows_does_not_matter():
    """The same pairs, in the same order, with the same chances, from shuffled tables."""
    signal, images = dataset(unjudged=0.1, uncertain=0.1)
    once = next_reviews(signal, images, n=40, draw=Draw(seed=7))
    for seed in range(3):
        shuffled = signal.sample(fraction=1, shuffle=True, seed=seed)
        again = next_reviews(shuffled, images.sample(fraction=1, shuffle=True, seed=seed), n=40, draw=Draw(seed=7))
        assert again.equals(once)
    assert not next_reviews(signal, images, n=40, draw=Draw(seed=8)).equals(once)


def test_a_batch_has_one_film_of_a_patient_unless_more_are_asked_for():
    """Else the same patient may come again, but never the same pair."""
    signal, images = dataset()
    for seed in range(20):
        assert patients(next_reviews(signal, images, n=30, draw=Draw(seed=seed)), images).is_unique().all()
    listed = next_reviews(signal, images, n=200, draw=Draw(one_per_patient=False))
    assert not patients(listed, images).is_unique().all()
    assert listed.select(PAIR).is_unique().all()


def test_films_of_unknown_patients_are_patients_of_their_own():
    """A film without a patient, or one that is in no table of films, can stand beside any other."""
    signal, images = dataset(films=20)
    nameless = images.with_columns(patient_id=pl.lit(None, pl.String)).head(15)
    assert next_reviews(signal, nameless, n=100).height == 20


def test_nothing_is_offered_twice():
    """Batch after batch until nothing is left: every definite claim once, judged or not."""
    signal, images = dataset(films=60, uncertain=0.1, unjudged=0.1)
    seen = pl.DataFrame(schema={"image_id": pl.String, "finding": pl.String})
    while True:
        batch = next_reviews(signal, images, n=25, reviews=reads(seen), draw=Draw(seed=seen.height))
        if batch.is_empty():
            break
        seen = pl.concat([seen, batch.select(PAIR)])
    definite = signal.filter(pl.col("says") != "uncertain")
    assert seen.height == definite.height
    assert seen.is_unique().all()


def test_what_people_settled_is_not_offered():
    """Nor drawn at random, however many readers a pair may have."""
    signal, images = dataset()
    first = next_reviews(signal, images, n=1, draw=Draw(random_share=0))
    settled = (pl.col("image_id") == first["image_id"][0]) & (pl.col("finding").cast(pl.String) == first["finding"][0])
    known = signal.with_columns(verdict=pl.when(settled).then(pl.lit("absent")).cast(SETTLED_AS))
    every = next_reviews(known, images, n=signal.height, draw=Draw(one_per_patient=False, readers_per_pair=3))
    assert every.height == next_reviews(signal, images, n=signal.height, draw=Draw(one_per_patient=False)).height - 1
    assert every.filter(settled).is_empty()


def test_a_pair_is_offered_until_enough_have_read_it():
    """One read of two wanted: it comes again; two reads, even by a reader who hedged: it does not."""
    signal, images = dataset(films=6, findings=("Mass",))
    one = reads(signal, readers=("a",))
    assert next_reviews(signal, images, n=99, reviews=one).is_empty()
    assert not next_reviews(signal, images, n=99, reviews=one, draw=Draw(readers_per_pair=2)).is_empty()
    two = reads(signal, readers=("a", "b"), verdict="uncertain")
    assert next_reviews(signal, images, n=99, reviews=two, draw=Draw(readers_per_pair=2)).is_empty()


def test_who_says_a_group_is_absent_has_read_its_members():
    """A presence of the group leaves open which member it is."""
    signal, images = dataset(films=8, findings=("Mass", "Nodule"))
    group = Group(name="Nodule or mass", members=("Nodule", "Mass"))
    spoken = signal.select("image_id", finding=pl.lit(group.name))
    draw = Draw(one_per_patient=False)
    absent, present = (reads(spoken, verdict=word, groups=[group]) for word in ("absent", "present"))
    assert next_reviews(signal, images, n=99, reviews=absent, draw=draw).is_empty()
    assert next_reviews(signal, images, n=99, reviews=present, draw=draw).height == signal.height


def test_more_than_there_is_gives_what_there_is():
    """Every patient once, each with its chances; an empty signal gives an empty list."""
    signal, images = dataset()
    for share in (0.0, 0.2, 1.0):
        listed = next_reviews(signal, images, n=10_000, draw=Draw(random_share=share))
        assert listed.height == images["patient_id"].n_unique()
        assert listed["inclusion"].is_between(0, 1, closed="right").all()
    empty = next_reviews(signal.head(0), images, n=5)
    assert empty.is_empty()
    assert empty.schema == READING_LIST


def test_one_pair_is_a_batch_too():
    """Of one pair the random share takes it, unless there is none."""
    signal, images = dataset(films=1, findings=("Mass",))
    assert next_reviews(signal, images, n=1)["inclusion"].to_list() == [1.0]
    assert next_reviews(signal, images, n=1, draw=Draw(random_share=0))["drawn"].to_list() == ["value"]


def test_a_gain_brings_a_finding_forward():
    """An error of Hernia that is worth ten others is looked for first."""
    signal, images = dataset(films=300)
    listed = next_reviews(signal, images, n=20, worth=Worth(gains={"Hernia": 10.0}), draw=Draw(random_share=0))
    assert listed["finding"].unique().to_list() == ["Hernia"]


def test_a_crowded_patient_is_not_drawn_twice_nor_beyond_certainty():
    """A patient with more pairs than a fair share is certain, and each of its pairs has its part of that."""
    images = pl.DataFrame(
        {"image_id": [f"{i}.png" for i in range(60)], "patient_id": ["big"] * 40 + [f"p{i}" for i in range(20)]}
    )
    signal, _ = dataset(films=60, findings=("Mass",))
    signal = signal.with_columns(image_id=images["image_id"])
    listed = next_reviews(signal, images, n=10, draw=Draw(random_share=1))
    of_big = listed.join(images, on="image_id").filter(pl.col("patient_id") == "big")
    assert of_big["inclusion"].to_list() == [1 / 40]
    assert listed.height == 10


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"random_share": 1.2}, "random share of 1.2"),
        ({"random_share": float("nan")}, "random share of nan"),
        ({"seed": -1}, "-1 is no seed"),
        ({"readers_per_pair": 0}, "0 readers"),
    ],
)
def test_an_impossible_draw_is_refused(how, says):
    """In one line, with what to type."""
    with pytest.raises(UsageError, match=says):
        Draw(**how)


def test_no_pairs_are_nothing_to_read():
    """A batch has at least one."""
    with pytest.raises(UsageError, match="0 pairs"):
        next_reviews(*dataset(), n=0)


def test_a_batch_of_a_large_dataset_is_drawn_at_once():
    """1,568,000 pairs in a few seconds of this process, however busy the machine; no object a pair."""
    signal, images = dataset(films=112_000, findings=tuple(f"F{k}" for k in range(14)))
    began = time.process_time()
    assert next_reviews(signal, images, n=50).height == 50
    assert time.process_time() - began < 5


def test_a_whole_film_is_worth_what_its_pairs_are_together():
    """One row a film, named with its most valuable finding; the film whose pairs add up to most comes first."""
    signal, images = dataset()
    listed = next_reviews(signal, images, n=10, draw=Draw(random_share=0, whole_films=True))
    pairs = signal.with_columns(value=pl.Series(values(signal))).filter(pl.col("says") != "uncertain")
    films = pairs.sort("value", descending=True).group_by("image_id", maintain_order=True)
    added = films.agg(pl.col("value").sum(), best=pl.col("finding").first().cast(pl.String))
    ranked = added.join(images, on="image_id").sort("value", descending=True)
    best = ranked.unique("patient_id", keep="first", maintain_order=True)
    assert listed["image_id"].to_list() == best["image_id"].head(10).to_list()
    assert listed["finding"].to_list() == best["best"].head(10).to_list()
    assert listed["value"].to_list() == pytest.approx(best["value"].head(10).to_list())


def test_a_film_at_random_has_the_chance_of_every_film():
    """Over many seeds each film comes as often as its inclusion says."""
    signal, images = dataset(films=60)
    seen, said = {}, {}
    for seed in range(300):
        listed = next_reviews(signal, images, n=12, draw=Draw(random_share=0.5, seed=seed, whole_films=True))
        for film, chance in listed.select("image_id", "inclusion").iter_rows():
            seen[film] = seen.get(film, 0) + 1
            said[film] = chance
    assert all(abs(count / 300 - said[film]) < 0.12 for film, count in seen.items())


def test_batches_are_drawn_one_after_the_other():
    """Each has its own random share and at most one film a patient; nothing comes twice, and nobody by value twice."""
    signal, images = dataset(films=120)
    listed = next_reviews(signal, images, n=40, draw=Draw(batch=10, whole_films=True, seed=2))
    assert listed.height == listed["image_id"].n_unique() == 40
    for start in range(0, 40, 10):
        batch = listed.slice(start, 10)
        assert batch["drawn"].to_list().count("random") == 2
        assert patients(batch, images).n_unique() == 10
    first = listed.head(10)
    assert first.equals(next_reviews(signal, images, n=10, draw=Draw(batch=10, whole_films=True, seed=2)))
    by_value = listed.filter(pl.col("drawn") == "value")
    assert patients(by_value, images).n_unique() == by_value.height


def test_batches_reach_every_film_in_the_end():
    """More are asked for than there are: all come, once each."""
    signal, images = dataset(films=90)
    listed = next_reviews(signal, images, n=10_000, draw=Draw(batch=7, whole_films=True))
    assert sorted(listed["image_id"]) == sorted(images["image_id"])


def test_only_films_that_can_be_shown_are_offered():
    """Their values are those that they have among all."""
    signal, images = dataset()
    shown = images["image_id"].head(20)
    listed = next_reviews(signal, images, n=50, only=shown, draw=Draw(one_per_patient=False))
    assert set(listed["image_id"]) <= set(shown)
    whole = signal.with_columns(pl.col("finding").cast(pl.String), now=pl.Series(values(signal)))
    both = listed.join(whole, on=PAIR)
    assert both["value"].to_list() == pytest.approx(both["now"].to_list())


def test_a_batch_of_nothing_is_refused():
    """It could never be read."""
    with pytest.raises(UsageError, match="a batch of 0"):
        Draw(batch=0)
