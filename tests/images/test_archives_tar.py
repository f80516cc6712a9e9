"""A tar is read in place; damage in it costs the films that it hits and no others."""

import gzip
import io
import tarfile
import zlib

import pytest

from bpals.errors import FilmError
from bpals.images import archives
from bpals.images.collection import open_index
from bpals.images.prepare import Preparation
from bpals.images.stream import prepared
from bpals.types import Refusal


def outcomes(path, *names):
    """What reading films gives: `read`, or the code of the refusal."""
    index = open_index(path, names)
    got = {name: read.code if isinstance(read, Refusal) else "read" for name, read in index.read(names)}
    return {name: got[name] for name in names}


def codes(path, *names):
    """The codes of an index's notices."""
    return [notice.code for notice in open_index(path, names).notices]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_one_bad_film_in_an_archive_costs_one_film(tmp_path, film, pack_tar, mode):
    """F17: it is refused, its neighbours are prepared."""
    members = {"images/a.png": film(1), "images/b.png": film(2)[:-40], "images/c.png": film(3)}
    path = pack_tar(tmp_path / "images_001.tar.gz", members, mode)
    index = open_index(path, ["a.png", "b.png", "c.png"])
    with prepared(index, index.found, Preparation(), workers=0) as reading:
        got = {image_id: made.code if isinstance(made, Refusal) else "film" for image_id, made in reading}
    assert got == {"a.png": "film", "b.png": "truncated", "c.png": "film"}
    assert reading.refused == {"truncated": 1}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_one_bad_header_in_an_archive_costs_one_film(tmp_path, film, pack_tar, mode):
    """F17: the next whole header is looked for; Python's own tarfile stops there without a word."""
    path = pack_tar(tmp_path / "plain.tar", {f"{name}.png": film(seed) for seed, name in enumerate("abc")})
    content = bytearray(path.read_bytes())
    with tarfile.open(path) as archive:
        content[archive.getmembers()[1].offset + 100] ^= 0xFF
    path.write_bytes(gzip.compress(content) if mode == "w:gz" else content)
    assert outcomes(path, "a.png", "b.png", "c.png") == {"a.png": "read", "b.png": "missing", "c.png": "read"}


@pytest.mark.parametrize("packer", [lambda content: content, gzip.compress], ids=["plain", "gz"])
def test_an_archive_that_is_cut_gives_what_it_has(tmp_path, film, pack_tar, packer):
    """F17: the film at the cut is truncated, those after it are missing, and the archive is named."""
    whole = pack_tar(tmp_path / "whole.tar", {f"{seed}.png": film(seed) for seed in range(9)}).read_bytes()
    path = tmp_path / "cut.tar"
    path.write_bytes(packer(whole)[:30_000])
    names = [f"{seed}.png" for seed in range(9)]
    got = list(outcomes(path, *names).values())
    assert got[:3] == ["read"] * 3
    assert got.count("truncated") == 1
    assert got[6:] == ["missing"] * 3
    assert "archive_damaged" in codes(path, *names)


def test_damage_in_the_middle_of_a_gzip_costs_what_follows(tmp_path, film, pack_tar):
    """F17: the films before it are read."""
    path = pack_tar(tmp_path / "films.tar.gz", {f"{seed}.png": film(seed) for seed in range(9)}, "w:gz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)
    got = list(outcomes(path, *[f"{seed}.png" for seed in range(9)]).values())
    assert got[:3] == ["read"] * 3
    assert "read" not in got[6:]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_links_devices_and_climbing_paths_are_refused(tmp_path, film, pack_tar, mode):
    """F16: each with its reason; nothing is written."""
    kinds = {"soft": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "device": tarfile.CHRTYPE, "pipe": tarfile.FIFOTYPE}
    kinds = {f"{name}.png": kind for name, kind in kinds.items()}
    members = {"a.png": film(1), "../up.png": film(2), "/root.png": film(3)}
    for name, kind in kinds.items():
        members[name] = tarfile.TarInfo(name)
        members[name].type = kind
        members[name].linkname = "/etc/passwd"
    path = pack_tar(tmp_path / "films.tar", members, mode)
    before = sorted(tmp_path.parent.rglob("*"))
    assert outcomes(path, "a.png", "up.png", "root.png", *kinds) == {
        "a.png": "read",
        "up.png": "unsafe_path",
        "root.png": "unsafe_path",
        "soft.png": "link",
        "hard.png": "link",
        "device.png": "unreadable",
        "pipe.png": "unreadable",
    }
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_a_header_that_claims_a_name_of_a_gigabyte_is_damage(tmp_path, film):
    """A tar may say that a name is as long as it likes; the bytes for it are not read into memory."""
    about = tarfile.TarInfo("././@LongLink")
    about.type, about.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    good = io.BytesIO()
    with tarfile.open(fileobj=good, mode="w") as archive:
        first = tarfile.TarInfo("a.png")
        first.size = len(film())
        archive.addfile(first, io.BytesIO(film()))
    start = good.getvalue()[: 512 + (len(film()) + 511) // 512 * 512]
    pieces = [
        packer.compress(start + about.tobuf()),
        *(packer.compress(bytes(1 << 20)) for _ in range(64)),
        packer.flush(),
    ]
    path = tmp_path / "films.tar.gz"
    path.write_bytes(b"".join(pieces))
    assert outcomes(path, "a.png", "b.png") == {"a.png": "read", "b.png": "missing"}
    assert "archive_damaged" in codes(path, "a.png", "b.png")


def test_a_stream_that_unpacks_without_end_is_stopped(tmp_path, film, pack_tar):
    """A compressed tar may be large, and not two hundred times larger than it is."""
    path = pack_tar(tmp_path / "films.tar.gz", {"a.png": film()}, "w:gz")
    with gzip.open(path) as stream:
        onward = archives.ForwardStream(stream, most=600)
        assert len(onward.read(512)) == 512
        with pytest.raises(OSError, match="far more than it is"):
            onward.seek(1024)
        with pytest.raises(OSError, match="forward only"):
            onward.seek(0)


def test_reading_stops_after_the_last_film_that_is_wanted(tmp_path, film, pack_tar):
    """What follows in a compressed tar is not unpacked: here it could not be."""
    path = pack_tar(tmp_path / "films.tar.gz", {f"{seed}.png": film(seed) for seed in range(40)}, "w:gz")
    index = open_index(path, ["0.png", "1.png"])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert [content for _, content in index.read(["1.png", "0.png"])] == [film(0), film(1)]


def test_an_archive_that_was_replaced_after_it_was_listed_is_found_out(tmp_path, film, pack_tar):
    """F22: the name and size of a member are checked against the list."""
    path = pack_tar(tmp_path / "films.tar.gz", {"a.png": film(1), "b.png": film(2)}, "w:gz")
    index = open_index(path, ["a.png", "b.png"])
    pack_tar(path, {"b.png": film(2), "c.png": film(1)}, "w:gz")
    assert [got.code for _, got in index.read(["a.png", "b.png"])] == ["changed", "changed"]
    pack_tar(path, {}, "w:gz")
    assert [got.code for _, got in index.read(["a.png"])] == ["changed"]


def test_what_is_no_archive_says_so(tmp_path):
    """A gzip of something else, and a tar of nothing."""
    (tmp_path / "films.tar.gz").write_bytes(gzip.compress(b"image,label\n" * 100))
    with pytest.raises(FilmError, match=r"films\.tar\.gz"):
        open_index(tmp_path / "films.tar.gz", ["a.png"])
