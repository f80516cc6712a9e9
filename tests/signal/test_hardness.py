"""Hardness: readers who split teach where others would, and too few of them teach nothing."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from bpals.findings import NIH, Group
from bpals.numeric import patients
from bpals.reviews.verdicts import load_reads
from bpals.signal import flags
from bpals.signal.flags import Flagged
from bpals.signal.hardness import (
    FEWEST_OF_FINDING,
    FEWEST_PAIRS,
    Conditions,
    Hard,
    Hardness,
    Subject,
    disagreements,
    fit,
    quarrel,
)
from bpals.signal.prior import fold_of_patient
from bpals.signal.reasons import flag_reasons
from bpals.store.workspace import Workspace
from bpals.types import REVIEWS

FILMS = 3000


def reads(*rows):
    """Rows `(image, finding, reader, verdict)`."""
    return pl.DataFrame([(*row, None) for row in rows], schema=REVIEWS, orient="row")


def world(seed=0, *, slope=3.0, levels=(("Mass", 0.0), ("Edema", -1.0))):
    """Films on which readers split the more often the nearer the judges are to one half, and on one of two views."""
    draw = np.random.default_rng(seed)
    view = (draw.random(FILMS) < 0.4).astype(float)
    conditions = Conditions(
        view=view,
        devices=np.zeros(FILMS),
        crowd=draw.integers(0, 3, FILMS).astype(float),
        fold=np.arange(FILMS) % 5,
    )
    subjects, chances = [], {}
    for finding, level in levels:
        p = 1 / (1 + np.exp(-draw.normal(0, 2.5, FILMS)))
        states = (draw.random(FILMS) < p).astype(float)
        subjects.append(
            Subject(finding=finding, states=states, p_present=p, spread=np.full(FILMS, 0.3), quarrel=np.zeros(FILMS))
        )
        z = slope * (4 * p * (1 - p) - 0.5) + 1.5 * view + level - 1
        chances[finding] = 1 / (1 + np.exp(-z))
    return subjects, conditions, chances


def read_films(chances, films, seed=1):
    """Two readers of each of those films, who split with the given chance."""
    draw, rows = np.random.default_rng(seed), []
    for finding, chance in chances.items():
        for film in films:
            second = "absent" if draw.random() < chance[film] else "present"
            rows += [(f"{film}", finding, "a", "present"), (f"{film}", finding, "b", second)]
    return reads(*rows)


IDS = pl.Series("image_id", [f"{film}" for film in range(FILMS)])


def test_readers_split_where_they_differ_or_one_hedges():
    """One read says nothing; two alike agree; a hedge, or a film that one could not read, is a split."""
    table = reads(
        ("a", "Mass", "1", "present"), ("b", "Mass", "1", "present"), ("b", "Mass", "2", "present"),
        ("c", "Mass", "1", "present"), ("c", "Mass", "2", "absent"), ("d", "Mass", "1", "uncertain"),
        ("d", "Mass", "2", "uncertain"), ("e", "Mass", "1", "absent"), ("e", "Mass", "2", "unreadable"),
    )  # fmt: skip
    assert disagreements(table).sort("image_id").rows() == [
        ("b", "Mass", False), ("c", "Mass", True), ("d", "Mass", True), ("e", "Mass", True),
    ]  # fmt: skip


def test_what_readers_did_is_found_again_on_films_that_nobody_read():
    """The chance of the unread films follows the one that made the reads, finding by finding."""
    subjects, conditions, chances = world()
    lesson = fit(subjects, conditions, read_films(chances, range(1500)), IDS)
    for finding, chance in chances.items():
        unread = slice(1500, None)
        assert np.corrcoef(lesson.findings[finding].p_split[unread], chance[unread])[0, 1] > 0.9
        assert abs(lesson.findings[finding].p_split[unread].mean() - chance[unread].mean()) < 0.05
    assert lesson.summary["pairs"] == 3000
    assert set(lesson.summary["findings"]) == {"Mass", "Edema"}


def test_half_of_the_reviewed_claims_of_low_trust_are_hard():
    """The cut is their median, whatever the readers of other films would do."""
    subjects, conditions, chances = world()
    lesson = fit(subjects, conditions, read_films(chances, range(1000)), IDS)
    for subject in subjects:
        low = subject.trust[:1000] < flags.LOW_TRUST
        assert abs(lesson.findings[subject.finding].split[:1000][low].mean() - 0.5) < 0.01


def test_a_film_that_was_read_is_not_told_by_its_own_readers():
    """Turning the verdicts of one fold of patients round moves the other films' chances, and not that fold's own."""
    subjects, conditions, chances = world()
    told = read_films(chances, range(1000))
    film = pl.col("image_id").cast(pl.Int64)
    turned = pl.when((film % 5 == 2) & (pl.col("reader") == "b")).then(
        pl.when(pl.col("verdict") == "present").then(pl.lit("absent")).otherwise(pl.lit("present"))
    ).otherwise(pl.col("verdict").cast(pl.String))  # fmt: skip
    first = fit(subjects, conditions, told, IDS).findings["Mass"].p_split
    second = fit(subjects, conditions, told.with_columns(turned.cast(told["verdict"].dtype).alias("verdict")), IDS)
    own = (np.arange(FILMS) < 1000) & (np.arange(FILMS) % 5 == 2)
    moved = np.abs(second.findings["Mass"].p_split - first)
    assert moved[own].max() < 1e-12
    assert moved[~own].max() > 0.01


def test_few_reads_teach_nothing_and_say_so():
    """The run record says how many there were and how many it takes."""
    subjects, conditions, chances = world()
    lesson = fit(subjects, conditions, read_films(chances, range(FEWEST_PAIRS // 2 - 1)), IDS)
    assert lesson.findings == {}
    assert lesson.summary["pairs"] == FEWEST_PAIRS - 2
    assert "too few reads to learn where readers split" in lesson.summary["words"]
    nobody = fit(subjects, conditions, reads(), IDS)
    assert (nobody.findings, nobody.summary["pairs"]) == ({}, 0)


def test_a_finding_with_few_reads_of_its_own_is_not_spoken_of():
    """The others are; and the words name it with its number."""
    subjects, conditions, chances = world()
    table = read_films({"Mass": chances["Mass"]}, range(500)).vstack(
        read_films({"Edema": chances["Edema"]}, range(FEWEST_OF_FINDING - 1))
    )
    lesson = fit(subjects, conditions, table, IDS)
    assert set(lesson.findings) == {"Mass"}
    assert f"Edema ({FEWEST_OF_FINDING - 1})" in lesson.summary["words"]


def test_a_finding_with_some_reads_borrows_the_slopes_of_the_others():
    """Thirty reads of edema and a thousand of mass tell edema better than the thirty alone could."""
    subjects, conditions, chances = world()
    few = read_films({"Edema": chances["Edema"]}, range(1000, 1060))
    lesson = fit(subjects, conditions, few.vstack(read_films({"Mass": chances["Mass"]}, range(1000))), IDS)
    unread = slice(1500, None)
    assert np.corrcoef(lesson.findings["Edema"].p_split[unread], chances["Edema"][unread])[0, 1] > 0.85


def test_the_order_of_the_reads_does_not_matter():
    """Shuffled reads teach the same to the last bit."""
    subjects, conditions, chances = world()
    table = read_films(chances, range(200))
    one = fit(subjects, conditions, table, IDS)
    other = fit(subjects, conditions, table.sample(fraction=1.0, shuffle=True, seed=3), IDS)
    for finding in one.findings:
        assert np.array_equal(one.findings[finding].p_split, other.findings[finding].p_split)


def test_nothing_is_said_where_nobody_answered():
    """A pair without a judge has no chance of a split, and gets none."""
    subjects, conditions, chances = world()
    subjects[0].p_present[:300] = np.nan
    lesson = fit(subjects, conditions, read_films(chances, range(600)), IDS)
    assert np.isnan(lesson.findings["Mass"].p_split[:300]).all()
    assert np.isnan(lesson.findings["Mass"].split[:300]).all()
    assert not np.isnan(lesson.findings["Mass"].p_split[300:]).any()
    assert lesson.summary["pairs"] == 300 + 600


def hard(p_split, cut=0.4):
    """A finding whose readers would split with these chances."""
    return Hard(p_split=np.array(p_split), cut=cut, usual=0.3, pairs=2000)


def test_films_that_the_record_judge_left_out_and_others_answered_teach_as_well():
    """A spread that nobody knows counts as the usual one: it does not turn the whole lesson into nothing."""
    subjects, conditions, chances = world()
    read = read_films(chances, range(600))
    whole = fit(subjects, conditions, read, IDS)
    gaps = [replace(each, spread=np.where(np.arange(FILMS) % 7 == 0, np.nan, each.spread)) for each in subjects]
    lesson = fit(gaps, conditions, read, IDS)
    assert lesson.summary == whole.summary
    for finding, hard in lesson.findings.items():
        np.testing.assert_allclose(hard.p_split, whole.findings[finding].p_split, rtol=0, atol=1e-9)


def test_the_members_of_a_group_follow_it_unless_they_were_read_themselves():
    """Nodule was read; mass follows the group."""
    lesson = Hardness(findings={"Nodule or mass": hard([0.5]), "Nodule": hard([0.1])})
    followed = lesson.followed_by([Group(name="Nodule or mass", members=("Nodule", "Mass"))]).findings
    assert followed["Mass"] is lesson.findings["Nodule or mass"]
    assert followed["Nodule"] is lesson.findings["Nodule"]


def test_judges_split_where_a_third_of_them_stands_on_either_side():
    """One judge alone cannot split, nor can nobody."""
    agreement = np.array([[0.5, 1 / 3, 0.3, 2 / 3, 1.0, 0.5, np.nan]])
    asked = np.array([[2, 3, 10, 3, 3, 1, 0]])
    said = flags.judges_split(agreement, asked)[0]
    assert said[:5].tolist() == [1, 1, 0, 1, 0]
    assert np.isnan(said[5:]).all()


def test_a_quarrel_is_how_far_judges_lie_apart_each_on_its_own_scale():
    """A judge that always says ten times as much does not quarrel; a missing answer is none."""
    one = np.array([[-1.0], [0.0], [1.0], [np.nan]])
    assert np.allclose(quarrel([one, 10 * one + 5]), 0)
    assert quarrel([one, -one])[0, 0] == pytest.approx(np.sqrt(1.5))
    assert quarrel([one, -one])[3, 0] == 0
    assert np.all(quarrel([one]) == 0)


def test_the_reason_says_whether_nobody_can_tell_or_all_are_against_it():
    """Readers speak where they taught it, else judges, else the interval; a trusted claim needs no such reason."""
    flagged = np.array([[flags.HARD, flags.HARD], [flags.LIKELY, flags.LIKELY], [flags.TRUSTED, flags.HARD]])
    nothing = np.zeros(flagged.shape)
    seen = Flagged(
        p_present=nothing, trust=nothing, low=nothing, high=nothing,
        agreement=np.array([[0.5, 0.5], [0.5, 0.0], [1.0, np.nan]]),
        asked=np.array([[2, 2], [2, 3], [2, 0]]),
        flag=flagged.astype(np.int8), rules=(),
    )  # fmt: skip
    said = flag_reasons(seen, ("Mass", "Edema"), {"Mass": hard([0.61, 0.12, 0.9])})
    usually = "they did on 30 % of the 2,000 pairs that several read"
    assert [[said.words[place] for place in row] for row in said.which] == [
        [
            f"hard: readers would split here with a chance of 61 %; {usually}",
            "judges_split: judges stand on both sides, 50 % of them with the label",
        ],
        [
            f"clear: readers would split here with a chance of only 12 %; {usually}",
            "judges_against: no judge that answered stands with the label",
        ],
        [None, "wide: the trust is low, but its interval reaches above .7"],
    ]


def test_on_real_reads_low_trust_is_split_more_often_where_it_is_called_hard(nih_calibrated, data_folder):
    """Validation images only, each told by a fit without its patient; by chance the difference would be 0."""
    audited = Workspace(nih_calibrated).open()
    columns = ("image_id", "finding", "says", "p_present")
    films = audited.table("images.parquet")
    said = pl.concat([
        audited.table(name, *columns).with_columns(pl.col("finding", "says").cast(pl.String))
        for name in ("signal.parquet", "groups.parquet")
    ])  # fmt: skip
    own = said.filter(pl.col("finding").is_in(NIH.findings))
    crowd = (own["says"] == "present").to_numpy().reshape(films.height, -1).sum(axis=1).astype(float)
    conditions = Conditions(
        view=(films["view"] == "AP").to_numpy().astype(float), devices=np.zeros(films.height), crowd=crowd,
        fold=fold_of_patient(patients(films)),
    )  # fmt: skip
    subjects = []
    for finding in ("Pneumothorax", "Nodule or mass", "Airspace opacity"):
        its = said.filter(pl.col("finding") == finding)
        claim, p = (its["says"] == "present").to_numpy().astype(float), its["p_present"].to_numpy()
        nothing = np.zeros(films.height)
        subjects.append(Subject(finding=finding, states=claim, p_present=p, spread=nothing, quarrel=nothing))
    read = load_reads(data_folder / "expert" / "four_findings_readers.csv", vocabulary=NIH, split="val")
    lesson = fit(subjects, conditions, read.table, films["image_id"])
    assert lesson.summary["pairs"] == 7236
    seen = disagreements(read.table).join(films.select("image_id").with_row_index("row"), on="image_id")
    told = []
    for subject in subjects:
        pairs = seen.filter(pl.col("finding") == subject.finding)
        rows = pairs["row"].to_numpy()
        low, hard_here = subject.trust[rows] < flags.LOW_TRUST, lesson.findings[subject.finding].split[rows]
        told.append(pairs.select("split", low=pl.Series(low), hard=pl.Series(hard_here)))
    shares = dict(pl.concat(told).filter("low").group_by("hard").agg(pl.col("split").mean()).rows())
    assert shares[1.0] - shares[0.0] > 0.06
