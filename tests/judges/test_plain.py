"""A judge in six lines: what a plain function gives becomes a reply, and nothing is ever guessed."""

# ruff: noqa: ARG001  a judge's function takes both, whether or not it looks at them

import math

import numpy as np
import pytest
from PIL import Image

from bpals.errors import UnknownName, UsageError
from bpals.findings import NIH, Vocabulary
from bpals.judges.function import EDGE, NoAnswer, UnreadableFilm, judge, logit
from bpals.judges.runner.messages import to_judgments
from bpals.testing import check_image_judge, tiny_film
from bpals.types import Film, ImageJudge, Question
from world.words import mentions


def ask_one(function, finding="Effusion", **card):
    """The one reply of a function to one question about a film."""
    return judge("mine", **card)(function).ask(tiny_film(), [Question(subject=finding)])[0]


def test_a_function_of_film_and_finding_is_a_judge():
    """It is shown a grey picture and the finding's name, and its probability comes back as log odds."""
    seen = []

    @judge("mine")
    def mine(image, finding):
        seen.append((image, finding))
        return 0.75

    assert isinstance(mine, ImageJudge)
    replies = mine.ask(tiny_film(side_px=48), mine.questions(NIH))
    assert [reply.outcome for reply in replies] == ["answered"] * 14
    assert [finding for _, finding in seen] == list(NIH.findings)
    assert all(isinstance(image, Image.Image) and image.mode == "L" and image.size == (48, 48) for image, _ in seen)
    judged = to_judgments(mine.questions(NIH), replies)
    assert judged[0].p_present == pytest.approx(0.75)
    assert judged[0].logit_present == pytest.approx(math.log(3))
    assert judged[0].logit_absent is None


def test_the_function_is_still_a_function():
    """It can be called as before, in a notebook or a test."""

    @judge("mine")
    def mine(image, finding):
        return (image, finding)

    assert mine("a", finding="b") == ("a", "b")


def test_a_function_of_the_film_alone_answers_for_all_at_once():
    """Called once a film; spelling as people write it; None is an abstention; what it leaves out is unsupported."""
    calls = []

    @judge("classifier")
    def classifier(image):
        calls.append(image)
        return {"pleural thickening": 0.9, "EFFUSION": 0.2, "Mass": None, "No Finding": 0.1}

    questions = [Question(subject=finding) for finding in ("Pleural_Thickening", "Effusion", "Mass", "Hernia")]
    replies = classifier.ask(tiny_film(), questions)
    assert [reply.outcome for reply in replies] == ["answered", "answered", "abstained", "unsupported"]
    assert [reply.logit for reply in replies[:2]] == [pytest.approx(logit(0.9)), pytest.approx(logit(0.2))]
    assert mentions(replies[3].why, "Hernia", "'pleural thickening'")
    assert len(calls) == 1


def test_the_output_of_a_zero_shot_pipeline_is_understood():
    """A list of label and score, as Hugging Face gives it."""
    reply = ask_one(lambda _image: [{"score": 0.6, "label": "Effusion"}, {"score": 0.4, "label": "Mass"}])
    assert reply.logit == pytest.approx(logit(0.6))
    assert ask_one(lambda _image: [0.6, 0.4]).outcome == "unparsed"


@pytest.mark.parametrize(
    "said", [1.5, -0.1, math.nan, math.inf, "0.7", True, np.True_, b"1", [0.5], {1, 2}, object(), 1j, np.array([0.5])]
)
def test_what_is_no_probability_is_unparsed(said):
    """Never a default: the reply says what came instead."""
    reply = ask_one(lambda _image, _finding: said)
    assert (reply.outcome, reply.logit) == ("unparsed", None)
    assert reply.why
    assert len(reply.why) < 120


@pytest.mark.parametrize("said", [0, 1, 0.0, 1.0, np.float32(0.5), np.float64(0.5), np.int64(1)])
def test_numbers_of_every_make_are_understood(said):
    """Also 0 and 1, whose log odds are kept finite."""
    reply = ask_one(lambda _image, _finding: said)
    assert reply.outcome == "answered"
    assert math.isfinite(reply.logit)
    assert 1 / (1 + math.exp(-reply.logit)) == pytest.approx(float(said), abs=2 * EDGE)


def test_a_finding_named_twice_is_unparsed():
    """Two scores for one finding are none."""
    reply = ask_one(lambda _image: {"effusion": 0.2, "Effusion": 0.9})
    assert (reply.outcome, reply.why) == ("unparsed", "it names Effusion 2 times")


@pytest.mark.parametrize("outcome", ["abstained", "refused", "unparsed", "unsupported"])
def test_a_function_can_say_why_it_has_no_number(outcome):
    """By raising NoAnswer, for one finding or for the whole film."""

    def of_a_pair(image, finding):
        raise NoAnswer(outcome, "the filter said no")

    def of_a_film(image):
        raise NoAnswer(outcome, "the filter said no")

    for function in (of_a_pair, of_a_film):
        reply = ask_one(function)
        assert (reply.outcome, reply.logit, reply.why) == (outcome, None, "the filter said no")


def test_an_error_of_the_function_is_let_through():
    """The runner writes the row; a judge swallows nothing."""

    def broken(image, finding):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask_one(broken)


def test_without_a_film_nothing_is_asked():
    """The no-image control is unsupported, and the function is not called."""

    @judge("mine")
    def mine(image, finding):
        raise AssertionError

    assert {reply.outcome for reply in mine.ask(None, mine.questions(NIH))} == {"unsupported"}


