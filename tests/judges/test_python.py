"""A judge out of a file or module of your own."""

import sys

import pytest

import shape
from bpals.errors import UnknownName, UsageError
from bpals.judges.function import load
from bpals.registry import find, parse_spec
from bpals.testing import check_image_judge

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
