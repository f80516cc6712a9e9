"""Readers of a reading room, each a process that speaks HTTP and never thinks, and the server that they read from.

    python benchmarks/reading_clients.py --origin http://127.0.0.1:8765 --name ann --cases 100 --log ann.jsonl

A reader asks for a case, keeps a draft, locks, and gives the second verdict, until it has read so many cases. What was
not answered is sent again with the same key, as the page in the browser does. Every answer is written to the log.
Benchmarks and tests start readers, kill the server under them, and compare the logs with the ledger.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PASSWORD = "eight readers think of nothing"  # noqa: S105  of rooms that are made to be killed
VERDICTS = ("present", "absent", "uncertain", "unreadable")
PATIENCE_S = 180.0
"""How long a reader waits for a server that is down."""
PAUSE_S = 0.05


@dataclass
class Reader:
    """One reader at one keep-alive connection."""

    origin: str
    name: str
    log: Path
    dice: random.Random
    cookie: str = ""
    wire: http.client.HTTPConnection | None = field(default=None, repr=False)

    def send(self, path: str, body: dict[str, Any] | None = None) -> tuple[dict[str, Any], float, int]:
        """Send until it is answered; give the answer, the milliseconds of the last try, and the number of tries."""
        tries, deadline = 0, time.monotonic() + PATIENCE_S
        while True:
            tries += 1
            began = time.perf_counter()
            try:
                status, answer = self._once(path, body)
                if status < 500:
                    if status >= 400:
                        raise SystemExit(f"{self.name}: {path} was refused, {status}: {answer}")
                    return answer, 1000 * (time.perf_counter() - began), tries
            except (OSError, http.client.HTTPException, ValueError):
                self.wire = None
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name}: no answer to {path} for {PATIENCE_S:.0f} s")
            time.sleep(PAUSE_S)

    def _once(self, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        if self.wire is None:
            self.wire = http.client.HTTPConnection(urlsplit(self.origin).netloc, timeout=60)
        headers = {"Origin": self.origin, "Cookie": self.cookie}
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        self.wire.request("POST", path, content, headers)
        response = self.wire.getresponse()
        text = response.read()
        for sent in response.headers.get_all("Set-Cookie") or []:
            self.cookie = sent.partition(";")[0]
        return response.status, json.loads(text) if text else {}

    def enter(self) -> None:
        """Log in."""
        self.send("/login", {"name": self.name, "password": PASSWORD})

    def read(self, cases: int) -> None:
        """Read so many cases, or as many as there are."""
        with self.log.open("a", encoding="utf-8", buffering=1) as log:
            for number in range(cases):
                handed, spent_ms, tries = self.send("/api/next")
                log.write(json.dumps({"step": "next", "ms": spent_ms, "tries": tries}) + "\n")
                if handed["reading"] is None:
                    log.write(json.dumps({"step": "end", "why": handed["why"]}) + "\n")
                    return
                for told in self._case(handed["reading"], number):
                    log.write(json.dumps(told) + "\n")

    def _case(self, reading: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
        """Write, lock, and look again; a case that was locked before is looked at again only."""
        steps = ("draft", "lock", "second") if reading["phase"] == "blind" else ("second",)
        for step in steps:
            verdicts = {each["name"]: self.dice.choice(VERDICTS) for each in reading["findings"]}
            body = {"version": reading["version"], "key": f"{self.name}-{number}-{step}-{self.dice.getrandbits(40):x}"}
            body["answer"] = {"verdicts": verdicts, "note": f"case {number}"}
            if step != "draft":
                body["spent"] = {"active_s": 1.0, "wall_s": 2.0}
            answer, spent_ms, tries = self.send(f"/api/readings/{reading['reading_id']}/{step}", body)
            told = {"step": step, "reading_id": reading["reading_id"], "verdicts": verdicts}
            yield {**told, "ms": spent_ms, "tries": tries}
            reading = answer.get("reading", {**reading, "version": answer["version"]})
            if step == "lock" and reading["phase"] != "second":
                return


@dataclass
class Server:
    """`bpals review serve` in a process of its own, on one port, to be killed and started again."""

    words: Sequence[str]
    port: int
    errors: Path
    process: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)

    @property
    def origin(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        line = [sys.executable, "-m", "bpals", "review", "serve", "--no-browser", "--port", str(self.port), *self.words]
        began = time.monotonic()
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(line, stdout=errors, stderr=errors, stdin=subprocess.DEVNULL)
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                raise SystemExit(f"the server did not start:\n{self.errors.read_text(errors='replace')[-3000:]}")
            time.sleep(PAUSE_S)
        self.starts.append(time.monotonic() - began)

    def _answers(self) -> bool:
        wire = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            wire.request("GET", "/healthz")
            return wire.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            wire.close()

    def kill(self) -> None:
        """End it as a power cut of the process would: SIGKILL, without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def reading(server: Server, names: Sequence[str], cases: int, folder: Path, *, seed: int = 0) -> Iterator[list[Any]]:
    """Start a reader a name, and give their processes; on leaving each must have ended well."""
    readers = []
    for place, name in enumerate(names):
        line = [sys.executable, __file__, "--origin", server.origin, "--name", name, "--cases", str(cases)]
        line += ["--log", str(folder / f"{name}.jsonl"), "--seed", str(seed * 1000 + place)]
        readers.append(subprocess.Popen(line, stderr=subprocess.PIPE, text=True))
    try:
        yield readers
        for reader in readers:
            _, errors = reader.communicate()
            if reader.returncode:
                raise SystemExit(f"a reader ended early: {errors.strip().splitlines()[-1] if errors else ''}")
    finally:
        for reader in readers:
            if reader.poll() is None:
                reader.kill()
                reader.communicate()


