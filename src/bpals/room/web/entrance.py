"""The routes of login and accounts: password, login link, OIDC, logout, sessions. No GET changes anything here."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import JSONResponse, Response

from bpals.room.desk.study import Account
from bpals.room.people.accounts import AccountCard
from bpals.room.people.oidc import FLOW_S, OidcFailed, Provider
from bpals.room.people.sessions import Throttle
from bpals.room.room import Room
from bpals.room.web import guard, payloads, server
from bpals.room.web.guard import NOT_FOUND, PAGES_AFTER_LOGIN, Declined, Me, Problem, TheRoom, token_of
from bpals.text import several

router = APIRouter()

WRONG = Problem(status=401, code="wrong", message="Name, password or code is wrong.")
OLD_IS_WRONG = Problem(status=422, code="wrong", message="Your password now is another one.")
USED = Problem(status=401, code="link", message="This link was used, is too old, or never was. Ask for another.")
NOT_VOUCHED = Problem(status=401, code="oidc", message="The provider did not say who you are. Try again.")
NOT_INVITED = Problem(status=403, code="oidc", message="You have no account here. Ask an admin of the room for one.")

TRIES_OF_ACCOUNT = 10
TRIES_OF_ADDRESS = 60  # a whole clinic may stand behind one address
WINDOW_S = 900


class Entrance:
    """Counts tries to log in, and bounds how many passwords are hashed together."""

    def __init__(self) -> None:
        """Begin with nothing tried."""
        self.by_account = Throttle(TRIES_OF_ACCOUNT, WINDOW_S)
        self.by_address = Throttle(TRIES_OF_ADDRESS, WINDOW_S)
        # Hashes are slow on purpose: they have threads of their own, so that they cannot keep readers waiting.
        self.hashing = CapacityLimiter(2)

    def count(self, request: Request, account: str | None = None) -> None:
        """Count a try, or decline it; whether the account exists makes no difference."""
        waits = [self.by_address.wait_s(address_of(request))]
        if account is not None:
            waits.append(self.by_account.wait_s(account))
        if max(waits) > 0:
            minutes = round(max(waits) / 60) or 1
            words = f"Too many tries. Wait {several(minutes, 'minute')}, or use a login link."
            headers = {"retry-after": str(int(max(waits)) + 1)}
            raise _declined(request, "throttle", Problem(status=429, code="throttle", message=words, headers=headers))

    def take_back(self, request: Request, account: str | None = None) -> None:
        """Forget the tries that ended well."""
        self.by_address.take_back(address_of(request))
        if account is not None:
            self.by_account.forget(account)


def _declined(request: Request, why: str, problem: Problem) -> Declined:
    """Write down why somebody is not let in, and give what is raised."""
    server.refused(request.scope, why)
    return Declined(problem)


def address_of(request: Request) -> str:
    """Give the address of who asks; behind a proxy that we trust, the one that the proxy names."""
    return request.client.host if request.client else ""


@router.post("/login")
async def login(request: Request, body: payloads.LoginBody, room: TheRoom) -> Response:
    """Let somebody in by name and password."""
    entrance: Entrance = request.app.state.entrance
    entrance.count(request, body.name)
    check = partial(room.accounts.enter, body.name, body.password, body.code)
    account = await to_thread.run_sync(check, limiter=entrance.hashing)
    if account is None:
        raise _declined(request, "login", WRONG)
    entrance.take_back(request, body.name)
    return await _let_in(request, room, account, body.next)


@router.post("/enter")
async def enter(request: Request, body: payloads.TokenBody, room: TheRoom) -> Response:
    """Let somebody in by a login link; it is used up."""
    entrance: Entrance = request.app.state.entrance
    entrance.count(request)
    account = await to_thread.run_sync(room.accounts.use_link, body.token)
    if account is None:
        raise _declined(request, "link", USED)
    entrance.take_back(request)
    return await _let_in(request, room, account, "")


@router.post("/oidc")
async def oidc(request: Request, body: payloads.NextBody, room: TheRoom) -> Response:
    """Send somebody to the provider, and remember in a signed cookie what must come back."""
    provider = _provider(room)
    request.app.state.entrance.count(request)
    try:
        address, signed = await to_thread.run_sync(provider.start, guard.page_after_login(body.next))
    except OidcFailed as failure:
        raise _declined(request, failure.code, NOT_VOUCHED) from failure
    response = JSONResponse({"next": address}, headers={"hx-redirect": address})
    _set_cookie(room, response, f"{room.settings.cookie}-oidc", signed, FLOW_S)
    return response


@router.post("/oidc/return")
async def oidc_return(request: Request, body: payloads.OidcReturnBody, room: TheRoom) -> Response:
    """Let somebody in whom the provider vouches for, if an admin made an account for them."""
    provider = _provider(room)
    request.app.state.entrance.count(request)
    signed = request.cookies.get(f"{room.settings.cookie}-oidc", "")
    try:
        person = await to_thread.run_sync(provider.finish, signed, body.code, body.state)
    except OidcFailed as failure:
        raise _declined(request, failure.code, NOT_VOUCHED) from failure
    account = await to_thread.run_sync(room.accounts.by_subject, person.subject, person.invited)
    if account is None:
        raise _declined(request, "not_invited", NOT_INVITED)
    request.app.state.entrance.take_back(request)
    response = await _let_in(request, room, account, person.after)
    _set_cookie(room, response, f"{room.settings.cookie}-oidc", "", 0)
    return response


@router.post("/logout")
async def logout(request: Request, room: TheRoom) -> Response:
    """End the session; the browser forgets the films that it kept."""
    token = token_of(request)
    if token is not None:
        await to_thread.run_sync(room.sessions.end, token)
    response = JSONResponse({"next": "/login"}, headers={"hx-redirect": "/login", "clear-site-data": '"cache"'})
    _set_cookie(room, response, room.settings.cookie, "", 0)
    return response


@router.post("/password")
async def password(request: Request, body: payloads.PasswordBody, room: TheRoom, account: Me) -> Response:
    """Change one's own password; every session ends, and this browser gets a new one."""
    entrance: Entrance = request.app.state.entrance
    entrance.count(request, account.name)
    change = partial(room.accounts.change_password, account, body.old, body.new)
    if not await to_thread.run_sync(change, limiter=entrance.hashing):
        raise _declined(request, "password", OLD_IS_WRONG)
    entrance.take_back(request, account.name)
    return await _let_in(request, room, account, "")


