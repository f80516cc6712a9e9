"""One transaction at the desk: who is there, in which study, at which moment of the database's clock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from bpals.errors import Refused
from bpals.ledger.reviewschema import DRAWN
from bpals.review.desk import chain
from bpals.review.desk.account import Account
from bpals.review.desk.bounds import check_key
from bpals.review.desk.study import Study
from bpals.review.desk.views import Saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """What every step of the desk works with."""

    connection: Connection
    study: Study
    study_id: int
    account: Account
    now: float
    """Seconds, by the database's clock: never this machine's."""
    log: chain.Log

    @property
    def lease_end(self) -> float:
        """When a case that is handed out now goes back."""
        return self.now + 60 * self.study.lease_minutes

    def findings_of(self, case_ids: Collection[int]) -> dict[int, tuple[str, ...]]:
        """Give the findings that each case asks, in the order of the study."""
        if self.study.asks == "all":
            return dict.fromkeys(case_ids, self.study.findings)
        named: dict[int, set[str]] = {case_id: set() for case_id in case_ids}
        drawn = select(DRAWN.c.case_id, DRAWN.c.finding).where(DRAWN.c.case_id.in_(list(case_ids)))
        for case_id, finding in self.connection.execute(drawn):
            named[case_id].add(finding)
        return {case_id: tuple(f for f in self.study.findings if f in asked) for case_id, asked in named.items()}

    def note(self, action: str, detail: Mapping[str, Any], *, reading_id: str | None = None) -> None:
        """Write down what the rules or the clock did."""
        told = {**detail, "study": self.study_id}
        self.log.append(actor=chain.ROOM, action=action, detail=told, reading_id=reading_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks to be changed, with the key by which the same request is known again."""

    sitting: Sitting
    action: str
    subject: str
    """The reading, or the case."""
    key: str
    content: str
    """What is said, as text: the same key with another content is another request, and refused."""

    @property
    def digest(self) -> str:
        """Tell this request from any other."""
        told = f"{self.action}\0{self.subject}\0{self.content}"
        # A text that no database keeps is refused later, in words; here it is only told from others.
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def own_key(self) -> str:
        """The key, among the keys of this person: another's does not answer here."""
        return f"{self.sitting.account.account_id}:{self.key}"

    def done_before(self) -> Saved | None:
        """Give the receipt of this request if it was done already."""
        check_key(self.key)
        entry = chain.recall(self.sitting.connection, self.own_key)
        if entry is None:
            return None
        if json.loads(entry.detail).get("request") != self.digest or entry.reply is None:
            raise Refused(f"the key {self.key!r} was used for another request. Send a new key with every change")
        reply = json.loads(entry.reply)
        return Saved(version=reply["version"], reply=reply)

    def finish(self, reply: Mapping[str, Any], detail: Mapping[str, Any], *, reading_id: str | None = None) -> Saved:
        """Write the entry with the reply, and give the receipt."""
        told = {**detail, "request": self.digest, "study": self.sitting.study_id}
        self.sitting.log.append(
            actor=self.sitting.account.name,
            action=self.action,
            detail=told,
            reading_id=reading_id,
            key=self.own_key,
            reply=reply,
        )
        return Saved(version=int(reply["version"]), reply=dict(reply))
