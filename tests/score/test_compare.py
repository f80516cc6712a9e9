"""Two judges beside each other, and who of them is right."""

import polars as pl
import pytest

from bpals.findings import Group
from bpals.score import pairwise
from bpals.score.pairwise import Side
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
