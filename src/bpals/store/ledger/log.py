"""The log of the reading room: each entry holds the hash of the one before.

Editing, removing or reordering an entry breaks the chain at that place. An edited review or adjudication no longer
matches the digest in its entry. `check` names the first such place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, bindparam, insert, select, text

from bpals.errors import UsageError
from bpals.store.ledger import Ledger
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.review_rows import digest
from bpals.store.ledger.schema import ADJUDICATION, ENTRY, READING, REVIEW, now

# The actor of what no person did: the rules of the study, and the clock.
ROOM = "room"
GENESIS = "0" * 64
_APPENDING = 0x62_70_61_6C_73  # the advisory lock of the log on PostgreSQL: `bpals`
_AT_ONCE = 5_000

_HASHED = ("sequence", "at", "actor", "action", "reading_id", "detail", "key", "reply", "previous")
_LAST = Ready(select(ENTRY.c.sequence, ENTRY.c.hash).order_by(ENTRY.c.sequence.desc()).limit(1))
_INSERT = Ready(insert(ENTRY))
_BY_KEY = Ready(select(ENTRY).where(ENTRY.c.key == bindparam("wanted")))


def canonical(value: object) -> str:
    """Write a value as JSON in one way only: the same value gives the same text."""
    # Hashes are taken of this text. A changed separator or key order would break the chain of every old log.
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def hold(connection: Connection) -> None:
    """Be the only one that appends, until the transaction ends."""
    # Two that append at once would both follow the same entry. SQLite has one writer anyway.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _APPENDING})


class Log:
    """The log in one transaction: the first append waits for its lock, and finds the last entry once."""

    def __init__(self, connection: Connection) -> None:
        """Touch nothing yet."""
        self._connection = connection
        self._last: tuple[int, str] | None = None

    def append(
        self,
        *,
        actor: str,
        action: str,
        detail: Mapping[str, Any],
        reading_id: str | None = None,
        key: str | None = None,
        reply: Mapping[str, Any] | None = None,
    ) -> int:
        """Add an entry, and give its sequence."""
        if self._last is None:
            hold(self._connection)
            last = _LAST.first(self._connection)
            self._last = (int(last.sequence), str(last.hash)) if last else (0, GENESIS)
        sequence, previous = self._last
        entry = {
            "sequence": sequence + 1,
            "at": now(),
            "actor": actor,
            "action": action,
            "reading_id": reading_id,
            "detail": canonical(detail),
            "key": key,
            "reply": None if reply is None else canonical(reply),
            "previous": previous,
        }
        made = _hash(entry)
        _INSERT.run(self._connection, **entry, hash=made)
        self._last = (sequence + 1, made)
        return sequence + 1


def append(connection: Connection, **entry: Any) -> int:
    """Add one entry in the caller's transaction, as `Log.append` does, and give its sequence."""
    return Log(connection).append(**entry)


