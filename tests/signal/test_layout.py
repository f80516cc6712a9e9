"""Tests of signal.layout."""

import numpy as np
import polars as pl
import pytest

from bpals.findings import Group
from bpals.numeric import NORMAL_95, logit, sigmoid
from bpals.signal.layout import BLOCK, in_blocks, lay_pairs, with_groups
from bpals.signal.observations import read_answers, sound
from bpals.testing import tiny_dataset
from bpals.types import OUTCOME
from world import estimating

# Blocks of films: every film is worked on once, and a failure is not lost in a thread.


@pytest.mark.parametrize("films", [0, 1, BLOCK, 2 * BLOCK + 3])
def test_every_film_is_worked_on_once(films):
    """Whole blocks and a rest."""
    seen = np.zeros(films, dtype=int)

    def work(block):
        seen[block] += 1

    in_blocks(films, work)
    assert (seen == 1).all()


def test_what_goes_wrong_in_a_block_is_told():
    """A thread's error ends the work."""

    def work(_block):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_blocks(1, work)


# Claims and answers as matrices: nothing is lost, nothing is made up, a group is a finding of its own.

BOTH = Group(name="Both", members=("F0", "F1"))


def laid_out(dataset, judgments):
    """The matrices of a dataset and its judgments."""
    return lay_pairs(dataset.images, dataset.claims, judgments, dataset.vocabulary)


def cells(pairs, table):
    """The p_present of each row of a table, from the matrix."""
    films = {name: row for row, name in enumerate(pairs.image_ids)}
    asked = table.select("image_id", "finding").rows()
    return [pairs.p_present[films[name], pairs.column(finding)] for name, finding in asked]


def test_one_judge_s_answer_is_kept_to_the_last_bit(judged):
    """It does not go through logits and back; 0 and 1 stay 0 and 1."""
    dataset = tiny_dataset(silent=0.3, uncertain=0.2)
    judgments = judged(dataset).with_columns(
        p_present=pl.when(pl.int_range(pl.len()) == 0).then(0.0).otherwise("p_present")
    )
    pairs = laid_out(dataset, judgments)
    assert cells(pairs, judgments) == judgments["p_present"].to_list()
    assert (pairs.answered == 1).sum() == dataset.claims.height
    assert (np.isnan(pairs.p_present) == (pairs.answered == 0)).all()


def test_several_judges_are_averaged_as_logits(judged):
    """Who did not answer is not counted; the spread of a mean shrinks."""
    dataset = tiny_dataset()
    one, other = judged(dataset, seed=1), judged(dataset, seed=2, judge="other", failed=0.5)
    pairs = laid_out(dataset, pl.concat([other, one]))
    p, q = one["p_present"].to_numpy(), other["p_present"].to_numpy()
    mean = sigmoid((logit(p) + logit(q)) / 2)
    assert cells(pairs, one) == pytest.approx(np.where(np.isnan(q), p, mean))
    assert set(np.unique(pairs.answered)) == {1, 2}
    alone = laid_out(dataset, one)
    assert pairs.spread[pairs.answered == 1] == pytest.approx(alone.spread[pairs.answered == 1])


def test_the_order_of_the_judges_does_not_matter(judged):
    """Neither that of the rows."""
    dataset = tiny_dataset()
    both = pl.concat([judged(dataset, seed=1), judged(dataset, seed=2, judge="other")])
    assert (laid_out(dataset, both).p_present == laid_out(dataset, both.reverse()).p_present).all()


def test_a_failure_is_never_evidence(judged):
    """A judge that failed everywhere leaves every number as it was without it."""
    dataset = tiny_dataset()
    failed = judged(dataset, seed=2, failed=1.0, judge="broken")
    with_it, without = laid_out(dataset, pl.concat([judged(dataset), failed])), laid_out(dataset, judged(dataset))
    assert with_it.p_present == pytest.approx(without.p_present, abs=1e-12)
    assert (with_it.spread == without.spread).all()
    assert (with_it.answered == without.answered).all()


