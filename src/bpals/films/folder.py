"""A folder of films, walked without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bpals.films.holder import Entry, Reader, check_bytes
from bpals.films.refused import MOST_BYTES, Refused
from bpals.types import Refusal

LINK = Refusal(code="link", message="it is a link, and links are not followed: name the folder that it leads to")


class Folder:
    """Files under a folder, at any depth."""

    sequential = False

    def __init__(self, path: Path) -> None:
        """Remember the folder; a link that was named by the user is followed, one inside is not."""
        self.path = path

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
        except OSError:  # a folder that may not be listed holds no film for us: its films are counted as missing
            return []

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open nothing yet: each file is opened when it is read."""
        yield self._read

    def _read(self, entry: Entry, most: int = MOST_BYTES + 1) -> bytes:
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
            raise Refused("unreadable", f"the disk says: {error.strerror or 'it cannot be read'}") from None
        check_bytes(len(content))
        return content
