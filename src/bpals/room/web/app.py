"""The application: its routes, the guard around them, and one way to answer what went wrong."""

from __future__ import annotations

from dataclasses import replace

from anyio import CapacityLimiter
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bpals.errors import ContractBroken, NotNow, NotYours, Refused, RoomError, StaleVersion, UsageError, WorkspaceError
from bpals.room.desk.readings import ReadingView
from bpals.room.room import Room
from bpals.room.web import entrance, guard, pages, routes, server
from bpals.room.web.guard import NOT_FOUND, Declined, Problem, problem_response
from bpals.room.web.payloads import disagreement_payload, reading_payload

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
        dependencies=[Depends(guard.check_access)],
        exception_handlers={
            **dict.fromkeys((Declined, RequestValidationError, HTTPException), _declined),
            **dict.fromkeys((RoomError, UsageError), _refused),
            **dict.fromkeys((WorkspaceError, OSError), _out_of_order),
            Exception: _failed,
        },
    )
    app.state.room = room
    app.state.pages = pages.Pages(room.settings)
    app.state.entrance = entrance.Entrance()
    app.state.film_threads = CapacityLimiter(routes.FILM_THREADS)
    for router in (pages.router, entrance.router, routes.router, entrance.accounts_router):
        for route in router.routes:
            if isinstance(route, APIRoute):
                app.add_api_route(route.path, route.endpoint, methods=sorted(route.methods or ()))
    check_rules(app)
    app.add_middleware(guard.Guard, settings=room.settings)
    return app


def check_rules(app: FastAPI) -> None:
    """Refuse to open while a route has no rule, or a rule no route."""
    routes = {
        (method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods or ()
    }
    strange = [str(route) for route in app.routes if not isinstance(route, APIRoute)]
    differing = sorted(f"{method} {path}" for method, path in routes ^ set(guard.RULES))
    if strange or differing:
        raise ContractBroken(f"room/web/guard.py and the routes differ: {', '.join([*differing, *strange])}")


async def _declined(request: Request, error: Exception) -> Response:
    if isinstance(error, Declined):
        return problem_response(request, error.problem)
    status = error.status_code if isinstance(error, HTTPException) else 400
    wrong = Problem(status=status, code="method", message="That cannot be done here.")
    return problem_response(request, {404: NOT_FOUND, 400: INVALID}.get(status, wrong))


async def _refused(request: Request, error: Exception) -> Response:
    """Answer what the desk or the accounts refused."""
    problem = Problem(status=409, code="room", message=f"{error}")
    if isinstance(error, NotYours):
        # As if there were none: whether another reader has such a case is not told.
        server.refused(request.scope, "not_yours")
        problem = NOT_FOUND
    elif isinstance(error, StaleVersion):
        current, room = error.current, request.app.state.room
        payload = reading_payload if isinstance(current, ReadingView) else disagreement_payload
        problem = replace(problem, code="stale", more={"current": payload(room, current)})
    elif isinstance(error, NotNow):
        problem = replace(problem, code="not_now", status=403 if request.method == "GET" else 409)
    elif isinstance(error, Refused | UsageError):
        problem = replace(problem, code="refused", status=422)
    return problem_response(request, problem)


async def _out_of_order(request: Request, error: Exception) -> Response:
    server.failed(request.scope, error)
    return problem_response(request, OUT_OF_ORDER)


async def _failed(request: Request, error: Exception) -> Response:
    """Tell that something went wrong; this reply goes out past the guard, so it brings its headers itself."""
    server.failed(request.scope, error)
    response = problem_response(request, FAILED)
    secure = request.app.state.room.settings.secure
    response.headers.update(guard.missing_headers(set(response.headers), secure=secure))
    return response