async def _let_in(request: Request, room: Room, account: Account, after: str) -> Response:
    """Begin a session under a new token; whatever token the browser came with is worth nothing any more."""

    def begin() -> str:
        room.accounts.note(account, "entered")
        return room.sessions.begin(account.account_id, instead_of=token_of(request))

    token = await to_thread.run_sync(begin)
    request.state.account = account
    target = guard.page_after_login(after)
    if target == PAGES_AFTER_LOGIN[0]:
        target = guard.first_page(account, room.study)
    response = JSONResponse({"next": target}, headers={"hx-redirect": target})
    _set_cookie(room, response, room.settings.cookie, token, int(room.settings.stay_s))
    return response


def _provider(room: Room) -> Provider:
    if room.oidc is None:
        raise Declined(NOT_FOUND)
    return room.oidc


def _set_cookie(room: Room, response: Response, name: str, value: str, seconds: int) -> None:
    secure: dict[str, Any] = {"secure": room.settings.secure, "httponly": True, "samesite": "lax", "path": "/"}
    response.set_cookie(name, value, max_age=seconds, **secure)


accounts_router = APIRouter(prefix="/api")

AccountId = Annotated[int, Path(ge=1, le=2**53)]


@accounts_router.get("/accounts")
def accounts(
    room: TheRoom, _account: Me, sort: Annotated[Literal["name", "role", "at"], Query()] = "name"
) -> dict[str, Any]:
    """List the accounts, without anything that lets one in."""
    listed = [_shown(card) for card in room.accounts.cards()]
    return {"accounts": sorted(listed, key=lambda card: (card[sort], card["name"]))}


@accounts_router.post("/accounts")
def make_account(body: payloads.NewAccountBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Make an account and the link by which it is entered first."""
    made = room.accounts.make(body.name, body.role, by=account.name)
    return {"account_id": made.account_id, "link": _link(room, made, account.name)}


@accounts_router.post("/accounts/{account_id}")
def change_account(account_id: AccountId, body: payloads.AccountBody, room: TheRoom, account: Me) -> dict[str, Any]:
    """Change what somebody may do, or let them in no more."""
    changed = _found(room, account_id).account
    if body.role is not None:
        room.accounts.set_role(changed, body.role, by=account.name)
    if body.disabled is not None:
        room.accounts.set_disabled(changed, disabled=body.disabled, by=account.name)
    return _shown(_found(room, account_id))


@accounts_router.post("/accounts/{account_id}/link")
def link(account_id: AccountId, room: TheRoom, account: Me) -> dict[str, Any]:
    """Make a login link for somebody; it is shown once and works once."""
    card = _found(room, account_id)
    if card.disabled:
        raise Declined(NOT_FOUND)
    return {"link": _link(room, card.account, account.name)}


@accounts_router.get("/sessions")
def sessions(request: Request, room: TheRoom, account: Me) -> dict[str, Any]:
    """List one's own sessions."""
    visits = room.sessions.visits(account.account_id, token_of(request) or "")
    return {"sessions": [asdict(visit) for visit in visits]}


@accounts_router.post("/sessions/end-others")
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
