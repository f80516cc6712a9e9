"""The prompt pack: what is asked, word for word, and what is wrong with a pack, in words."""

import hashlib
import re
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.errors import UnknownName, UsageError
from bpals.findings import NIH, Vocabulary
from bpals.judges.prompts import joint_label, load_pack, parse_pack

SHIPPED = resources.files("bpals.judges").joinpath("prompts", "chest-1.toml").read_text(encoding="utf-8")
NEGATIONS = re.compile(r"\b(no|not|without|never)\b|n't", re.IGNORECASE)


@pytest.fixture(scope="module")
def pack():
    """The pack that is shipped."""
    return load_pack("chest")


def test_every_finding_is_asked_in_both_polarities(pack):
    """All 14 findings of NIH are asked whatever the dataset says: 28 questions, then those about the film."""
    asked = pack.questions(NIH)
    findings = [question for question in asked if question.about == "finding"]
    assert [(q.subject, q.polarity) for q in findings] == [
        (name, side) for name in NIH.findings for side in ("present", "absent")
    ]
    film = [(q.subject, q.polarity) for q in asked if q.about == "film"]
    assert film == [(topic, side) for topic in ("devices", "quality") for side in ("present", "absent")]
    assert pack.questions(NIH, topics=False) == tuple(findings)


def test_no_question_that_is_asked_has_a_negation(pack):
    """Models answer negated questions badly, so absence is asked as `free of`."""
    for question in pack.questions(NIH):
        assert not NEGATIONS.search(question.text.splitlines()[0])


def test_each_finding_has_a_definition_in_brackets(pack):
    """A mass and a nodule differ by 3 cm, and the question says so."""
    texts = {(q.subject, q.polarity): q.text for q in pack.questions(NIH, topics=False)}
    assert all("(" in text for text in texts.values())
    assert texts["Mass", "present"] == (
        "Does this radiograph show a lung mass (a rounded opacity larger than 3 cm)?\nAnswer with one word: Yes or No."
    )
    assert texts["Effusion", "absent"].startswith("Is this radiograph free of pleural effusion (fluid")


def test_the_devices_are_named_one_by_one(pack):
    """Tubes, lines, drains, pacemakers and wires are what the topic means."""
    text = next(question.text for question in pack.questions(NIH) if question.subject == "devices")
    assert all(word in text for word in ("tubes", "lines", "drains", "pacemakers", "sternotomy wires"))


def test_probes_are_asked_only_when_asked_for(pack):
    """Paraphrase, lexical negation and swapped order are defined, and left out by default."""
    asked = {(q.polarity, q.wording) for q in pack.questions(NIH)}
    probed = {(q.polarity, q.wording) for q in pack.questions(NIH, probes=True)}
    assert probed - asked == {("present", "b"), ("absent", "n"), ("present", "swap")}
    swapped = next(q for q in pack.questions(NIH, probes=True) if q.wording == "swap")
    assert swapped.text.endswith("No or Yes.")


def test_another_vocabulary_is_asked_by_the_same_pack(pack):
    """A finding is known by any of its spellings; one that has no phrase is asked in its own words, and counted."""
    other = Vocabulary(
        name="other", findings=("PLEURAL_EFFUSION", "Lung Opacity", "Wet lung"), aliases={"Edema": "Wet lung"}
    )
    texts = [question.text for question in pack.questions(other, topics=False)]
    assert len(texts) == 6
    assert "pleural effusion (fluid in the pleural space)" in texts[0]
    assert texts[2].startswith("Does this radiograph show lung opacity?")
    assert "pulmonary edema" in texts[4]
    (notice,) = pack.unphrased(other)
    assert (notice.code, notice.count) == ("unphrased", 1)
    assert "'Lung Opacity'" in notice.message
    assert pack.unphrased(NIH) == ()


def test_the_pack_is_known_by_its_name_version_and_bytes(pack):
    """The label on a judge card changes with every byte of the file."""
    assert pack.label == f"chest@1 sha256:{hashlib.sha256(SHIPPED.encode()).hexdigest()}"
    assert parse_pack(SHIPPED.replace("Frontal", "frontal").encode(), origin="mine.toml").sha256 != pack.sha256
    assert load_pack("chest@1") == pack