@pytest.mark.parametrize("outcome", [name for name in OUTCOME.categories if name != "answered"])
def test_nobody_answered_is_nan_and_zero(judged, outcome):
    """Whatever the judge did instead of answering."""
    dataset = tiny_dataset()
    judgments = judged(dataset, failed=1.0).with_columns(outcome=pl.lit(outcome, dtype=OUTCOME))
    for given in (judgments, judgments.clear()):
        pairs = laid_out(dataset, given)
        assert np.isnan(pairs.p_present).all()
        assert (pairs.answered == 0).all()
        assert np.isnan(pairs.usual).all()


def test_the_spread_is_the_interval_on_the_logit_scale(judged):
    """A judge without an interval has none."""
    dataset = tiny_dataset()
    judgments = judged(dataset)
    pairs = laid_out(dataset, judgments)
    film, finding = judgments.row(4)[:2]
    row, column = pairs.image_ids.to_list().index(film), pairs.column(finding)
    low, high = logit(judgments["p_low"].to_numpy()[4]), logit(judgments["p_high"].to_numpy()[4])
    assert pairs.spread[row, column] == pytest.approx((high - low) / (2 * NORMAL_95))
    bare = judgments.with_columns(p_low=pl.lit(None, pl.Float64), p_high=pl.lit(None, pl.Float64))
    assert (laid_out(dataset, bare).spread == 0).all()


def test_usual_is_the_mean_of_what_was_answered(matrices):
    """A column without an answer has none, and no warning."""
    pairs = matrices([[0, 0], [0, 0], [0, 0]], [[0.1, np.nan], [0.3, np.nan], [np.nan, np.nan]])
    assert pairs.usual[0] == pytest.approx(0.2)
    assert np.isnan(pairs.usual[1])


@pytest.mark.parametrize(
    ("members", "claim"),
    [
        ((1, 0), 1.0),
        ((1, 1), 1.0),
        ((1, np.nan), 1.0),
        ((1, 0.5), 1.0),
        ((0, 0), 0.0),
        ((0, 0.5), 0.5),
        ((0.5, 0.5), 0.5),
        ((0, np.nan), 0.5),
        ((np.nan, np.nan), np.nan),
    ],
)
def test_what_a_group_claims(matrices, members, claim):
    """Present if a member is, absent if all are, silent if all are; else it cannot be said."""
    grouped = with_groups(matrices([members], [[0.1, 0.1]]), [BOTH])
    assert grouped.states[0, 0] == pytest.approx(claim, nan_ok=True)
    assert grouped.findings == ("Both",)


def test_a_group_s_probability_is_the_sum_of_its_members_and_never_one(matrices):
    """The labeller seldom names two at once; where the sum passes 1 it stops just below."""
    grouped = with_groups(matrices([[0, 0], [0, 0], [0, 0]], [[0.1, 0.2], [0.7, 0.8], [0.1, np.nan]]), [BOTH])
    assert grouped.p_present[:2, 0] == pytest.approx([0.3, 1.0], abs=1e-5)
    assert grouped.p_present.max(where=~np.isnan(grouped.p_present), initial=0) < 1
    assert np.isnan(grouped.p_present[2, 0])
    assert grouped.answered[:, 0].tolist() == [1, 1, 0]


def test_where_a_judge_was_asked_about_the_groups_its_answers_stand(matrices):
    """Not the sum; and answers about groups that nobody wants here are passed over."""
    pairs = matrices([[1, 0], [0, 0]], [[0.4, 0.4], [0.1, 0.1]])
    answers = pl.DataFrame(
        {
            "image_id": ["00000.png", "00001.png", "00000.png"],
            "finding": ["Both", "Both", "Other"],
            "judge": "record",
            "outcome": "answered",
            "p_present": [0.5, 0.15, 0.9],
            "p_low": [0.4, 0.1, 0.9],
            "p_high": [0.6, 0.2, 0.9],
        }
    )
    grouped = with_groups(pairs, [BOTH], answers)
    assert grouped.p_present[:, 0].tolist() == [0.5, 0.15]
    assert grouped.states[:, 0].tolist() == [1, 0]
    assert (grouped.spread > 0).all()


def test_a_group_s_spread_follows_from_its_members(matrices):
    """By the delta method: the spread of a sum of probabilities, on the logit scale of the sum."""
    p, spread = np.array([0.1, 0.2]), 0.5
    grouped = with_groups(matrices([[0, 0]], [p], spread=spread), [BOTH])
    draws = np.random.default_rng(0).normal(logit(p), 0.05, (200_000, 2))
    simulated = logit(sigmoid(draws).sum(axis=1)).std() * spread / 0.05
    assert grouped.spread[0, 0] == pytest.approx(simulated, rel=0.02)


