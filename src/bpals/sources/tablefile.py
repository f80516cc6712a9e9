"""A dataset's table on disk, refused in the words of a source."""

from __future__ import annotations

from pathlib import Path

from bpals import tablefile
from bpals.errors import SourceError
from bpals.tablefile import MOST_BYTES, TableFile
from bpals.tablewords import TableWords

WORDS = TableWords(
    error=SourceError, too_large="{name} holds more than {most:,} bytes. Keep only the columns that the mapping names"
)


def open_table(path: str | Path, *, separator: str = ",", most_bytes: int = MOST_BYTES) -> TableFile:
    """Read a file and its header; the mapping says how it is separated."""
    return tablefile.open_table(path, words=WORDS, separator=separator, most_bytes=most_bytes)


def read_bytes(path: str | Path) -> bytes:
    """Read a regular file, such as a mapping; anything else is a one-line error."""
    return tablefile.read_bytes(path, words=WORDS)
