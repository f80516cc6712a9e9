"""The keys of the findings: one each, none of them a key of the tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bpals.errors import UsageError
from bpals.review.web.toolkeys import TOOL_CHARACTERS

FREE_KEYS = tuple(key for key in "abcdefghijklmnopqrstuvwxyz678;'" if key not in TOOL_CHARACTERS)


def check_keys(keys: Mapping[str, str], *, origin: str) -> None:
    """Refuse a key that is not one character, that a tool has, or that two findings share."""
    owner: dict[str, str] = {}
    for finding, key in keys.items():
        folded = key.lower()
        if len(folded) != 1 or not folded.isprintable() or folded.isspace():
            raise UsageError(f"{origin}: the key of {finding} is {key!r}; wanted is one character. {_free(owner)}")
        if folded in TOOL_CHARACTERS:
            raise UsageError(f"{origin}: the key of {finding} is {key!r}, which is a tool's. {_free(owner)}")
        if folded in owner:
            raise UsageError(f"{origin}: {owner[folded]} and {finding} have the same key {key!r}. {_free(owner)}")
        owner[folded] = finding


def assign_keys(findings: Sequence[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Give every finding a key: the one wanted, else the first letter of its name, else another, else a free one."""
    keys = {finding: key.lower() for finding, key in wanted.items()}
    for finding in findings:
        if finding not in keys and finding[:1].lower() in _left(keys):
            keys[finding] = finding[:1].lower()
    for finding in findings:
        if finding not in keys:
            left = _left(keys)
            if not left:
                raise UsageError(f"{len(findings)} findings are more than there are keys. Name fewer: findings = [...]")
            keys[finding] = next((letter for letter in finding.lower() if letter in left), left[0])
    return {finding: keys[finding] for finding in findings}


def _left(keys: Mapping[str, str]) -> list[str]:
    return [key for key in FREE_KEYS if key not in keys.values()]


def _free(owner: Mapping[str, str]) -> str:
    return f"Free are: {' '.join(key for key in FREE_KEYS if key not in owner)}"