def test_probabilities_and_logits_are_inverse_and_finite():
    """0 and 1 have logits too."""
    p = np.array([0.0, 1e-5, 0.3, 1.0])
    assert np.isfinite(logit(p)).all()
    assert sigmoid(logit(p)) == pytest.approx(p, abs=2e-6)
    assert sigmoid(np.array([-1e9, 1e9])) == pytest.approx([0, 1], abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_the_rows_does_not_matter(judged, seed):
    """A table in the dataset's own order is copied whole; shuffled it is laid out row by row, to the same matrices."""
    dataset = tiny_dataset(patients=12, seed=seed)
    judgments = judged(dataset, seed=seed)
    turned = lay_pairs(
        dataset.images,
        dataset.claims.sample(fraction=1.0, shuffle=True, seed=seed),
        judgments.sample(fraction=1.0, shuffle=True, seed=seed + 1),
        dataset.vocabulary,
    )
    straight = lay_pairs(dataset.images, dataset.claims, judgments, dataset.vocabulary)
    for name in ("states", "p_present", "spread", "answered"):
        np.testing.assert_array_equal(getattr(straight, name), getattr(turned, name))


# Soundness: what is no probability, and who says two things about one pair, is left out and counted.


def table(*rows):
    """Rows `(film, outcome, probability)` about a mass."""
    columns = [(film, "Mass", outcome, p) for film, outcome, p in rows]
    return pl.DataFrame(columns, schema=["image_id", "finding", "outcome", "p_present"], orient="row")


def test_a_sound_table_is_left_alone():
    """Failures too: they are no answers, and nothing is wrong with them."""
    answers = table(("a", "answered", 0.0), ("b", "answered", 1.0), ("c", "failed", None), ("c", "refused", None))
    kept, notices = sound("eye", answers)
    assert kept.equals(answers)
    assert notices == []


@pytest.mark.parametrize("strange", [1.5, -0.01, float("nan"), float("inf"), None])
def test_what_is_no_probability_counts_as_not_answered(strange):
    """And is counted, with the first."""
    kept, (notice,) = sound("eye", table(("a", "answered", 0.5), ("b", "answered", strange)))
    assert kept["image_id"].to_list() == ["a"]
    assert (notice.code, notice.count) == ("no_probability", 1)
    assert f"eye: of its 2 answers 1 gives no probability from 0 to 1 (b, Mass gives {strange})" in notice.message


def test_two_different_answers_about_a_pair_count_as_none():
    """The same answer twice counts once; both are counted."""
    answers = table(
        ("a", "answered", 0.5), ("b", "answered", 0.2), ("a", "answered", 0.6), ("b", "answered", 0.2),
        ("c", "answered", 0.9), ("c", "failed", None),
    )  # fmt: skip
    kept, notices = sound("eye", answers)
    assert kept.select("image_id", "p_present").rows() == [("b", 0.2), ("c", 0.9)]
    assert {notice.code: notice.count for notice in notices} == {"answers_contradict": 1, "answers_again": 1}
    assert notices[0].message.startswith("eye: about 1 pair it gives two different answers (first: a, Mass)")


# Voices: what image judges say, laid out beside films and findings.

BOTH_OF_VOICES = Group(name="Nodule or mass", members=("Nodule", "Mass"))


@pytest.fixture(scope="module")
def dataset():
    """A few patients."""
    return tiny_dataset(patients=30)


def test_an_answer_stands_at_its_film_and_finding(dataset, seen):
    """Whatever the order of the rows, to the last bit."""
    answers = seen(dataset).sample(fraction=1.0, shuffle=True, seed=3)
    judge = read_answers("eye", answers, dataset.images, dataset.vocabulary.findings)
    film, finding, p = answers.select("image_id", "finding", "p_present").row(7)
    row = dataset.images["image_id"].to_list().index(film)
    assert judge.p_present[row, dataset.vocabulary.findings.index(finding)] == p
    assert judge.answered.all()
    assert judge.usual == pytest.approx(judge.p_present.mean(axis=0))


@pytest.mark.parametrize("outcome", [name for name in OUTCOME.categories if name != "answered"])
def test_a_failure_is_never_evidence_of_voices(dataset, seen, outcome):
    """Whatever the judge did instead of answering, even if somebody left a number beside it."""
    failed = seen(dataset).with_columns(outcome=pl.lit(outcome, dtype=OUTCOME))
    judge = read_answers("eye", failed, dataset.images, dataset.vocabulary.findings)
    assert not judge.answered.any()
    assert np.isnan(judge.usual).all()
    assert np.isnan(judge.evidence).all()


def test_what_is_said_of_other_films_and_findings_is_passed_over(dataset, seen):
    """A judge that was run over another dataset too is not refused."""
    answers = seen(dataset).with_columns(pl.col("finding").cast(pl.String))
    strange = answers.head(4).with_columns(image_id=pl.lit("elsewhere.png"))
    other = answers.head(4).with_columns(finding=pl.lit("Fracture"))
    findings = dataset.vocabulary.findings
    heard = read_answers("eye", pl.concat([answers, strange, other]), dataset.images, findings)
    assert np.array_equal(heard.p_present, read_answers("eye", answers, dataset.images, findings).p_present)


def test_evidence_has_mean_0_and_deviation_1_and_the_judge_s_order(dataset, seen):
    """So that a judge's bias or scale changes nothing; scores below any reported probability keep their order."""
    answers = seen(dataset, share=0.7)
    tiny = answers.with_columns(p_present=pl.col("p_present") ** 4 * 1e-7)
    for table in (answers, tiny):
        judge = read_answers("eye", table, dataset.images, dataset.vocabulary.findings)
        assert np.nanmean(judge.evidence, axis=0) == pytest.approx([0, 0, 0], abs=1e-9)
        assert np.nanstd(judge.evidence, axis=0) == pytest.approx([1, 1, 1])
        for column in range(3):
            known = judge.answered[:, column]
            order = np.argsort(judge.p_present[known, column])
            assert (np.diff(judge.evidence[known, column][order]) > 0).all()


def test_a_judge_that_always_says_the_same_says_nothing(dataset, seen):
    """Its evidence is 0, not a division by zero."""
    judge = read_answers(
        "eye", seen(dataset).with_columns(p_present=pl.lit(0.3)), dataset.images, dataset.vocabulary.findings
    )
    assert judge.evidence == pytest.approx(np.zeros_like(judge.evidence), abs=1e-9)


def test_a_group_is_as_evident_as_its_most_evident_member(dataset, seen, judged):
    """And it is answered if all its members are."""
    answers = seen(dataset).filter(~((pl.col("finding") == "Mass") & (pl.int_range(pl.len()) % 5 == 0)))
    judge = read_answers("eye", answers, dataset.images, dataset.vocabulary.findings)
    pairs = lay_pairs(dataset.images, dataset.claims, judged(dataset), dataset.vocabulary)
    group = judge.of_groups(pairs, [BOTH_OF_VOICES])
    members = [pairs.column(name) for name in BOTH_OF_VOICES.members]
    whole = judge.answered[:, members].all(axis=1)
    assert np.array_equal(group.answered[:, 0], whole)
    most = judge.evidence[whole][:, members].max(axis=1)
    assert np.corrcoef(group.evidence[whole, 0], most)[0, 1] == pytest.approx(1)
    p = judge.p_present[whole][:, members]
    assert group.p_present[whole, 0] == pytest.approx(1 - (1 - p[:, 0]) * (1 - p[:, 1]))


def test_who_is_heeded_is_measured_and_the_record_too(dataset, seen, judged, panel):
    """One row a judge and finding; a judge without a signal is used nowhere."""
    seated = panel(dataset, seen(dataset), seen(dataset, judge="blind"), used={"eye": ("Mass",), "blind": ()})
    laid, skill = estimating.laid_out(dataset, judged(dataset), seated)
    eye, blind = laid.findings.with_used(skill).judges
    assert eye.used.tolist() == [False, False, True]
    assert blind.used.tolist() == [False] * 3
    assert skill["judge"].unique(maintain_order=True).to_list() == ["record", "eye", "blind"]
    assert skill.height == 9
