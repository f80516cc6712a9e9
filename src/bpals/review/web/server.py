"""The server: uvicorn with limits, so that one slow or greedy client does not keep readers waiting."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from bpals.review.web.binding import Binding
from bpals.review.web.roomlog import log_settings

HEAD_S = 10.0
"""How long the head of a request may take to arrive."""
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
