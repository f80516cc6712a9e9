"""The application: routes behind the door, the guard around them, and one way to tell what went wrong."""

from __future__ import annotations

from anyio import CapacityLimiter
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bpals.errors import ContractBroken, NotNow, NotYours, Refused, RoomError, StaleVersion, UsageError, WorkspaceError
from bpals.room.desk.readings import ReadingView
from bpals.room.room import Room
from bpals.room.web import entrance, pages, routes, server
from bpals.room.web.guard import (
    NOT_FOUND,
    RULES,
    Declined,
    Guard,
    Problem,
    missing_headers,
    pass_door,
    problem_response,
)
from bpals.room.web.pages import Pages
from bpals.room.web.payloads import disagreement_payload, reading_payload
from bpals.room.web.routes import PROJECTORS

INVALID = Problem(status=422, code="invalid", message="Some field is missing, too long, of another kind, or unknown.")
OUT_OF_ORDER = Problem(
    status=503, code="ledger", message="The room cannot write just now. What you did is kept in the browser; try again."
)
FAILED = Problem(status=500, code="failed", message="Something went wrong here. What was saved is safe; try again.")


def create_app(room: Room) -> FastAPI:
    """Make the application of a room."""
    app = FastAPI(
        title="bpals reading room",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        # An exporter set up for other programs would carry our errors, with names of files in them, somewhere else.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        dependencies=[Depends(pass_door)],
    )
    app.state.room = room
    app.state.pages = Pages(room.settings)
    app.state.entrance = entrance.Entrance()
    app.state.projectors = CapacityLimiter(PROJECTORS)
    for router in (pages.router, entrance.router, routes.router, entrance.office_router):
        for route in router.routes:
            if isinstance(route, APIRoute):
                app.add_api_route(route.path, route.endpoint, methods=sorted(route.methods or ()))
    check_rules(app)
    _tell_problems(app)
    app.add_middleware(Guard, settings=room.settings)
    return app


def check_rules(app: FastAPI) -> None:
    """Refuse to open while a route has no rule, or a rule no route."""
    routes = {
        (method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods or ()
    }
    strange = [str(route) for route in app.routes if not isinstance(route, APIRoute)]
    differing = sorted(f"{method} {path}" for method, path in routes ^ set(RULES))
    if strange or differing:
        raise ContractBroken(f"room/web/guard.py and the routes differ: {', '.join([*differing, *strange])}")


def _tell_problems(app: FastAPI) -> None:
    app.add_exception_handler(Declined, _declined)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(RoomError, _room_error)
    app.add_exception_handler(UsageError, _usage_error)
    app.add_exception_handler(WorkspaceError, _out_of_order)
    app.add_exception_handler(OSError, _out_of_order)
    app.add_exception_handler(Exception, _failed)


async def _declined(request: Request, error: Exception) -> Response:
    problem = error.problem if isinstance(error, Declined) else FAILED
    return problem_response(request, problem)


async def _invalid(request: Request, _error: Exception) -> Response:
    return problem_response(request, INVALID)


async def _not_routed(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    wrong = Problem(status=status, code="method", message="That cannot be done here.")
    return problem_response(request, NOT_FOUND if status == 404 else INVALID if status == 400 else wrong)


async def _room_error(request: Request, error: Exception) -> Response:
    room: Room = request.app.state.room
    if isinstance(error, NotYours):
        server.refused(request.scope, "not_yours")
        return problem_response(request, NOT_FOUND)
    if isinstance(error, StaleVersion):
        current = error.current
        shown = (
            reading_payload(room, current) if isinstance(current, ReadingView) else disagreement_payload(room, current)
        )
        return problem_response(request, Problem(status=409, code="stale", message=f"{error}", more={"current": shown}))
    if isinstance(error, NotNow):
        locked = request.method == "GET"
        return problem_response(request, Problem(status=403 if locked else 409, code="not_now", message=f"{error}"))
    if isinstance(error, Refused):
        return problem_response(request, Problem(status=422, code="refused", message=f"{error}"))
    return problem_response(request, Problem(status=409, code="room", message=f"{error}"))


async def _usage_error(request: Request, error: Exception) -> Response:
    return problem_response(request, Problem(status=422, code="refused", message=f"{error}"))


async def _out_of_order(request: Request, error: Exception) -> Response:
    server.failed(request.scope, error)
    return problem_response(request, OUT_OF_ORDER)


async def _failed(request: Request, error: Exception) -> Response:
    """Tell that something went wrong; this reply goes out past the guard, so it brings its headers itself."""
    server.failed(request.scope, error)
    response = problem_response(request, FAILED)
    room: Room = request.app.state.room
    response.headers.update(missing_headers(set(response.headers), secure=room.settings.secure))
    return response
