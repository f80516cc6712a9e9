"""One exchange: what is sent, what comes back, what it costs, and what it never says."""

import asyncio
import base64
import dataclasses
import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
import traceback
import zlib

import aiohttp
import orjson
import pytest

from bpals.errors import JudgeError, MissingExtra
from bpals.judges.runner.transport import Endpoint, TransientError, Transport, quote, retry_after
from bpals.types import RequestRefused
from world import chat_server
from world.chat_server import FaultyServer, answer, body, status

KEY = "sk-canary-0123456789abcdefghij"
IMAGE = base64.b64encode(bytes(range(256)) * 300).decode()
QUESTION = "Does it show a mass?"


def make_body(image=IMAGE):
    """A request of about 100 KB, as a judge sends it."""
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
    content = [*parts, {"type": "text", "text": QUESTION}]
    asked = {"model": chat_server.MODEL, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    return json.dumps({**asked, "messages": [{"role": "user", "content": content}]}).encode()


def ask(server, *, sent=None, **options):
    """Ask a server once."""

    async def run():
        async with Transport() as transport:
            endpoint = Endpoint(**{"url": server.url, "key": KEY, "deadline_s": 10, **options})
            return await transport.send(endpoint, sent or make_body())

    return asyncio.run(run())


@pytest.fixture(scope="module")
def server():
    """A server for the whole file."""
    with FaultyServer() as running:
        yield running


def test_a_proper_reply_comes_back_whole(server):
    """The payload is the JSON object that the server sent, and the latency is that of the exchange."""
    server.script(answer(after_s=0.1))
    reply = ask(server)
    assert reply.status == 200
    assert reply.payload["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert 0.1 <= reply.latency_s < 5


def test_the_server_gets_the_image_as_it_was_sent(server):
    """The bytes arrive unchanged, with the key, and the path is added to the base URL."""
    before = server.seen.images.copy()
    ask(server, url=f"{server.url}/")
    (image,) = server.seen.images - before
    assert image == hashlib.sha256(base64.b64decode(IMAGE)).hexdigest()
    assert server.seen.keys == {f"Bearer {KEY}"}


def test_without_a_key_no_key_is_sent():
    """A local server needs none."""
    with FaultyServer() as server:
        ask(server, key="")
        assert server.seen.keys == set()


def test_connections_are_kept_and_none_is_waited_for():
    """Forty requests at once are forty in flight, and forty more use the same connections."""
    with FaultyServer(latency_s=0.2) as server:

        async def run():
            async with Transport() as transport:
                endpoint = Endpoint(url=server.url)
                for _ in range(2):
                    await asyncio.gather(*(transport.send(endpoint, make_body()) for _ in range(40)))

        asyncio.run(run())
        assert server.seen.most_in_flight == server.seen.connections == 40
        assert server.seen.requests == 80


def test_a_body_of_several_megabytes_is_sent_quietly(server):
    """A large film raises no warning of the client's and arrives with its length."""
    big = base64.b64encode(bytes(3_000_000)).decode()
    ask(server, sent=make_body(big))
    assert server.seen.images[hashlib.sha256(bytes(3_000_000)).hexdigest()] == 1


def test_a_packed_reply_is_unpacked(server):
    """A proxy that packs although nobody asked is understood; what does not unpack to the end is asked for again."""
    raw = b'{"choices": [], "model": "m"}'
    whole = gzip.compress(raw)
    for packed, how in ((whole, "gzip"), (whole, "x-gzip"), (zlib.compress(raw), "deflate"), (raw, "identity")):
        server.script(body(packed, content_encoding=how))
        assert ask(server).payload["model"] == "m"
    for packed, how in ((b"\x1f\x8bnonsense", "gzip"), (whole[:-9], "gzip"), (whole + whole, "gzip"), (raw, "br")):
        server.script(body(packed, content_encoding=how))
        with pytest.raises(TransientError):
            ask(server)


def test_a_null_error_is_no_error(server):
    """Some servers write "error": null into every reply."""
    server.script(body(b'{"error": null, "choices": []}'))
    assert ask(server).payload["error"] is None


@pytest.mark.parametrize(
    ("asked", "date", "seconds"),
    [
        ("1", "", 1.0), ("0.25", "", 0.25), ("3600", "", 3600.0), (" 7 ", "", 7.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", "", 0.0),
        ("", "", None), ("soon", "", None), ("-5", "", None), ("nan", "", None), ("inf", "", None),
        ("1e400", "", None), ("Wed, 99 Oct 2026 07:28:00 GMT", "", None), ("٣x", "", None),
    ],
)  # fmt: skip
def test_retry_after_is_read_or_left(asked, date, seconds):
    """H01: seconds, an HTTP date measured by the server's own clock, and junk, which means nothing."""
    assert retry_after({"Retry-After": asked, "Date": date}) == seconds


def test_a_key_is_never_shown():
    """A key is not in the repr, and one that no header can carry is refused without being quoted."""
    assert KEY not in repr(Endpoint(url="http://127.0.0.1:8000/v1", key=KEY))
    with FaultyServer() as server:
        for bad in (f"{KEY}\n", f"{KEY}\r\nX-Evil: 1", f"{KEY} x", f"{KEY}é"):
            with pytest.raises(JudgeError) as caught:
                ask(server, key=bad)
            assert KEY not in str(caught.value)
        assert server.seen.requests == 0


ECHOES = [
    *(status(code, f"you sent Bearer {KEY} and {IMAGE}".encode()) for code in (400, 401, 403, 404, 413, 422, 429, 500)),
    status(422, orjson.dumps({"detail": [{"loc": ["messages"], "input": make_body().decode(), "key": KEY}]})),
    status(307, b"", Location=f"http://evil.example/?key={KEY}&image={IMAGE[:4000]}"),
    body(f"<html>{KEY} {IMAGE}".encode()),
    body(orjson.dumps({"error": {"message": f"{KEY} {IMAGE}"}})),
    body(orjson.dumps([KEY, IMAGE])),
    body(b"{}", content_encoding=f"x-{KEY}"),
    lambda call: call.send(b"{}", **{f"bad header {KEY}\x00": IMAGE[:3000]}),
    chat_server.wrong_length(-20),
    chat_server.reset(),
]


@pytest.mark.parametrize("echo", ECHOES)
def test_neither_key_nor_image_is_in_any_message(server, echo):
    """S23 for this part: a server that echoes key and image finds neither in the exception nor in its chain."""
    server.script(echo)
    with pytest.raises((TransientError, RequestRefused, JudgeError)) as caught:
        ask(server)
    whole = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))
    chain = [caught.value.__cause__, caught.value.__context__]
    whole += "".join(f"{link} {link!r} {vars(link)}" for link in chain if link and not isinstance(link, ValueError))
    assert KEY not in whole
    assert KEY[:14] not in whole
    assert IMAGE[:60] not in whole
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_server_is_quoted_in_one_safe_line():
    """What a server says cannot drive a terminal, fill a screen, or split a log line."""
    assert quote("a\n\tb\x1b[31mred\u202eevil\u2028c\x00d") == "a b [31mred evil c d"
    assert len(quote("word " * 1000)) == 300
    assert quote(f"key {KEY[:12]}... wrong", KEY) == "key *** wrong"
    assert quote("keys differ", "k") == "***eys differ"


def test_the_servers_own_words_are_kept(server):
    """The sentence in an error's JSON is quoted, in the forms of OpenAI, FastAPI and plain text."""
    forms = ['{"error": {"message": "%s"}}', '{"error": "%s"}', '{"detail": "%s"}', '{"message": "%s"}', "%s"]
    for form in forms:
        server.script(status(400, (form % "context too long").encode()))
        with pytest.raises(RequestRefused) as caught:
            ask(server)
        assert (caught.value.status, caught.value.message) == (400, "context too long")


def test_a_fault_whose_words_break_off_keeps_its_status(server):
    """The status is enough: a 503 that breaks off in its body is still a 503."""

    async def break_off(call):
        await call.send(b"half", status=503, content_length="400")
        call.out.transport.close()

    server.script(break_off)
    with pytest.raises(TransientError) as caught:
        ask(server)
    assert caught.value.status == 503


def test_a_cancelled_exchange_is_cancelled():
    """Cancelling is not a fault of the server, and leaves nothing open."""
    with FaultyServer() as server:
        server.otherwise = chat_server.silence()

        async def run():
            async with Transport() as transport:
                task = asyncio.create_task(transport.send(Endpoint(url=server.url), b"{}"))
                await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(run())


def test_an_endpoint_is_a_value():
    """Two equal endpoints share their preparation; the address is checked when it is first used."""
    one = Endpoint(url="http://127.0.0.1:8000/v1", key=KEY)
    assert one == dataclasses.replace(one)
    transport = Transport()
    assert transport.prepare(one) is transport.prepare(dataclasses.replace(one))
    with pytest.raises(JudgeError, match="never asked"):
        transport.prepare(Endpoint(url="http://169.254.169.254/v1"))


def test_without_its_packages_it_says_what_to_type():
    """The core install has no HTTP client; asking for one names the extra, and importing the module does not fail."""
    code = """
import asyncio, sys
sys.modules["aiohttp"] = None
from bpals.errors import MissingExtra
from bpals.judges.runner.transport import Transport
async def run():
    async with Transport(): pass
try: asyncio.run(run())
except MissingExtra as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(MissingExtra.of("a judge behind an endpoint", "vlm")) in done.stdout


GUARDED = """
import asyncio, os, sys
from bpals.judges.runner.transport import Endpoint, Transport
port, mode = int(sys.argv[1]), sys.argv[2]
calls = []
def guard(event, details):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        where = details[1] if event == "socket.connect" else details
        calls.append(where)
        if where != ("127.0.0.1", port):
            raise RuntimeError(f"{event} {where} went out")
sys.addaudithook(guard)
async def run():
    async with Transport() as transport:
        url = f"http://127.0.0.1:{port}/v1" if mode == "here" else f"http://localhost:{port}/v1"
        print((await transport.send(Endpoint(url=url, key="k"), b"{}")).status, calls)
asyncio.run(run())
"""


def test_nothing_is_called_but_the_endpoint(server):
    """M08: an exchange works under a guard that fails on any other connect or lookup, and no proxy is heeded."""
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), "http://127.0.0.1:9/")
    environment = os.environ | proxies
    line = [sys.executable, "-c", GUARDED, str(server.port)]
    done = subprocess.run([*line, "here"], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == f"200 [('127.0.0.1', {server.port})]\n", done.stderr
    seen = subprocess.run([*line, "by name"], capture_output=True, text=True, env=environment, check=False)
    assert "went out" in seen.stderr


def test_an_exchange_costs_little_more_than_the_bare_client(server, capsys):
    """At 100 KB a call, deadline, limits and checks cost .3 ms of CPU, or half as much again as bare aiohttp here."""
    sent, calls = make_body(), 150

    async def run():
        async with Transport() as transport, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            endpoint = Endpoint(url=server.url, key=KEY)

            async def bare():
                headers = {"Content-Type": "application/json"}
                async with session.post(f"{server.url}/chat/completions", data=sent, headers=headers) as response:
                    return orjson.loads(await response.read())

            async def lane(one):
                for _ in range(calls // 10):
                    await one()

            costs = {"ours": [], "bare": []}
            for _ in range(6):
                for name, one in (("ours", lambda: transport.send(endpoint, sent)), ("bare", bare)):
                    started = time.thread_time()
                    await asyncio.gather(*(lane(one) for _ in range(10)))
                    costs[name].append((time.thread_time() - started) / calls * 1000)
            return {name: min(rounds) for name, rounds in costs.items()}

    costs = asyncio.run(run())
    with capsys.disabled():
        sys.stdout.write(
            f"\n  CPU ms a call at 100 KB: exchange {costs['ours']:.3f}, bare aiohttp {costs['bare']:.3f} "
        )
    assert costs["ours"] < max(1.5 * costs["bare"], 0.3)
