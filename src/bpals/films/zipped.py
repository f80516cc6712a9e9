"""A zip of films, read in place: nothing is unpacked, and a member that could do harm is refused with its reason."""

from __future__ import annotations

import lzma
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bpals.errors import FilmError
from bpals.films.holder import Entry, Reader, read_bounded
from bpals.films.refused import MOST_BYTES, MOST_MEMBERS, MOST_RATIO, SMALL_BYTES, Refused
from bpals.types import Refusal

START = (b"PK\x03\x04", b"PK\x05\x06")
END, END_BYTES = b"PK\x05\x06", 22
END64, LOCATOR64 = b"PK\x06\x06", b"PK\x06\x07"
MOST_COMMENT = 65_535
MOST_DIRECTORY = 128 << 20
"""Bytes of the list of members."""

DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError,
           ValueError, struct.error, LookupError)  # fmt: skip
"""What the zipfile module raises at an archive that is not what it says."""


class Zip:
    """The members of one zip."""

    sequential = False

    def __init__(self, path: Path) -> None:
        """Remember where it is."""
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """List every file in it, each unsafe one with its reason."""
        with self._open() as archive:
            members = archive.infolist()
            names = Counter(member.filename for member in members)
            for number, member in enumerate(members):
                if not member.is_dir():
                    refusal = _refusal(member, twice=names[member.filename] > 1)
                    yield Entry(member.filename, member.file_size, number, refusal=refusal)

    def _open(self) -> zipfile.ZipFile:
        try:
            with self.path.open("rb") as stream:
                _check_directory(stream, self.path.name)
            return zipfile.ZipFile(self.path)
        except DAMAGED:
            raise FilmError(f"{self.path.name} is cut short or damaged, or no zip. Download it again") from None

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open it once for all that is read."""
        with self._open() as archive:
            members = archive.infolist()

            def read(entry: Entry, most: int = MOST_BYTES + 1) -> bytes:
                if entry.at >= len(members) or members[entry.at].filename != entry.name:
                    raise Refused("changed", "its zip is not the one that was listed: start again")
                try:
                    with archive.open(members[entry.at]) as stream:
                        return read_bounded(stream, entry.size, most)
                except DAMAGED:
                    raise Refused("corrupt", "its bytes in the zip are damaged") from None

            yield read


def _check_directory(stream: IO[bytes], name: str) -> None:
    """Count the members before the zipfile module makes an object of each."""
    size = stream.seek(0, 2)
    stream.seek(max(0, size - END_BYTES - MOST_COMMENT))
    tail = stream.read()
    at = tail.rfind(END)
    if at < 0 or len(tail) < at + END_BYTES:
        raise zipfile.BadZipFile
    length = struct.unpack_from("<I", tail, at + 12)[0]
    end = size - len(tail) + at
    if at >= 20 and tail[at - 20 : at - 16] == LOCATOR64:
        stream.seek(struct.unpack_from("<Q", tail, at - 12)[0])
        record = stream.read(56)
        if record[:4] == END64:
            length, end = struct.unpack_from("<Q", record, 40)[0], stream.tell() - 56
    if length > MOST_DIRECTORY:
        raise FilmError(f"{name} lists more members than {MOST_MEMBERS:,}: it is not read. Split it")
    stream.seek(max(0, end - length))
    _count_members(stream.read(length), name)


def _count_members(directory: bytes, name: str) -> None:
    at = count = 0
    while at + 46 <= len(directory):
        at += 46 + sum(struct.unpack_from("<HHH", directory, at + 28))
        count += 1
        if count > MOST_MEMBERS:
            raise FilmError(f"{name} lists more members than {MOST_MEMBERS:,}: it is not read. Split it")


def _refusal(member: zipfile.ZipInfo, *, twice: bool) -> Refusal | None:
    """Say why a member is not read, if it is not; the first reason counts."""
    packed = max(1, member.compress_size)
    swells = member.file_size > SMALL_BYTES and member.file_size > MOST_RATIO * packed
    odd = member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
    reasons = (
        (unsafe(member.filename), "unsafe_path", "its path leads out of the archive"),
        (stat.S_ISLNK(member.external_attr >> 16), "link", "it is a link, and links in archives are not followed"),
        (twice, "duplicate_name", "the zip has two files of this name: nobody knows which is meant"),
        (member.flag_bits & 0x1, "encrypted", "it is encrypted: unlock the zip first"),
        (odd, "codec", "it is packed in a way that is not read: pack the zip with deflate"),
        (swells, "bomb", f"it would unpack to more than {MOST_RATIO} times its size"),
    )
    return next((Refusal(code=word, message=message) for holds, word, message in reasons if holds), None)


def unsafe(name: str) -> bool:
    """Say whether a path in an archive is absolute, climbs, or is written for another system."""
    return name.startswith("/") or "\\" in name or "\0" in name or name[1:2] == ":" or ".." in name.split("/")
