"""The exception tree: a branch says who must act, and a message says what to type."""

import re

import pytest

from bpals import errors
from bpals.errors import BpalsError, MissingExtra, UnknownName, UsageError


def classes():
    """Every exception the package defines."""
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BpalsError)]


def test_the_drawn_tree_is_the_tree():
    """The drawing at the top of the file has every class, each indented under its parent."""
    drawn = {}
    parents = {}
    for indent, name in re.findall(r"^( *)([A-Z]\w+)(?:  |$)", errors.__doc__, flags=re.MULTILINE):
        depth = len(indent) // 2
        drawn[depth] = name
        parents[name] = drawn[depth - 1] if depth else "Exception"
    assert parents == {kind.__name__: kind.__base__.__name__ for kind in classes()}


@pytest.mark.parametrize("kind", classes())
def test_every_error_says_when_in_one_sentence(kind):
    """Each class has one sentence of its own."""
    assert kind.__doc__.count("\n") == 0
    assert kind.__doc__.endswith(".")


def test_a_near_miss_is_answered_with_did_you_mean():
    """A misspelt name gets the nearest known one, whatever the case."""
    error = UnknownName.of("finding", "PNEUMOTORAX", ["Pneumothorax", "Mass"])
    assert str(error) == "no finding is called 'PNEUMOTORAX'. Did you mean 'Pneumothorax'? Known: Pneumothorax, Mass."
    assert isinstance(error, UsageError)


def test_a_far_miss_gets_the_list_and_no_guess():
    """Where nothing is near, nothing is guessed."""
    message = str(UnknownName.of("judge", "zzz", iter(["record"])))
    assert "Did you mean" not in message
    assert message.endswith("Known: record.")


def test_an_unknown_name_says_where_it_stood():
    """File and row come first where they are known."""
    assert str(UnknownName.of("finding", "x", ["Mass"], where="my.csv, row 7")).startswith("my.csv, row 7: no finding")


def test_a_missing_extra_gives_the_line_to_type():
    """The line can be pasted into a shell as it stands."""
    assert str(MissingExtra.of("the cleanlab baseline", "peers")).endswith("Type: pip install 'bpals[peers]'")
