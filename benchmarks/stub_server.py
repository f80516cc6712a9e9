"""A chat server that does nothing but wait: it answers a fixed time after a request's body has arrived.

    python benchmarks/stub_server.py --latency .1      prints its port, then serves until its input is closed

It counts what reached it: requests, bytes, distinct images, and how many requests were truly in flight, as an integral
over time. It keeps images by uuid as vLLM does: an `image_url` of null needs a uuid that came with its bytes before.
`GET /stats` gives the counts and starts them anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from typing import Any, cast

REPLY = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 0,
    "model": "stub",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "No"},
            "logprobs": {
                "content": [
                    {
                        "token": "No",
                        "logprob": -0.2,
                        "bytes": None,
                        "top_logprobs": [
                            {"token": word, "logprob": logprob, "bytes": None}
                            for word, logprob in [
                                ("No", -0.2),
                                ("Yes", -1.8),
                                (" no", -4.5),
                                *((f"w{n}", -6.0 - n) for n in range(17)),
                            ]
                        ],
                    }
                ]
            },
            "finish_reason": "length",
        }
    ],
    "usage": {
        "prompt_tokens": 300,
        "completion_tokens": 1,
        "total_tokens": 301,
        "prompt_tokens_details": {"cached_tokens": 280},
    },
}
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
UUID = re.compile(rb'"uuid": ?"([^"]+)"')
BY_UUID = re.compile(rb'"image_url": ?null')
ENDS = 4096
"""As much of a body is looked at, at its beginning and at its end: what is between is image."""


def response(body: bytes, status: str = "200 OK") -> bytes:
    """Write a whole response."""
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


ANSWER = response(json.dumps(REPLY).encode())
MISSING = response(b'{"error": {"message": "no image is kept under this uuid"}}', "400 Bad Request")


class Counts:
    """What reached the server since it was last asked."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.kept: set[bytes] = set()
        self.clear()

    def clear(self) -> None:
        """Begin anew, with the images that are kept."""
        self.requests = self.bytes = self.in_flight = self.most = 0
        self.area = 0.0
        self.first_s = self.last_s = time.perf_counter()

    def change(self, by: int) -> None:
        """Note that a request came or went."""
        now = time.perf_counter()
        if self.requests == 0 and self.in_flight == 0:
            self.first_s = now
        else:
            self.area += self.in_flight * (now - self.last_s)
        self.last_s = now
        self.in_flight += by
        self.most = max(self.most, self.in_flight)

    def as_json(self) -> bytes:
        """Write the counts down."""
        seconds = self.last_s - self.first_s
        mean = self.area / seconds if seconds else 0.0
        figures = {"requests": self.requests, "bytes": self.bytes, "most": self.most, "mean_in_flight": mean}
        return json.dumps(figures | {"seconds": seconds}).encode()


class Connection(asyncio.Protocol):
    """One connection; a request's body is counted and looked at, not kept."""

    def __init__(self, counts: Counts, latency_s: float) -> None:
        """Wait for a request."""
        self._counts = counts
        self._latency_s = latency_s
        self._head = b""
        self._missing = -1
        self._start = b""
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._out = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take what came: a head until its blank line, then a body of the length it says."""
        while data:
            if self._missing < 0:
                self._head += data
                head, blank, data = self._head.partition(b"\r\n\r\n")
                if not blank:
                    return
                found = LENGTH.search(head)
                self._missing, self._head = int(found[1]) if found else 0, b""
                self._start = self._end = b""
                self._counts.bytes += len(head) + 4
                if head.startswith(b"GET"):
                    self._out.write(response(self._counts.as_json()))
                    self._counts.clear()
                    self._missing = -1
                    return
            part, data = data[: self._missing], data[self._missing :]
            self._missing -= len(part)
            self._counts.bytes += len(part)
            self._start = (self._start + part)[:ENDS] if len(self._start) < ENDS else self._start
            self._end = part[-ENDS:] if len(part) >= ENDS else (self._end + part)[-ENDS:]
            if self._missing == 0:
                self._missing = -1
                self._arrived()

    def _arrived(self) -> None:
        self._counts.change(1)
        ends = self._start + self._end
        uuid = UUID.search(ends)
        by_uuid = BY_UUID.search(ends)
        known = not by_uuid or (uuid is not None and uuid[1] in self._counts.kept)
        if uuid and not by_uuid:
            self._counts.kept.add(uuid[1])
        asyncio.get_running_loop().call_later(self._latency_s, self._answer, ANSWER if known else MISSING)

    def _answer(self, answer: bytes) -> None:
        self._counts.change(-1)
        self._counts.requests += 1
        if not self._out.is_closing():
            self._out.write(answer)


async def serve(latency_s: float) -> None:
    """Serve until the input is closed: a server does not outlive who started it."""
    loop, counts = asyncio.get_running_loop(), Counts()
    server = await loop.create_server(lambda: Connection(counts, latency_s), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.1, metavar="S")
    given: Any = parser.parse_args()
    asyncio.run(serve(given.latency))


if __name__ == "__main__":
    main()
