"""The door: finds out who asks, and whether the rules let him in, before any route runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from bpals.review.desk.account import Account
from bpals.review.room import Room
from bpals.review.web import roomlog
from bpals.review.web.problems import Declined, Problem
from bpals.review.web.rules import PAGES_AFTER_LOGIN, QUERIES, RULES

LOGIN = Problem(status=401, code="login", message="Log in first.")
NOT_ALLOWED = Problem(status=403, code="role", message="Your role does not allow this.")
UNKNOWN_QUERY = Problem(status=422, code="invalid", message="The address asks for something that is not known here.")
LONGEST_TOKEN = 200


async def pass_door(request: Request) -> None:
    """Let a request in as its account, or decline it."""
    path = request.scope["route"].path
    allowed = RULES[request.method, path]
    if set(request.query_params) - QUERIES.get(path, frozenset()) or _doubled(request):
        raise Declined(UNKNOWN_QUERY)
    if "nobody" in allowed:
        return
    account = await who(request)
    if account is None:
        raise Declined(LOGIN if path.startswith("/api/") or request.method != "GET" else _to_login(path))
    request.state.account = account
    if account.role not in allowed:
        roomlog.refused(request.scope, "role")
        raise Declined(NOT_ALLOWED)


async def who(request: Request) -> Account | None:
    """Give the account whose session the request carries."""
    token = token_of(request)
    if token is None:
        return None
    room: Room = request.app.state.room
    sessions = room.sessions
    if not sessions.at_hand:
        return await run_in_threadpool(sessions.find, token)
    account, due = sessions.look_up(token)
    if due:
        await run_in_threadpool(sessions.touch, token)
    return account


def token_of(request: Request) -> str | None:
    """Give the token in the cookie, if there is one that could be ours."""
    room: Room = request.app.state.room
    token = request.cookies.get(room.settings.cookie)
    return token if token and len(token) <= LONGEST_TOKEN else None


async def the_account(request: Request) -> Account:
    """Give the account that passed the door."""
    account: Account = request.state.account
    return account


async def the_room(request: Request) -> Room:
    """Give the room."""
    room: Room = request.app.state.room
    return room


Me = Annotated[Account, Depends(the_account)]
TheRoom = Annotated[Room, Depends(the_room)]


def _doubled(request: Request) -> bool:
    return len(request.query_params.multi_items()) != len(request.query_params)


def _to_login(path: str) -> Problem:
    """Send a stranger to the login page, and from there to where he wanted to go."""
    after = path if path in PAGES_AFTER_LOGIN else PAGES_AFTER_LOGIN[0]
    return Problem(status=303, code="login", message="Log in first.", headers={"location": f"/login?next={after}"})
