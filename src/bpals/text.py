"""The plural: a number with its noun, as a sentence has it."""

from __future__ import annotations


def several(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun, and with its verb if you like: 1 lesson, 2 lessons; 1 film is, 2 films are."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
