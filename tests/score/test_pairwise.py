"""Two judges compared: who is right, who errs together, where they differ, and how each answers."""

import numpy as np
import polars as pl
import pytest

from bpals.findings import Group
from bpals.score import pairwise
from bpals.score.intervals import Resamples, Resampling
from bpals.score.pairwise import (
    BEHAVIOUR,
    MEAN,
    Side,
    behaviour,
    called,
    dependence,
    of_another_patient,
    only_with_signal,
)
from world import made_judges


def row_of(truth, a, b):
    """The row of quality of one finding."""
    return pairwise.quality([made_judges.pairs(a, b, truth)], "labels")[0]


@pytest.fixture
def world():
    """600 films, a third with the finding; judge A is better than B, and both share half of their noise."""
    return made_judges.world()


def test_the_better_judge_has_a_difference_above_zero(world):
    """The paired interval of the difference leaves out 0, and Holm of one finding is its own p."""
    truth, a, b = world
    row = row_of(truth, a, b)
    assert row["auroc_a"] > row["auroc_b"]
    assert row["auroc_difference_low"] > 0
    assert row["auroc_difference"] == pytest.approx(row["auroc_a"] - row["auroc_b"])
    assert row["p_holm"] == row["p_value"]
    assert (row["n"], row["left_out"]) == (600, 0)


