"""Carried films: bytes that were read elsewhere, for a process that does not see the folder they lie in."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from bpals.films.lending import MISSING
from bpals.films.shelf import Shelf
from bpals.types import Refusal


class Carried(Shelf):
    """A few films with their bytes."""

    def __init__(self, contents: Sequence[tuple[str, bytes | Refusal]]) -> None:
        """Take what was read."""
        super().__init__([], {}, (), ())
        self._contents = dict(contents)
        self.found = tuple(self._contents)

    def read(self, image_ids: Iterable[str]) -> Generator[tuple[str, bytes | Refusal], None, None]:
        """Give films one by one, in the order in which they are wanted."""
        for image_id in image_ids:
            yield image_id, self._contents.get(image_id, MISSING)
