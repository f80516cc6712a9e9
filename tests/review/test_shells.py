"""The pages themselves, and the files they load."""

import re

import pytest

from world import rooms


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A room for the whole file."""
    settings = {"title": "Room <1>", "dataset": "films & more"}
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("shells")), settings=settings) as opened:
        yield opened


def test_every_file_that_a_page_loads_is_there(room):
    """Under an address that names its content, so that the browser may keep it for good."""
    anna = room.browser("anna")
    for path in ("/login", "/enter", "/read", "/adjudicate", "/progress", "/account"):
        page = anna.get(path)
        assert page.status_code == 200
        assert "Room &lt;1&gt;" in page.text
        named = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
        assert named
        for address in named:
            asset = anna.get(address)
            assert asset.status_code == 200
            assert ("immutable" in asset.headers["cache-control"]) == ("?v=" in address)


def test_a_module_that_a_script_imports_is_asked_for_again_and_not_sent_again(room):
    """It has no such address: the browser asks each time, and hears that nothing has changed."""
    visitor = room.visitor()
    first = visitor.get("/static/api.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    assert first.headers["cache-control"] == "no-cache"
    again = visitor.get("/static/api.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "immutable" not in visitor.get("/static/api.js?v=0000").headers["cache-control"]


def test_the_room_says_that_it_is_open(room):
    """To whoever watches, under whatever name he knows the machine by."""
    assert room.visitor().client.get("/healthz", headers={"host": "10.0.0.1"}).json() == {"ok": True}


def test_every_page_names_the_study(room):
    """Beside the room and the dataset, as text."""
    anna = room.browser("anna")
    for path in ("/read", "/adjudicate", "/progress", "/account"):
        assert '<span class="study" title="study">Study: study</span>' in anna.get(path).text
    assert 'class="study"' not in room.visitor().get("/login").text


@pytest.mark.parametrize(
    ("study", "role", "named"),
    [
        ({"readers_per_case": 1, "adjudication": "none"}, "admin", None),
        ({"readers_per_case": 2, "adjudication": "none"}, "adjudicator", None),
        ({"readers_per_case": 2, "adjudication": "third"}, "reader", None),
        ({"readers_per_case": 2, "adjudication": "third"}, "admin", "Adjudicate"),
        ({"readers_per_case": 2, "adjudication": "discussion"}, "reader", "Discuss"),
    ],
)
def test_the_adjudication_page_is_named_only_where_something_is_settled(tmp_path, study, role, named):
    """One reader a case leaves nothing to settle: no tab, and an adjudicator begins at the reading page."""
    with rooms.open_room(rooms.address_of(tmp_path), films=1, **study) as opened:
        somebody = opened.browser("somebody", role)
        page = somebody.get("/read").text
        assert re.findall(r'<a href="/adjudicate"[^>]*>([^<]+)</a>', page) == ([named] if named else [])
        assert somebody.get("/").headers["location"] == "/read"
        settled_nowhere = "In this study no disagreement is settled." in somebody.get("/adjudicate").text
        assert settled_nowhere == (study["adjudication"] == "none")


def test_the_start_is_the_reading_page(room):
    """For who is in; a stranger goes to the login page."""
    assert room.browser("anna").get("/").headers["location"] == "/read"
    assert room.browser("otto", "adjudicator").get("/").headers["location"] == "/adjudicate"
    assert room.visitor().get("/").headers["location"] == "/login?next=/read"
