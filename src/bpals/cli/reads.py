"""The files of reads that a command was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def given_files(reviews: Sequence[Path] | None) -> Path | list[Path] | None:
    """Give the one file, all of several, or none: what is recorded of one is its path and not a list."""
    if not reviews:
        return None
    return reviews[0] if len(reviews) == 1 else list(reviews)
