"""What holds images: a folder, a tar (plain or compressed) or a zip, each seen as entries and a reader of them.

Nothing is unpacked to disk, no link is followed, and no stated size is believed before it is checked. A compressed tar
is read from its start on. A gzipped one that must be read in any order keeps the state of its unpacker every 32 MiB
(40 kB each): an image that was passed once costs a tenth of a second or two.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Self

from bpals.errors import FilmError
from bpals.images.formats import MOST_BYTES, MOST_MEMBERS, MOST_RATIO, SMALL_BYTES, Refused, check_bytes, read_size
from bpals.types import Refusal

HEAD = 1 << 16  # bytes at the start of an image in which its size is looked for
PIECE = 1 << 20  # bytes that are unpacked at once on the way to a place
MOST_OPEN = 16  # archives that are open at once

GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"
GZIP_WITH_HEADER = 16 + zlib.MAX_WBITS
MOST_AT_ONCE = 16 << 20  # bytes that one read of a header may want; a tar may claim a name of any length
GRACE = 1 << 30  # bytes that any compressed tar may unpack to, whatever its ratio
EVERY = 32 << 20  # unpacked bytes between two places to which a gzip can go back
PACKED = 1 << 16  # bytes of a gzip that are read at once

ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
ZIP_END, ZIP_END_BYTES = b"PK\x05\x06", 22
ZIP64_END, ZIP64_LOCATOR = b"PK\x06\x06", b"PK\x06\x07"
MOST_COMMENT = 65_535
MOST_DIRECTORY = 128 << 20  # bytes of the list of members

# What the modules of the standard library raise at an archive that is cut or not what it says.
TAR_DAMAGED = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, OverflowError, LookupError)
ZIP_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError,
           ValueError, struct.error, LookupError)  # fmt: skip

LINK = Refusal(code="link", message="it is a link, and links are not followed: name the folder that it leads to")
LINK_INSIDE = Refusal(code="link", message="it is a link, and links in archives are not followed")
UNSAFE = Refusal(code="unsafe_path", message="its path leads out of the archive")
CUT = Refusal(code="truncated", message="its archive is cut short or damaged at or before this film")
CHANGED = "its archive is not the one that was listed: start again"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file in a container."""

    name: str  # its path inside the container, with slashes; never used to open anything outside
    size: int
    at: int = 0  # the byte in a tar, the number of the member in a zip or a compressed tar
    pixels: int | None = None  # how many its header says, where it was read
    refusal: Refusal | None = None


class Location(NamedTuple):
    """Where an image lies: the number of its container, and its entry there."""

    container: int
    entry: Entry


Reader = Callable[[Entry, int], bytes]
"""Reads one entry whole, or its first bytes up to a number, or raises Refused."""


class Container(ABC):
    """A folder or an archive."""

    sequential = False
    """True where entries can only be read cheaply in their own order."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self.path = path

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """List every file; raises FilmError if the container cannot be used, after what could be listed."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Reader]:
        """Open it for reading."""


def open_archive(path: Path) -> Container:
    """Return what an archive is, by its first bytes."""
    try:
        with path.open("rb") as stream:
            start = stream.read(6)
    except OSError:  # reported when it is listed
        return Tar(path)
    if start.startswith(ZIP_STARTS):
        return Zip(path)
    return StreamedTar(path) if start.startswith((GZIP, BZIP2, XZ)) else Tar(path)


class Closing:
    """Something that a with statement closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is open."""


