"""Which code a judge is made of: what changes an answer changes the hash, and nothing else does."""

import importlib.util
import textwrap

import pytest

from bpals.judges.function import closed_over, code_sha256

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
def load(tmp_path):
    """Write a file and give what one of its functions is called."""
    count = iter(range(1000))

    def load(text, name="mine"):
        path = tmp_path / f"judge{next(count)}.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)

    return load


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
def test_a_change_that_it_reaches_is_another_judge(load, old, new):
    """Its own lines, a helper, a constant of the helper, a class, an import."""
    assert old in FILE
    assert code_sha256(load(FILE)) != code_sha256(load(FILE.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [("OTHER = 3", "OTHER = 4"), ("\n\ndef unused", "\n# a note\n\n\ndef unused"), ("return x * OTHER", "return 0")],
)
def test_a_change_that_it_does_not_reach_is_none(load, old, new):
    """A file can be worked on without asking everything again."""
    assert old in FILE
    assert code_sha256(load(FILE)) == code_sha256(load(FILE.replace(old, new)))


def test_two_functions_of_one_file_are_two(load):
    """Also if they have the same body."""
    twin = FILE + "\n\ndef third(image, finding):\n    return 0.5\n"
    assert code_sha256(load(twin, "second")) != code_sha256(load(twin, "third"))


def test_the_decorator_is_no_part_of_the_code(load):
    """What it says stands on the card; a corrected licence does not ask everything again."""
    text = """
    from bpals.judges.function import judge
    @judge("mine", licence="{}")
    def mine(image, finding):
        return 0.5
    """
    first, second = (load(text.format(licence)) for licence in ("MIT", "Apache-2.0"))
    assert first.card.fingerprint == second.card.fingerprint


def test_what_a_function_closes_over_is_written_down(load):
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
    held = closed_over(load(text))
    assert held["scale"] == "1.5"
    assert held["names"] == "list('a', tuple('b', None))"
    assert held["model"] == "Model"
    assert held["later"] == "None"
    assert (held["power"], held["mode"]) == ("2", "'x'")
    assert held["function"].startswith("sha256:")
    assert held["function"] != closed_over(load(text.replace("Model(), one", "Model(), two")))["function"]


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


def test_a_helper_bound_inside_an_if_is_found(load):
    """A name may be bound anywhere at the top of a file."""
    text = "try:\n    import json as j\nexcept ImportError:\n    j = {}\ndef mine(i, f):\n    return j\n"
    assert code_sha256(load(text)) != code_sha256(load(text.replace("j = {}", "j = 1")))
