"""A draw: which films of a dataset a run set out to ask about, before they were divided into shards.

Shards are parts of one whole only if they were drawn alike: from the same films, as many, and with the same seed. How
quickly they were asked about, by whom, and in which folder they lay is of no account.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bpals.errors import UsageError
from bpals.text import several

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


SHORT = 8
"""Hex digits of a hash in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """So many films, of those that were found."""

    limit: int | None
    """Films that were drawn; none is all that were found."""
    seed: int | None
    """Of no account, and none, where all were drawn."""
    found: int
    """Films of the dataset that were there ..."""
    names: str
    """... and the hash of their names."""

    @classmethod
    def of(cls, found: Iterable[str], limit: int | None, seed: int) -> Draw:
        """Describe the draw of so many films, or of all, from those that were found."""
        names = sorted(found)
        some = limit is not None and limit < len(names)
        hashed = hashlib.sha256("\n".join(names).encode()).hexdigest()
        return cls(limit=limit if some else None, seed=seed if some else None, found=len(names), names=hashed)

    @classmethod
    def read(cls, plan: Mapping[str, Any]) -> Draw | None:
        """Read the draw that a run wrote down; none where it was not written down yet."""
        return cls(**plan["draw"]) if "draw" in plan else None

    def as_dict(self) -> dict[str, Any]:
        """Write it out for the record of a run."""
        return asdict(self)

    def covers(self, other: Draw) -> bool:
        """Say whether every film of the other draw is in this one: a larger number adds to the films of a smaller."""
        if self.names != other.names:
            return self.limit is None and self.found > other.found
        if self.limit is None or other.limit is None:
            return self.limit is None
        return self.seed == other.seed and self.limit >= other.limit

    def words(self, *, named: bool = False) -> str:
        """Say it in a phrase; with the hash of the films' names where that is what differs."""
        which = f" (sha256 of their names {self.names[:SHORT]})" if named else ""
        if self.limit is None:
            return f"all of {several(self.found, 'film')}{which}"
        return f"{self.limit:,} of {several(self.found, 'film')}{which}, seed {self.seed}"