class Readers(Closing):
    """Holders that are open, the longest unused closed first."""

    def __init__(self, containers: list[Container]) -> None:
        """Open nothing yet."""
        self._containers = containers
        self._open: OrderedDict[int, tuple[ExitStack, Reader]] = OrderedDict()

    def close(self) -> None:
        """Close what is open; what is read next is opened again."""
        while self._open:
            self._open.popitem()[1][0].close()

    def read(self, location: Location, most: int = MOST_BYTES + 1) -> bytes:
        """Read one image or its start, or raise Refused."""
        if location.entry.refusal is not None:
            raise Refused(location.entry.refusal.code, location.entry.refusal.message)
        if location.container not in self._open:
            container, stack = self._containers[location.container], ExitStack()
            try:
                self._open[location.container] = stack, stack.enter_context(container.reading())
            except (OSError, FilmError):
                raise Refused("unreadable", f"{container.path.name} cannot be opened any more") from None
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(location.container)
        return self._open[location.container][1](location.entry, most)


def count_pixels(head: bytes) -> int | None:
    """Return how many pixels the start of a PNG or JPEG promises; None for what is neither."""
    size = read_size(head)
    return None if size is None else size[0] * size[1]


def unsafe(name: str) -> bool:
    """Return whether a path in an archive is absolute, climbs, or is written for another system."""
    return name.startswith("/") or "\\" in name or "\0" in name or name[1:2] == ":" or ".." in name.split("/")


def _read_bounded(stream: IO[bytes], size: int, most: int) -> bytes:
    """Read a file of a stated size, or its start, and never more than an image may have."""
    check_bytes(size)
    content = stream.read(min(size, most))
    if len(content) < min(size, most):
        raise Refused("truncated", f"{len(content):,} of its {size:,} bytes are there")
    return content


def _unreadable(error: OSError) -> Refused:
    return Refused("unreadable", f"the disk says: {error.strerror or 'it cannot be read'}")


class Folder(Container):
    """Files under a folder, at any depth; a link that the user named is followed, one inside is not."""

    def entries(self) -> Iterator[Entry]:
        """List every regular file in the order of its name; links are listed with why they are not read."""
        waiting = [""]
        while waiting:
            below = waiting.pop()
            folders = []
            for found in self._scan(below):
                name = below + found.name
                if found.is_symlink():
                    yield Entry(name, 0, refusal=LINK)
                elif found.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif found.is_file(follow_symlinks=False):
                    yield Entry(name, found.stat(follow_symlinks=False).st_size)
            waiting += reversed(folders)

    def _scan(self, below: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.path / below) as found:
                return sorted(found, key=lambda entry: entry.name)
        except OSError:  # a folder that may not be listed holds no image for us: its images are counted as missing
            return []

    def reading(self) -> AbstractContextManager[Reader]:
        """Open nothing yet: each file is opened when it is read."""
        return nullcontext(self._read)

    def _read(self, entry: Entry, most: int) -> bytes:
        try:
            # Not blocking: a pipe that took the file's place since it was listed must not hold up the run.
            file = os.open(self.path / entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(file, "rb") as stream:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode):
                    raise Refused("unreadable", "it is no longer a file")
                check_bytes(about.st_size)
                content = stream.read(most)
        except OSError as error:
            raise _unreadable(error) from None
        check_bytes(len(content))
        return content


