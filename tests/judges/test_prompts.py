"""The prompt pack: every question word for word, what is wrong with a pack, and how replies are read."""

import hashlib
import json
import math
import re
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.errors import UnknownName, UsageError
from bpals.findings import NIH, Vocabulary
from bpals.judges.prompts import (
    LONGEST_TEXT,
    LOWEST_LOGPROB,
    AnswerWords,
    is_refusal,
    joint_label,
    load_pack,
    parse_pack,
    read_joint,
    read_logprobs,
    read_samples,
)
from world.words import mentions

SHIPPED = resources.files("bpals.judges").joinpath("prompt_packs", "chest-1.toml").read_text(encoding="utf-8")
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


WORDS = AnswerWords()
UNSURE = AnswerWords(abstain=("unsure",))
LABELS = ["Effusion/present", "Effusion/absent"]
WHOLE = '{"Effusion/present": 0.8, "Effusion/absent": 0.25}'


def logit(p):
    """The log-odds of a probability."""
    return math.log(p / (1 - p))


def listed(**shares):
    """Tokens with the log-probs of their shares; `_` in a name is a blank."""
    return [(token.replace("_", " "), math.log(share)) for token, share in shares.items()]


def test_the_spellings_of_an_answer_are_added_up():
    """Yes, yes, YES and their forms with a blank are one answer; so are those of no."""
    reading = read_logprobs(listed(Yes=0.4, _yes=0.1, YES=0.1, No=0.2, _NO=0.1), WORDS)
    assert reading.outcome == "answered"
    assert reading.logit == pytest.approx(math.log(0.6 / 0.3))
    assert reading.mass == pytest.approx(0.9)


@pytest.mark.parametrize("token", ["\u2581Yes", "\u0120Yes", " yes", "YES", "\u010aYes", "\nYes"])
def test_a_blank_is_known_however_a_tokenizer_writes_it(token):
    """SentencePiece writes a leading blank as a low line, byte-level BPE as a dotted G."""
    assert read_logprobs([(token, math.log(0.9)), ("No", math.log(0.1))], WORDS).logit == pytest.approx(math.log(9))


def test_words_that_only_begin_like_an_answer_do_not_count():
    """`Not`, `None`, `Yesterday` and `Y` are no answers."""
    reading = read_logprobs(listed(Yes=0.5, Not=0.2, None_=0.1, Yesterday=0.05, Y=0.05, No=0.01), WORDS)
    assert reading.mass == pytest.approx(0.51)


def test_a_side_that_is_not_listed_gets_the_most_that_it_can_have():
    """The smallest listed probability, or what is left of 1: whichever is less, so that no logit is overstated."""
    by_list = read_logprobs(listed(Yes=0.5, Maybe=0.2, The=0.1), WORDS)
    assert by_list.logit == pytest.approx(math.log(0.5 / 0.1))
    by_rest = read_logprobs(listed(Yes=0.9, Maybe=0.08), WORDS)
    assert by_rest.logit == pytest.approx(math.log(0.9 / 0.02))
    assert read_logprobs(listed(No=0.5, The=0.1), WORDS).logit == pytest.approx(math.log(0.1 / 0.5))


def test_among_tokens_that_were_named_a_missing_side_is_no_answer():
    """The list is then not the likeliest tokens, so nothing bounds what is not in it."""
    assert read_logprobs(listed(Yes=0.9), WORDS, exact=True).outcome == "unparsed"
    assert read_logprobs(listed(Yes=0.9, No=0.1), WORDS, exact=True).outcome == "answered"


def test_a_likeliest_token_that_is_no_answer_word_is_unparsed_whatever_else_is_listed():
    """Half the probability on yes and no is not an answer if the model wanted to say `This`."""
    reading = read_logprobs(listed(This=0.4, Yes=0.35, No=0.15), WORDS, text="This")
    assert (reading.outcome, reading.logit) == ("unparsed", None)
    assert "'This'" in reading.why
    assert reading.mass == pytest.approx(0.5)


def test_low_mass_is_still_an_answer_while_an_answer_word_leads():
    """The mass is written down; it does not change the outcome."""
    reading = read_logprobs(listed(Yes=0.2, The=0.19, It=0.18, No=0.1), WORDS)
    assert reading.outcome == "answered"
    assert reading.mass == pytest.approx(0.3)


def test_abstaining_needs_a_prompt_that_allows_it():
    """The same word is an abstention in a pack that offers it and off format in one that does not."""
    top = listed(Unsure=0.8, Yes=0.1)
    assert read_logprobs(top, UNSURE).outcome == "abstained"
    assert read_logprobs(top, WORDS).outcome == "unparsed"


