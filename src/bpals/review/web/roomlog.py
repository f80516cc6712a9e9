"""The room's own log: one JSON object a line, in UTC, with nothing in it that could name a patient.

A line is made of fields that this file knows: a route as it is declared (not the address that was asked for), a status,
the number of an account. Of an error its type and the places in the code are kept, never its message, and of other
packages' lines only who wrote them and how grave they are: both may quote a file name, a tag or a row.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import traceback
from typing import Any

from starlette.types import Scope

LOGGER = "bpals.review"
QUIET = ("sqlalchemy", "PIL", "pydicom", "httpx", "httpcore", "asyncio", "multipart", "uvicorn.access")
"""Packages that write rows, tags, addresses or parts of files when they are asked for details."""
TRUSTED = ("bpals.review", "uvicorn.error")
"""Loggers whose sentences are fixed; those of others are withheld."""


class RoomFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write it."""
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, Any] = {"at": at.isoformat(timespec="milliseconds"), "level": record.levelname}
        line |= {"logger": record.name, "event": self._event(record), **getattr(record, "fields", {})}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["where"] = [
                f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(record.exc_info[2])[-12:]
            ]
        return json.dumps(line, ensure_ascii=True, default=str)

    def _event(self, record: logging.LogRecord) -> str:
        """Give the sentence of a record that has a fixed one; what was put into it is left out."""
        if record.name == "uvicorn.error" and not record.exc_info:
            return record.getMessage()
        if record.name.startswith(TRUSTED):
            return str(record.msg)
        return "withheld"


def log_settings(level: str = "INFO", stream: str = "ext://sys.stderr") -> dict[str, Any]:
    """Give the settings of `logging` for a process that serves a room."""
    quiet = {name: {"level": "WARNING", "propagate": True} for name in QUIET}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"room": {"()": RoomFormatter}},
        "handlers": {"room": {"class": "logging.StreamHandler", "formatter": "room", "stream": stream}},
        "root": {"level": "WARNING", "handlers": ["room"]},
        "loggers": {LOGGER: {"level": level, "propagate": True}, "uvicorn": {"level": "INFO"}, **quiet},
    }


def request(scope: Scope, status: int, seconds: float) -> None:
    """Write down a request that was answered."""
    fields = {**_fields(scope), "status": status, "ms": round(seconds * 1000, 1)}
    logging.getLogger(LOGGER).info("request", extra={"fields": fields})


def refused(scope: Scope, why: str) -> None:
    """Write down that somebody asked for what he may not have."""
    logging.getLogger(LOGGER).warning("refused", extra={"fields": {**_fields(scope), "why": why}})


def failed(scope: Scope, error: BaseException) -> None:
    """Write down that something went wrong inside."""
    given = (type(error), error, error.__traceback__)
    logging.getLogger(LOGGER).error("failed", exc_info=given, extra={"fields": _fields(scope)})


def event(what: str, **fields: str | float | None) -> None:
    """Write down something else that happened, in words of ours."""
    logging.getLogger(LOGGER).info(what, extra={"fields": fields})


def _fields(scope: Scope) -> dict[str, Any]:
    state, route = scope.get("state", {}), scope.get("route")
    account = state.get("account")
    return {
        "id": state.get("id", ""),
        "method": scope["method"],
        "route": getattr(route, "path", "none"),
        "from": (scope.get("client") or ("",))[0],
        "account": account.account_id if account else None,
    }