class Zip(Container):
    """The members of one zip."""

    def entries(self) -> Iterator[Entry]:
        """List every file in it, each unsafe one with its reason."""
        with self._open() as archive:
            members = archive.infolist()
            names = Counter(member.filename for member in members)
            for number, member in enumerate(members):
                if not member.is_dir():
                    refusal = _zip_refusal(member, twice=names[member.filename] > 1)
                    yield Entry(member.filename, member.file_size, number, refusal=refusal)

    def _open(self) -> zipfile.ZipFile:
        try:
            with self.path.open("rb") as stream:
                _check_directory(stream, self.path.name)
            return zipfile.ZipFile(self.path)
        except ZIP_DAMAGED:
            raise FilmError(f"{self.path.name} is cut short or damaged, or no zip. Download it again") from None

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open it once for all that is read."""
        with self._open() as archive:
            members = archive.infolist()

            def read(entry: Entry, most: int) -> bytes:
                if entry.at >= len(members) or members[entry.at].filename != entry.name:
                    raise Refused("changed", "its zip is not the one that was listed: start again")
                try:
                    with archive.open(members[entry.at]) as stream:
                        return _read_bounded(stream, entry.size, most)
                except ZIP_DAMAGED:
                    raise Refused("corrupt", "its bytes in the zip are damaged") from None

            yield read


def _check_directory(stream: IO[bytes], name: str) -> None:
    """Count the members before the zipfile module makes an object of each."""
    size = stream.seek(0, 2)
    stream.seek(max(0, size - ZIP_END_BYTES - MOST_COMMENT))
    tail = stream.read()
    at = tail.rfind(ZIP_END)
    if at < 0 or len(tail) < at + ZIP_END_BYTES:
        raise zipfile.BadZipFile
    length = struct.unpack_from("<I", tail, at + 12)[0]
    end = size - len(tail) + at
    if at >= 20 and tail[at - 20 : at - 16] == ZIP64_LOCATOR:
        stream.seek(struct.unpack_from("<Q", tail, at - 12)[0])
        record = stream.read(56)
        if record[:4] == ZIP64_END:
            length, end = struct.unpack_from("<Q", record, 40)[0], stream.tell() - 56
    count = MOST_MEMBERS + 1
    if length <= MOST_DIRECTORY:
        stream.seek(max(0, end - length))
        directory, place, count = stream.read(length), 0, 0
        while place + 46 <= len(directory) and count <= MOST_MEMBERS:
            place += 46 + sum(struct.unpack_from("<HHH", directory, place + 28))
            count += 1
    if count > MOST_MEMBERS:
        raise FilmError(f"{name} lists more members than {MOST_MEMBERS:,}: it is not read. Split it")


def _zip_refusal(member: zipfile.ZipInfo, *, twice: bool) -> Refusal | None:
    """Return why a member is not read, if it is not; the first reason counts."""
    swells = member.file_size > SMALL_BYTES and member.file_size > MOST_RATIO * max(1, member.compress_size)
    odd = member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
    reasons = (
        (unsafe(member.filename), UNSAFE.code, UNSAFE.message),
        (stat.S_ISLNK(member.external_attr >> 16), LINK_INSIDE.code, LINK_INSIDE.message),
        (twice, "duplicate_name", "the zip has two files of this name: nobody knows which is meant"),
        (member.flag_bits & 0x1, "encrypted", "it is encrypted: unlock the zip first"),
        (odd, "codec", "it is packed in a way that is not read: pack the zip with deflate"),
        (swells, "bomb", f"it would unpack to more than {MOST_RATIO} times its size"),
    )
    return next((Refusal(code=code, message=message) for holds, code, message in reasons if holds), None)


class Tar(Container):
    """The members of one plain tar."""

    def entries(self) -> Iterator[Entry]:
        """List every file in it by jumping from header to header."""
        with self.path.open("rb") as stream:
            for member in _walk_members(stream, self.path):
                yield Entry(member.name, member.size, member.offset_data, refusal=_tar_refusal(member))

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open it once for all that is read."""
        with self.path.open("rb") as stream:

            def read(entry: Entry, most: int) -> bytes:
                try:
                    stream.seek(entry.at)
                    return _read_bounded(stream, entry.size, most)
                except OSError as error:
                    raise _unreadable(error) from None

            yield read


def _walk_members(stream: IO[bytes], path: Path) -> Iterator[tarfile.TarInfo]:
    """Return every member but folders; past a header that is damaged, go on with the next one that is whole."""
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
    except TAR_DAMAGED:
        words = f"after {count:,} members" if count else "from its start"
        raise FilmError(f"{path.name} is cut short or damaged {words}. Download it again") from None
    if count > MOST_MEMBERS:
        raise FilmError(f"{path.name} has more than {MOST_MEMBERS:,} members: the rest is not read. Split it")


