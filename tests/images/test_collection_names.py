"""Which film a file is, by its name alone."""

import pytest

from bpals.images.collection import Names, is_archive, is_image, stem


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000013_008.png", "00000013_008"),
        ("00000013_008.JPG", "00000013_008"),
        ("a.b.dcm", "a.b"),
        ("1.2.840.113", "1.2.840.113"),
        ("a.tar.gz", "a.tar.gz"),
        (".png", ".png"),
        ("plain", "plain"),
    ],
)
def test_only_the_ending_of_a_film_is_taken_off(name, expected):
    """A number with dots keeps its last part."""
    assert stem(name) == expected


def test_films_and_archives_are_told_by_their_endings():
    """In any case; a table is neither."""
    assert is_image("a.PNG")
    assert is_image("a.gif")
    assert is_archive("images_001.tar.gz")
    assert not is_image("a.csv")
    assert not is_archive("a.csv.gz")


def test_a_path_without_its_first_folder_stands_for_one_film_or_none():
    """What could be two films is neither."""
    names = Names(["x/train/1/view.jpg", "x/train/2/view.jpg", "x/a.png", "y/a.png"])
    assert names.of("/data/moved/train/1/view.jpg") == "x/train/1/view.jpg"
    assert names.of("/data/x/train/2/view.png") == "x/train/2/view.jpg"
    assert names.of("x/a.png") == "x/a.png"
    assert names.of("moved/a.png") is None
    assert names.of("view.jpg") is None
