"""A tar of films, read in place: by offset where it is plain, in one stream where it is compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bpals.errors import FilmError
from bpals.films.holder import HEAD, Entry, Reader, check_bytes, count_pixels, read_bounded
from bpals.films.refused import MOST_BYTES, MOST_MEMBERS, MOST_RATIO, Refused
from bpals.films.unpacked import PIECE, Unpacked
from bpals.films.zipped import unsafe
from bpals.types import Refusal

GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"
MOST_AT_ONCE = 16 << 20
"""Bytes that a single read of a header may ask for; a tar may claim a name of any length."""
GRACE = 1 << 30
"""Bytes that any compressed tar may unpack to, whatever its ratio."""

DAMAGED = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, OverflowError, LookupError)
"""What a tar raises that is cut or damaged."""
CUT = Refusal(code="truncated", message="its archive is cut short or damaged at or before this film")


class _Onward(Unpacked):
    """A decompressed stream that only goes forward, in pieces, and stops at a bomb."""

    def __init__(self, packed: IO[bytes], most: int) -> None:
        self._packed = packed
        self._most = most

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 0 or offset < self._at:
            raise OSError("a compressed tar is read forward only")
        return self._go_on_to(offset)

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > MOST_AT_ONCE:
            raise OSError("a header of the tar claims an impossible length")
        content = self._packed.read(size)
        self._at += len(content)
        if self._at > self._most:
            raise OSError("the tar unpacks to far more than it is")
        return content


def most_unpacked(stored: IO[bytes]) -> int:
    """Say to how many bytes a compressed tar may unpack, and go to its start."""
    most = GRACE + MOST_RATIO * stored.seek(0, 2)
    stored.seek(0)
    return most


def _unpacker(start: bytes) -> Callable[[IO[bytes]], IO[bytes]]:
    """Choose by the first bytes of a file."""
    if start.startswith(BZIP2):
        return bz2.BZ2File
    if start.startswith(XZ):
        return lzma.LZMAFile
    return lambda stored: gzip.GzipFile(fileobj=stored)  # type: ignore[return-value]


class Tar:
    """The members of one plain tar."""

    sequential = False

    def __init__(self, path: Path) -> None:
        """Remember where it is."""
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """List every file in it by jumping from header to header."""
        with self.path.open("rb") as stream:
            for member in walk_members(stream, self.path):
                yield Entry(member.name, member.size, member.offset_data, refusal=_refusal(member))

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open it once for all that is read."""
        with self.path.open("rb") as stream:

            def read(entry: Entry, most: int = MOST_BYTES + 1) -> bytes:
                try:
                    stream.seek(entry.at)
                    return read_bounded(stream, entry.size, most)
                except OSError as error:
                    raise Refused("unreadable", f"the disk says: {error.strerror or 'it cannot be read'}") from None

            yield read


class StreamedTar:
    """The members of one compressed tar, which can only be read from its start on."""

    sequential = True

    def __init__(self, path: Path) -> None:
        """Remember where it is."""
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """List every file by unpacking all of it once, and look at the size of each film while it passes."""
        with self.unpacked() as stream:
            for number, member in enumerate(walk_members(stream, self.path)):
                refusal = _refusal(member)
                try:
                    pixels = None if refusal else _passing_pixels(stream, member)
                except DAMAGED:
                    yield Entry(member.name, member.size, number, refusal=CUT)
                    raise FilmError(f"{self.path.name} is cut short or damaged after {number:,} members") from None
                yield Entry(member.name, member.size, number, pixels, refusal)

    @contextmanager
    def unpacked(self) -> Iterator[IO[bytes]]:
        """Open it as the stream of its unpacked bytes."""
        with self.path.open("rb") as stored:
            start = stored.read(6)
            most = most_unpacked(stored)
            with _unpacker(start)(stored) as packed:
                yield _Onward(packed, most)  # type: ignore[misc]

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Go through it once; an entry that stands before the last one read starts it anew."""
        passage = _Passage(self)
        try:
            yield passage.read
        finally:
            passage.close()


class _Passage:
    """One walk through a compressed tar."""

    def __init__(self, tar: StreamedTar) -> None:
        self._tar = tar
        self._walk: Generator[tuple[int, tarfile.TarInfo, IO[bytes]], None, None] | None = None
        self._next = 0
        self._broken: Refused | None = None

    def read(self, entry: Entry, most: int = MOST_BYTES + 1) -> bytes:
        """Move on to an entry and give its bytes."""
        check_bytes(entry.size)
        if self._walk is None or entry.at < self._next:
            self.close()
            self._walk, self._next, self._broken = self._members(), 0, None
        if self._broken is not None:
            raise self._broken
        try:
            for number, member, stream in self._walk:
                self._next = number + 1
                if number == entry.at:
                    return self._content(entry, member, stream)[:most]
        except (FilmError, *DAMAGED):
            self._broken = Refused(CUT.code, CUT.message)
            raise self._broken from None
        raise Refused("changed", "its archive is not the one that was listed: start again")

    def _content(self, entry: Entry, member: tarfile.TarInfo, stream: IO[bytes]) -> bytes:
        if (member.name, member.size) != (entry.name, entry.size):
            raise Refused("changed", "its archive is not the one that was listed: start again")
        stream.seek(member.offset_data)
        pieces = io.BytesIO()
        while pieces.tell() < entry.size:
            piece = stream.read(min(PIECE, entry.size - pieces.tell()))
            if not piece:
                raise EOFError
            pieces.write(piece)
        return pieces.getvalue()

    def _members(self) -> Generator[tuple[int, tarfile.TarInfo, IO[bytes]], None, None]:
        with self._tar.unpacked() as stream:
            for number, member in enumerate(walk_members(stream, self._tar.path)):
                yield number, member, stream

    def close(self) -> None:
        """Let go of the file."""
        if self._walk is not None:
            self._walk.close()
            self._walk = None


def walk_members(stream: IO[bytes], path: Path) -> Iterator[tarfile.TarInfo]:
    """Give every member but folders; past a header that is damaged, go on with the next one that is whole."""
    count = 0
    try:
        with tarfile.TarFile(fileobj=stream, ignore_zeros=True, encoding="utf-8") as archive:
            while (member := archive.next()) is not None:
                # It keeps every member it has seen, and there may be 100,000.
                archive.members = []  # type: ignore[attr-defined]
                count += 1
                if count > MOST_MEMBERS:
                    break
                if not member.isdir():
                    yield member
    except DAMAGED:
        words = f"after {count:,} members" if count else "from its start"
        raise FilmError(f"{path.name} is cut short or damaged {words}. Download it again") from None
    if count > MOST_MEMBERS:
        raise FilmError(f"{path.name} has more than {MOST_MEMBERS:,} members: the rest is not read. Split it")


def _passing_pixels(stream: IO[bytes], member: tarfile.TarInfo) -> int | None:
    stream.seek(member.offset_data)
    return count_pixels(stream.read(min(HEAD, member.size)))


def _refusal(member: tarfile.TarInfo) -> Refusal | None:
    """Say why a member is not read, if it is not."""
    if unsafe(member.name):
        return Refusal(code="unsafe_path", message="its path leads out of the archive")
    if member.issym() or member.islnk():
        return Refusal(code="link", message="it is a link, and links in archives are not followed")
    if not member.isreg() or member.issparse():
        return Refusal(code="unreadable", message="it is a device or a file with holes, and no film")
    return None
