"""A judge in six lines: how it is loaded, what its function's result becomes, and which code it is made of."""

# ruff: noqa: ARG001  a judge's function takes both, whether or not it looks at them

import importlib.util
import math
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

import shape
from bpals.errors import UnknownName, UsageError
from bpals.findings import NIH, Vocabulary
from bpals.judges.function import EDGE, NoAnswer, UnreadableFilm, closed_over, code_sha256, judge, load, logit
from bpals.judges.runner.messages import to_judgments
from bpals.registry import find, parse_spec
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


ONE = """
from dataclasses import dataclass
from bpals.judges.function import judge

@dataclass
class Scale:
    by: float = 0.5

@judge("one")
def one(image, finding):
    return Scale().by

number = 3
"""


def test_a_judge_is_loaded_by_file_and_name(tmp_path):
    """Or by the file alone, where it has one judge; twice loaded it is the same judge."""
    file = tmp_path / "mine.py"
    file.write_text(ONE)
    assert load(f"{file}:one").card.judge == "one"
    assert load(str(file)).card.fingerprint == load(f"{file}:one").card.fingerprint


def test_a_judge_is_loaded_by_module_and_name(tmp_path, monkeypatch):
    """A package of yours that is installed."""
    (tmp_path / "my_own_module.py").write_text(ONE)
    monkeypatch.syspath_prepend(tmp_path)
    assert load("my_own_module:one").card.judge == "one"
    del sys.modules["my_own_module"]


def test_the_example_keeps_the_contract():
    """examples/mean_brightness.py, as the command would load it; it says more of a bright film than of a dark one."""
    spec = parse_spec(f"python:{shape.ROOT / 'examples' / 'mean_brightness.py'}:brightness")
    judge = find(spec.kind)(spec.target, spec.revision)
    assert check_image_judge(judge) == ()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (":two", "no judge is called 'two'. Known: one"),
        (":number", "number is no judge. Write @bpals.judge"),
        (":Scale", "Scale is no judge"),
    ],
)
def test_a_wrong_name_is_one_line(tmp_path, name, error):
    """With what the file does have."""
    file = tmp_path / "mine.py"
    file.write_text(ONE)
    with pytest.raises(UsageError, match=error):
        load(f"{file}{name}")


def test_a_file_with_two_judges_asks_which(tmp_path):
    """None is chosen in silence."""
    file = tmp_path / "mine.py"
    file.write_text(ONE + "\n@judge('two')\ndef two(image, finding):\n    return 0.1\n")
    with pytest.raises(UnknownName, match="Known: one, two"):
        load(str(file))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x = 1\n", "has no judge. Write @bpals.judge"),
        ("def f(:\n", "cannot be loaded: .*Mend the file"),
        ("import no_such_package_at_all\n", "No module named 'no_such_package_at_all'"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path, text, error):
    """No judge, no Python, or a package that is not there; and nothing half-loaded stays."""
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=error):
        load(f"{file}:one")


@pytest.mark.parametrize("target", ["gone.py:f", "no_such_module_at_all:f", "..:f", ":f"])
def test_what_is_not_there_is_one_line(target):
    """A file, a module, a word that cannot be either."""
    with pytest.raises(UsageError, match=r"python:"):
        load(target)


def test_a_revision_belongs_into_the_decorator():
    """A function has none of its own."""
    with pytest.raises(UsageError, match=r"revision=\.\.\. .*@bpals.judge"):
        load("mine.py:f", "abc")


def test_a_mistake_in_the_file_is_the_authors_and_told_in_one_line(tmp_path):
    """A judge without its name, or a name that is not there, is no bug of bpals."""
    for text in ("import bpals\n\n@bpals.judge()\ndef f(image, finding):\n    return 0.5\n", "nobody_knows_it\n"):
        file = tmp_path / "mine.py"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=r"cannot be loaded: "):
            load(str(file))