def test_the_prompt_is_the_constant_line_and_the_question(pack):
    """All but the question is the same for every question, so a server reads it once."""
    question = pack.questions(NIH)[0]
    assert pack.prompt(question) == f"Frontal chest radiograph.\n{question.text}"


def test_the_joint_prompt_names_every_question_once(pack):
    """Its labels are the keys of the one JSON object that is asked for."""
    questions = pack.questions(NIH, probes=True, reply=False)
    prompt = pack.joint_prompt(questions)
    labels = [joint_label(question) for question in questions]
    assert len(set(labels)) == len(labels)
    assert all(prompt.count(f"\n{label}: ") == 1 for label in labels)
    assert "one word" not in prompt


def test_a_pack_of_your_own_is_read_from_its_file(tmp_path, pack):
    """A copy under another name and version is another pack."""
    file = tmp_path / "mine.toml"
    file.write_text(SHIPPED.replace('name = "chest"', 'name = "mine"').replace("version = 1", "version = 7"))
    assert load_pack(file).label.startswith("mine@7 sha256:")
    assert load_pack(str(file)).questions(NIH) == pack.questions(NIH)


MISTAKES = {
    "no TOML": ("[answers]", "[answers", "mine.toml is not TOML: "),
    "unknown key": ("line =", "lines =", "mine.toml: no key is called 'lines'. Did you mean 'line'?"),
    "no version": ("version = 1", "", "version is None; a whole number"),
    "version of words": ("version = 1", 'version = "1"', "version is '1'; a whole number"),
    "blank line": ('"Frontal chest radiograph."', '" "', "line is ' '; a text is wanted"),
    "no yes": ('yes = ["yes"]', "", "[answers] yes is missing"),
    "yes is no": ('no = ["no"]', 'no = ["No", "Yes"]', "share the word 'yes'"),
    "polarity": ('polarity = "absent"', 'polarity = "abscent"', "Did you mean 'absent'?"),
    "no phrase in a template": ("show {phrase}?", "show it?", "[templates 1] text is 'Does this radiograph show it?'"),
    "negated template": ("free of {phrase}", "without {phrase}", "the negation 'without'"),
    "negated definition": ("scarring of the lung", "not healthy", "[findings.Fibrosis] definition has the"),
    "a second question": ("probe = true\n", "", "that are no probe; one is wanted"),
    "probe of words": ("probe = true", 'probe = "yes"', "probe is 'yes'; true or false"),
    "one wording twice": ('wording = "swap"', 'wording = "b"', "has present/b twice"),
    "no phrase": ('phrase = "hiatal hernia"', "", "[findings.Hernia] phrase is missing"),
    "alias of another": ('aliases = ["Pleural effusion"]', 'aliases = ["Atelectasis"]', "another finding has too"),
    "aliases": ('aliases = ["Pleural effusion"]', "aliases = 3", "aliases is 3; a list of texts"),
    "half a topic": ('absent = "Is this radiograph of poor', 'definition = "x', "present or absent is missing"),
    "both": ("[topics.quality]", '[topics.quality]\nphrase = "x"', "stands beside questions of its own"),
    "no table": ("[findings.Mass]", "[findings]\nMass = 3\n[findings.Mess]", "findings.Mass is not a table"),
    "templates": ("[[templates]]", "[templates]", "is not TOML"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_with_its_place(old, new, said):
    """Every mistake is one line that says what is wrong and where."""
    assert old in SHIPPED
    with pytest.raises(UsageError) as caught:
        parse_pack(SHIPPED.replace(old, new, 1).encode(), origin="mine.toml")
    assert str(caught.value).startswith("mine.toml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    """A wrong name is answered with the names there are."""
    with pytest.raises(UnknownName, match=r"pack .*'chess'.*'chest'"):
        load_pack("chess")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_pack(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="Is a directory"):
        load_pack(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_pack(tmp_path / "bytes.toml")


@settings(max_examples=100, deadline=2000)
@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | st.integers(0, len(SHIPPED) - 200).map(lambda cut: SHIPPED[:cut].encode() + b"\n[")
)
def test_nothing_but_our_own_errors_comes_out_of_the_parser(content):
    """F24: bytes that are no pack end in a UsageError of one line."""
    with pytest.raises(UsageError) as caught:
        parse_pack(content, origin="mine.toml")
    assert "\n" not in str(caught.value)
