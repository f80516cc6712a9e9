"""Numbers and names as people read them."""

import pytest

from bpals.report import wording


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0 %"), (1, "100 %"), (0.05, "5.0 %"), (0.0001, "<0.1 %"), (0.99999, ">99.9 %"), (None, "\N{EM DASH}")],
)
def test_a_share_is_never_rounded_to_nothing_or_to_all(value, written):
    """One claim in a million is not 0 %, and all but one are not 100 %."""
    assert wording.share(value).replace(wording.NBSP, " ") == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0.00"), (0.001, "<0.01"), (0.25, "0.25"), (0.999, ">0.99"), (1.0, "1.00"), (None, "\N{EM DASH}")],
)
def test_a_probability_that_is_not_certain_is_not_written_as_certain(value, written):
    """0.001 is not 0.00."""
    assert wording.probability(value) == written


def test_nothing_of_nothing_is_a_dash():
    """An empty dataset does not divide by zero."""
    assert wording.of(0, 0) == wording.NONE


def test_intervals_have_two_ends_or_none():
    """Half an interval says nothing."""
    assert wording.interval(0.1, 0.2) == "0.10\N{EN DASH}0.20"
    assert wording.interval(None, 0.2) == wording.NONE
    assert wording.share_interval(0.1, 0.2).replace(wording.NBSP, " ") == "10.0\N{EN DASH}20.0 %"


def test_counts_agree_with_their_nouns():
    """1 film, 1,200 films."""
    assert [wording.plural(n, "film").replace(wording.NBSP, " ") for n in (1, 1200)] == ["1 film", "1,200 films"]


def test_lists_are_phrases():
    """No comma before the last, and nothing at all for nothing."""
    assert [wording.listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_findings_are_shown_with_blanks_and_a_capital():
    """The underscore is the file's, not the reader's."""
    assert wording.spoken("Pleural_Thickening") == "Pleural Thickening"
    assert wording.spoken("pleural effusion") == "Pleural effusion"
    assert wording.spoken("") == ""


def test_durations_change_their_unit():
    """Seconds first, minutes later."""
    written = [wording.seconds(s).replace(wording.NBSP, " ") for s in (1.25, 41.3, 59.7, 200)]
    assert written == ["1.2 s", "41 s", "1 min 0 s", "3 min 20 s"]