@pytest.mark.parametrize("figure", pairwise.FIGURES)
def test_every_figure_lies_in_its_interval(world, figure):
    """AUROC, average precision, Brier score and calibration error of both, with paired differences."""
    row = row_of(*world)
    for name in (f"{figure}_a", f"{figure}_b", f"{figure}_difference"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_what_one_did_not_answer_is_left_out_and_counted(world):
    """100 refusals leave 500 pairs; the second difference keeps all 600."""
    truth, a, b = world
    row = row_of(truth, [None] * 100 + list(a[100:]), b)
    assert (row["n"], row["left_out"]) == (500, 100)
    assert row["auroc_difference_filled"] < row["auroc_difference"]
    assert row["auroc_difference_filled_low"] < row["auroc_difference_filled"] < row["auroc_difference_filled_high"]


def test_with_all_answered_both_differences_are_one(world):
    """Nothing had to be filled in."""
    row = row_of(*world)
    assert row["auroc_difference_filled"] == pytest.approx(row["auroc_difference"])


def test_what_nobody_knows_is_not_scored(world):
    """A pair with an uncertain claim counts neither as scored nor as left out."""
    truth, a, b = world
    row = row_of([None] * 50 + list(truth[50:]), a, b)
    assert (row["n"], row["left_out"]) == (550, 0)


def test_too_few_patients_give_no_figure():
    """Eight presences of four patients are no yardstick: null, not 0.5."""
    p = [place / 100 for place in range(100)]
    row = row_of([place < 8 for place in range(100)], p, p)
    empty = ("auroc_a", "ap_b", "brier_a", "ece_b", "auroc_difference", "auroc_difference_filled", "p_value", "p_holm")
    assert [row[name] for name in empty] == [None] * len(empty)
    assert (row["n"], row["positives"]) == (100, 8)
    assert row_of([place < 10 for place in range(100)], p, p)["auroc_a"] == 0


def test_a_finding_that_neither_answered_is_a_row_without_figures(world):
    """Counted as left out, and no crash."""
    truth, _, _ = world
    row = row_of(truth, [None] * 600, [None] * 600)
    assert (row["n"], row["left_out"], row["auroc_a"]) == (0, 600, None)


def test_several_findings_have_a_mean_and_corrected_p_values(world):
    """The mean row comes last; Holm never makes a p smaller."""
    truth, a, b = world
    several = [made_judges.pairs(a, b, truth, finding=name) for name in ("Effusion", "Edema", "Hernia")]
    rows = pairwise.quality(several, "labels")
    assert rows[-1]["finding"] == pairwise.MEAN
    assert rows[-1]["findings"] == 3
    for figure in pairwise.FIGURES:
        assert rows[-1][f"{figure}_a"] == pytest.approx(rows[0][f"{figure}_a"])
    assert all(row["p_holm"] >= row["p_value"] for row in rows[:-1])


def test_holm_corrects_by_rank():
    """The smallest p counts three times, the next twice, and none falls below the one before it."""
    rows = [{"finding": name, "p_value": p} for name, p in zip("abcd", (0.02, 0.01, None, 0.03), strict=True)]
    assert [row["p_holm"] for row in pairwise.holm(rows)] == pytest.approx([0.04, 0.03, None, 0.04])


def test_a_group_needs_every_member(world):
    """P(nodule or mass) = 1 - (1 - p)(1 - q); a film with one of them unanswered has none."""
    _, a, b = world
    both = pl.concat([made_judges.answers(a, finding="Nodule"), made_judges.answers([None, *b[1:]], finding="Mass")])
    its = Side.of("a", both).about(Group(name="Nodule or mass", members=("Nodule", "Mass")))
    assert its["p"][0] is None
    assert its["p"][1] == pytest.approx(1 - (1 - a[1]) * (1 - b[1]))


def test_a_finding_nobody_was_asked_about_has_no_pair(world):
    """A judge without a row about it gives an empty table."""
    _, a, _ = world
    its = Side.of("a", made_judges.answers(a)).about(Group(name="Hernia", members=("Hernia",)))
    assert its.is_empty()
    assert its.columns == ["image_id", "p"]


DRAWS = Resamples.of(np.arange(300), Resampling(draws=300))


def dependence_of(truth, a, b):
    """The row of one finding."""
    return dependence([made_judges.pairs(a, b, truth)], "labels", DRAWS)[0]


def test_a_judge_and_its_copy_are_one_witness(world):
    """Error correlation 1, worth one judge; two that err apart are worth nearly two."""
    truth, a, _ = world
    copy = dependence_of(truth, a, a)
    assert copy["error_correlation"] == pytest.approx(1)
    assert copy["kappa"] == pytest.approx(1)
    assert copy["effective_judges"] == pytest.approx(1)
    other = dependence_of(truth, a, np.random.default_rng(5).random(600))
    assert other["error_correlation"] < 0.25
    assert other["effective_judges"] > 1.6


def test_shared_noise_shows_as_correlated_errors_with_an_interval(world):
    """Half of the noise is shared: clearly above 0, clearly below 1."""
    row = dependence_of(*world)
    assert 0 < row["error_correlation_low"] < row["error_correlation"] < row["error_correlation_high"] < 1
    for figure in ("kappa", "agreement"):
        assert row[f"{figure}_low"] < row[figure] < row[f"{figure}_high"]


def test_the_figures_are_those_of_the_textbook(world):
    """Agreement, Cohen's kappa and the correlation of errors, worked out the long way."""
    truth, a, b = world
    row = dependence_of(truth, a, b)
    one, other = (called(p, truth.sum()) for p in (a, b))
    alike = (one == other).mean()
    chance = one.mean() * other.mean() + (1 - one.mean()) * (1 - other.mean())
    assert row["agreement"] == pytest.approx(alike)
    assert row["kappa"] == pytest.approx((alike - chance) / (1 - chance))
    assert row["error_correlation"] == pytest.approx(np.corrcoef(one != truth, other != truth)[0, 1])


def test_several_findings_have_a_mean_whose_draws_are_shared(world):
    """The same finding twice has the interval of one."""
    truth, a, b = world
    several = [made_judges.pairs(a, b, truth, finding=name) for name in ("Effusion", "Edema")]
    rows = dependence(several, "labels", DRAWS)
    assert rows[-1]["finding"] == MEAN
    assert rows[-1]["findings"] == 2
    for end in ("", "_low", "_high"):
        assert rows[-1][f"error_correlation{end}"] == pytest.approx(rows[0][f"error_correlation{end}"])


def test_without_a_pair_there_is_no_figure_and_the_mean_leaves_it_out(world):
    """Null, not 0: a finding that B did not answer."""
    truth, a, b = world
    several = [made_judges.pairs(a, b, truth), made_judges.pairs(a, [None] * 600, truth, finding="Edema")]
    first, empty, mean = dependence(several, "labels", DRAWS)
    assert (empty["n"], empty["agreement"], empty["error_correlation_low"], empty["effective_judges"]) == (
        0,
        *[None] * 3,
    )
    assert mean["error_correlation"] == first["error_correlation"]
    assert mean["findings"] == 1
    assert dependence([], "labels", DRAWS) == []


def test_two_judges_without_an_error_have_no_correlation_of_errors():
    """Both give the same calls, so their errors cannot be compared."""
    truth = np.arange(100) < 30
    row = dependence_of(truth, truth * 0.9, truth * 0.8)
    assert (row["agreement"], row["error_correlation"], row["effective_judges"]) == (1.0, None, None)


def right_row(finding, a, b):
    """What `quality` says of one finding: the low end of either AUROC."""
    return {"against": "labels", "finding": finding, "auroc_a": 0.7, "auroc_a_low": a, "auroc_b_low": b}


def together_row(finding):
    """What `dependence` says of it."""
    return {"against": "labels", "finding": finding, "effective_judges": 1.8}


@pytest.mark.parametrize(
    ("right", "lacks", "worth"),
    [
        ([("Mass", 0.6, 0.6), ("Edema", 0.6, 0.4), (MEAN, 0.6, 0.51)], [[], ["b"], []], [1.8, None, 1.8]),
        # By chance one of many findings passes: the mean does not.
        ([("Mass", 0.6, 0.6), ("Edema", 0.6, 0.4), (MEAN, 0.6, 0.5)], [[], ["b"], ["b"]], [1.8, None, None]),
        # By chance the mean passes: no finding does.
        ([("Mass", 0.4, 0.6), ("Edema", 0.4, 0.6), (MEAN, 0.51, 0.6)], [["a"], ["a"], ["a"]], [None, None, None]),
        # One finding alone could be scored: it stands for the mean. Of the other nothing is known.
        ([("Mass", 0.6, 0.6)], [[], [], []], [1.8, None, 1.8]),
        ([], [[], [], []], [None, None, None]),
    ],
)
def test_a_worth_needs_two_judges_with_a_signal(right, lacks, worth):
    """Finding by finding, and for the mean."""
    together = [together_row(name) for name in ("Mass", "Edema", MEAN)]
    rows = only_with_signal(together, [right_row(*row) for row in right])
    assert [row["no_signal"] for row in rows] == lacks
    assert [row["effective_judges"] for row in rows] == worth


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (3, 3), (5, 6), (7, 7)])
def test_a_judge_calls_as_many_as_there_are(count, expected):
    """The highest first; a tie at the edge is called whole."""
    assert called(np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.1]), count).sum() == expected