class Watch:
    """Counts the answers that readers have written down, while they read."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Begin at nothing."""
        self._seen = {folder / f"{name}.jsonl": 0 for name in names}
        self.count = 0

    def look(self) -> int:
        """Count what came since the last look, and give all of it."""
        for log, place in self._seen.items():
            if log.exists():
                with log.open("rb") as file:
                    file.seek(place)
                    new = file.read()
                self._seen[log] = place + len(new)
                self.count += new.count(b"\n")
        return self.count


def kill_at(server: Server, watch: Watch, moments: Sequence[int], readers: Sequence[Any], dice: random.Random) -> int:
    """Kill the server and start it again when so many answers were given, each time; give how often it was killed."""
    kills = 0
    for moment in sorted(moments):
        while watch.look() < moment:
            if all(reader.poll() is not None for reader in readers):
                return kills
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.05))
        server.kill()
        kills += 1
        server.start()
    return kills


def answers(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read what the server had acknowledged, as the readers wrote it down."""
    logs = [folder / f"{name}.jsonl" for name in names]
    return [json.loads(line) for log in logs if log.exists() for line in log.read_text().splitlines()]


def compare(acknowledged: Sequence[dict[str, Any]], reviews: Sequence[tuple[str, str, str, str]]) -> tuple[int, int]:
    """Count the verdicts that are lost or wrong, and those that are there twice or that nobody gave.

    `reviews` are the rows of the ledger: reading, phase, finding and verdict.
    """
    phases = {"lock": "blind", "second": "second"}
    given = Counter(
        (told["reading_id"], phases[told["step"]], finding, verdict)
        for told in acknowledged
        if told["step"] in phases
        for finding, verdict in told["verdicts"].items()
    )
    kept = Counter(reviews)
    return (given - kept).total(), (kept - given).total()


def main() -> None:
    """Be one reader."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--origin", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--cases", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dice = random.Random(given.seed)  # noqa: S311  what is drawn is no secret
    reader = Reader(origin=given.origin, name=given.name, log=given.log, dice=dice)
    reader.enter()
    reader.read(given.cases)


if __name__ == "__main__":
    main()
