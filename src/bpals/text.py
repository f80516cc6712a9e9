"""A number with its noun in the singular or plural."""

from __future__ import annotations


def several(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun, and a verb if you like: 1 image, 2 images; 1 image is, 2 images are."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
