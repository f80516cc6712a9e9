"""Two versions side by side: what an audit, the signal, the runner and the reading room cost in each.

    python benchmarks/versions.py                       this version beside 3a990ea, which is checked out and installed
    python benchmarks/versions.py --base COMMIT --only signal --rounds 5

Both versions run in turn, in interleaved rounds, each measurement in a process of its own and with the benchmarks of
its own version. A version counts as slower only beyond the spread of the rounds: if its best round is worse than the
other's worst. The exit code is 1 if this version is slower in any measure.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from identity import BASE, checkout  # noqa: E402  scripts/ is no package
from runner_throughput import stub  # noqa: E402

Figures = dict[str, float]
FILMS = 92
"""Images of one round of the runner: about four seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One side: its interpreter, its checkout, and a folder to work in."""

    name: str
    python: Path
    root: Path
    folder: Path

    def run(self, *words: str | Path, check: bool = True) -> str:
        """Run a script of this version; a failure ends everything."""
        line = [str(self.python), *map(str, words)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False, env=environment, cwd=self.folder)
        if check and done.returncode:
            sys.exit(f"{self.name}: {' '.join(line)} ended with {done.returncode}")
        return done.stdout

    def benchmark(self, script: str, *words: str | Path, check: bool = True) -> str:
        """Run one of its benchmarks."""
        return self.run(self.root / "benchmarks" / script, *words, check=check)


def audit(version: Version) -> Figures:
    """Audit all of NIH, and count the CPU seconds of the process tree."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    version.run("-m", "bpals", "audit", "--workspace", version.folder / "audit")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"CPU s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def signal(version: Version) -> Figures:
    """Pool five judges on all of NIH."""
    table = version.folder / "table"
    if not table.exists():
        table.mkdir()
        version.benchmark("panel_table.py", table, "100", "5")
    measured = json.loads(version.benchmark("panel_signal.py", table))
    return {"CPU s": measured["cpu_s"], "peak MB": measured["peak_mb"]}


def runner(version: Version) -> Figures:
    """Ask a server that answers after 100 ms, with durable commits."""
    with stub() as address:
        words = ("bpals", "--url", f"{address}/v1", "--films", str(FILMS))
        measured = json.loads(version.benchmark("runner_clients.py", *words).splitlines()[-1])
    return {
        "ms per request": 1000 * measured["seconds"] / measured["requests"],
        "CPU ms per request": 1000 * measured["cpu_s"] / measured["requests"],
    }


def room(version: Version) -> Figures:
    """Let four readers read as quickly as they can, on 600 images."""
    file = version.folder / "room.json"
    # Its exit code is about limits in milliseconds, which a busy machine misses in both versions.
    version.benchmark("reading_load.py", "--quick", "--json", file, check=False)
    waited = json.loads(file.read_text())
    return {f"{step}, p50 ms": waited[step]["p50"] for step in ("next", "save")}


PARTS: dict[str, Callable[[Version], Figures]] = {"audit": audit, "signal": signal, "runner": runner, "room": room}


def measured(versions: list[Version], parts: list[str], rounds: int) -> Iterator[tuple[str, str, Figures]]:
    """Yield part, version and figures, round by round; the order of the versions changes from round to round."""
    for number in range(rounds):
        for part in parts:
            for version in versions if number % 2 == 0 else versions[::-1]:
                figures = PARTS[part](version)
                shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
                print(f"round {number + 1}: {part}, {version.name}: {shown}", file=sys.stderr, flush=True)
                yield part, version.name, figures


def main() -> None:
    """Measure both versions in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=BASE, metavar="COMMIT", help=f"the other version; by default {BASE}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(PARTS), help="one part; repeatable")
    given = parser.parse_args()
    python = checkout(given.base, ROOT / ".cache" / "identity")
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        versions = [
            Version(name="base", python=python, root=python.parents[2], folder=Path(scratch) / "base"),
            Version(name="this", python=Path(sys.executable), root=ROOT, folder=Path(scratch) / "this"),
        ]
        for version in versions:
            version.folder.mkdir()
        for part, name, figures in measured(versions, given.only or list(PARTS), given.rounds):
            for figure, value in figures.items():
                found.setdefault((part, figure), {}).setdefault(name, []).append(value)
    slower = 0
    print("| part | measure | base | this | ratio | |\n|---|---|--:|--:|--:|---|")
    for (part, figure), values in found.items():
        base, this = values["base"], values["this"]
        worse = min(this) > max(base)
        slower += worse
        ratio = statistics.median(this) / statistics.median(base)
        spans = (f"{statistics.median(each):.4g} ({min(each):.4g} to {max(each):.4g})" for each in (base, this))
        print(f"| {part} | {figure} | {' | '.join(spans)} | {ratio:.2f} | {'SLOWER' if worse else 'no slower'} |")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
