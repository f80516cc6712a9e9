"""The index finds each film wherever it lies, says what is missing, and gives bytes one film at a time."""

import tarfile
from pathlib import Path

import pytest

from bpals.errors import FilmError
from bpals.images.collection import open_index
from bpals.types import Refusal
from world.words import mentions


def contents(index, image_ids):
    """What an index gives for ids, as a dictionary; refusals by their code."""
    read = index.read(image_ids)
    return {image_id: got.code if isinstance(got, Refusal) else got for image_id, got in read}


def codes(index):
    """The notices of an index: code -> count."""
    return {notice.code: notice.count for notice in index.notices}


def files_under(folder):
    """Every file, with its size and time."""
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def cabinet(tmp_path, film, pack_tar, pack_zip):
    """A folder with a loose film, one a folder down, a tar, a tar.gz and a zip: six films, a to f."""
    folder = tmp_path / "cabinet"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "a.png").write_bytes(film(1))
    (folder / "deep" / "er" / "b.png").write_bytes(film(2))
    pack_tar(folder / "one.tar", {"images/c.png": film(3)})
    pack_tar(folder / "deep" / "two.tar.gz", {"images/e.png": film(5), "images/d.png": film(4)}, "w:gz")
    pack_zip(folder / "three.zip", [("x/f.jpg", film(6))])
    (folder / "README.txt").write_text("no film")
    return folder


def test_a_folder_is_searched_with_every_archive_in_it(cabinet, film):
    """Loose, in a tar, in a tar.gz, in a zip: all the same, and nothing is unpacked."""
    before = files_under(cabinet)
    ids = [f"{name}.png" for name in "abcdef"]
    index = open_index(cabinet, ids)
    assert index.found == tuple(ids)
    assert contents(index, ids) == {f"{name}.png": film(seed) for seed, name in enumerate("abcdef", 1)}
    assert not index.notices
    assert files_under(cabinet) == before


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_single_tar_is_a_shelf(tmp_path, film, pack_tar, mode):
    """Plain or compressed, by its content and not by its name."""
    path = pack_tar(tmp_path / "films", {f"images/{seed}.png": film(seed) for seed in range(3)}, mode)
    index = open_index(path, ["0.png", "1.png", "2.png"])
    assert contents(index, index.found) == {f"{seed}.png": film(seed) for seed in range(3)}


def test_a_film_is_found_by_its_stem_and_its_case(tmp_path, film):
    """A resized JPEG copy stands for NIH's PNG; another case is another film."""
    (tmp_path / "00000013_008.JPG").write_bytes(film(1))
    (tmp_path / "abc.png").write_bytes(film(2))
    index = open_index(tmp_path, ["00000013_008.png", "ABC.png"])
    assert index.found == ("00000013_008.png",)
    assert index.missing == ("ABC.png",)


def test_ids_that_are_paths_are_found_by_their_path(tmp_path, film):
    """CheXpert calls every first film of a study view1_frontal.jpg; its own first folder may be renamed."""
    ids = [f"CheXpert-v1.0/train/patient{patient}/study1/view1_frontal.jpg" for patient in (1, 2)]
    for patient in (1, 2, 3):
        place = tmp_path / "renamed" / "train" / f"patient{patient}" / "study1"
        place.mkdir(parents=True)
        (place / "view1_frontal.jpg").write_bytes(film(patient))
    index = open_index(tmp_path / "renamed", ids)
    assert contents(index, ids) == {ids[0]: film(1), ids[1]: film(2)}
    assert codes(index) == {"films_unasked": 1}


def test_ids_without_an_ending_may_have_dots(tmp_path, film):
    """A DICOM is often called by its number, with or without .dcm."""
    (tmp_path / "1.2.840.10").write_bytes(film(1))
    (tmp_path / "1.2.840.11.dcm").write_bytes(film(2))
    index = open_index(tmp_path, ["1.2.840.10", "1.2.840.11"])
    assert contents(index, index.found) == {"1.2.840.10": film(1), "1.2.840.11": film(2)}


