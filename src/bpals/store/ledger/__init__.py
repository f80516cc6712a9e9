"""The ledger: answers and reads that arrive one by one and must never be lost, in a file or in PostgreSQL."""

from __future__ import annotations

from bpals.store.ledger.answers import AskedFilm, pack, unpack
from bpals.store.ledger.ledger import Ledger
from bpals.store.ledger.sqlite import old_sqlite, unfit

__all__ = ["AskedFilm", "Ledger", "old_sqlite", "pack", "unfit", "unpack"]
