"""Compressed tars are listed once and remembered; a listing that is wrong is made anew."""

import os

import pytest

from bpals.images.collection import open_index


@pytest.fixture
def archive(tmp_path, film, pack_tar):
    """A compressed tar of three films, and the place of its listing."""
    path = pack_tar(tmp_path / "films.tar.gz", {f"{name}.png": film(seed) for seed, name in enumerate("abc")}, "w:gz")
    return path, tmp_path / "listing.json"


def spoil(path):
    """Destroy an archive without changing its size or time."""
    about = path.stat()
    path.write_bytes(bytes([*path.read_bytes()[:2], *bytes(about.st_size - 2)]))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def test_a_listed_archive_is_not_unpacked_again(archive):
    """A resume does not stream 42 GB to know what is in them."""
    path, listing = archive
    first = open_index(path, ["a.png", "b.png"], listing=listing)
    spoil(path)
    again = open_index(path, ["a.png", "b.png"], listing=listing)
    assert again.found == first.found == ("a.png", "b.png")
    assert again.notices == first.notices


def test_another_size_or_time_lists_it_again(archive, film, pack_tar):
    """The listing is known by name, size and time."""
    path, listing = archive
    open_index(path, ["a.png"], listing=listing)
    pack_tar(path, {"d.png": film(4)}, "w:gz")
    assert open_index(path, ["a.png", "d.png"], listing=listing).found == ("d.png",)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 99}', '{"version": 1, "archives": {"films.tar.gz": 5}}']
)
def test_a_listing_that_is_damaged_is_made_anew(archive, content):
    """It is a memory and not the truth."""
    path, listing = archive
    listing.write_text(content)
    assert open_index(path, ["a.png"], listing=listing).found == ("a.png",)
    spoil(path)
    assert open_index(path, ["a.png"], listing=listing).found == ("a.png",)


def test_damage_and_refusals_are_remembered_too(tmp_path, film, pack_tar):
    """A second look at a cut archive says the same as the first."""
    path = pack_tar(tmp_path / "films.tar.gz", {"a.png": film(1), "../b.png": film(2), "c.png": film(3)}, "w:gz")
    path.write_bytes(path.read_bytes()[:-400])
    first = open_index(path, ["a.png", "b.png", "c.png"], listing=tmp_path / "listing.json")
    again = open_index(path, ["a.png", "b.png", "c.png"], listing=tmp_path / "listing.json")
    assert again.notices == first.notices
    assert list(again.read(again.found)) == list(first.read(first.found))


def test_no_path_of_the_machine_is_in_a_listing(archive):
    """It may be kept in a workspace that is given away."""
    path, listing = archive
    open_index(path.parent, ["a.png"], listing=listing)
    assert str(path.parent) not in listing.read_text()
