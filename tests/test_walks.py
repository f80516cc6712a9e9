"""The walks of docs/architecture.md: derived from real runs, short, and equal to what the page shows."""

import pytest

import shape
from world import walks


@pytest.fixture(scope="module", params=list(walks.WALKS))
def walk(request):
    """One walk, derived from a run of its own."""
    return request.param, walks.derived(request.param)


def test_a_walk_goes_through_few_modules(walk):
    """A reader opens a dozen files at most to follow one thing that a user does."""
    title, found = walk
    assert found.moments
    assert len(found.modules) <= walks.WALKS[title][1], found.modules


def test_the_page_shows_the_walk_as_it_is(walk):
    """docs/architecture.md is written by `python tests/world/walks.py`; if this fails, run it."""
    title, found = walk
    assert walks.written(title, found) in shape.PAGE.read_text(encoding="utf-8")