def test_minus_9999_does_not_make_an_answer_sure_beyond_measure():
    """Servers write -9999 for a token that cannot come; it counts as exp(-30)."""
    reading = read_logprobs([("Yes", 0.0), ("No", -9999.0)], WORDS)
    assert reading.logit == pytest.approx(-LOWEST_LOGPROB)


def test_raw_logits_are_not_taken_for_logprobs():
    """A server that sends scores above 0 sends no logarithms of probabilities."""
    assert read_logprobs([("Yes", 15.25), ("No", 11.0)], WORDS).outcome == "unparsed"
    assert read_logprobs([("Yes", 1e-7), ("No", -16.0)], WORDS).outcome == "answered"


def test_missing_logprobs_are_unparsed():
    """H12: without log-probs there is no number, and the reason says so."""
    assert read_logprobs([], WORDS).outcome == "unparsed"
    assert mentions(read_logprobs([], WORDS).why, "log-probs", "missing")


def test_samples_are_counted_with_half_a_vote_for_each_side():
    """(yes + 1/2) / (n + 1): eight of eight is not certainty."""
    assert read_samples(["Yes"] * 8, WORDS).logit == pytest.approx(logit(8.5 / 9))
    assert read_samples(["Yes.", "**No**", " no\n", "YES", '"yes"'], WORDS).logit == pytest.approx(logit(3.5 / 6))


def test_a_sentence_is_no_sample():
    """`No effusion` means yes to `is it free of`, so only a bare answer word is counted."""
    reading = read_samples(["No effusion is seen", "Yes", "Yes"], WORDS)
    assert reading.logit == pytest.approx(logit(2.5 / 3))
    assert reading.mass == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("texts", "outcome"),
    [
        (["Yes", "The film"], "unparsed"),
        ([None, None, "Yes"], "unparsed"),
        (["I'm sorry, I can't help with that."] * 3 + ["No"], "refused"),
        (["unsure", "Unsure.", "yes"], "abstained"),
        ([], "unparsed"),
    ],
)
def test_too_few_usable_samples_are_no_answer(texts, outcome):
    """H12: more than half must be an answer word; a cut reply is none."""
    reading = read_samples(texts, UNSURE)
    assert (reading.outcome, reading.logit) == (outcome, None)
    assert reading.why


def test_one_json_object_is_read_label_by_label():
    """The rule of the joint layout: one object, a number from 0 to 1 a label."""
    readings = read_joint(WHOLE, LABELS)
    assert [reading.outcome for reading in readings] == ["answered"] * 2
    assert [reading.logit for reading in readings] == [pytest.approx(logit(0.8)), pytest.approx(logit(0.25))]


CASES = {
    "empty": ("", "unparsed"),
    "blank": (" \n", "unparsed"),
    "prose": ("There is an effusion on the left.", "unparsed"),
    "prose around": (f"Here you are: {WHOLE}", "unparsed"),
    "two JSONs": (f"{WHOLE}\n{WHOLE}", "unparsed"),
    "JSON in a fence": (f"```json\n{WHOLE}\n```", "answered"),
    "a bare fence": (f"```\n{WHOLE}\n```\n", "answered"),
    "two fences": (f"```json\n{WHOLE}\n```\n```json\n{WHOLE}\n```", "unparsed"),
    "NaN": (WHOLE.replace("0.8", "NaN"), "unparsed"),
    "Infinity": (WHOLE.replace("0.8", "-Infinity"), "unparsed"),
    "1.2": (WHOLE.replace("0.8", "1.2"), "unparsed"),
    "-0.1": (WHOLE.replace("0.8", "-0.1"), "unparsed"),
    "1e999": (WHOLE.replace("0.8", "1e999"), "unparsed"),
    "percent": (WHOLE.replace("0.8", '"80%"'), "unparsed"),
    "a number in quotes": (WHOLE.replace("0.8", '"0.8"'), "unparsed"),
    "true": (WHOLE.replace("0.8", "true"), "unparsed"),
    "null": (WHOLE.replace("0.8", "null"), "abstained"),
    "missing label": ('{"Effusion/absent": 0.25}', "unparsed"),
    "doubled label": (WHOLE.replace("absent", "present"), "unparsed"),
    "extra label": (WHOLE.replace("{", '{"Mass/present": 0.5, '), "answered"),
    "a list": (f"[{WHOLE}]", "unparsed"),
    "wrong language": ("Es besteht ein Pleuraerguss links.", "unparsed"),
    "wrong language, labels too": ('{"Erguss/vorhanden": 0.8}', "unparsed"),
    "1 MB": (WHOLE[:-1] + ', "x": "' + "a" * 1_000_000 + '"}', "unparsed"),
    "deep": ("[" * 60_000, "unparsed"),
    "a number of 5,000 digits": (WHOLE.replace("0.8", "9" * 5000), "unparsed"),
    "null bytes": ("\0" * 10, "unparsed"),
    "null byte inside": (WHOLE.replace("0.8", "0.8\0"), "unparsed"),
    "half a surrogate": ("\ud800", "unparsed"),
    "refusal": ("I'm sorry, but I can't provide a diagnosis.", "refused"),
    "refusal, curly": ("I\u2019m sorry, I can\u2019t assist with medical images.", "refused"),
    "cut": (WHOLE[:20], "unparsed"),
}


