"""The tally."""

import statistics

import numpy as np
import polars as pl
import pytest

from bpals.report.tallies import BINS, FEWEST_CLUSTERS, UNKNOWN, Side, reasons, subgroups, tally, wilson
from bpals.report.wording import FLAGS
from bpals.types import FLAG, IMAGES
from world.words import mentions


@pytest.mark.quick
def test_the_tally_counts_what_a_plain_loop_counts(dataset, signal):
    """Claims, flags and medians are those of the rows."""
    counted = tally(signal, dataset.vocabulary.findings, len(dataset.images))
    for finding in counted.findings:
        rows = [r for r in signal.iter_rows(named=True) if r["finding"] == finding.finding and r["says"] == "present"]
        assert finding.present.claims == len(rows)
        assert finding.present.flags == {flag: sum(r["flag"] == flag for r in rows) for flag in FLAGS}
        if rows:
            assert finding.present.median == statistics.median(r["trust"] for r in rows)
            assert finding.present.low <= finding.present.median <= finding.present.high


@pytest.mark.quick
def test_the_whole_is_the_sum_of_its_findings(dataset, signal):
    """No claim is lost between the table and the headline."""
    counted = tally(signal, dataset.vocabulary.findings, len(dataset.images))
    assert counted.claims == len(signal)
    assert sum(counted.flags.values()) == len(signal)
    assert counted.present.claims == sum(f.present.claims for f in counted.findings)


@pytest.mark.quick
def test_every_judged_claim_stands_in_one_bar(dataset, signal):
    """Trusts of exactly 0 and 1 belong to the first and the last bar."""
    ends = signal.head(2).with_columns(trust=pl.Series([0.0, 1.0]))
    counted = tally(ends, dataset.vocabulary.findings, 1)
    bars = [sum(bar) for bar in zip(*(s.bins for s in (counted.present, counted.absent)), strict=True)]
    assert bars == [1] + [0] * (BINS - 2) + [1]


@pytest.mark.quick
def test_silence_and_uncertainty_are_counted_apart(patientless_page):
    """A silent film is no claim; an uncertain claim has a P(present) and no trust."""
    dataset = patientless_page.dataset
    counted = tally(patientless_page.signal, dataset.vocabulary.findings, len(dataset.images))
    _, nodule, thickening = counted.findings
    assert thickening.silent == len(dataset.images) // 2
    assert counted.silent == thickening.silent
    assert nodule.uncertain.claims == len(dataset.images) // 2
    assert nodule.uncertain.median is None
    assert 0 < nodule.uncertain.p_median < 1
    assert sum(nodule.uncertain.bins) == 0


@pytest.mark.quick
def test_a_finding_without_claims_has_an_empty_side(dataset, signal):
    """Nothing is claimed present, nothing has a median."""
    side = tally(signal.head(0), dataset.vocabulary.findings, 0).findings[0].present
    assert side == Side()
    assert side.share_of(0, BINS) is None


@pytest.mark.quick
def test_the_least_trusted_finding_comes_first_and_the_unclaimed_last(dataset, signal):
    """Nodule is never claimed present here."""
    ranked = tally(signal, dataset.vocabulary.findings, len(dataset.images)).by_trust
    medians = [f.present.median for f in ranked]
    assert medians[-1] is None
    assert medians[:-1] == sorted(medians[:-1])


@pytest.mark.quick
def test_reasons_are_counted_over_flagged_claims_only(signal):
    """A reason of a trusted claim does not speak against anything."""
    doubted = signal.filter(pl.col("says") == "absent", pl.col("flag").is_in(["likely_mislabelled", "suspect"]))
    told = {reason.code: reason for reason in reasons(signal, "absent")}
    assert told["timeline_against"].claims == len(doubted)
    assert mentions(told["timeline_against"].sentence, "absent", "before and after")
    assert told["alone"].claims == doubted.select(pl.col("reasons").list.len() == 2).sum().item()


@pytest.mark.quick
def test_the_most_frequent_reason_comes_first(signal):
    """The reader sees the main one at once."""
    claims = [reason.claims for reason in reasons(signal, "absent")]
    assert claims == sorted(claims, reverse=True)


@pytest.mark.quick
def test_a_reason_without_a_sentence_is_shown_as_it_is(signal):
    """A word without a colon is still a reason."""
    bare = signal.with_columns(reasons=pl.lit(["odd"]))
    assert [(r.code, r.sentence) for r in reasons(bare, "absent")] == [("odd", "odd")]


def flagged_where(signal, condition):
    """The signal with exactly these claims suspect and all others trusted."""
    flag = pl.when(condition).then(pl.lit("suspect")).otherwise(pl.lit("trusted")).cast(FLAG)
    return signal.with_columns(flag=flag)


def one_finding(small, patients, films):
    """A dataset of one finding with so many patients of so many films; half of the patients are women."""
    rows = [(f"{p}_{f}", f"p{p}", None, f, "PA", 50.0, "F" if p % 2 else "M", None, None)
            for p in range(patients) for f in range(films)]  # fmt: skip
    images = pl.DataFrame(rows, schema=IMAGES, orient="row")
    dataset = small.dataset(images, [("present",)] * len(images), findings=("Mass",))
    return dataset, small.signal(dataset)