TRUTH = [place >= 45 for place in range(50)]


def apart(**moved):
    """Two judges that rank 50 films alike, but for those that are moved: film -> (p of A, p of B)."""
    p, q = np.linspace(0.1, 0.9, 50), np.linspace(0.1, 0.9, 50)
    for film, (one, other) in moved.items():
        p[int(film[1:])], q[int(film[1:])] = one, other
    return pairwise.gaps([made_judges.pairs(p, q, TRUTH)])


def test_the_film_that_one_judge_calls_and_the_other_puts_last_comes_first():
    """One puts it on top, the other at the bottom."""
    first = pairwise.by_film(apart(f7=(0.99, 0.01))).row(0, named=True)
    assert (first["image_id"], first["finding"]) == ("00007", "Effusion")
    assert (first["called_a"], first["called_b"]) == (True, False)
    assert first["gap"] > 0.9
    assert first["truth"] is False


def test_a_wide_gap_that_nobody_calls_comes_after_a_call():
    """Two judges that rank a film differently, both far from calling it, differ less than where one calls it."""
    found = pairwise.by_film(apart(f2=(0.75, 0.1), f44=(0.99, 0.6)))
    calls = found.select("image_id", "called_a", "called_b", "gap").rows()
    assert calls[0][:3] in {("00044", True, False), ("00045", False, True)}
    wide = found.filter(image_id="00002").row(0, named=True)
    assert abs(wide["gap"]) > abs(calls[0][3])
    assert not wide["called_a"]


def test_every_film_is_listed_once_with_its_widest_finding():
    """Over two findings the wider gap stands for the film."""
    same = np.linspace(0.1, 0.9, 50)
    other = same.copy()
    other[3] = 0.95
    found = pairwise.by_film(
        pairwise.gaps([made_judges.pairs(same, same, TRUTH), made_judges.pairs(same, other, TRUTH, finding="Edema")])
    )
    assert found.height == 50
    assert found.row(0, named=True)["image_id"] == "00003"
    assert found.row(0, named=True)["finding"] == "Edema"
    assert pairwise.by_finding(pairwise.gaps([made_judges.pairs(same, same, TRUTH)])) == {"Effusion": 0.0}


def test_a_judge_that_says_the_same_of_all_is_in_the_middle_everywhere():
    """Its ranks are all one half, and it calls nothing."""
    found = pairwise.gaps([made_judges.pairs(np.linspace(0, 1, 50), [0.3] * 50, TRUTH)])
    assert found["rank_b"].unique().to_list() == [0.5]
    assert not found["called_b"].any()


def test_what_is_not_answered_or_not_known_is_no_gap_and_no_call():
    """A refusal has no rank; without a label there is a rank, and nobody calls."""
    p = [None, *np.linspace(0.1, 0.9, 49)]
    found = pairwise.gaps([made_judges.pairs(p, np.linspace(0.1, 0.9, 50), [None] * 50)])
    assert found.height == 49
    assert not found["called_a"].any()
    assert not found["called_b"].any()


