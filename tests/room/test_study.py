"""The settings of a study, their file, and the keys of its findings."""

from dataclasses import fields

import pytest

import shape
from bpals.errors import UnknownName, UsageError
from bpals.findings import NIH
from bpals.room.desk.study import FREE_KEYS, TOOL_CHARACTERS, Study, assign_keys, default_study, differences, load_study

WHOLE = """
name = "pilot"
findings = ["nodule", "Mass", "Pleural thickening"]
asks = "drawn"
unmarked = "ask"
queue_size = 200
batch = 20
random_share = 0.25
repeats = 0.1
readers_per_case = 3
reveal = false
priors = false
adjudication = "discussion"
rounds = 4
lease_minutes = 30
stop_width = 0.05
stop_reads = 600
learn_every = 25
seed = 7

[keys]
Mass = "m"
Nodule = "u"
"""


@pytest.fixture
def write(tmp_path):
    """Write a study file."""

    def write_(text):
        file = tmp_path / "pilot.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write_


def test_a_whole_study_is_read_as_written(write):
    """Findings are spelled as people spell them, and come in the order of the vocabulary."""
    study = load_study(write(WHOLE), NIH)
    assert study == Study(
        name="pilot",
        findings=("Mass", "Nodule", "Pleural_Thickening"),
        asks="drawn",
        unmarked="ask",
        queue_size=200,
        batch=20,
        random_share=0.25,
        repeats=0.1,
        readers_per_case=3,
        reveal=False,
        priors=False,
        adjudication="discussion",
        rounds=4,
        lease_minutes=30.0,
        stop_width=0.05,
        stop_reads=600,
        learn_every=25,
        seed=7,
        keys={"Mass": "m", "Nodule": "u", "Pleural_Thickening": "p"},
    )
    assert Study.from_json(study.as_json()) == study


def test_what_is_left_out_has_a_default(write):
    """An empty file is a study of two readers a case with a third where they differ, named after the file."""
    study = load_study(write(""), NIH)
    assert (study.name, study.findings, study.readers_per_case, study.adjudication) == (
        "pilot", NIH.findings, 2, "third"
    )  # fmt: skip


def test_one_reader_a_case_settles_nothing(write):
    """The rule follows from the number of readers where the file names none."""
    assert load_study(write("readers_per_case = 1"), NIH).adjudication == "none"
    assert default_study(NIH).adjudication == "none"
    with pytest.raises(UsageError, match="nothing to settle"):
        load_study(write('readers_per_case = 1\nadjudication = "third"'), NIH)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("reader_per_case = 2", "no setting of a study is called 'reader_per_case'. Did you mean 'readers_per_case'?"),
        ('findings = ["Nodul"]', "pilot.toml, findings: no finding is called 'Nodul'. Did you mean 'Nodule'?"),
        ('findings = ["Mass", "mass"]', "findings names Mass twice"),
        ("findings = []", "wanted is a list such as"),
        ('findings = "Mass"', "wanted is a list such as"),
        ('asks = "some"', "asks is 'some'; wanted is one of all, drawn"),
        ('adjudication = "vote"', "wanted is one of third, discussion, adjudicator, none"),
        ('reveal = "yes"', "reveal is 'yes'; wanted is true or false"),
        ("readers_per_case = 0", "readers_per_case is 0; wanted is a whole number from 1 to 50"),
        ("readers_per_case = 2.5", "wanted is a whole number"),
        ("readers_per_case = true", "wanted is a whole number"),
        ('batch = "50"', "batch is '50'; wanted is a whole number from 1 to 1,000"),
        ("random_share = 1.5", "random_share is 1.5; wanted is a number from 0.0 to 1.0"),
        ("repeats = nan", "repeats is nan; wanted is a number"),
        ("lease_minutes = 0", "lease_minutes is 0; wanted is a number from 0.1"),
        ('name = ""', "name is ''; wanted is a text of 1 to 200 characters"),
        ("name = 5", "name is 5; wanted is a text"),
        ("seed = -1", "seed is -1; wanted is a whole number from 0"),
        ('keys = "m"', "wanted is a table such as"),
        ('[keys]\nMass = "mm"', "the key of Mass is 'mm'; wanted is one character"),
        ('[keys]\nMass = "z"', "the key of Mass is 'z', which is a tool's"),
        ('[keys]\nMass = "m"\nNodule = "M"', "Mass and Nodule have the same key 'M'"),
        ('[keys]\nMas = "m"', "no finding is called 'Mas'"),
        ('findings = ["Mass"]\n[keys]\nNodule = "o"', "which the study does not ask"),
        ("name = ", "is not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_what_is_wanted(write, line, message):
    """Unknown key, wrong type, out of range, doubled hotkey: one line each."""
    with pytest.raises((UsageError, UnknownName)) as error:
        load_study(write(line), NIH)
    assert message in str(error.value)
    assert "pilot.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """Missing, a folder, not UTF-8."""
    with pytest.raises(UsageError, match="there is no study file"):
        load_study(tmp_path / "none.toml", NIH)
    with pytest.raises(UsageError, match="cannot be read"):
        load_study(tmp_path, NIH)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(UsageError, match="not UTF-8"):
        load_study(tmp_path / "latin.toml", NIH)


def test_what_may_change_in_a_study_is_no_difference(write):
    """Hotkeys and the length of a lease are not what a read means; readers and the seed are."""
    study = load_study(write(WHOLE), NIH)
    changed = load_study(write(WHOLE.replace("lease_minutes = 30", "lease_minutes = 45").replace('"m"', '"x"')), NIH)
    assert differences(study, changed) == []
    other = load_study(write(WHOLE.replace("seed = 7", "seed = 8")), NIH)
    assert differences(study, other) == ["seed is 7 there and 8 here"]


def test_every_setting_is_in_the_docs():
    """docs/studies.md has a row for each, with its default where that is a number."""
    page = (shape.ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    for setting in fields(Study):
        (row,) = [line for line in page.splitlines() if line.startswith(f"|`{setting.name}`|")]
        if isinstance(setting.default, int | float) and not isinstance(setting.default, bool):
            assert f"|{setting.default:g}|" in row


def test_the_14_findings_of_nih_have_14_keys_that_no_tool_has():
    """One key each, from the start."""
    keys = assign_keys(NIH.findings, {})
    assert list(keys) == list(NIH.findings)
    assert len(set(keys.values())) == 14
    assert not set(keys.values()) & TOOL_CHARACTERS


def test_a_finding_gets_its_first_letter_where_it_is_free():
    """M is Mass, P is Pneumonia; N belongs to the note, so Nodule has another letter of its name."""
    keys = assign_keys(NIH.findings, {})
    assert (keys["Mass"], keys["Pneumonia"], keys["Nodule"], keys["Hernia"]) == ("m", "p", "o", "h")


def test_a_wanted_key_is_taken_from_nobody():
    """Who asks for P for Pneumothorax gets it; Pneumonia gets another."""
    keys = assign_keys(NIH.findings, {"Pneumothorax": "P"})
    assert keys["Pneumothorax"] == "p"
    assert len(set(keys.values())) == 14


def test_more_findings_than_keys_are_refused():
    """Nobody is given a key twice."""
    with pytest.raises(UsageError, match="more than there are keys"):
        assign_keys([f"Finding {number}" for number in range(len(FREE_KEYS) + 1)], {})
