"""A chat server that answers properly until it is told to misbehave; raw sockets, a thread of its own.

    with FaultyServer() as server:                     # server.url is http://127.0.0.1:PORT/v1
        server.script(status(503), reset(), answer())  # the next three requests, in order of arrival; then it answers
        server.otherwise = drip_body()                 # ... or from now on every request the script leaves over
        ...                                            # ask
        assert server.seen.requests == 4

A proper answer is a function of the image and the question alone: `true_logit(sha256 of the image's bytes, question)`
is what the log-probs of Yes and No differ by, so a test can check every stored value. `stop()` and `start()` are a
restart on the same port. A fault is any coroutine function that takes the `Call`, so a test can write its own.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import hashlib
import json
import math
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

MODEL = "stub-vlm"


def true_logit(image_sha256: str, question: str) -> float:
    """Give what the server thinks: log P(yes) - log P(no), between -6 and 6, the same on every machine."""
    digest = hashlib.sha256(f"{image_sha256}\0{question}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32 * 12 - 6


@dataclass
class Seen:
    """What reached the server, counted."""

    requests: int = 0
    bytes: int = 0
    connections: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    images: collections.Counter[str] = field(default_factory=collections.Counter)
    """sha256 of each image that came with its bytes -> how often."""
    asked: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    """(sha256 of the image or nothing, question) -> how often."""
    keys: set[str] = field(default_factory=set)
    """Every Authorization header."""
    times_s: list[float] = field(default_factory=list)
    """When each request had arrived, by the monotonic clock."""


class Call:
    """One request and the way back to who sent it."""

    def __init__(self, server: FaultyServer, head: list[str], body: bytes, out: asyncio.StreamWriter) -> None:
        """Read the request: which image, which question."""
        self.server = server
        self.line = head[0]
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in head[1:])}
        self.body = body
        self.out = out
        self.json = json.loads(body) if body[:1] == b"{" else {}
        messages = self.json.get("messages") or [{}]
        content = messages[-1].get("content") or ""
        self.parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        self.question = next((part["text"] for part in reversed(self.parts) if part["type"] == "text"), "")
        self.image = ""
        self.unknown_image = False
        self.seen_before = False

    def look(self) -> None:
        """Find the image: its bytes in a data URL, or a uuid the server has seen."""
        for part in self.parts:
            if part["type"] != "image_url":
                continue
            url = (part.get("image_url") or {}).get("url", "")
            uuid = part.get("uuid")
            if url:
                self.image = hashlib.sha256(base64.b64decode(url.partition(",")[2])).hexdigest()
                self.server.seen.images[self.image] += 1
                if uuid and self.server.keeps_images:
                    self.server.kept[uuid] = self.image
            else:
                self.image = self.server.kept.get(uuid, "")
                self.unknown_image = not self.image

    def completion(self) -> dict:
        """Make the proper answer, in the form of chat.completions; samples are drawn by the seed that was asked for."""
        logit = true_logit(self.image, self.question)
        p_yes = 1 / (1 + math.exp(-logit))
        choices = []
        for place in range(self.json.get("n") or 1):
            draw = (true_logit(self.image, f"{self.question} {self.json.get('seed')} {place}") + 6) / 12
            says_yes = draw < p_yes if self.json.get("temperature") else logit > 0
            choices.append(
                {
                    "index": place,
                    "message": {"role": "assistant", "content": "Yes" if says_yes else "No"},
                    "logprobs": self.logprobs(p_yes) if self.json.get("logprobs") else None,
                    "finish_reason": "length" if self.json.get("max_tokens") == 1 else "stop",
                }
            )
        tokens, cached = (300, 280) if self.image else (40, 0)
        return {
            "id": f"chatcmpl-{self.server.seen.requests}",
            "object": "chat.completion",
            "model": self.server.model,
            "choices": choices,
            "usage": {
                "prompt_tokens": tokens,
                "completion_tokens": len(choices),
                "total_tokens": tokens + len(choices),
                "prompt_tokens_details": {"cached_tokens": cached if self.seen_before else 0},
            },
        }

    def logprobs(self, p_yes: float) -> dict:
        """Share .97 of the mass among the spellings of yes and no, the likeliest first; the rest is another word."""
        shares = {
            "Yes": 0.92 * p_yes,
            " yes": 0.05 * p_yes,
            "No": 0.92 * (1 - p_yes),
            " no": 0.05 * (1 - p_yes),
            "I": 0.02,
        }
        listed = sorted(shares, key=shares.__getitem__, reverse=True)[: self.json.get("top_logprobs") or None]
        entries = [{"token": word, "logprob": math.log(shares[word]), "bytes": list(word.encode())} for word in listed]
        return {"content": [{**entries[0], "top_logprobs": entries}]}

    @property
    def asked(self) -> tuple[str, str]:
        """What was asked of which image."""
        return self.image, self.question

    async def send(self, body: bytes, *, status: int = 200, **headers: str) -> None:
        """Write one whole response; a header's underscores become dashes."""
        named = {"content_type": "application/json", "content_length": str(len(body))} | headers
        self.out.write(head(status, **named) + body)
        await self.out.drain()


