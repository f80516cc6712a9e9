"""From one image to the servers of a judge: which server, when, how often, and when to give up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bpals.errors import JudgeError, Stopped
from bpals.judges.runner.messages import RetriesExhausted, RunEnding
from bpals.judges.runner.progress import Progress
from bpals.judges.runner.retry import CircuitBreaker, ConcurrencyLimit, RunPolicy, is_server_state
from bpals.judges.runner.transport import Endpoint, HttpResponse, TransientError, Transport
from bpals.types import Attempt, BadReply, Client, R, ReadReply, RequestRefused

# Requests that one open image is expected to fill: 64 open requests are 8 images.
REQUESTS_PER_IMAGE = 8


class Server:
    """One endpoint: its health, its limit, and the requests that wait for it."""

    def __init__(self, endpoint: Endpoint, policy: RunPolicy, draw: random.Random) -> None:
        """Start in good health, with nothing waiting."""
        self.endpoint = endpoint
        self.limit = ConcurrencyLimit(policy.in_flight)
        self.circuit = CircuitBreaker(policy, draw)
        self.in_flight = 0
        self.open_images = 0
        # Two queues of permits to send: retries and first questions of an image go before the others.
        self._first: deque[asyncio.Future[bool]] = deque()
        self._rest: deque[asyncio.Future[bool]] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    async def acquire(self, *, first: bool) -> bool:
        """Wait for permission to send; False means that nothing should wait here any longer.

        An image's first question goes before the others: until its reply, the image fills one place of eight.
        """
        if not self._first and not self._rest and self.in_flight < self._most():
            self.in_flight += 1
            return True
        permit: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        (self._first if first else self._rest).append(permit)
        self.wake()
        try:
            return await permit
        except asyncio.CancelledError:
            # Cancelled after the permit was granted: hand it on, or the limit would shrink for good.
            if permit.done() and not permit.cancelled() and permit.result():
                self.release()
            raise

    def release(self) -> None:
        """Give the permission back."""
        self.in_flight -= 1
        self.wake()

    def wake(self) -> None:
        """Let in as many requests as may go now; if none may, look again when the server has rested."""
        most = self._most()
        while self.in_flight < most and (queue := self._first or self._rest):
            permit = queue.popleft()
            if not permit.done():
                self.in_flight += 1
                permit.set_result(True)
        # No reply will wake a server that gets no requests: a timer does.
        if (self._first or self._rest) and not most and self._alarm is None:
            wait_s = self.circuit.wait_s(time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(wait_s + 0.001, self._ring)

    def dismiss(self) -> None:
        """Send away everything that waits."""
        for queue in (self._first, self._rest):
            for permit in queue:
                if not permit.done():
                    permit.set_result(False)
            queue.clear()

    def close(self) -> None:
        """Stop looking again."""
        self.dismiss()
        if self._alarm:
            self._alarm.cancel()

    def _most(self) -> int:
        return self.circuit.most_now(time.monotonic(), self.limit.now)

    def _ring(self) -> None:
        self._alarm = None
        self.wake()


@dataclass(slots=True)
class Slot:
    """The place of one open image at a server; it stays there, because that server has the image."""

    server: Server
    image_sent: bool = False

    def move(self, server: Server) -> None:
        """Take the image to another server, which has not seen it."""
        self.server.open_images -= 1
        server.open_images += 1
        self.server, self.image_sent = server, False


@dataclass(slots=True)
class ServedModel:
    """The model's name in the servers' replies."""

    requested: str
    """The name in the requests; empty if it does not matter."""
    note: Callable[[str, str], None]
    """Records an event of the run: its kind and a detail."""
    name: str = ""
    """From the first reply on, without a path."""
    warnings: list[str] = field(default_factory=list)

    def check(self, name: object) -> None:
        """Compare the name in a reply with that of the first; raises JudgeError if another model answers."""
        if name == self.name or not isinstance(name, str) or not name:
            return
        name = base_name(name)
        if not self.name:
            self.name = name
            self.note("model", name)
            if self.requested and name != base_name(self.requested):
                self.warnings.append(f"the server was asked for {self.requested!r} and calls itself {name!r}")
        elif name != self.name:
            raise JudgeError(
                f"the server called itself {self.name!r} and now {name!r}: another model answers, and two judges are "
                "not mixed. Serve the first one again, or give the new one a workspace name of its own."
            )


def base_name(model: str) -> str:
    """Take the path off a model's name: servers differ in how much of it they return."""
    return model.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


