"""The log: everything that happened, each entry holding the hash of the one before.

Whoever edits, removes or reorders an entry breaks the chain at that place; whoever edits a review or an adjudication
differs from the entry that holds its digest. `verify` names the first place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, insert, select, text

from bpals.errors import UsageError
from bpals.store.ledger import Ledger
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.schema import ADJUDICATION, ENTRY, READING, REVIEW, now
from bpals.store.ledger.verdicts import digest

ROOM = "room"
"""Who did what nobody did: the rules of the study, and the clock."""
GENESIS = "0" * 64
_TURN = 0x62_70_61_6C_73
_AT_ONCE = 5_000

_HASHED = ("sequence", "at", "actor", "action", "reading_id", "detail", "key", "reply", "previous")
_LAST = Ready(select(ENTRY.c.sequence, ENTRY.c.hash).order_by(ENTRY.c.sequence.desc()).limit(1))
_INSERT = Ready(insert(ENTRY))
_BY_KEY = Ready(select(ENTRY).where(ENTRY.c.key == bindparam("wanted")))


def canonical(value: object) -> str:
    """Write a value as JSON in the one way there is: the same value gives the same text."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def hold(connection: Connection) -> None:
    """Be the only one that appends, until the transaction ends: on SQLite every writer is."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:turn)"), {"turn": _TURN})


class Log:
    """The log in one transaction: who appends first waits for their turn, and knows the last entry from then on."""

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
        sequence, previous = self._find_last()
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

    def _find_last(self) -> tuple[int, str]:
        if self._last is None:
            hold(self._connection)
            last = _LAST.first(self._connection)
            self._last = (int(last.sequence), str(last.hash)) if last else (0, GENESIS)
        return self._last


def append(
    connection: Connection,
    *,
    actor: str,
    action: str,
    detail: Mapping[str, Any],
    reading_id: str | None = None,
    key: str | None = None,
    reply: Mapping[str, Any] | None = None,
) -> int:
    """Add one entry in the caller's transaction, and give its sequence."""
    log = Log(connection)
    return log.append(actor=actor, action=action, detail=detail, reading_id=reading_id, key=key, reply=reply)


def recall(connection: Connection, key: str) -> Any:
    """Give the entry of a request that was done already, or None."""
    return _BY_KEY.first(connection, wanted=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry: kept elsewhere, it holds fast all that came before."""

    sequence: int | None
    """None where only the hash was kept."""
    hash: str

    def __str__(self) -> str:
        """Write it as it is to be kept."""
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
    """A log that was walked from end to end at one moment."""

    found: tuple[str, ...]
    """What is wrong, the first bad sequence first; nothing if all is well."""
    head: Head


def head(ledger: Ledger) -> Head:
    """Give the last entry."""
    return ledger.look(_head)


def _head(connection: Connection) -> Head:
    last = _LAST.first(connection)
    return Head(sequence=int(last.sequence), hash=str(last.hash)) if last else Head(sequence=0, hash=GENESIS)


def check(ledger: Ledger, *, known: Head | None = None) -> Checked:
    """Walk the log, and give what is wrong with it and its head.

    `known` is a head that was kept elsewhere: then a log that was cut off before it, or replaced as a whole, shows too.
    """
    return ledger.look(
        lambda connection: Checked(found=tuple(_problems(connection, known)), head=_head(connection)),
    )


def verify(ledger: Ledger, *, known: Head | None = None) -> list[str]:
    """Say what is wrong, the first bad sequence first; nothing if all is well."""
    return [*check(ledger, known=known).found]


def _problems(connection: Connection, known: Head | None) -> list[str]:
    said = _Said()
    broken = _check_links(connection, said) or _check_known(connection, known)
    # Behind a broken link nothing that an entry says can be believed.
    return broken or [
        *_check_rows(connection, "review", said),
        *_check_rows(connection, "adjudication", said),
        *_check_readings(connection, said),
    ]


@dataclass(slots=True)
class _Said:
    """What the entries say of the other tables: id -> digest and sequence, and how each reading stands."""

    review: dict[int, tuple[str, int]] = field(default_factory=dict)
    adjudication: dict[int, tuple[str, int]] = field(default_factory=dict)
    reading: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def listen(self, entry: RowMapping) -> None:
        """Take down what an entry says."""
        detail = json.loads(entry["detail"])
        for kind, said in (("review", self.review), ("adjudication", self.adjudication)):
            for row_id, seal in detail.get(f"{kind}s", {}).items():
                said[int(row_id)] = (seal, entry["sequence"])
        if entry["reading_id"] and "state" in detail:
            self.reading[entry["reading_id"]] = (detail["state"], detail["version"], entry["sequence"])


def _hash(entry: Mapping[str, Any] | RowMapping) -> str:
    told: list[Any] = [entry[name] for name in _HASHED]
    return hashlib.sha256(canonical(told).encode()).hexdigest()


def _check_links(connection: Connection, said: _Said) -> list[str]:
    """Walk the chain from its beginning to the first link that does not hold."""
    expected, previous = 1, GENESIS
    for entry in _in_order(connection, ENTRY, ENTRY.c.sequence):
        found = entry["sequence"]
        if found != expected:
            return [f"entry {expected} is missing: after {expected - 1} comes {found}"]
        if entry["previous"] != previous:
            return [f"entry {found} does not follow entry {found - 1}: another stood there before it"]
        if entry["hash"] != _hash(entry):
            return [f"entry {found} was changed: its hash is not that of what it says"]
        said.listen(entry)
        expected, previous = expected + 1, entry["hash"]
    return []


def _check_known(connection: Connection, known: Head | None) -> list[str]:
    """Compare the log with a head that was kept elsewhere; that of an empty log holds nothing fast."""
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


def _check_rows(connection: Connection, kind: str, said: _Said) -> list[str]:
    """Compare the reviews, or the adjudications, with the digests that the entries hold."""
    table, spoken = (REVIEW, said.review) if kind == "review" else (ADJUDICATION, said.adjudication)
    unseen = dict(spoken)
    identity = table.c[f"{kind}_id"]
    for row in _in_order(connection, table, identity):
        row_id = row[identity.name]
        seal, sequence = unseen.pop(row_id, ("", 0))
        if not seal:
            return [f"{kind} {row_id} is in no entry: it was added past the room, or its entry was cut off the end"]
        if seal != digest(table, row):
            return [f"entry {sequence}: {kind} {row_id} was changed after it was written"]
    lost = sorted((sequence, row_id) for row_id, (_, sequence) in unseen.items())
    return [f"entry {sequence}: {kind} {row_id} was removed" for sequence, row_id in lost[:1]]


def _check_readings(connection: Connection, said: _Said) -> list[str]:
    """Compare where each reading stands with the last entry about it."""
    for row in _in_order(connection, READING, READING.c.reading_id):
        state, version, sequence = said.reading.get(row["reading_id"], ("not there", 0, 0))
        if (row["state"], row["version"]) != (state, version):
            found, wanted = f"{row['state']}, version {row['version']}", f"{state}, version {version}"
            return [f"entry {sequence}: reading {row['reading_id']} is {found}, and was {wanted}"]
    return []


def _in_order(connection: Connection, table: Any, column: Any) -> Iterator[RowMapping]:
    """Give the rows of a table in the order of its key, some thousand at a time."""
    after: Any = None
    while True:
        some = select(table).order_by(column).limit(_AT_ONCE)
        rows = connection.execute(some if after is None else some.where(column > after)).mappings().all()
        yield from rows
        if len(rows) < _AT_ONCE:
            return
        after = rows[-1][column.name]
