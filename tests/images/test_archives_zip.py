"""A zip is never unpacked, and whatever could do harm in it is refused with its own reason."""

import stat
import struct
import zipfile

import pytest

from bpals.errors import FilmError
from bpals.images.archives import unsafe
from bpals.images.collection import open_index
from bpals.types import Refusal


def outcomes(path, *names):
    """What reading films of a zip gives: `read`, or the code of the refusal."""
    index = open_index(path, names)
    return {name: got.code if isinstance(got, Refusal) else "read" for name, got in index.read(index.found)}


def link_to(name):
    """The member of a zip that is a symbolic link."""
    about = zipfile.ZipInfo(name)
    about.external_attr = (stat.S_IFLNK | 0o777) << 16
    return about


def test_each_unsafe_member_is_refused_with_its_own_reason(tmp_path, film, pack_zip):
    """F16: slip, absolute path, link, ratio 1000; the film between them is read, nothing is written."""
    inside = tmp_path / "in"
    inside.mkdir()
    members = [
        ("../../evil.png", film(1)),
        ("/etc/root.png", film(2)),
        ("C:\\windows\\back.png", film(3)),
        (link_to("link.png"), b"/etc/passwd"),
        ("bomb.png", bytes(20 << 20)),
        ("good.png", film(4)),
    ]
    path = pack_zip(inside / "films.zip", members)
    before = sorted(tmp_path.rglob("*"))
    names = ("evil.png", "root.png", "back.png", "link.png", "bomb.png", "good.png")
    assert outcomes(path, *names) == {
        "evil.png": "unsafe_path",
        "root.png": "unsafe_path",
        "back.png": "unsafe_path",
        "link.png": "link",
        "bomb.png": "bomb",
        "good.png": "read",
    }
    assert sorted(tmp_path.rglob("*")) == before
    refused = {notice.message: notice.count for notice in open_index(path, names).notices}
    assert [count for message, count in refused.items() if "leads out of the archive" in message] == [3]


def test_a_name_that_stands_twice_in_a_zip_is_refused(tmp_path, film, pack_zip):
    """F16: the zipfile module would silently take the last."""
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = pack_zip(tmp_path / "films.zip", [("a.png", film(1)), ("a.png", film(2)), ("b.png", film(3))])
    assert outcomes(path, "a.png", "b.png") == {"a.png": "duplicate_name", "b.png": "read"}


def test_an_encrypted_member_is_refused(tmp_path, film, pack_zip):
    """F16: nobody is asked for a password."""
    path = pack_zip(tmp_path / "films.zip", [("a.png", film(1)), ("b.png", film(2))])
    content = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + flags] |= 1
    path.write_bytes(content)
    assert outcomes(path, "a.png", "b.png") == {"a.png": "encrypted", "b.png": "read"}


def test_a_member_packed_in_another_way_is_refused(tmp_path, film):
    """LZMA may ask for 4 GB of memory."""
    path = tmp_path / "films.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.png", film())
    assert outcomes(path, "a.png") == {"a.png": "codec"}


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_cut_zip_is_one_clear_line(tmp_path, film, pack_zip, share):
    """F16: its list of members stands at its end."""
    path = pack_zip(tmp_path / "films.zip", [(f"{n}.png", film(n)) for n in range(5)])
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(FilmError, match=r"films\.zip .*damaged"):
        open_index(path, ["1.png"])


def test_damage_to_one_member_refuses_that_member_only(tmp_path, film, pack_zip):
    """F16: the checksum of the member is checked."""
    path = pack_zip(tmp_path / "films.zip", [(f"{n}.png", film(n)) for n in range(3)])
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x03\x04", 100)
    content[at + 400] ^= 0xFF
    path.write_bytes(content)
    assert outcomes(path, "0.png", "1.png", "2.png") == {"0.png": "read", "1.png": "corrupt", "2.png": "read"}


def test_a_zip_of_a_million_members_is_refused_before_it_is_listed(tmp_path):
    """F16: the zipfile module would make an object of each; a list that hides its length is counted too."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = entry * 1_000_000
    for claimed in (1_000_000 & 0xFFFF, 1):
        path = tmp_path / "films.zip"
        end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, claimed, claimed, len(directory), 0, 0)
        path.write_bytes(b"PK\x03\x04" + directory + end)
        with pytest.raises(FilmError, match=r"films\.zip .*500,000"):
            open_index(path, ["a.png"])


def test_a_zip_that_was_replaced_after_it_was_listed_is_found_out(tmp_path, film, pack_zip):
    """F22: a member is checked against the list."""
    path = pack_zip(tmp_path / "films.zip", [("a.png", film(1)), ("b.png", film(2))])
    index = open_index(path, ["b.png"])
    pack_zip(path, [("b.png", film(3))])
    assert [got.code for _, got in index.read(["b.png"])] == ["changed"]


def test_a_zip64_is_read(tmp_path, film):
    """As large archives are written."""
    with zipfile.ZipFile(tmp_path / "films.zip", "w") as archive, archive.open("a.png", "w", force_zip64=True) as one:
        one.write(film())
    assert outcomes(tmp_path / "films.zip", "a.png") == {"a.png": "read"}


@pytest.mark.parametrize("name", ["/a", "../a", "a/../../b", "a\\b", "c:a", "a\0b"])
def test_paths_that_lead_elsewhere_are_unsafe(name):
    """F16: absolute, climbing, of another system."""
    assert unsafe(name)
    assert not unsafe("images/a..b/c.png")