def test_only_what_it_knows_is_asked():
    """With findings= the function never hears of another; nor of the film's devices, nor of an absence."""
    asked = []

    @judge("mine", findings=["effusion"])
    def mine(image, finding):
        asked.append(finding)
        return 0.5

    questions = [
        Question(subject="Effusion"),
        Question(subject="Mass"),
        Question(subject="devices", about="film"),
        Question(subject="Effusion", polarity="absent"),
    ]
    replies = mine.ask(tiny_film(), questions)
    assert [reply.outcome for reply in replies] == ["answered", "unsupported", "unsupported", "unsupported"]
    assert asked == ["Effusion"]


def test_a_function_that_draws_on_its_image_changes_no_other_answer():
    """Each call has a copy of the film."""

    @judge("mine", findings=NIH.findings)
    def mine(image, finding):
        before = image.getpixel((0, 0))
        image.paste(255, (0, 0, *image.size))
        return before / 255

    assert len({reply.logit for reply in mine.ask(tiny_film(), mine.questions(NIH))}) == 1
    check_image_judge(mine)


def test_a_film_that_cannot_be_opened_fails_alone():
    """With the first letters of its hash; it is no error that stops a run."""
    broken = Film(sha256="ab" * 32, png=tiny_film().png[:60], width_px=64, height_px=64)
    with pytest.raises(UnreadableFilm, match="abababababab"):
        judge("mine")(lambda _image, _finding: 0.5).ask(broken, [Question(subject="Mass")])


@pytest.mark.parametrize(
    "function",
    [
        lambda: 0.5,
        lambda _a, _b, _c: 0.5,
        lambda _a, *, finding: finding,
    ],
)
def test_a_function_of_another_shape_is_refused_at_once(function):
    """When it is decorated, not after an hour of asking."""
    with pytest.raises(UsageError, match=r"'mine': def .*\(image, finding\)"):
        judge("mine")(function)


def test_what_is_no_plain_function_is_refused():
    """A coroutine or an object is not called by accident."""

    async def later(image, finding):
        return 0.5

    for other in (later, len, "text"):
        with pytest.raises(UsageError, match="is no plain function"):
            judge("mine")(other)


def test_extra_parameters_with_a_default_are_allowed():
    """And their values are part of who the judge is."""

    def make(scale):
        @judge("mine")
        def mine(image, finding, scale=scale, *, power=1):
            return 0.5 * scale**power

        return mine

    assert make(1).card.fingerprint != make(2).card.fingerprint
    assert make(1).ask(tiny_film(), [Question(subject="Mass")])[0].outcome == "answered"


def test_the_card_says_what_the_decorator_was_told():
    """Model, revision and evidence; the licence says whether commercial use is allowed."""
    card = judge(
        "mine", model="org/m", revision="abc", licence="CC-BY-NC-4.0", trained_on_target="yes", evidence="its paper"
    )(lambda _image: {}).card
    assert (card.kind, card.judge, card.model, card.revision) == ("image", "mine", "org/m", "abc")
    assert (card.trained_on_target, card.evidence, card.commercial_use) == ("yes", "its paper", "no")
    assert card.polarities == ("present",)


def test_an_impossible_word_on_the_card_is_refused():
    """trained_on_target is yes, no or unknown."""
    with pytest.raises(UnknownName, match=r"trained_on_target .*'maybe'"):
        judge("mine", trained_on_target="maybe")


def test_whose_weights_it_uses_is_who_it_is():
    """Another model or revision is another judge; another name, licence or evidence is not."""

    def function(image, finding):
        return 0.5

    same = judge("mine")(function).card.fingerprint
    assert judge("other", licence="MIT", evidence="x")(function).card.fingerprint == same
    assert judge("mine", model="m")(function).card.fingerprint != same
    assert judge("mine", revision="r")(function).card.fingerprint != same
    assert judge("mine", findings=["Mass"])(function).card.fingerprint != same


def test_another_vocabulary_is_asked_by_its_own_names():
    """The names come from the dataset, not from NIH."""
    mine = judge("mine")(lambda _image, _finding: 0.5)
    questions = mine.questions(Vocabulary(name="v", findings=("Fracture",)))
    assert [(q.subject, q.polarity, q.text) for q in questions] == [("Fracture", "present", "")]


@pytest.mark.parametrize(
    ("p", "expected"), [(0.5, 0.0), (0.0, math.log(EDGE)), (1.0, -math.log(EDGE)), (0.9, math.log(9))]
)
def test_log_odds_are_finite_everywhere(p, expected):
    """0 and 1 are taken EDGE inside."""
    assert logit(p) == pytest.approx(expected, rel=1e-4)


def test_a_decorator_without_a_name_says_what_to_write():
    """`@judge` without parentheses is handed the function itself."""
    with pytest.raises(UsageError, match=r"@bpals\.judge\('mean-brightness'\)"):

        @judge
        def mean_brightness(image, finding):
            return 0.5


@pytest.mark.parametrize(("name", "better"), [("Big Name", "big-name"), ("record", "my-record")])
def test_a_name_that_cannot_be_one_is_refused_as_on_the_command_line(name, better):
    """One rule for @bpals.judge and for --name."""
    with pytest.raises(UsageError, match=f"{name!r}.*{better!r}"):
        judge(name)
