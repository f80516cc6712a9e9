"""The way from films to servers: who asks where and when, what is asked again, and when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bpals.errors import JudgeError, Stopped
from bpals.judges.endpoint import Endpoint, Exchange, Passing, Wire
from bpals.judges.limit import Limit
from bpals.judges.pace import Pace
from bpals.judges.protocol import BadReply, R, Read, RequestRefused
from bpals.judges.retry import Circuit, blameless
from bpals.judges.snapshot import Meter

FILM_SHARE = 8
"""Requests in flight that one open film is reckoned to fill: 64 in flight are 8 films."""


class GaveUp(Exception):
    """No usable reply came after all the tries; the question has failed, and the run goes on."""


class Abandoned(Exception):
    """The run ends, and this film would have had to wait: it is left for the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failed try."""

    kind: str
    status: int | None
    message: str


class Server:
    """One endpoint: how many may ask it now, and who waits."""

    def __init__(self, endpoint: Endpoint, pace: Pace, draw: random.Random) -> None:
        """Begin in good health, with nobody waiting."""
        self.endpoint = endpoint
        self.limit = Limit(pace.in_flight)
        self.circuit = Circuit(pace, draw)
        self.in_flight = 0
        self.open_films = 0
        self._first: deque[asyncio.Future[bool]] = deque()
        self._rest: deque[asyncio.Future[bool]] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    async def take(self, *, first: bool) -> bool:
        """Wait for a turn; it comes as False if nobody is to wait here any longer.

        A film's first question goes before the others': until it is answered, its film fills one place of eight.
        """
        if not self._first and not self._rest and self.in_flight < self._most():
            self.in_flight += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        (self._first if first else self._rest).append(turn)
        self.wake()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.give()
            raise

    def give(self) -> None:
        """Give a turn back."""
        self.in_flight -= 1
        self.wake()

    def wake(self) -> None:
        """Let in as many as may ask now; if none may, look again when the server has rested."""
        most = self._most()
        while self.in_flight < most and (queue := self._first or self._rest):
            turn = queue.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(True)
        if (self._first or self._rest) and not most and self._alarm is None:
            wait_s = self.circuit.wait_s(time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(wait_s + 0.001, self._ring)

    def dismiss(self) -> None:
        """Send away everybody who waits."""
        for queue in (self._first, self._rest):
            for turn in queue:
                if not turn.done():
                    turn.set_result(False)
            queue.clear()

    def close(self) -> None:
        """Look again no more."""
        self.dismiss()
        if self._alarm:
            self._alarm.cancel()

    def _most(self) -> int:
        return self.circuit.most_now(time.monotonic(), self.limit.now)

    def _ring(self) -> None:
        self._alarm = None
        self.wake()


@dataclass(slots=True)
class Pin:
    """A film at a server: it stays there, because the server has its image."""

    server: Server
    image_sent: bool = False

    def move(self, server: Server) -> None:
        """Take the film to another server, which has not seen it."""
        self.server.open_films -= 1
        server.open_films += 1
        self.server, self.image_sent = server, False


class Switchboard:
    """The servers of a run, and the rules that hold for all of them."""

    def __init__(self, wire: Wire, endpoints: Iterable[Endpoint], pace: Pace, meter: Meter, said: Said) -> None:
        """Begin with every server in good health."""
        self.wire = wire
        self.pace = pace
        self.meter = meter
        self.said = said
        self.draw = random.Random(pace.seed)  # noqa: S311 - spreads retries; nothing secret
        self.servers = [Server(endpoint, pace, self.draw) for endpoint in endpoints]
        self.draining = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """How many requests are under way."""
        return sum(server.in_flight for server in self.servers)

    @property
    def limit(self) -> int:
        """How many might be."""
        return sum(server.limit.now for server in self.servers)

    async def place(self, requests: int) -> Pin:
        """Wait until a server has room for another film of so many requests, and pin it there."""
        while (server := self._roomy(requests)) is None:
            self._room.clear()
            await self._room.wait()
        server.open_films += 1
        return Pin(server)

    def leave(self, pin: Pin) -> None:
        """Close a film: there is room for another."""
        pin.server.open_films -= 1
        self._room.set()

    def _roomy(self, requests: int) -> Server | None:
        """Choose the least filled healthy server; one that is down gets a film when it may be probed."""
        healthy = [server for server in self.servers if not server.circuit.is_open]
        now = time.monotonic()
        probed = [s for s in self.servers if s.circuit.is_open and not s.open_films and not s.circuit.wait_s(now)]
        share = {s: s.open_films / films_at_once(s.limit.soon, requests) for s in healthy or self.servers}
        best = min(share, key=lambda server: share[server])
        return probed[0] if probed else best if share[best] < 1 else None

    def elsewhere(self, server: Server) -> Server | None:
        """Name a healthy server for the films of one that is down."""
        healthy = [other for other in self.servers if other is not server and not other.circuit.is_open]
        return min(healthy, key=lambda other: other.open_films / other.limit.now, default=None)

    def drain(self) -> None:
        """Wait for nothing any more: what is under way may end, what would be asked again is abandoned."""
        self.draining.set()
        for server in self.servers:
            if server.circuit.is_open or server.circuit.wait_s(time.monotonic()):
                server.dismiss()

    def close(self) -> None:
        """Leave no alarm behind."""
        for server in self.servers:
            server.close()

    def answered(self, server: Server, exchange: Exchange) -> None:
        """Note a good reply."""
        limit = server.limit.now
        server.limit.answered(time.monotonic(), exchange.latency_s)
        if server.circuit.answered():
            self.said.event("circuit", f"{server.endpoint.url} answers again")
        if server.limit.now != limit:
            self._room.set()
        self.meter.exchanged(exchange.latency_s)
        self.said.named(exchange.payload.get("model"))

    def faulted(self, server: Server, fault: Passing) -> None:
        """Note a passing fault; raises Stopped where waiting no longer makes sense."""
        now = time.monotonic()
        slower = fault.status == 429
        if slower or fault.kind == "deadline":
            if server.limit.throttled(now, fault.retry_after_s):
                self.said.event("limit", f"{server.endpoint.url} cut to {server.limit.now}: {fault.message}")
        else:
            server.limit.faulted()
        if server.circuit.faulted(now, throttled=slower):
            self.said.event("circuit", f"{server.endpoint.url} is left alone for a while: {fault.message}")
            if self.elsewhere(server):
                server.dismiss()
            self._room.set()
        wait_s = fault.retry_after_s or 0.0
        server.circuit.pause(now, wait_s)
        if wait_s > self.pace.retry_after_cap_s:
            raise Stopped(
                f"{server.endpoint.url} asks to be left alone for {wait_s:.0f} s, and at most "
                f"{self.pace.retry_after_cap_s:.0f} s are waited. What is done is kept: type the same command later."
            )
        ill_s = min(other.circuit.ill_for_s(now) for other in self.servers)
        if ill_s > self.pace.patience_s:
            raise Stopped(
                f"no endpoint has answered for {ill_s:.0f} s, the last said: {fault.message}. What is done is kept: "
                "mend the server and type the same command."
            )

    async def rest(self, seconds: float) -> None:
        """Wait before a retry; raises Abandoned as soon as the run ends."""
        try:
            async with asyncio.timeout(seconds):
                await self.draining.wait()
        except TimeoutError:
            return
        raise Abandoned


@dataclass(slots=True)
class Said:
    """What a run learns of its servers on the way."""

    asked_model: str
    """The name that is asked for; empty if nobody cares."""
    event: Callable[[str, str], None]
    model: str = ""
    """What the servers call themselves, from the first reply on."""
    warnings: list[str] = field(default_factory=list)

    def named(self, model: object) -> None:
        """Compare the name in a reply, without its path, with the first one that came."""
        if model == self.model or not isinstance(model, str) or not model:
            return
        name = base_name(model)
        if not self.model:
            self.model = name
            self.event("model", name)
            if self.asked_model and name != base_name(self.asked_model):
                self.warnings.append(f"the server was asked for {self.asked_model!r} and calls itself {name!r}")
        elif name != self.model:
            raise JudgeError(
                f"the server called itself {self.model!r} and now {name!r}: another model answers, and two judges are "
                "not mixed. Serve the first one again, or give the new one a workspace name of its own."
            )


class FilmLine:
    """What a judge is handed to ask one chunk of questions about one film: see protocol.Line."""

    def __init__(self, board: Switchboard, pin: Pin, *, first: bool = False) -> None:
        """Stand at the film's server."""
        self._board = board
        self._pin = pin
        self._first = first
        self.sends = 0
        self.latency_s = 0.0
        self.faults: list[tuple[int, Fault]] = []
        """Which send it was, from 1, and what went wrong."""

    @property
    def image_sent(self) -> bool:
        """Say whether the film's server has its image."""
        return self._pin.image_sent

    @image_sent.setter
    def image_sent(self, sent: bool) -> None:
        self._pin.image_sent = sent

    async def post(self, body: bytes, read: Read[R]) -> R:
        """Send a request until it is answered, refused, or all its tries are used up."""
        board, tries = self._board, 0
        while True:
            server = await self._turn()
            try:
                exchange = await self._send(server, body)
                got = read(exchange.payload)
                board.answered(server, exchange)
            except Passing as passing:
                fault = passing
            except BadReply as error:
                fault = Passing("garbled", str(error), status=200)
            except RequestRefused:
                server.circuit.answered()
                raise
            else:
                return got
            finally:
                server.give()
            self.faults.append((self.sends, Fault(kind=fault.kind, status=fault.status, message=fault.message)))
            board.faulted(server, fault)
            tries += not blameless(fault.kind, fault.status)
            if tries >= board.pace.tries:
                raise GaveUp(f"no usable reply in {self.sends} tries, the last: {fault.message}")
            self._first = True
            if not (server.circuit.is_open and board.elsewhere(server)):
                await board.rest(max(fault.retry_after_s or 0.0, board.pace.retry_wait_s(len(self.faults), board.draw)))

    async def _send(self, server: Server, body: bytes) -> Exchange:
        self.sends += 1
        self._board.meter.attempts += 1
        server.limit.sent(time.monotonic(), server.in_flight)
        exchange = await self._board.wire.exchange(server.endpoint, body)
        self.latency_s += exchange.latency_s
        return exchange

    async def _turn(self) -> Server:
        """Wait for a turn at the film's server, and take the film elsewhere if that one is down."""
        while True:
            server = self._pin.server
            if server.circuit.is_open and (other := self._board.elsewhere(server)):
                self._pin.move(other)
                server = other
            if self._board.draining.is_set() and server.circuit.is_open:
                raise Abandoned
            if await server.take(first=self._first):
                if self._pin.server is server:
                    return server
                server.give()


def films_at_once(limit: int, requests: int) -> int:
    """How many films are open at a server: enough to fill the limit while some wait for their first reply."""
    share = max(1, min(FILM_SHARE, requests // 3))
    return max(-(-limit // share), min(2, limit))


def base_name(model: str) -> str:
    """Take the path off a model's name: servers differ in how much of it they give."""
    return model.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
