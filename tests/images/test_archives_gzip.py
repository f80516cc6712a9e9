"""A gzipped tar in any order: the same films, without starting anew for each."""

import gzip
import io
import tarfile

import numpy as np
import pytest

from bpals.images.archives import Gunzip, GzippedTar, Location, Readers
from bpals.images.formats import MOST_BYTES, Refused

EVERY = 20_000
FILMS = 40


class ShortStretches(GzippedTar):
    """A tar that can go back to many places."""

    every = EVERY


class Counted(io.BytesIO):
    """A file that counts what is read of it."""

    taken = 0

    def read(self, size=-1):
        """Read, and count."""
        content = super().read(size)
        self.taken += len(content)
        return content


@pytest.fixture
def packed(tmp_path, film, pack_tar):
    """A gzipped tar of forty films, and what they are."""
    films = {f"{number:02}.png": film(number) for number in range(FILMS)}
    return pack_tar(tmp_path / "films.tar.gz", films, "w:gz"), films


def test_films_come_in_any_order(packed):
    """Forwards, backwards, again: each is itself."""
    path, films = packed
    tar = ShortStretches(path)
    entries = list(tar.entries())
    with tar.reading() as read:
        for entry in (entries[at % FILMS] for at in np.random.default_rng(0).permutation(2 * FILMS)):
            assert read(entry, MOST_BYTES) == films[entry.name]
        assert read(entries[3], 10) == films[entries[3].name][:10]


@pytest.mark.parametrize("parts", [1, 3])
def test_going_back_costs_one_stretch_and_not_the_whole(parts):
    """After one pass a place anywhere takes no more than a stretch of packed bytes; several gzips in a row too."""
    draw = np.random.default_rng(1)
    content = draw.bytes(600_000)
    size = len(content) // parts
    pieces = [gzip.compress(content[at : at + size]) for at in range(0, len(content), size)]
    stored = Counted(b"".join(pieces) + bytes(100))
    stream = Gunzip(stored, 10**9, every=EVERY)
    assert b"".join(iter(lambda: stream.read(5000), b"")) == content
    for place in draw.integers(0, len(content) - 10, 40).tolist():
        stored.taken = 0
        assert stream.seek(place) == place
        assert stream.read(10) == content[place : place + 10]
        assert stored.taken <= EVERY + 3 * (1 << 16)


def test_a_gzip_that_is_cut_gives_what_stands_before(packed, tmp_path):
    """Films before the cut come, those behind are refused; so they are the second time."""
    path, films = packed
    entries = list(GzippedTar(path).entries())
    whole = path.read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with Readers([ShortStretches(tmp_path / "cut.tar.gz")]) as readers:
        assert readers.read(Location(0, entries[2])) == films["02.png"]
        for _ in range(2):
            with pytest.raises(Refused, match="cut short"):
                readers.read(Location(0, entries[-1]))
        assert readers.read(Location(0, entries[1])) == films["01.png"]


def test_a_tar_that_is_another_is_refused(packed, tmp_path, film, pack_tar):
    """It was listed, and then changed."""
    path, _ = packed
    entries = list(GzippedTar(path).entries())
    other = pack_tar(tmp_path / "other.tar.gz", {"x.png": film(99)}, "w:gz")
    with GzippedTar(other).reading() as read:
        for entry in (entries[0], entries[5]):
            with pytest.raises(Refused, match="not the one"):
                read(entry, MOST_BYTES)


def test_a_bomb_stops(tmp_path):
    """What unpacks to more than it may is refused on the way."""
    with gzip.open(tmp_path / "bomb.gz", "wb") as file:
        file.write(bytes(5_000_000))
    with (tmp_path / "bomb.gz").open("rb") as stored, pytest.raises(OSError, match="far more"):
        Gunzip(stored, 1_000_000).seek(4_000_000)


def test_links_and_folders_in_it_do_not_shift_the_count(tmp_path, film, pack_tar):
    """Entries are numbered as they are walked: a link counts, a folder does not."""
    folder, link = tarfile.TarInfo("sub"), tarfile.TarInfo("link.png")
    folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "a.png"
    members = {"sub": folder, "a.png": film(1), "link.png": link, "b.png": film(2)}
    tar = GzippedTar(pack_tar(tmp_path / "mixed.tar.gz", members, "w:gz"))
    by_name = {entry.name: entry for entry in tar.entries()}
    with tar.reading() as read:
        assert read(by_name["b.png"], MOST_BYTES) == film(2)
        assert read(by_name["a.png"], MOST_BYTES) == film(1)
