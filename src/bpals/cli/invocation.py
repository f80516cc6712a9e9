"""One call of `bpals`: what holds for it, whatever its command is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Invocation:
    """What a call was told, and what its command says of itself."""

    debug: bool = False
    goes_on: bool = False
    """Whether the same command, typed again after Ctrl-C, goes on where it was."""
