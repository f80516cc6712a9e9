"""What a licence says about commercial use, as far as its name says it."""

from __future__ import annotations

from bpals.types import Trained

ALLOW = ("0bsd", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "cc-by-4.0", "cc0-1.0", "isc", "mit", "unlicense")
FORBID = ("-nc", "noncommercial", "non-commercial", "research-only", "research only")


def commercial_use(licence: str) -> Trained:
    """Say `yes` of licences that are known to allow it, `no` of those that forbid it by name, else `unknown`."""
    name = licence.strip().lower()
    if any(word in name for word in FORBID):
        return "no"
    return "yes" if name in ALLOW else "unknown"
