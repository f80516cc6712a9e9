"""The run record as rows."""

from bpals.report.wording import command_line, plain, provenance, rules
from world.words import mentions


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
    """Words stay words, numbers become a row a finding and direction."""
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
