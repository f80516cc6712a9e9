"""A gzipped tar, read at any place: what was passed once is found again without unpacking from the start.

While the stream goes by, the state of the unpacker is kept every 32 MiB (40 kB each). A film that was passed costs
unpacking from the state before it, a tenth of a second or two; one that was not yet passed, from the furthest place.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from bpals.errors import FilmError
from bpals.films.holder import Entry, Holder, Reader, check_bytes
from bpals.films.refused import MOST_BYTES, Refused
from bpals.films.tarred import CUT, DAMAGED, GZIP, MOST_AT_ONCE, StreamedTar, most_unpacked, walk_members
from bpals.films.unpacked import PIECE, Unpacked

if TYPE_CHECKING:
    import tarfile

GZIP_WITH_HEADER = 16 + zlib.MAX_WBITS
EVERY = 32 << 20
"""Unpacked bytes between two places to which one can go back."""
PACKED = 1 << 16


class _Mark(NamedTuple):
    """The unpacker as it was at one place."""

    at: int
    packed: int
    """Where the packed bytes go on that it had not yet taken."""
    state: zlib._Decompress


class Gunzip(Unpacked):
    """The unpacked bytes of a gzip; going back is cheap, and a bomb stops it."""

    def __init__(self, stored: IO[bytes], most: int, *, every: int = EVERY) -> None:
        """Begin at the start."""
        self._stored = stored
        self._most = most
        self._every = every
        self._at, self._waiting, self._state = 0, b"", zlib.decompressobj(GZIP_WITH_HEADER)
        self._marks = [_Mark(0, 0, self._state.copy())]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place: back to the mark before it, or on, and then on to it."""
        if whence != 0:
            raise OSError("a gzip does not know its end")
        mark = next(each for each in reversed(self._marks) if each.at <= offset)
        if offset < self._at or mark.at > self._at:
            self._go_to(mark)
        return self._go_on_to(offset)

    def read(self, size: int = -1) -> bytes:
        """Unpack so many bytes, or as many as there are."""
        if size < 0 or size > MOST_AT_ONCE:
            raise OSError("a header of the tar claims an impossible length")
        pieces = io.BytesIO()
        while pieces.tell() < size:
            piece = self._unpack(size - pieces.tell())
            if not piece:
                break
            pieces.write(piece)
        return pieces.getvalue()

    def _unpack(self, most: int) -> bytes:
        """Unpack some bytes; none at the end."""
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
                self._pass(len(piece))
                return piece
            if ended and not self._state.eof:
                raise EOFError("the gzip is cut short")

    def _pass(self, count: int) -> None:
        self._at += count
        if self._at > self._most:
            raise OSError("the tar unpacks to far more than it is")
        if self._at - self._marks[-1].at >= self._every:
            self._marks.append(_Mark(self._at, self._stored.tell() - len(self._waiting), self._state.copy()))

    def _go_to(self, mark: _Mark) -> None:
        self._stored.seek(mark.packed)
        self._at, self._waiting, self._state = mark.at, b"", mark.state.copy()


class GzippedTar(StreamedTar):
    """The members of one gzipped tar, in any order."""

    def __init__(self, path: Path, *, every: int = EVERY) -> None:
        """Remember where it is."""
        super().__init__(path)
        self._every = every

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open it; what is passed is remembered until it is closed."""
        with self.path.open("rb") as stored:
            yield _Passed(Gunzip(stored, most_unpacked(stored), every=self._every), self.path).read


def gzipped(holder: Holder) -> Holder:
    """Give a holder that goes back quickly, where it is a gzipped tar; any other as it is."""
    if not isinstance(holder, StreamedTar):
        return holder
    try:
        with holder.path.open("rb") as stored:
            return GzippedTar(holder.path) if stored.read(2) == GZIP else holder
    except OSError:  # said when it is read
        return holder


class _Passed:
    """What was passed of a tar, and the walk through the rest."""

    def __init__(self, stream: Gunzip, path: Path) -> None:
        self._stream = stream
        self._walk = walk_members(stream, path)  # type: ignore[arg-type]
        self._members: list[tarfile.TarInfo] = []
        self._ended = Refused("changed", "its archive is not the one that was listed: start again")

    def read(self, entry: Entry, most: int = MOST_BYTES + 1) -> bytes:
        """Give the bytes of an entry, or its first."""
        check_bytes(entry.size)
        try:
            while len(self._members) <= entry.at:
                self._members.append(next(self._walk))
            member = self._members[entry.at]
            if (member.name, member.size) != (entry.name, entry.size):
                raise Refused("changed", "its archive is not the one that was listed: start again")
            return self._content(member)[:most]
        except StopIteration:
            raise self._ended from None
        except (FilmError, *DAMAGED):
            self._ended = Refused(CUT.code, CUT.message)
            raise self._ended from None

    def _content(self, member: tarfile.TarInfo) -> bytes:
        self._stream.seek(member.offset_data)
        pieces = io.BytesIO()
        while pieces.tell() < member.size:
            piece = self._stream.read(min(PIECE, member.size - pieces.tell()))
            if not piece:
                raise EOFError
            pieces.write(piece)
        return pieces.getvalue()
