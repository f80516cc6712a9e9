"""Numbers and names as people read them."""

import pytest

from bpals.report import wording
from bpals.report.wording import command_line, plain, provenance, rules
from world.words import mentions


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


def test_every_value_says_whether_it_was_passed(dataset, small):
    """Name, value, passed or defaulted, and why."""
    shown = provenance(small.run(), dataset)
    assert list(shown.values) == [
        ("workspace", "here", "passed", ""),
        ("seed", "0", "defaulted", "the same input gives the same bytes"),
    ]
    assert shown.workspace == "here"


def test_an_empty_run_record_is_shown_as_empty(dataset):
    """What is not recorded is not made up; notices of the dataset stand in for those of the run."""
    shown = provenance({}, dataset)
    assert (shown.version, shown.command, shown.values, shown.seconds) == ("?", "", (), None)
    assert shown.inputs == dataset.inputs
    assert [mentions(n["message"], "1 age", "120 years") for n in shown.notices] == [True]


def test_a_judge_of_films_is_noticed(dataset, small):
    """The page says that no pixel was seen only if that is so."""
    card = small.run()["judges"][0]
    assert not provenance(small.run(), dataset).sees_pixels
    assert provenance(small.run(judges=[card, card | {"kind": "image"}]), dataset).sees_pixels


def test_flag_rules_become_sentences_and_a_table():
    """Words stay words, numbers become one row per finding and direction."""
    made = rules(
        {
            "rule": "The least trusted first.",
            "findings": {
                "Mass": {"present": {"below": 0.25, "claims": 7}, "absent": {"below": 0.9}},
                "Nodule": {"present": {"below": 0.5}},
            },
        }
    )
    assert made.sentences == ("The least trusted first.",)
    assert made.columns == ("below", "claims")
    assert made.rows == (
        ("Mass \N{MIDDLE DOT} present", "0.25", "7"),
        ("Mass \N{MIDDLE DOT} absent", "0.9", ""),
        ("Nodule \N{MIDDLE DOT} present", "0.5", ""),
    )


def test_rules_of_any_depth_are_shown():
    """A rule without findings is a row too, and none is none."""
    assert rules({"below": 0.5, "most": 3}).rows == (("", "0.5", "3"),)
    assert rules({}).rows == ()


def test_recorded_values_are_written_plainly():
    """No brackets, no quotes, no seventeen digits."""
    assert plain({"folds": 5, "rate": 1 / 3, "on": True, "none": None, "of": ["a", "b"]}) == (
        "folds 5, rate 0.3333, on yes, none none, of a, b"
    )


def test_a_command_may_be_recorded_in_pieces():
    """A list of words is one line."""
    assert command_line(["bpals", "audit"]) == "bpals audit"
    assert command_line(None) == ""
