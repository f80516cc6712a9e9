"""Gaps: the films, findings and patients on which two judges differ."""

import numpy as np
import pytest

from bpals.score import pairwise
from world import made_judges

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
