"""How a room is served: its log, its address, and uvicorn with limits, so that no client keeps readers waiting."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import ipaddress
import json
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from bpals.errors import UsageError
from bpals.room.people.accounts import AccountCard

LOGGER = "bpals.room"
# Packages that write rows, tags, addresses or parts of files when they are asked for details.
QUIET = ("sqlalchemy", "PIL", "pydicom", "httpx", "httpcore", "asyncio", "multipart", "uvicorn.access")
TRUSTED = ("bpals.room", "uvicorn.error")  # loggers whose sentences are fixed; those of others are withheld


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
        # Only sentences that are fixed are written: an argument or a foreign message may name a patient.
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
    """Write down that somebody asked for what they may not have."""
    logging.getLogger(LOGGER).warning("refused", extra={"fields": {**_fields(scope), "why": why}})


def failed(scope: Scope, error: BaseException) -> None:
    """Write down that something went wrong inside."""
    given = (type(error), error, error.__traceback__)
    logging.getLogger(LOGGER).error("failed", exc_info=given, extra={"fields": _fields(scope)})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The address a room listens at, and who takes care of TLS."""

    host: str = "127.0.0.1"
    port: int = 8765
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: str | None = None  # the proxy's address: what it says of who asks is believed, and of nobody else
    public: str | None = None  # the address as browsers write it, where it is not this one: https://room.example.org

    @property
    def origin(self) -> str:
        """The address as browsers write it."""
        if self.public:
            return self.public.rstrip("/")
        scheme = "https" if self.certificate else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.certificate else 80
        return f"{scheme}://{host}" if self.port == usual else f"{scheme}://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(binding: Binding, cards: list[AccountCard]) -> None:
    """Refuse to open a room to others while anybody could walk in, or listen."""
    if (binding.certificate is None) != (binding.key is None):
        raise UsageError("TLS needs both files. Type: --tls-cert FILE --tls-key FILE")
    if binding.behind_proxy and not (binding.public or "").startswith("https://"):
        raise UsageError(
            "behind a proxy, say how browsers reach it. Type: --behind-proxy ADDRESS --public-url https://HOST"
        )
    if is_loopback(binding.host) and not binding.behind_proxy:
        return
    if not any((card.password or card.subject) and not card.disabled for card in cards):
        raise UsageError(
            f"{binding.host} can be reached by others and there is no account with a password or OIDC. "
            "Make one first: bpals review account add NAME --role admin"
        )
    if not binding.certificate and not binding.behind_proxy:
        raise UsageError(
            f"{binding.host} can be reached by others and nothing encrypts. Type: --tls-cert FILE --tls-key FILE, "
            "or put a proxy before it: --behind-proxy ADDRESS --public-url https://HOST"
        )
    if is_loopback(binding.host) or binding.public:
        return
    try:
        wild = ipaddress.ip_address(binding.host).is_unspecified
    except ValueError:
        wild = False
    if wild:
        raise UsageError(f"{binding.host} is no address that a browser can open. Add: --public-url https://HOST")


HEAD_S = 10.0  # how long the head of a request may take to arrive
HEAD_BYTES = 32 << 10
IDLE_S = 30
MOST_CONNECTIONS = 500


class HurriedProtocol(H11Protocol):
    """HTTP whose requests must bring the whole of their head in time."""

    def __init__(self, *given: Any, head_s: float = HEAD_S, **named: Any) -> None:
        """Take what uvicorn gives, and how long a head may take."""
        super().__init__(*given, **named)
        self._head_s = head_s
        self._hurry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count with the connection."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Begin to count with the first byte of a head, and stop with its last."""
        if self._hurry is None and self._waiting():
            self._begin()
        super().data_received(data)
        if not self._waiting():
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self._stop()
        super().connection_lost(exc)

    def _waiting(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _begin(self) -> None:
        self._hurry = self.loop.call_later(self._head_s, self.transport.close)

    def _stop(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None


def make_server(app: FastAPI, binding: Binding, *, level: str = "INFO", head_s: float = HEAD_S) -> uvicorn.Server:
    """Make the server of a room; `run()` serves until it is told to stop."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=binding.host,
            port=binding.port,
            http=functools.partial(HurriedProtocol, head_s=head_s),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=log_settings(level),
            access_log=False,
            proxy_headers=binding.behind_proxy is not None,
            forwarded_allow_ips=binding.behind_proxy or "",
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=HEAD_BYTES,
            ssl_certfile=binding.certificate,
            ssl_keyfile=binding.key,
        )
    )