Fault = Callable[[Call], Awaitable[None]]


def head(status: int, **headers: str) -> bytes:
    """Write a status line and headers."""
    lines = [f"HTTP/1.1 {status} Word", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


class FaultyServer:
    """The server: start it as a context manager, or by `start()` and `stop()`."""

    def __init__(
        self, *, model: str = MODEL, tls: ssl.SSLContext | None = None, latency_s: float = 0, keeps_images: bool = False
    ) -> None:
        """Say who answers, after how long, under which certificate, and whether images are kept by uuid."""
        self.model = model
        self.tls = tls
        self.latency_s = latency_s
        self.keeps_images = keeps_images
        self.kept: dict[str, str] = {}
        self.seen = Seen()
        self.otherwise: Fault = answer()
        self._script: collections.deque[Fault] = collections.deque()
        self._port = 0
        self._images_seen: set[str] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._halt: Callable[[], object] = lambda: None

    @property
    def port(self) -> int:
        """The port, which a restart keeps."""
        return self._port

    @property
    def url(self) -> str:
        """What a user types as --base-url."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self._port}/v1"

    def script(self, *faults: Fault) -> None:
        """Say what happens to the next requests, in order of arrival."""
        self._script.extend(faults)

    def start(self) -> Self:
        """Listen; after a stop, on the same port and with nothing kept."""
        self.kept = {}
        listener = socket.create_server(("127.0.0.1", self._port), backlog=512)
        self._port = listener.getsockname()[1]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)), daemon=True)
        self._thread.start()
        self._started.wait()
        return self

    def stop(self) -> None:
        """Cut every connection and stop listening."""
        if self._thread:
            self._halt()
            self._thread.join()
            self._thread = None
            self._started.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _serve(self, listener: socket.socket) -> None:
        """Serve until told to stop, then cut what is open."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda *_: None)
        self._halt = lambda: loop.call_soon_threadsafe(stopped.set)
        serving = set()

        def connected(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
            # At once, not in the task: one that is cancelled before it begins would leave its socket open.
            self._open.add(out)
            serving.add(task := loop.create_task(self._connection(reader, out)))
            task.add_done_callback(serving.discard)

        server = await asyncio.start_server(connected, sock=listener, ssl=self.tls, limit=2**26)
        self._started.set()
        await stopped.wait()
        # What was accepted last gets its transport in the loop's next turns, and only from a server that is not closed
        # yet: else its socket stays open. So accepting ends first.
        loop.remove_reader(listener)
        await asyncio.sleep(0.01)
        server.close()
        for out in {*self._open}:
            out.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # what was aborted is closed in the loop's next turns, without a word

    async def _connection(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        """Serve one connection, request after request."""
        self.seen.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
                length = next((int(x.split(":")[1]) for x in lines if x.lower().startswith("content-length:")), 0)
                call = Call(self, lines, await reader.readexactly(length), out)
                await self._reply(call)
        out.transport.abort()
        self._open.discard(out)

    async def _reply(self, call: Call) -> None:
        """Count one request, and do to it what the script says."""
        seen = self.seen
        seen.requests += 1
        seen.bytes += len(call.body)
        seen.times_s.append(asyncio.get_running_loop().time())
        seen.keys |= {call.headers["authorization"]} if "authorization" in call.headers else set()
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            call.look()
            call.seen_before = call.image in self._images_seen
            self._images_seen.add(call.image)
            fault = self._script.popleft() if self._script else self.otherwise
            await fault(call)
            seen.asked[call.asked] += 1
        finally:
            seen.in_flight -= 1


def answer(change: Callable[[dict], object] = lambda _: None, *, after_s: float = 0) -> Fault:
    """Answer properly, after a while; `change` may spoil the completion first."""

    async def fault(call: Call) -> None:
        await asyncio.sleep(after_s + call.server.latency_s)  # a slow server is what is simulated, here and below
        if call.line.startswith("GET"):
            models = {"object": "list", "data": [{"id": call.server.model, "object": "model"}]}
            await call.send(json.dumps(models).encode())
        elif call.unknown_image:
            await call.send(b'{"error": {"message": "no image is kept under this uuid"}}', status=400)
        else:
            completion = call.completion()
            change(completion)
            await call.send(json.dumps(completion).encode())

    return fault


def another_model(name: str) -> Fault:
    """Answer under another model's name."""
    return answer(lambda completion: completion.update(model=name))


def no_logprobs() -> Fault:
    """Answer without the log-probs that were asked for."""
    return answer(lambda completion: completion["choices"][0].pop("logprobs"))


def cut_short() -> Fault:
    """Stop in the middle of a sentence, and say so."""
    return answer(
        lambda completion: completion["choices"][0].update(
            finish_reason="length", message={"role": "assistant", "content": '{"answer": "y'}
        )
    )


def swapped() -> Fault:
    """Hold a request until another comes, and give each the other's answer; use one instance for both."""
    held: list[tuple[Call, asyncio.Event]] = []

    async def fault(call: Call) -> None:
        if held:
            other, done = held.pop()
            await call.send(json.dumps(other.completion()).encode())
            await other.send(json.dumps(call.completion()).encode())
            done.set()
            return
        mine = (call, asyncio.Event())
        held.append(mine)
        try:
            await asyncio.wait_for(mine[1].wait(), 1)
        except TimeoutError:
            held.remove(mine)
            await answer()(call)

    return fault


def status(code: int, body: bytes = b'{"error": {"message": "out of order"}}', **headers: str) -> Fault:
    """Reply with a status; `status(429, Retry_After="1")`."""
    return lambda call: call.send(body, status=code, **headers)


def redirect(code: int, to: str) -> Fault:
    """Point elsewhere."""
    return status(code, b"", Location=to)


def body(raw: bytes, **headers: str) -> Fault:
    """Say 200 and send these bytes."""
    return lambda call: call.send(raw, **headers)


def html() -> Fault:
    """Say 200 and send a page, as a proxy or a login wall does."""
    return body(b"<!doctype html><title>Sign in</title>", content_type="text/html")


def empty() -> Fault:
    """Say 200 and send nothing."""
    return body(b"")


def error_in_200() -> Fault:
    """Say 200 and mean an error."""
    return body(b'{"error": {"message": "engine is not ready", "code": 500}}')


def invalid_utf8() -> Fault:
    """Say 200 and send JSON whose string is not UTF-8."""
    return body(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}')


def silence() -> Fault:
    """Take the request and say nothing."""

    async def fault(_: Call) -> None:
        await asyncio.Event().wait()

    return fault


def drip_headers(every_s: float = 0.05) -> Fault:
    """Send a header now and then, never the last."""

    async def fault(call: Call) -> None:
        call.out.write(b"HTTP/1.1 200 OK\r\n")
        for turn in range(100_000):
            call.out.write(f"X-{turn}: x\r\n".encode())
            await call.out.drain()
            await asyncio.sleep(every_s)

    return fault


def drip_body(every_s: float = 0.05) -> Fault:
    """Send a proper answer one byte at a time."""

    async def fault(call: Call) -> None:
        raw = json.dumps(call.completion()).encode()
        call.out.write(head(200, content_type="application/json", content_length=str(len(raw))))
        for at in range(len(raw)):
            call.out.write(raw[at : at + 1])
            await call.out.drain()
            await asyncio.sleep(every_s)

    return fault


def half_close() -> Fault:
    """Send half an answer, then close the way back and go on listening."""

    async def fault(call: Call) -> None:
        raw = json.dumps(call.completion()).encode()
        call.out.write(head(200, content_length=str(len(raw))) + raw[: len(raw) // 2])
        await call.out.drain()
        call.out.write_eof()
        await asyncio.sleep(1)

    return fault


def reset() -> Fault:
    """Cut the connection with RST."""

    async def fault(call: Call) -> None:
        call.out.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        call.out.transport.abort()

    return fault


def truncated_chunks() -> Fault:
    """Send one chunk of a chunked body, promise a longer one, and close."""

    async def fault(call: Call) -> None:
        call.out.write(head(200, transfer_encoding="chunked") + b'9\r\n{"choices\r\nff\r\n": [')
        await call.out.drain()
        call.out.transport.close()

    return fault


def wrong_length(by: int) -> Fault:
    """Announce a body longer (or, below zero, shorter) than the one that comes, and close."""

    async def fault(call: Call) -> None:
        raw = json.dumps(call.completion()).encode()
        call.out.write(head(200, content_length=str(len(raw) + by)) + raw)
        await call.out.drain()
        call.out.transport.close()

    return fault


def gzip_bomb(size: int = 200_000_000) -> Fault:
    """Send a small gzip body that unpacks to `size` blanks."""
    packer = zlib.compressobj(1, wbits=31)
    blanks = b" " * 1_000_000
    packed = b"".join(packer.compress(blanks) for _ in range(size // len(blanks)))
    return body(packed + packer.flush(), content_encoding="gzip")


def long_body(size: int = 1_000_000_000, *, announced: bool = False) -> Fault:
    """Send a body of `size` bytes, chunked or announced, as fast as it is taken."""

    async def fault(call: Call) -> None:
        length = {"content_length": str(size)} if announced else {"transfer_encoding": "chunked"}
        call.out.write(head(200, **length))
        piece = b" " * 2**16
        framed = piece if announced else b"10000\r\n" + piece + b"\r\n"
        for _ in range(size // len(piece)):
            call.out.write(framed)
            await call.out.drain()

    return fault


def endless_events(every_s: float = 0) -> Fault:
    """Stream server-sent events without end."""

    async def fault(call: Call) -> None:
        call.out.write(head(200, content_type="text/event-stream", transfer_encoding="chunked"))
        event = b'data: {"choices": [{"delta": {"content": "Yes"}}]}\n\n' * 20
        while True:
            call.out.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await call.out.drain()
            await asyncio.sleep(every_s)

    return fault


@contextlib.contextmanager
def no_accept():
    """Give the address of a socket whose queue is full and that never accepts: a connect to it hangs."""
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = open_sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


@contextlib.contextmanager
def dead_port():
    """Give the address of a port where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