def test_where_a_film_lies_twice_the_one_with_more_pixels_is_taken(tmp_path, film, save, draw, pack_tar):
    """More pixels, not more bytes; it is counted."""
    small_but_heavy = save(draw(width=50, height=50), "PNG", compress_level=0)
    large = save(draw(width=100, height=100) // 64 * 64)
    assert len(large) < len(small_but_heavy) * 2
    for kind, mode in ((".tar", "w"), (".tgz", "w:gz")):
        folder = tmp_path / kind
        folder.mkdir()
        pack_tar(folder / f"z{kind}", {"a.jpg": large, "b.png": film(1)}, mode)
        (folder / "a.png").write_bytes(small_but_heavy + bytes(len(large)))
        index = open_index(folder, ["a.png", "b.png"])
        assert contents(index, ["a.png"]) == {"a.png": large}
        assert codes(index) == {"film_copies": 1}


def test_missing_films_and_films_nobody_asked_for_are_both_counted(cabinet):
    """F19: the run goes on with what is there."""
    index = open_index(cabinet, ["a.png", "gone.png", "lost.png"])
    assert index.found == ("a.png",)
    assert index.missing == ("gone.png", "lost.png")
    assert codes(index) == {"films_missing": 2, "films_unasked": 5}
    message = next(notice.message for notice in index.notices if notice.code == "films_missing")
    assert mentions(message, "2 of 3", "cabinet", "gone.png")
    assert contents(index, ["gone.png"]) == {"gone.png": "missing"}


def test_without_a_list_every_film_is_found_under_its_stem(cabinet):
    """An index can be opened before the dataset is known."""
    index = open_index(cabinet)
    assert sorted(index.found) == list("abcdef")


def test_reading_is_ordered_only_where_it_must_be(tmp_path, film, pack_tar):
    """Loose films keep the order that was asked for, a compressed tar has its own."""
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(film(1))
    pack_tar(tmp_path / "z.tar.gz", {f"{name}.png": film(2) for name in "zyx"}, "w:gz")
    ids = [f"{name}.png" for name in ("y", "c", "x", "a", "z", "b")]
    index = open_index(tmp_path, ids)
    assert index.order(ids) == [f"{name}.png" for name in "cabzyx"]
    assert index.order(index.order(ids)) == index.order(ids)
    assert [image_id for image_id, _ in index.read(ids)] == index.order(ids)


@pytest.mark.parametrize("name", ["not there", "empty", "text.txt", "one.png", "zeros.tar"])
def test_a_path_without_films_is_one_clear_line(tmp_path, film, name):
    """It says which path, and what to name instead."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "one.png").write_bytes(film())
    (tmp_path / "zeros.tar").write_bytes(bytes(2048))
    with pytest.raises(FilmError) as caught:
        open_index(tmp_path / name, ["a.png"])
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Name a folder" in str(caught.value)


def test_a_path_with_other_films_says_what_was_looked_for(cabinet):
    """It names one film that it looked for."""
    with pytest.raises(FilmError, match=r"no film.*6 are there.*00000001_000\.png") as caught:
        open_index(cabinet, ["00000001_000.png"])
    assert mentions(str(caught.value), "NIH", "--source table:FILE --mapping")


def test_one_bad_archive_does_not_close_the_shelf(cabinet, film):
    """F16: it is named, the films of the others are there."""
    (cabinet / "three.zip").write_bytes((cabinet / "three.zip").read_bytes()[:-30])
    (cabinet / "broken.tar.gz").write_bytes(b"\x1f\x8b\x08\x00garbage")
    index = open_index(cabinet, ["a.png", "f.png"])
    assert contents(index, ["a.png", "f.png"]) == {"a.png": film(1), "f.png": "missing"}
    damaged = [notice.message for notice in index.notices if notice.code == "archive_damaged"]
    assert len(damaged) == 2
    assert mentions(damaged[0], "broken.tar.gz", "damaged")
    assert mentions(damaged[1], "three.zip", "damaged")


def test_archives_inside_archives_are_counted_and_not_opened(tmp_path, film, pack_tar, pack_zip):
    """F16: nesting has no end."""
    inner = pack_zip(tmp_path / "inner.zip", [("b.png", film(2))]).read_bytes()
    (tmp_path / "in").mkdir()
    pack_tar(tmp_path / "in" / "outer.tar", {"a.png": film(1), "inner.zip": inner})
    pack_zip(tmp_path / "in" / "outer.zip", [("c.png", film(3)), ("inner.tar", inner)])
    index = open_index(tmp_path / "in", ["a.png", "b.png", "c.png"])
    assert index.found == ("a.png", "c.png")
    assert codes(index) == {"films_missing": 1, "archives_nested": 2}


def test_many_archives_are_not_all_open_at_once(tmp_path, film, pack_zip):
    """Forty zips, read in turn."""
    for number in range(40):
        pack_zip(tmp_path / f"{number}.zip", [(f"{number}.png", film(number))])
    ids = [f"{number}.png" for number in range(40)]
    index = open_index(tmp_path, ids)
    reading = index.read(ids)
    for _ in range(30):
        next(reading)
    descriptors = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    held = [path for path in descriptors.iterdir() if str(path.resolve()).endswith(".zip")]
    assert 0 < len(held) <= 16
    assert len(list(reading)) == 10


def test_the_real_films_are_found_in_tars_and_folder(data_folder):
    """10,644 films of NIH in five tars, 30 of them also as originals of 1024 px, which are taken."""
    index = open_index(data_folder / "images")
    assert len(index.found) == 10_644
    assert codes(index) == {"film_copies": 30}
    originals = [path.name for path in (data_folder / "images" / "originals").iterdir()]
    for image_id, content in open_index(data_folder / "images", originals).read(originals[:3]):
        assert content == (data_folder / "images" / "originals" / image_id).read_bytes()
    with tarfile.open(data_folder / "images" / "nih_256_004.tar") as archive:
        member = archive.getmembers()[-1]
        expected = archive.extractfile(member).read()
    stem = member.name.rpartition("/")[2].removesuffix(".jpg")
    ((_, content),) = index.read([stem])
    assert content == expected
