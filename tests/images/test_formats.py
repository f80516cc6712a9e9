"""Every reason for refusing a film, and every note about one, can be looked up."""

import ast
import re

import pytest

import shape
from bpals.images import formats
from bpals.images.formats import Refused, check_size
from bpals.images.prepare import NOTES
from world.source_tree import TREE

ROOM = {name: module for name, module in TREE.items() if module.room == "images"}
PAGE = (shape.ROOT / "docs" / "images.md").read_text(encoding="utf-8")


def codes():
    """Every code that is given to Refused or Refusal somewhere in the room."""
    for module in ROOM.values():
        for node in ast.walk(module.tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in {"Refused", "Refusal"}:
                given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "code")]
                yield from (part.value for value in given for part in ast.walk(value) if isinstance(part, ast.Constant))


def test_every_reason_is_in_the_docs_and_in_the_list():
    """A code that is counted in a run can be looked up, and no code is listed that nothing gives."""
    given = set(codes()) | {"unsafe_path", "link", "duplicate_name", "encrypted"}
    table = PAGE.split("## Why an image is refused")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| ?`(\w+)`", table, re.MULTILINE)) == given
    listed = formats.__doc__.split("\n\n", 1)[1]
    assert not [code for code in given if not re.search(rf"\b{code}\b", listed)]


def test_every_note_is_in_the_docs():
    """What is done to a film that is not plain grey stands in the table."""
    table = PAGE.split("## What is done to an image")[1].split("\n## ")[0]
    assert re.findall(r"^\| ?`(\w+)`", table, re.MULTILINE) == list(NOTES)


@pytest.mark.parametrize(
    ("width", "height", "code"),
    [(60_000, 60_000, "giant"), (10_000, 5_001, "giant"), (31, 31, "tiny"), (100, 801, "unexpected_size")],
)
def test_sizes_are_judged_by_the_header_alone(width, height, code):
    """F05: fifty million pixels are the limit, and 800 by 100 still a film."""
    with pytest.raises(Refused) as caught:
        check_size(width, height)
    assert caught.value.refusal.code == code
    check_size(10_000, 5_000)
    check_size(100, 800)
    check_size(32, 32)
