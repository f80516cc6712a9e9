"""A folder is walked without following links, and its files are read as they are when they are read."""

import os

import pytest

from bpals.images.collection import open_index
from bpals.types import Refusal


def contents(index, image_ids):
    """What an index gives for ids, as a dictionary; refusals by their code."""
    read = index.read(image_ids)
    return {image_id: got.code if isinstance(got, Refusal) else got for image_id, got in read}


def codes(index):
    """The notices of an index: code -> count."""
    return {notice.code: notice.count for notice in index.notices}


@pytest.mark.parametrize(
    "stem",
    ["a b", "a'b", 'a"b', "a\nb", "a\u202eb", "a\U0001fac1b", "x" * 251, "con", "-rf", "<b>", "$(x)", "%s", "..."],
)
def test_odd_names_are_only_names(tmp_path, film, stem):
    """F20: spaces, quotes, a newline, a right-to-left mark, an emoji, 255 bytes, con.png."""
    (tmp_path / f"{stem}.png").write_bytes(film())
    index = open_index(tmp_path, [f"{stem}.png"])
    assert contents(index, index.found) == {f"{stem}.png": film()}
    assert not index.notices


def test_a_name_that_is_no_text_is_a_stranger(tmp_path, film):
    """F20: bytes that no table can hold, and a notice that does not repeat them."""
    (tmp_path / "a.png").write_bytes(film())
    with open(os.fsencode(tmp_path) + b"/\xff\xfe.png", "wb") as stream:  # noqa: PTH123
        stream.write(film())
    index = open_index(tmp_path, ["a.png"])
    assert codes(index) == {"films_unasked": 1}
    for notice in index.notices:
        notice.message.encode()


def test_links_in_a_folder_are_not_followed(tmp_path, film):
    """Neither to a film elsewhere nor to a folder; they are counted, and the film says why."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.png").write_bytes(film())
    folder = tmp_path / "films"
    folder.mkdir()
    (folder / "a.png").symlink_to(outside / "a.png")
    (folder / "more").symlink_to(outside)
    (folder / "b.png").write_bytes(film(2))
    index = open_index(folder, ["a.png", "b.png"])
    assert contents(index, index.found) == {"a.png": "link", "b.png": film(2)}
    assert codes(index) == {"files_refused": 2}


def test_a_film_that_changes_on_disk_is_read_as_it_is_then(tmp_path, film):
    """F22: what is hashed and what is judged are the same bytes, whenever they are read; a lost film is refused."""
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(film(1))
    index = open_index(tmp_path, ["a.png", "b.png", "c.png"])
    (tmp_path / "a.png").write_bytes(film(2))
    (tmp_path / "b.png").unlink()
    (tmp_path / "c.png").unlink()
    os.mkfifo(tmp_path / "c.png")
    assert contents(index, index.found) == {"a.png": film(2), "b.png": "unreadable", "c.png": "unreadable"}


def test_a_file_that_is_too_large_is_not_read(tmp_path, film):
    """Its size is known before a byte of it is read."""
    (tmp_path / "a.png").write_bytes(film())
    with (tmp_path / "b.png").open("wb") as stream:
        stream.truncate(200 << 20)
    index = open_index(tmp_path, ["a.png", "b.png"])
    assert contents(index, index.found) == {"a.png": film(), "b.png": "too_large"}