def test_the_patient_who_adds_most_comes_first():
    """Film 7 is of patient 3; the sum is of what lies beyond the usual gap."""
    found = pairwise.by_patient(apart(f7=(0.99, 0.01), f6=(0.98, 0.02)), 2)
    row = found.row(0, named=True)
    assert (row["patient"], row["films"], row["pairs"]) == (3, 2, 2)
    assert found.height == 2
    usual = apart(f7=(0.99, 0.01), f6=(0.98, 0.02))["gap"].abs().mean()
    assert row["beyond"] == pytest.approx(2 * (row["mean_gap"] - usual))


def rows_of(p, findings=("Effusion",), **given):
    """How a judge of one finding answers: its rows."""
    offsets = given.pop("offsets", None)
    side = Side.of("eye", made_judges.answers(p, **given), offsets)
    return behaviour(side, findings, made_judges.films(len(p)), DRAWS, np.random.default_rng(1))


def test_a_judge_that_never_looks_depends_on_no_film():
    """The same answer to every film moves by nothing when another patient's film takes its place."""
    row, _ = rows_of([0.7] * 200)
    assert (row["yes_rate"], row["depends"], row["reliance"]) == (1.0, 0.0, 0.0)


def test_a_judge_that_looks_depends_on_the_film():
    """Answers that differ from film to film move when the film is another's."""
    _, a, _ = made_judges.world()
    row, _ = rows_of(a)
    assert row["depends_low"] > 0.9
    assert row["yes_rate_low"] < row["yes_rate"] < row["yes_rate_high"]


def test_coherence_is_measured_from_the_answer_without_a_film():
    """A judge that says yes to both questions is incoherent, unless it says yes to both without looking, too."""
    given = {"p": [0.5] * 100, "present": [2.0] * 100, "absent": [2.0] * 100}
    yes_to_both, _ = rows_of(**given, offsets={"Effusion": (0.0, 0.0)})
    leaning, _ = rows_of(**given, offsets={"Effusion": (1.0, 3.0)})
    assert (yes_to_both["coherent"], yes_to_both["acquiescence"]) == (0, 2)
    assert leaning["coherent"] == 1
    assert (yes_to_both["p_without_film"], leaning["p_without_film"]) == pytest.approx((0.5, 1 / (1 + np.e)))


def test_without_both_polarities_or_a_mass_nothing_is_said_of_them():
    """A classifier has no second question: null, not zero."""
    _, a, _ = made_judges.world()
    for row in rows_of(a):
        assert [row[name] for name in ("coherent", "acquiescence", "low_mass", "coherent_low")] == [None] * 4


def test_a_mass_below_nine_tenths_is_counted():
    """A quarter of the answers wanted to be another word."""
    row, _ = rows_of([0.4] * 200, mass=[0.5] * 50 + [0.95] * 150)
    assert row["low_mass"] == 0.25
    assert row["low_mass_low"] < 0.25 < row["low_mass_high"]


def test_outcomes_are_counted_and_only_answers_are_measured():
    """Ten refusals of 100: asked, answered and refused, and a yes-rate of the 90."""
    row, _ = rows_of([None] * 10 + [0.9] * 45 + [0.1] * 45)
    assert (row["asked"], row["answered"], row["refused"], row["failed"]) == (100, 90, 10, 0)
    assert row["yes_rate"] == 0.5


def test_a_finding_without_an_answer_has_no_figure_and_is_not_in_the_mean():
    """Asked and refused, or never asked: null."""
    rows = rows_of([0.9] * 60 + [0.1] * 140, findings=("Effusion", "Hernia"))
    answered, silent, mean = rows
    assert (silent["asked"], silent["answered"], silent["p_without_film"]) == (0, 0, None)
    assert [silent[name] for name in BEHAVIOUR] == [None] * len(BEHAVIOUR)
    assert mean["finding"] == MEAN
    assert mean["yes_rate"] == answered["yes_rate"] == 0.3
    refused, _ = rows_of([None] * 20)
    assert (refused["asked"], refused["refused"], refused["yes_rate"]) == (20, 20, None)


def test_another_patient_is_another_patient():
    """No film is compared with one of its own patient; a patient with most of the films has some without another."""
    patient = np.repeat(np.arange(40), 3)
    taken = of_another_patient(patient.astype(float), patient, np.random.default_rng(0))
    assert (taken != patient).all()
    assert not np.isnan(taken).any()
    lopsided = np.array([0] * 8 + [1, 2])
    taken = of_another_patient(lopsided.astype(float), lopsided, np.random.default_rng(0))
    assert np.isnan(taken).any()
    assert (taken[~np.isnan(taken)] != lopsided[~np.isnan(taken)]).all()
    assert np.isnan(of_another_patient(np.ones(5), np.zeros(5, dtype=int), np.random.default_rng(0))).all()