class ServerPool:
    """All servers of a run, and the rules that hold for them together."""

    def __init__(
        self,
        transport: Transport,
        endpoints: Iterable[Endpoint],
        policy: RunPolicy,
        progress: Progress,
        served: ServedModel,
    ) -> None:
        """Start with every server in good health."""
        self.transport = transport
        self.policy = policy
        self.progress = progress
        self.served = served
        self.draw = random.Random(policy.seed)  # noqa: S311 - spreads retries; nothing secret
        self.servers = [Server(endpoint, policy, self.draw) for endpoint in endpoints]
        self.draining = asyncio.Event()
        self._room = asyncio.Event()

    async def slot(self, requests: int) -> Slot:
        """Wait until a server has room for another image of so many requests, and reserve it."""
        while (server := self._roomy(requests)) is None:
            self._room.clear()
            await self._room.wait()
        server.open_images += 1
        return Slot(server)

    def free(self, slot: Slot) -> None:
        """Close an image: there is room for another."""
        slot.server.open_images -= 1
        self._room.set()

    def _roomy(self, requests: int) -> Server | None:
        """Choose the least filled healthy server; one that is down gets an image when it may be probed."""
        healthy = [server for server in self.servers if not server.circuit.is_open]
        now = time.monotonic()
        probed = [s for s in self.servers if s.circuit.is_open and not s.open_images and not s.circuit.wait_s(now)]
        share = {s: s.open_images / images_at_once(s.limit.soon, requests) for s in healthy or self.servers}
        best = min(share, key=lambda server: share[server])
        return probed[0] if probed else best if share[best] < 1 else None

    def alternative(self, server: Server) -> Server | None:
        """Name a healthy server for the images of one that is down."""
        healthy = [other for other in self.servers if other is not server and not other.circuit.is_open]
        return min(healthy, key=lambda other: other.open_images / other.limit.now, default=None)

    def drain(self) -> None:
        """Let open requests end; whatever would have to wait or be sent again is left for the next run."""
        self.draining.set()
        for server in self.servers:
            if server.circuit.is_open or server.circuit.wait_s(time.monotonic()):
                server.dismiss()

    def close(self) -> None:
        """Leave no timer behind."""
        for server in self.servers:
            server.close()

    def answered(self, server: Server, response: HttpResponse) -> None:
        """Record a good reply."""
        limit = server.limit.now
        server.limit.answered(time.monotonic(), response.latency_s)
        if server.circuit.answered():
            self.served.note("circuit", f"{server.endpoint.url} answers again")
        if server.limit.now != limit:
            self._room.set()
        self.progress.answered(response.latency_s)
        self.served.check(response.payload.get("model"))

    def faulted(self, server: Server, fault: TransientError) -> None:
        """Record a transient fault; raises Stopped where waiting no longer makes sense."""
        now = time.monotonic()
        slower = fault.status == 429
        # A missed deadline is a full server, too: one that says so by silence.
        if slower or fault.kind == "deadline":
            if server.limit.throttled(now, fault.retry_after_s):
                self.served.note("limit", f"{server.endpoint.url} cut to {server.limit.now}: {fault.message}")
        else:
            server.limit.faulted()
        if server.circuit.faulted(now, throttled=slower):
            self.served.note("circuit", f"{server.endpoint.url} is left alone for a while: {fault.message}")
            if self.alternative(server):
                server.dismiss()
            self._room.set()
        wait_s = fault.retry_after_s or 0.0
        server.circuit.pause(now, wait_s)
        if wait_s > self.policy.retry_after_cap_s:
            raise Stopped(
                f"{server.endpoint.url} asks to be left alone for {wait_s:.0f} s, and at most "
                f"{self.policy.retry_after_cap_s:.0f} s are waited. What is done is kept: type the same command later."
            )
        ill_s = min(other.circuit.ill_for_s(now) for other in self.servers)
        if ill_s > self.policy.patience_s:
            raise Stopped(
                f"no endpoint has answered for {ill_s:.0f} s, the last said: {fault.message}. What is done is kept: "
                "mend the server and type the same command."
            )

    async def rest(self, seconds: float) -> None:
        """Wait before a retry; raises RunEnding as soon as the run ends."""
        try:
            async with asyncio.timeout(seconds):
                await self.draining.wait()
        except TimeoutError:
            return
        raise RunEnding