FILE = """
import math
from statistics import mean as middle

SCALE = 2
OTHER = 3


class Ruler:
    def measure(self, x):
        return x


def halve(x):
    return x / SCALE


def unused(x):
    return x * OTHER


def mine(image, finding):
    # a comment of its own
    return halve(Ruler().measure(middle([0.5]))) + math.pi


def second(image, finding):
    return 0.5
"""


@pytest.fixture
def written(tmp_path):
    """Write a file and give what one of its functions is called."""
    count = iter(range(1000))

    def written(text, name="mine"):
        path = tmp_path / f"judge{next(count)}.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)

    return written


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ math.pi", "- math.pi"),
        ("return x / SCALE", "return x * SCALE"),
        ("SCALE = 2", "SCALE = 3"),
        ("        return x\n", "        return -x\n"),
        ("from statistics import mean as middle", "from statistics import median as middle"),
        ("import math\n", "import cmath as math\n"),
    ],
)
def test_a_change_that_it_reaches_is_another_judge(written, old, new):
    """Its own lines, a helper, a constant of the helper, a class, an import."""
    assert old in FILE
    assert code_sha256(written(FILE)) != code_sha256(written(FILE.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [("OTHER = 3", "OTHER = 4"), ("\n\ndef unused", "\n# a note\n\n\ndef unused"), ("return x * OTHER", "return 0")],
)
def test_a_change_that_it_does_not_reach_is_none(written, old, new):
    """A file can be worked on without asking everything again."""
    assert old in FILE
    assert code_sha256(written(FILE)) == code_sha256(written(FILE.replace(old, new)))


def test_two_functions_of_one_file_are_two(written):
    """Also if they have the same body."""
    twin = FILE + "\n\ndef third(image, finding):\n    return 0.5\n"
    assert code_sha256(written(twin, "second")) != code_sha256(written(twin, "third"))


def test_the_decorator_is_no_part_of_the_code(written):
    """What it says stands on the card; a corrected licence does not ask everything again."""
    text = """
    from bpals.judges.function import judge
    @judge("mine", licence="{}")
    def mine(image, finding):
        return 0.5
    """
    first, second = (written(text.format(licence)) for licence in ("MIT", "Apache-2.0"))
    assert first.card.fingerprint == second.card.fingerprint


def test_what_a_function_closes_over_is_written_down(written):
    """Plain values in full, functions by their code, others by their type; defaults too."""
    text = """
    class Model:
        pass

    def make(scale, names, model, function, late):
        def mine(image, finding, power=2, *, mode="x"):
            return scale, names, model, function, later
        if late:
            later = 1
        return mine
    def one(x):
        return 1
    def two(x):
        return 2
    import sys
    mine = make(1.5, ["a", ("b", None)], Model(), one, False)
    """
    held = closed_over(written(text))
    assert held["scale"] == "1.5"
    assert held["names"] == "list('a', tuple('b', None))"
    assert held["model"] == "Model"
    assert held["later"] == "None"
    assert (held["power"], held["mode"]) == ("2", "'x'")
    assert held["function"].startswith("sha256:")
    assert held["function"] != closed_over(written(text.replace("Model(), one", "Model(), two")))["function"]


def test_a_function_without_a_text_is_known_by_its_compiled_form():
    """As in a plain prompt, or made by exec: it still has a hash, and another body another one."""

    def made(text):
        space = {}
        exec(text, space)  # noqa: S102  that is what is tested
        return space["f"]

    one = code_sha256(made("def f(image, finding): return 0.5"))
    assert one == code_sha256(made("def f(image, finding): return 0.5"))
    assert one != code_sha256(made("def f(image, finding): return 0.6"))
    assert one != code_sha256(made("def f(image, finding): return (lambda: 0.5)()"))


def test_a_helper_bound_inside_an_if_is_found(written):
    """A name may be bound anywhere at the top of a file."""
    text = "try:\n    import json as j\nexcept ImportError:\n    j = {}\ndef mine(i, f):\n    return j\n"
    assert code_sha256(written(text)) != code_sha256(written(text.replace("j = {}", "j = 1")))