def test_the_share_is_that_of_the_judged_claims(dataset, signal):
    """Flagged over claims, and an unjudged claim is no claim here."""
    found = {group.key: group for group in subgroups(dataset.images, signal)}
    joined = signal.filter(pl.col("says") == "absent").join(dataset.images, on="image_id")
    for level in found["view"].absent:
        claims = joined.filter(pl.col("view") == level.name)
        flagged = claims.filter(pl.col("flag").is_in(["likely_mislabelled", "suspect"]))
        assert (level.claims, level.flagged) == (len(claims), len(flagged))
        assert level.low <= level.share < level.high


def test_a_patient_counts_once_however_many_films_they_have(small):
    """If all films of a patient are flagged alike, ten films tell no more than one."""
    wide, narrow = (one_finding(small, 100, films) for films in (1, 10))
    intervals = []
    for dataset, signal in (wide, narrow):
        doubted = flagged_where(signal, pl.col("image_id").str.contains("^[0-4]_|^[1-4][0-9]_"))
        level = subgroups(dataset.images, doubted)[2].present[0]
        intervals.append((level.share, round(level.low, 6), round(level.high, 6)))
    assert intervals[0] == intervals[1]


def test_the_intervals_cover(small):
    """The true share lies inside about 95 of 100 intervals, though films of a patient are alike."""
    dataset, signal = one_finding(small, 120, 4)
    rng, hits, rounds = np.random.default_rng(5), 0, 200
    for _ in range(rounds):
        p_patient = rng.beta(2, 8, 120)
        draws = rng.random((120, 4)) < p_patient[:, None]
        doubted = flagged_where(signal, pl.Series(draws.ravel()))
        level = subgroups(dataset.images, doubted)[2].present[0]
        hits += level.low <= 0.2 <= level.high
    assert 0.91 <= hits / rounds <= 0.99


@pytest.mark.parametrize(("share", "n"), [(0.0, 1), (1.0, 40), (0.5, 3)])
def test_an_interval_is_never_a_point_and_never_outside(share, n):
    """No flagged claim among forty patients is no proof that there is none."""
    low, high = wilson(share, n)
    assert 0 <= low < high <= 1
    assert low <= share <= high


def test_a_group_with_other_findings_is_not_blamed_for_them(small):
    """Women have more of the doubtful finding, but within each finding nobody is doubted more: the ratio is one."""
    images = one_finding(small, 400, 1)[0].images
    doubtful = [(i % 10 < 8) == (sex == "F") for i, sex in enumerate(images["sex"])]
    words = [("present", "") if so else ("", "present") for so in doubtful]
    dataset = small.dataset(images, words, findings=("Doubtful", "Clear"))
    signal = flagged_where(small.signal(dataset), pl.col("finding") == "Doubtful")
    women, men = subgroups(dataset.images, signal)[1].present
    assert (women.name, men.name) == ("female", "male")
    assert women.share > 2 * men.share
    assert women.ratio == pytest.approx(1)
    assert men.ratio == pytest.approx(1)


def test_a_clear_difference_is_said_in_words(small):
    """All claims about women are flagged, none about men."""
    dataset, signal = one_finding(small, 100, 1)
    doubted = flagged_where(signal, pl.col("image_id").str.contains("^[0-9]*[13579]_"))
    (sentence,) = subgroups(dataset.images, doubted)[1].sentences
    assert "\N{LEFT DOUBLE QUOTATION MARK}female" in sentence
    assert "least in \N{LEFT DOUBLE QUOTATION MARK}male" in sentence


def test_no_difference_is_said_in_words(small):
    """The same share in both groups."""
    dataset, signal = one_finding(small, 100, 1)
    doubted = flagged_where(signal, pl.col("image_id").str.contains("^[0-9]?[01]_"))
    (sentence,) = subgroups(dataset.images, doubted)[1].sentences
    assert mentions(sentence, "Presences:", "no clear difference")


def test_ages_are_banded_and_in_order(dataset, signal):
    """A patient of exactly 40 is in the band that starts with 40."""
    images = dataset.images.with_columns(age=pl.lit(40.0))
    (level,) = subgroups(images, signal)[0].absent
    assert level.name == "40\N{EN DASH}59"


def test_what_is_not_stated_is_a_group_and_comes_last(small):
    """Films without a sex are shown as such."""
    dataset, signal = one_finding(small, 90, 1)
    images = dataset.images.with_columns(sex=pl.when(pl.int_range(pl.len()) < 60).then("sex"))
    assert [level.name for level in subgroups(images, signal)[1].present] == ["female", "male", UNKNOWN]


def test_a_division_that_the_dataset_does_not_state_is_left_out(patientless_page):
    """No age, no sex, no view: no groups."""
    assert subgroups(patientless_page.dataset.images, patientless_page.signal) == []


def test_small_groups_are_named_but_not_drawn(small):
    """One patient with an odd view would stretch the scale of all others."""
    dataset, signal = one_finding(small, FEWEST_CLUSTERS + 1, 1)
    images = dataset.images.with_columns(view=pl.when(pl.col("image_id") == "0_0").then(pl.lit("RL")).otherwise("view"))
    view = subgroups(images, signal)[2]
    assert [level.name for level in view.present] == ["PA"]
    assert view.small == ("RL",)


def test_rare_views_are_put_together(small):
    """Ten views become six and the others."""
    dataset, signal = one_finding(small, 100, 1)
    view = pl.lit("view ") + (pl.int_range(pl.len()) % 10).cast(pl.String)
    levels = subgroups(dataset.images.with_columns(view=view), signal)[2].present
    assert [level.clusters for level in levels] == [40]
    assert levels[0].name == "other"
