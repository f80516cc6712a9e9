"""The words of each page of the reading room as it is served, in tests/snapshots."""

import pytest

from world import rooms
from world.snapshots import assert_snapshot, page_text

PAGES = ("login", "enter", "read", "adjudicate", "progress", "account")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_room(tmp_path, name):
    """What stands there before the page's own code fills it."""
    with rooms.open_room(rooms.address_of(tmp_path)) as opened:
        visitor = opened.visitor() if name in {"login", "enter"} else opened.browser("ada", "admin")
        answer = visitor.get(f"/{name}")
        assert answer.status_code == 200
        assert_snapshot(page_text(answer.text), f"room-{name}")
