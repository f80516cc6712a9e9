"""The ledger: what arrives piece by piece and must never be lost, in one file or one PostgreSQL database."""

from __future__ import annotations

from bpals.ledger.asked import AskedFilm, Attempt
from bpals.ledger.evidence import pack, unpack
from bpals.ledger.place import old_sqlite, unfit
from bpals.ledger.store import Ledger

__all__ = ["AskedFilm", "Attempt", "Ledger", "old_sqlite", "pack", "unfit", "unpack"]
