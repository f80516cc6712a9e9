"""The office: accounts, for admins; and one's own sessions, for everybody."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request

from bpals.review.desk.account import Account
from bpals.review.people.accounts import AccountCard
from bpals.review.room import Room
from bpals.review.web.bodies import AccountBody, NewAccountBody
from bpals.review.web.door import Me, TheRoom, token_of
from bpals.review.web.problems import NOT_FOUND, Declined

router = APIRouter(prefix="/api")

AccountId = Annotated[int, Path(ge=1, le=2**53)]


@router.get("/accounts")
def accounts(
    room: TheRoom, _account: Me, sort: Annotated[Literal["name", "role", "at"], Query()] = "name"
) -> dict[str, Any]:
    """List the accounts, without anything that lets one in."""
    listed = [_shown(card) for card in room.accounts.cards()]
    return {"accounts": sorted(listed, key=lambda card: (card[sort], card["name"]))}


@router.post("/accounts")
def make_account(body: NewAccountBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Make an account and the link by which it is entered first."""
    made = room.accounts.make(body.name, body.role, by=account.name)
    return {"account_id": made.account_id, "link": _link(room, made, account.name)}


@router.post("/accounts/{account_id}")
def change_account(account_id: AccountId, body: AccountBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Change what somebody may do, or let him in no more."""
    changed = _found(room, account_id).account
    if body.role is not None:
        room.accounts.set_role(changed, body.role, by=account.name)
    if body.disabled is not None:
        room.accounts.set_disabled(changed, disabled=body.disabled, by=account.name)
    return _shown(_found(room, account_id))


@router.post("/accounts/{account_id}/link")
def link(account_id: AccountId, room: TheRoom, account: Me) -> dict[str, Any]:
    """Make a login link for somebody; it is shown once and works once."""
    card = _found(room, account_id)
    if card.disabled:
        raise Declined(NOT_FOUND)
    return {"link": _link(room, card.account, account.name)}


@router.get("/sessions")
def sessions(request: Request, room: TheRoom, account: Me) -> dict[str, Any]:
    """List one's own sessions."""
    visits = room.sessions.visits(account.account_id, token_of(request) or "")
    return {"sessions": [asdict(visit) for visit in visits]}


@router.post("/sessions/end-others")
def end_others(request: Request, room: TheRoom, account: Me) -> dict[str, Any]:
    """End one's sessions in other browsers."""
    return {"ended": room.sessions.end_others(account.account_id, token_of(request) or "")}


def _found(room: Room, account_id: int) -> AccountCard:
    card = room.accounts.card(account_id)
    if card is None:
        raise Declined(NOT_FOUND)
    return card


def _link(room: Room, account: Account, by: str) -> str:
    return f"{room.settings.origin}/enter#{room.accounts.make_link(account, by=by)}"


def _shown(card: AccountCard) -> dict[str, Any]:
    shown = asdict(card)
    return {**shown.pop("account"), **shown, "subject": card.subject is not None}