class ImageClient:
    """Sends one judge's requests about one image: the `Client` that `ask_line` gets."""

    def __init__(self, pool: ServerPool, slot: Slot, *, first: bool = False, number: int = 0) -> None:
        """Begin at the image's server; `number` is that of the first question."""
        self._pool = pool
        self._slot = slot
        self._first = first
        self._number = number
        self.sends = 0
        self.latency_s = 0.0
        self.failures: list[Attempt] = []

    @property
    def image_sent(self) -> bool:
        """Whether the image's server has it."""
        return self._slot.image_sent

    @image_sent.setter
    def image_sent(self, sent: bool) -> None:
        self._slot.image_sent = sent

    async def post(self, body: bytes, read: ReadReply[R]) -> R:
        """Send a request until there is a reply, a refusal, or no try left."""
        pool, tries = self._pool, 0
        while True:
            server = await self._acquire()
            try:
                self.sends += 1
                pool.progress.attempts += 1
                server.limit.sent(time.monotonic(), server.in_flight)
                response = await pool.transport.send(server.endpoint, body)
                self.latency_s += response.latency_s
                got = read(response.payload)
                pool.answered(server, response)
            except TransientError as error:
                fault = error
            except BadReply as error:
                fault = TransientError("garbled", str(error), status=200)
            except RequestRefused:
                # A server that refuses a request is up.
                server.circuit.answered()
                raise
            else:
                return got
            finally:
                server.release()
            self.failures.append(
                Attempt(
                    number=self._number, attempt=self.sends, kind=fault.kind, status=fault.status, message=fault.message
                )
            )
            pool.faulted(server, fault)
            tries += not is_server_state(fault.kind, fault.status)
            if tries >= pool.policy.tries:
                raise RetriesExhausted(f"no usable reply in {self.sends} tries, the last: {fault.message}")
            self._first = True
            # Where another server can take the image there is nothing to wait for.
            if not (server.circuit.is_open and pool.alternative(server)):
                wait_s = pool.policy.retry_wait_s(len(self.failures), pool.draw)
                await pool.rest(max(fault.retry_after_s or 0.0, wait_s))

    async def _acquire(self) -> Server:
        """Wait for permission to send at the image's server, and move the image if that server is down."""
        while True:
            server = self._slot.server
            if server.circuit.is_open and (other := self._pool.alternative(server)):
                self._slot.move(other)
                server = other
            if self._pool.draining.is_set() and server.circuit.is_open:
                raise RunEnding
            if await server.acquire(first=self._first):
                # Another question of this image may have moved it while this one waited.
                if self._slot.server is server:
                    return server
                server.release()


def images_at_once(limit: int, requests: int) -> int:
    """Return how many images to have open at a server: enough to fill it while some wait for their first reply."""
    share = max(1, min(REQUESTS_PER_IMAGE, requests // 3))
    return max(-(-limit // share), min(2, limit))


@contextlib.asynccontextmanager
async def open_clients(
    endpoints: Sequence[Endpoint], policy: RunPolicy | None = None
) -> AsyncIterator[Callable[[], Client]]:
    """Give a function that makes a client, one per image, under the limits and retries of a run.

    RetriesExhausted and RequestRefused become JudgeError unless they are caught inside.
    """
    async with Transport() as transport:
        served = ServedModel("", lambda _kind, _detail: None)
        progress = Progress(0, time.monotonic())
        pool = ServerPool(transport, endpoints, policy or RunPolicy(), progress, served)
        servers = itertools.cycle(pool.servers)
        try:
            yield lambda: ImageClient(pool, Slot(next(servers)), first=True)
        except RetriesExhausted as error:
            raise JudgeError(f"{endpoints[0].url} cannot be asked: {error}. Check that the server runs") from None
        except RequestRefused as error:
            raise JudgeError(f"{endpoints[0].url} refused a request for good: {error}") from None
        finally:
            pool.close()
