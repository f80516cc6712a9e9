"""Films over HTTP: by number, encoded anew, and nothing else from the disk."""

import contextlib
import io
import zlib

import pytest
from PIL import Image

from bpals.images.collection import open_shelf
from bpals.images.rendition import Renditions
from world import rooms

TRAVERSALS = (
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "....//....//etc/passwd",
    "..\\..\\etc\\passwd",
    "..%5c..%5cetc%5cpasswd",
    "%00",
    "room.css%00.png",
    "/etc/passwd",
    "//etc/passwd",
    "%252e%252e%252fetc%252fpasswd",
    "page.js/../../secret.py",
    "film-000000",
)


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A room for the whole file."""
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("films"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def anna(room):
    """A reader with a case."""
    browser = room.browser("anna")
    browser.reading = browser.next()["reading"]["reading_id"]
    return browser


@pytest.mark.parametrize("wrong", TRAVERSALS)
def test_s01_no_path_leads_out(anna, wrong):
    """S01: an address holds a number and a random name; whatever else stands there is not found, nothing is read."""
    for place in (f"/api/readings/{anna.reading}/films/", "/static/", "/api/readings/", "/img/", "/"):
        reply = anna.get(place + wrong)
        assert reply.status_code in {404, 422}, (place, reply.status_code)
        assert "root:" not in reply.text
        assert "def read_secret" not in reply.text


@pytest.mark.parametrize(
    "number", ["-1", "2", "9999", "10001", "1e9", "0x1", "1.0", "٣", " 1", "1 ", "99999999999999999999"]
)
def test_s01_a_number_that_no_film_has_is_not_found(anna, number):
    """S01: nor one that is no number."""
    assert anna.get(f"/api/readings/{anna.reading}/films/{number}").status_code in {404, 422}


def test_s01_a_link_out_of_the_films_is_not_followed(tmp_path):
    """S01: a room on a folder in which somebody put links: not found, nothing read."""
    outside = tmp_path / "outside.png"
    outside.write_bytes(rooms.film_png(1))
    folder = tmp_path / "films"
    folder.mkdir()
    with rooms.open_room(rooms.address_of(tmp_path)) as opened:
        for name in opened.shelf.contents:
            (folder / f"{name}.png").symlink_to(outside)
        with contextlib.closing(Renditions(open_shelf(folder, list(opened.shelf.contents)))) as films:
            object.__setattr__(opened.room, "film", films.film)
            anna = opened.browser("anna")
            reply = anna.get(f"/api/readings/{anna.next()['reading']['reading_id']}/films/1")
            assert (reply.status_code, reply.json()["film"]) == (404, {"refused": "link"})


def test_s02_a_film_is_encoded_anew(room, anna):
    """S02: a file that is a PNG and a page at once, with script in its text, comes out as pixels and nothing else."""
    page = b"<html><script>alert(1)</script></html>"
    polyglot = rooms.film_png(3, Comment="<script>alert(2)</script>", Title="<svg onload=alert(3)>") + page
    for name in room.shelf.contents:
        room.shelf.contents[name] = polyglot
    for number in (0, 1):
        reply = anna.get(f"/api/readings/{anna.reading}/films/{number}")
        if reply.status_code == 404:
            assert reply.json()["film"]["refused"]
            continue
        assert b"script" not in reply.content
        assert b"svg" not in reply.content
        check_pixels(reply)
    clean = rooms.film_png(3, Comment="<script>alert(2)</script>")
    for name in room.shelf.contents:
        room.shelf.contents[name] = clean
    reply = anna.get(f"/api/readings/{anna.reading}/films/1")
    assert reply.status_code == 200
    assert b"script" not in reply.content
    check_pixels(reply)


def check_pixels(reply):
    """It says that it is a PNG, is one, and may do nothing."""
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-security-policy"].startswith("sandbox;")
    assert reply.headers["cache-control"].startswith("private")
    assert reply.headers["vary"] == "Cookie"
    with Image.open(io.BytesIO(reply.content), formats=("PNG",)) as image:
        assert image.size == (64, 48)
        assert image.text == {}


def test_a_deep_film_comes_as_gzip(room, anna):
    """16 bits do not fit a browser's own decoder: they come packed, and the browser unpacks them."""
    ramp = Image.frombytes("I;16", (64, 48), b"".join(n.to_bytes(2, "little") for n in range(64 * 48)))
    deep = io.BytesIO()
    ramp.save(deep, "PNG")
    for name in room.shelf.contents:
        room.shelf.contents[name] = deep.getvalue()
    reply = anna.get(f"/api/readings/{anna.reading}/films/1", headers={"accept-encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.headers["content-type"] == "application/octet-stream"
    assert len(reply.content) == 64 * 48 * 2
    found = room.shelf.film(next(iter(room.shelf.contents)))
    assert zlib.decompress(found.content, 31) == reply.content