def _tar_refusal(member: tarfile.TarInfo) -> Refusal | None:
    """Return why a member is not read, if it is not."""
    if unsafe(member.name):
        return UNSAFE
    if member.issym() or member.islnk():
        return LINK_INSIDE
    if not member.isreg() or member.issparse():
        return Refusal(code="unreadable", message="it is a device or a file with holes, and no film")
    return None


class StreamedTar(Container):
    """The members of one compressed tar, which can only be read from its start on."""

    sequential = True

    def entries(self) -> Iterator[Entry]:
        """List every file by unpacking all of it once, and look at the size of each image while it passes."""
        for number, member, stream in self.members():
            refusal, pixels = _tar_refusal(member), None
            try:
                if refusal is None:
                    stream.seek(member.offset_data)
                    pixels = count_pixels(stream.read(min(HEAD, member.size)))
            except TAR_DAMAGED:
                yield Entry(member.name, member.size, number, refusal=CUT)
                raise FilmError(f"{self.path.name} is cut short or damaged after {number:,} members") from None
            yield Entry(member.name, member.size, number, pixels, refusal)

    def members(self) -> Generator[tuple[int, tarfile.TarInfo, IO[bytes]], None, None]:
        """Walk through it once: each member with its number, and the stream, at the end of its header."""
        with self.path.open("rb") as stored:
            start = stored.read(6)
            most = _most_unpacked(stored)
            unpack = bz2.open if start.startswith(BZIP2) else lzma.open if start.startswith(XZ) else gzip.open
            with unpack(stored) as packed:
                stream: IO[bytes] = ForwardStream(packed, most)  # type: ignore[assignment, arg-type]
                for number, member in enumerate(_walk_members(stream, self.path)):
                    yield number, member, stream

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Go through it once; an entry before the last one read starts it again."""
        walk, following, broken = self.members(), 0, False

        def read(entry: Entry, most: int) -> bytes:
            nonlocal walk, following, broken
            check_bytes(entry.size)
            if entry.at < following:
                walk.close()
                walk, following, broken = self.members(), 0, False
            if broken:
                raise Refused(CUT.code, CUT.message)
            try:
                for number, member, stream in walk:
                    following = number + 1
                    if number == entry.at:
                        return _read_member(stream, member, entry)[:most]
            except (FilmError, *TAR_DAMAGED):
                broken = True
                raise Refused(CUT.code, CUT.message) from None
            raise Refused("changed", CHANGED)

        try:
            yield read
        finally:
            walk.close()


def _most_unpacked(stored: IO[bytes]) -> int:
    """Return to how many bytes a compressed tar may unpack, and go to its start."""
    most = GRACE + MOST_RATIO * stored.seek(0, 2)
    stored.seek(0)
    return most


def _read_member(stream: IO[bytes], member: tarfile.TarInfo, entry: Entry) -> bytes:
    """Read one member in pieces, if it is the one that was listed."""
    if (member.name, member.size) != (entry.name, entry.size):
        raise Refused("changed", CHANGED)
    stream.seek(member.offset_data)
    content = b"".join(stream.read(min(PIECE, entry.size - start)) for start in range(0, entry.size, PIECE))
    if len(content) < entry.size:
        raise EOFError
    return content


class ForwardStream:
    """The unpacked bytes of any compressed file, as `tarfile` needs them: it only goes forward, and stops at a bomb."""

    def __init__(self, stored: IO[bytes], most: int) -> None:
        """Begin at the start."""
        self._stored = stored
        self._most = most
        self._at = 0

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Unpack so many bytes, or as many as there are."""
        if size < 0 or size > MOST_AT_ONCE:
            raise OSError("a header of the tar claims an impossible length")
        return self._unpack(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go on to a place."""
        if whence != 0 or offset < self._at:
            raise OSError("a compressed tar is read forward only")
        return self._go_on_to(offset)

    def _unpack(self, size: int) -> bytes:
        content = self._stored.read(size)
        self._advance(len(content))
        return content

    def _advance(self, count: int) -> None:
        self._at += count
        if self._at > self._most:
            raise OSError("the tar unpacks to far more than it is")

    def _go_on_to(self, offset: int) -> int:
        """Read on to a place, or to the end where that comes first."""
        while self._at < offset and self.read(min(PIECE, offset - self._at)):
            pass
        return self._at


class _Mark(NamedTuple):
    """The unpacker as it was at one place."""

    at: int
    packed: int  # where the packed bytes go on that it had not yet taken
    state: zlib._Decompress


class Gunzip(ForwardStream):
    """The unpacked bytes of a gzip, which also goes back, and cheaply."""

    def __init__(self, stored: IO[bytes], most: int, *, every: int = EVERY) -> None:
        """Begin at the start."""
        super().__init__(stored, most)
        self._every = every
        self._waiting, self._state = b"", zlib.decompressobj(GZIP_WITH_HEADER)
        self._marks = [_Mark(0, 0, self._state.copy())]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place: back to the mark before it, or on, and then on to it."""
        if whence != 0:
            raise OSError("a gzip does not know its end")
        mark = next(each for each in reversed(self._marks) if each.at <= offset)
        if offset < self._at or mark.at > self._at:
            self._stored.seek(mark.packed)
            self._at, self._waiting, self._state = mark.at, b"", mark.state.copy()
        return self._go_on_to(offset)

    def _unpack(self, size: int) -> bytes:
        content = io.BytesIO()
        while content.tell() < size and (piece := self._unpack_some(size - content.tell())):
            content.write(piece)
        return content.getvalue()

    def _unpack_some(self, most: int) -> bytes:
        """Unpack at least one byte; none at the end."""
        while True:
            self._waiting = self._waiting or self._stored.read(PACKED)
            if self._state.eof:  # another gzip may follow, or zeros
                self._waiting = self._waiting.lstrip(b"\0")
                if not self._waiting:
                    self._waiting = self._stored.read(PACKED)
                    if not self._waiting:
                        return b""
                    continue
                self._state = zlib.decompressobj(GZIP_WITH_HEADER)
            ended = not self._waiting
            piece = self._state.decompress(self._waiting, most)
            self._waiting = self._state.unused_data if self._state.eof else self._state.unconsumed_tail
            if piece:
                self._advance(len(piece))
                if self._at - self._marks[-1].at >= self._every:
                    packed = self._stored.tell() - len(self._waiting)
                    self._marks.append(_Mark(self._at, packed, self._state.copy()))
                return piece
            if ended and not self._state.eof:
                raise EOFError("the gzip is cut short")


class GzippedTar(StreamedTar):
    """The members of one gzipped tar, in any order."""

    every = EVERY

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open it; members that were passed are remembered until it is closed."""
        with self.path.open("rb") as stored:
            stream: IO[bytes] = Gunzip(stored, _most_unpacked(stored), every=self.every)  # type: ignore[assignment]
            walk = _walk_members(stream, self.path)
            passed: list[tarfile.TarInfo] = []
            ended = ("changed", CHANGED)

            def read(entry: Entry, most: int) -> bytes:
                nonlocal ended
                check_bytes(entry.size)
                try:
                    while len(passed) <= entry.at:
                        passed.append(next(walk))
                    return _read_member(stream, passed[entry.at], entry)[:most]
                except StopIteration:
                    raise Refused(*ended) from None
                except (FilmError, *TAR_DAMAGED):
                    ended = (CUT.code, CUT.message)
                    raise Refused(*ended) from None

            yield read


def gzipped(container: Container) -> Container:
    """Return a container that goes back quickly if this is a gzipped tar, and else the same."""
    if not isinstance(container, StreamedTar):
        return container
    try:
        with container.path.open("rb") as stored:
            return GzippedTar(container.path) if stored.read(2) == GZIP else container
    except OSError:  # reported when it is read
        return container
