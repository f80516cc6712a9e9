"""Shards of a run, and the draw: the images of a dataset that all shards together cover.

Shards are parts of one run only if they were drawn alike: from the same images, as many, and with the same seed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bpals.errors import UsageError
from bpals.text import several

SHORT = 8  # hex digits of a hash in a sentence
_FORM = re.compile(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*")


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of so many, written 3/8."""

    part: int  # from 1
    of: int

    def __post_init__(self) -> None:
        """Refuse a part that is not one of them."""
        if self.of < 1 or not 1 <= self.part <= self.of:
            raise UsageError(
                f"--shard {self.part}/{self.of}: there is no such part, they are 1/{max(1, self.of)} to "
                f"{max(1, self.of)}/{max(1, self.of)}. Type: --shard 1/{max(1, self.of)}"
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `3/8`: the third of eight."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise UsageError(f"--shard {text}: a shard is a part of so many, as in 3/8. Type: --shard 1/8")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"

    def holds(self, image_id: str) -> bool:
        """Say whether an image is in this part."""
        # By the hash of its name: an image stays in its shard when others join the dataset.
        number = int.from_bytes(hashlib.sha256(image_id.encode()).digest()[:8], "big")
        return number % self.of == self.part - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A number of images, out of those that were found."""

    limit: int | None  # images that were drawn; None means all that were found
    seed: int | None  # None where all were drawn: it changes nothing then
    found: int  # images of the dataset that were there
    names: str  # the hash of their names

    @classmethod
    def of(cls, found: Iterable[str], limit: int | None, seed: int) -> Draw:
        """Describe the draw of so many images, or of all, from those that were found."""
        names = sorted(found)
        some = limit is not None and limit < len(names)
        hashed = hashlib.sha256("\n".join(names).encode()).hexdigest()
        return cls(limit=limit if some else None, seed=seed if some else None, found=len(names), names=hashed)

    @classmethod
    def read(cls, plan: Mapping[str, Any]) -> Draw | None:
        """Read the draw from the plan of a run; None in ledgers that are older than this record."""
        return cls(**plan["draw"]) if "draw" in plan else None

    def covers(self, other: Draw) -> bool:
        """Say whether every image of the other draw is in this one: a larger draw holds the smaller."""
        if self.names != other.names:
            return self.limit is None and self.found > other.found
        if self.limit is None or other.limit is None:
            return self.limit is None
        return self.seed == other.seed and self.limit >= other.limit

    def words(self, *, named: bool = False) -> str:
        """Describe it in a phrase, with the hash of the names where that is what differs."""
        which = f" (sha256 of their names {self.names[:SHORT]})" if named else ""
        if self.limit is None:
            return f"all of {several(self.found, 'image')}{which}"
        return f"{self.limit:,} of {several(self.found, 'image')}{which}, seed {self.seed}"