def recall(connection: Connection, key: str) -> Any:
    """Give the entry of a request that was done already, or None."""
    return _BY_KEY.first(connection, wanted=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry: kept elsewhere, it proves that nothing before it was changed."""

    sequence: int | None  # None where only the hash was kept
    hash: str

    def __str__(self) -> str:
        """Write it in the form to keep."""
        return self.hash if self.sequence is None else f"{self.sequence}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read a head that was kept: SEQUENCE:HASH, or the hash alone."""
        sequence, _, kept = text.strip().lower().rpartition(":")
        if not re.fullmatch("[0-9a-f]{64}", kept) or not re.fullmatch("[0-9]{0,18}", sequence):
            raise UsageError(
                f"{text!r} is no head of a log: it is a number, a colon and 64 letters from 0 to f, as "
                "bpals review verify-log prints them. Copy the whole of it"
            )
        return cls(sequence=int(sequence) if sequence else None, hash=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A log that was checked from end to end at one moment."""

    found: list[str]  # what is wrong, the first bad sequence first; empty if all is well
    head: Head


def head(connection: Connection) -> Head:
    """Give the last entry."""
    last = _LAST.first(connection)
    return Head(sequence=int(last.sequence), hash=str(last.hash)) if last else Head(sequence=0, hash=GENESIS)


def check(ledger: Ledger, *, known: Head | None = None) -> Checked:
    """Check the whole log, and give what is wrong with it and its head.

    `known` is a head that was kept elsewhere: with it a log that was cut off or replaced as a whole shows too.
    """
    return ledger.look(lambda connection: Checked(found=_problems(connection, known), head=head(connection)))


def _problems(connection: Connection, known: Head | None) -> list[str]:
    logged = _Logged()
    broken = _check_links(connection, logged) or _check_known(connection, known)
    # Behind a broken link no entry can be believed.
    return broken or [
        *_check_rows(connection, REVIEW, logged.review),
        *_check_rows(connection, ADJUDICATION, logged.adjudication),
        *_check_readings(connection, logged),
    ]


@dataclass(slots=True)
class _Logged:
    """The state of the other tables according to the log: id -> digest and sequence, and each reading's state."""

    review: dict[int, tuple[str, int]] = field(default_factory=dict)
    adjudication: dict[int, tuple[str, int]] = field(default_factory=dict)
    reading: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def add(self, entry: RowMapping) -> None:
        """Take over the state that an entry holds."""
        detail = json.loads(entry["detail"])
        for kind, digests in (("review", self.review), ("adjudication", self.adjudication)):
            for row_id, logged in detail.get(f"{kind}s", {}).items():
                digests[int(row_id)] = (logged, entry["sequence"])
        if entry["reading_id"] and "state" in detail:
            self.reading[entry["reading_id"]] = (detail["state"], detail["version"], entry["sequence"])


def _hash(entry: Mapping[str, Any] | RowMapping) -> str:
    values: list[Any] = [entry[name] for name in _HASHED]
    return hashlib.sha256(canonical(values).encode()).hexdigest()


def _check_links(connection: Connection, logged: _Logged) -> list[str]:
    """Follow the chain from its beginning to the first broken link."""
    expected, previous = 1, GENESIS
    for entry in _in_order(connection, ENTRY, ENTRY.c.sequence):
        found = entry["sequence"]
        if found != expected:
            return [f"entry {expected} is missing: after {expected - 1} comes {found}"]
        if entry["previous"] != previous:
            return [f"entry {found} does not follow entry {found - 1}: another stood there before it"]
        if entry["hash"] != _hash(entry):
            return [f"entry {found} was changed: its hash is not that of its content"]
        logged.add(entry)
        expected, previous = expected + 1, entry["hash"]
    return []


def _check_known(connection: Connection, known: Head | None) -> list[str]:
    """Compare the log with a head that was kept elsewhere; the head of an empty log proves nothing."""
    if known is None or known in (Head(sequence=0, hash=GENESIS), Head(sequence=None, hash=GENESIS)):
        return []
    if known.sequence is None:
        here = connection.execute(select(ENTRY.c.sequence).where(ENTRY.c.hash == known.hash)).first()
        lost = f"no entry has the hash that was kept: the log ends before it, or was replaced: {known.hash}"
        return [] if here is not None else [lost]
    found = connection.execute(select(ENTRY.c.hash).where(ENTRY.c.sequence == known.sequence)).scalar()
    if found is None:
        return [f"entry {known.sequence} is missing: its hash was kept, and the log ends before it"]
    if found != known.hash:
        return [f"entry {known.sequence} is another than the one whose hash was kept: {known.hash}"]
    return []


def _check_rows(connection: Connection, table: Table, logged: Mapping[int, tuple[str, int]]) -> list[str]:
    """Compare the reviews, or the adjudications, with the digests that the entries hold."""
    kind, unseen = table.name, dict(logged)
    identity = table.c[f"{kind}_id"]
    for row in _in_order(connection, table, identity):
        row_id = row[identity.name]
        found, sequence = unseen.pop(row_id, ("", 0))
        if not found:
            return [f"{kind} {row_id} is in no entry: it was added past the room, or its entry was cut off the end"]
        if found != digest(table, row):
            return [f"entry {sequence}: {kind} {row_id} was changed after it was written"]
    lost = sorted((sequence, row_id) for row_id, (_, sequence) in unseen.items())
    return [f"entry {sequence}: {kind} {row_id} was removed" for sequence, row_id in lost[:1]]


def _check_readings(connection: Connection, logged: _Logged) -> list[str]:
    """Compare the state of each reading with the last entry about it."""
    for row in _in_order(connection, READING, READING.c.reading_id):
        state, version, sequence = logged.reading.get(row["reading_id"], ("not there", 0, 0))
        if (row["state"], row["version"]) != (state, version):
            found, wanted = f"{row['state']}, version {row['version']}", f"{state}, version {version}"
            return [f"entry {sequence}: reading {row['reading_id']} is {found}, and was {wanted}"]
    return []


def _in_order(connection: Connection, table: Any, column: Any) -> Iterator[RowMapping]:
    """Give the rows of a table in the order of its key, some thousand at a time."""
    # By key, not by offset: an offset makes the database count all rows before it again.
    after: Any = None
    while True:
        some = select(table).order_by(column).limit(_AT_ONCE)
        rows = connection.execute(some if after is None else some.where(column > after)).mappings().all()
        yield from rows
        if len(rows) < _AT_ONCE:
            return
        after = rows[-1][column.name]
