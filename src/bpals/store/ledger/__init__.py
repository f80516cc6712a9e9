"""The ledger: what arrives piece by piece and must never be lost, in one file or one PostgreSQL database."""

from __future__ import annotations

from bpals.store.ledger.answers import AskedFilm, Attempt, pack, unpack
from bpals.store.ledger.ledger import Ledger
from bpals.store.ledger.locks import old_sqlite, unfit

__all__ = ["AskedFilm", "Attempt", "Ledger", "old_sqlite", "pack", "unfit", "unpack"]
