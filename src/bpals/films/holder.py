"""What holds films: a folder, a tar or a zip, all seen as a list of entries and a reader of their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Protocol, Self

from bpals.errors import FilmError
from bpals.films import jpeg, png
from bpals.films.refused import MOST_BYTES, Refused
from bpals.types import Refusal

HEAD = 1 << 16
"""Bytes at the start of a film in which its size is looked for."""
MOST_OPEN = 16
"""Archives that are open at once."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file in a holder."""

    name: str
    """Its path inside the holder, with slashes; never used to open anything outside."""
    size: int
    at: int = 0
    """Where it is: the byte in a tar, the number of the member in a zip or a compressed tar."""
    pixels: int | None = None
    """How many its header says, where somebody has looked."""
    refusal: Refusal | None = None
    """Why it is not read."""


class Reader(Protocol):
    """Gives the bytes of entries, one at a time."""

    def __call__(self, entry: Entry, most: int = MOST_BYTES + 1) -> bytes:
        """Read one entry whole, or its first bytes, or raise Refused."""
        ...


class Holder(Protocol):
    """A folder or an archive."""

    path: Path
    sequential: bool
    """True where entries can only be read cheaply in the order in which they stand."""

    def entries(self) -> Iterator[Entry]:
        """List every file; raises FilmError if the holder cannot be used, after what could be listed."""
        ...

    def reading(self) -> AbstractContextManager[Reader]:
        """Open it for reading."""
        ...


def read_bounded(stream: IO[bytes], size: int, most: int) -> bytes:
    """Read a file of a stated size, or its start, and never more than a film may have."""
    check_bytes(size)
    content = stream.read(min(size, most))
    if len(content) < min(size, most):
        raise Refused("truncated", f"{len(content):,} of its {size:,} bytes are there")
    return content


def check_bytes(size: int) -> None:
    """Refuse a file for its size before it is read."""
    if size > MOST_BYTES:
        raise Refused("too_large", f"the file has {size:,} bytes; more than {MOST_BYTES:,} are not read")


def count_pixels(head: bytes) -> int | None:
    """Say how many pixels the start of a PNG or JPEG promises; none for what is neither."""
    try:
        if head.startswith(png.SIGNATURE):
            about: png.Header | jpeg.Header = png.read_header(head)
        elif head.startswith(jpeg.START):
            about = jpeg.read_header(head)
        else:
            return None
    except Refused:
        return None
    return about.width_px * about.height_px


class Spot(NamedTuple):
    """Where a film lies."""

    holder: int
    entry: Entry


class Readers:
    """Holders that are open, the longest unused closed first."""

    def __init__(self, holders: list[Holder]) -> None:
        """Open nothing yet."""
        self._holders = holders
        self._open: OrderedDict[int, tuple[ExitStack, Reader]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open; what is read next is opened again."""
        while self._open:
            self._open.popitem()[1][0].close()

    def read(self, spot: Spot, most: int = MOST_BYTES + 1) -> bytes:
        """Read one film or its start, or raise Refused."""
        if spot.entry.refusal is not None:
            raise Refused(spot.entry.refusal.code, spot.entry.refusal.message)
        if spot.holder not in self._open:
            self._open[spot.holder] = self._opened(self._holders[spot.holder])
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(spot.holder)
        return self._open[spot.holder][1](spot.entry, most)

    @staticmethod
    def _opened(holder: Holder) -> tuple[ExitStack, Reader]:
        stack = ExitStack()
        try:
            return stack, stack.enter_context(holder.reading())
        except (OSError, FilmError):
            raise Refused("unreadable", f"{holder.path.name} cannot be opened any more") from None
