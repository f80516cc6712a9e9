"""A shard: the films of a dataset that one of several machines asks about, by the hash of their names.

A film is in part `h mod n` of n, counted from 1, where h is the first eight bytes of the SHA-256 of its image id, the
highest first. No seed and no other film has a say in it: whoever shards by hand can compute the same.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from bpals.errors import UsageError

_FORM = re.compile(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*")


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of so many, written 3/8."""

    part: int
    """From 1."""
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
        """Say whether a film is in this part."""
        number = int.from_bytes(hashlib.sha256(image_id.encode()).digest()[:8], "big")
        return number % self.of == self.part - 1
