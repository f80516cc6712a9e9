"""How busy the runner keeps a server, beside bare aiohttp, the openai SDK and LiteLLM.

    python benchmarks/runner_throughput.py            five interleaved rounds, about seven minutes
    python benchmarks/runner_throughput.py --quick    one short round, under a minute

A stub server in a process of its own answers 100 ms after a body has arrived; 64 requests may be in flight, so by
Little's law no client gets more than 640 replies a second. Films are 100 KB, 28 questions each. Only bpals keeps
what it is told: every answer is committed to a ledger on the disk. Each client runs alone in a process, and the order
changes from round to round. The exit code is 1 if bpals reaches neither .90 of the ceiling nor .95 of bare aiohttp,
takes more than .5 ms of CPU a call, or sends more than 1/20 of the naive bytes to a server that keeps images.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
LATENCY_S = 0.1
IN_FLIGHT = 64
QUESTIONS = 28
CEILING = IN_FLIGHT / LATENCY_S
FILMS = {"bpals": 276, "bpals-uuid": 276, "aiohttp": 276, "openai": 92, "litellm": 40}
"""Films a round: as many as take each about twelve seconds."""
NAMES = {
    "bpals": "bpals, durable commits",
    "bpals-uuid": "bpals, each image once",
    "aiohttp": "bare aiohttp",
    "openai": "openai SDK",
    "litellm": "LiteLLM",
}
ROUNDS = 5
SHARE, OF_BARE, CPU_MS, BYTES = 0.90, 0.95, 0.5, 1 / 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one client did in one round."""

    share: float
    """Replies a second, of the ceiling."""
    in_flight: float
    """Requests in flight at the server, on average over its span."""
    cpu_ms: float
    """CPU of the client's process, a call."""
    bytes_a_question: float


@dataclass(slots=True)
class Result:
    """Everything that was measured, in the order of measuring."""

    rounds: list[dict[str, Measured]] = field(default_factory=list)

    def middle(self, client: str, figure: str) -> float:
        """The median of a figure over the rounds."""
        return statistics.median(float(getattr(one[client], figure)) for one in self.rounds)

    @property
    def clients(self) -> list[str]:
        """Who was measured."""
        return list(self.rounds[0])

    @property
    def of_bare(self) -> float:
        """How bpals does beside bare aiohttp: the median of the ratios of one round."""
        return statistics.median(one["bpals"].share / one["aiohttp"].share for one in self.rounds)

    @property
    def bytes_saved(self) -> float:
        """How much of the naive bytes is sent where the server keeps images."""
        return self.middle("bpals-uuid", "bytes_a_question") / self.middle("aiohttp", "bytes_a_question")

    @property
    def good(self) -> bool:
        """Say whether the promise holds."""
        fast = self.middle("bpals", "share") >= SHARE or self.of_bare >= OF_BARE
        return fast and self.middle("bpals", "cpu_ms") <= CPU_MS and self.bytes_saved <= BYTES

    def as_json(self) -> str:
        """Write it down for a program."""
        rounds = [{client: asdict(one) for client, one in each.items()} for each in self.rounds]
        return json.dumps({"rounds": rounds, "of_bare": self.of_bare, "bytes": self.bytes_saved}, indent=1)


@contextmanager
def stub(latency_s: float = LATENCY_S) -> Iterator[str]:
    """Start the stub server in a process of its own, and give its address."""
    line = [sys.executable, str(HERE / "stub_server.py"), "--latency", str(latency_s)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        if server.stdout is None or server.stdin is None:
            sys.exit("the stub server has no pipes")
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        server.stdin.close()


def stats(address: str) -> dict[str, float]:
    """Ask the stub what reached it, and start its counts anew."""
    with urllib.request.urlopen(f"{address}/stats") as reply:  # noqa: S310
        figures: dict[str, float] = json.load(reply)
    return figures


def measure(client: str, address: str, films: int) -> Measured:
    """Let one client ask, in a process of its own."""
    line = [sys.executable, str(HERE / "runner_clients.py"), client, "--url", f"{address}/v1", "--films", str(films)]
    done = subprocess.run(
        line, stdout=subprocess.PIPE, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.exit(f"{client} ended with {done.returncode}")
    told, seen = json.loads(done.stdout.splitlines()[-1]), stats(address)
    return Measured(
        share=round(told["requests"] / told["seconds"] / CEILING, 4),
        in_flight=round(seen["mean_in_flight"], 1),
        cpu_ms=round(1000 * told["cpu_s"] / told["requests"], 4),
        bytes_a_question=round(seen["bytes"] / seen["requests"], 1),
    )


def page(result: Result) -> str:
    """Lay the result out as Markdown."""
    setting = f"{IN_FLIGHT} in flight, {LATENCY_S * 1000:g} ms, 100 KB a film, {QUESTIONS} questions a film"
    rounds = f"median of {len(result.rounds)} interleaved rounds (smallest to largest)"
    lines = [
        f"{setting}; ceiling {CEILING:g} replies a second; {rounds}.",
        "",
        "| client | share of the ceiling | in flight at the server | CPU ms a call | bytes a question |",
        "|---|--:|--:|--:|--:|",
    ]
    for client in result.clients:
        shares = [one[client].share for one in result.rounds]
        lines.append(
            f"| {NAMES[client]} | {statistics.median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f}) "
            f"| {result.middle(client, 'in_flight'):.1f} | {result.middle(client, 'cpu_ms'):.2f} "
            f"| {result.middle(client, 'bytes_a_question'):,.0f} |"
        )
    share, of_bare = result.middle("bpals", "share"), result.of_bare
    cpu_ms, fewer = result.middle("bpals", "cpu_ms"), 1 / result.bytes_saved
    versions = ", ".join(f"{name} {found(name)}" for name in ("aiohttp", "openai", "litellm"))
    lines += [
        "",
        f"- bpals: {share:.3f} of the ceiling ({SHARE:.2f} promised) or {of_bare:.3f} of bare aiohttp ({OF_BARE:.2f}).",
        f"- CPU: {cpu_ms:.2f} ms a call, at most {CPU_MS} was promised.",
        f"- Bytes, where the server keeps images: 1/{fewer:.0f} of the naive ones, 1/{1 / BYTES:.0f} was promised.",
        f"- Versions: {versions}",
    ]
    return "\n".join(lines)


def found(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "is not installed and was not measured"


def main() -> int:
    """Measure, print the table, and say by the exit code whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round with a third of the films")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure")
    given = parser.parse_args()
    clients = [client for client in FILMS if client.startswith("bpals") or find_spec(client)]
    result = Result()
    with stub() as address:
        for number in range(1 if given.quick else ROUNDS):
            turned = clients[number % len(clients) :] + clients[: number % len(clients)]
            one = {}
            for client in turned:
                one[client] = measure(client, address, FILMS[client] // (3 if given.quick else 1))
                print(f"round {number + 1}: {NAMES[client]}: {asdict(one[client])}", file=sys.stderr, flush=True)
            result.rounds.append({client: one[client] for client in clients})
            if given.json:
                given.json.write_text(result.as_json(), encoding="utf-8")
    print(page(result))
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