@pytest.mark.parametrize(("text", "outcome"), CASES.values(), ids=CASES)
def test_every_odd_reply_is_read_by_the_rule_or_not_at_all(text, outcome):
    """F23: parsed by the published rule or unparsed; never a default value."""
    first = read_joint(text, LABELS)[0]
    assert first.outcome == outcome
    assert (first.logit is not None) == (outcome == "answered")
    assert bool(first.why) == (outcome != "answered")


@pytest.mark.parametrize("spoilt", ["null", "1.2", '"80%"'])
def test_one_bad_label_does_not_spoil_the_others(spoilt):
    """F23: each label stands for itself once the object is read."""
    readings = read_joint(WHOLE.replace("0.8", spoilt), LABELS)
    assert readings[1].logit == pytest.approx(logit(0.25))


def test_certainty_is_read_as_999_in_1000():
    """A stated 0 or 1 has no logit of its own."""
    certain = read_joint('{"Effusion/present": 1, "Effusion/absent": 0}', LABELS)
    assert [reading.logit for reading in certain] == [pytest.approx(logit(0.999)), pytest.approx(logit(0.001))]


@pytest.mark.parametrize(
    "text", ["No", "yes", "I see an effusion", "Is it", "Sorrel", "The patient is unable to stand"]
)
def test_an_answer_is_not_taken_for_a_refusal(text):
    """Only texts that open as refusals do are refusals."""
    assert not is_refusal(text)


texts = st.one_of(
    st.text(),
    st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LABELS, "x"]), inner, max_size=3),
    ).map(json.dumps),
)


@settings(max_examples=300, deadline=1000)
@given(text=texts, fenced=st.booleans())
def test_no_text_breaks_the_joint_rule(text, fenced):
    """F24: whatever a model writes, each label gets one of the outcomes, with a finite logit exactly if answered."""
    for reading in read_joint(f"```json\n{text}\n```" if fenced else text, LABELS):
        assert reading.outcome in {"answered", "abstained", "refused", "unparsed"}
        assert (reading.logit is not None and math.isfinite(reading.logit)) == (reading.outcome == "answered")


@settings(max_examples=300, deadline=1000)
@given(samples=st.lists(st.none() | st.sampled_from(["Yes", "no.", "unsure"]) | texts, max_size=9))
def test_no_samples_break_the_count(samples):
    """F24: the same for samples."""
    reading = read_samples(samples, UNSURE)
    assert (reading.logit is not None and math.isfinite(reading.logit)) == (reading.outcome == "answered")


@settings(max_examples=300, deadline=1000)
@given(
    top=st.lists(
        st.tuples(st.sampled_from(["Yes", " no", "\u2581No", "The"]) | st.text(), st.floats(allow_nan=False)),
        max_size=20,
    ),
    exact=st.booleans(),
)
def test_no_logprobs_break_the_sum(top, exact):
    """F24: the same for log-probs, whatever their values."""
    reading = read_logprobs(top, UNSURE, exact=exact)
    assert (reading.logit is not None and math.isfinite(reading.logit)) == (reading.outcome == "answered")
    assert reading.mass is None or 0 <= reading.mass <= 1


@pytest.mark.parametrize("piece", ["```json\n", "I'm sorry ", '{"a":', "\\", "\n```", " ", "I can not " * 3])
def test_a_long_text_is_read_in_no_time(piece):
    """F24: no rule is slow on a long text of one kind."""
    text = (piece * (LONGEST_TEXT // len(piece)))[:LONGEST_TEXT]
    assert read_joint(text, LABELS)[0].outcome in {"unparsed", "refused"}
    assert read_samples([text], WORDS).outcome in {"unparsed", "refused"}
