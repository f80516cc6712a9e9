"""Who is at the desk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["reader", "adjudicator", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One person, as the desk knows them: everybody may read, adjudicators and admins may settle."""

    account_id: int
    name: str
    role: Role = "reader"

    @property
    def may_settle(self) -> bool:
        """Say whether this one may settle what readers disagree about."""
        return self.role in {"adjudicator", "admin"}
