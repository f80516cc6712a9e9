"""The file of reads that a command was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bpals.errors import UsageError


def one_file(reviews: Sequence[Path] | None) -> Path | None:
    """Give the one file; several are refused, because the last of them would be heard alone."""
    if reviews and len(reviews) > 1:
        names = ", ".join(str(file) for file in reviews)
        raise UsageError(
            f"--reviews was given {len(reviews)} times ({names}). Join the rows into one file, and name that"
        )
    return reviews[0] if reviews else None
