"""The unpacked bytes of a compressed file, as a stream that knows its place and goes on in small pieces."""

from __future__ import annotations

import io

PIECE = 1 << 20
"""Bytes that are unpacked at once on the way to a place."""


class Unpacked(io.RawIOBase):
    """A stream whose places are unpacked bytes; what it holds is read by the class that unpacks it."""

    _at = 0
    """How many bytes have been given."""

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that places can be gone to."""
        return True

    def tell(self) -> int:
        """Say where it is."""
        return self._at

    def _go_on_to(self, offset: int) -> int:
        """Read on to a place, or to the end where that comes first."""
        while self._at < offset:
            if not self.read(min(PIECE, offset - self._at)):
                break
        return self._at
