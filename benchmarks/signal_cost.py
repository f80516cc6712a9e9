"""What the signal of many judges costs, beside crowd-kit's Dawid-Skene on the same table; and how it grows.

    python benchmarks/signal_cost.py               three interleaved rounds, 5 judges on all of NIH, about four minutes
    python benchmarks/signal_cost.py --quick       one round on a tenth of the patients
    python benchmarks/signal_cost.py --alone       without crowd-kit

Each measurement is a process of its own; the clock runs inside it, from tables in memory to the result. bpals gives
trust, intervals, flags, reasons and ranks, on all cores; Dawid-Skene gives a probability, on one. The exit code is 1 if
the signal of 5 judges x 1,569,680 pairs takes more than 3 s or 2 GB, or Dawid-Skene less than 10 times as long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import audit_cost
from section import Section

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
OPENING = "<!-- printed by benchmarks/signal_cost.py -->"
CLOSING = "<!-- end of the signal's measurement -->"
ROUNDS = 3
JUDGES = 5
FINDINGS = 14
PARTS = (10.0, 25.0, 50.0, 100.0)
PANELS = (1, 2, 3, 5, 8)
QUICK_PARTS = (5.0, 10.0)
QUICK_PANELS = (1, 5)
QUICK_FINDINGS = 2
MOST_SECONDS = 3.0
MOST_MEGABYTES = 2000.0
FASTER = 10.0
PACKAGES = ("numpy", "polars")
PEER = "crowd-kit"

# Only the standard library is imported here: a child's peak memory is never less than its parent's was at the start.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one measurement took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


@dataclass(slots=True, kw_only=True)
class Result:
    """Everything that was measured, in the order of measuring."""

    machine: dict[str, str]
    percent: float
    findings: int
    """How many findings the peer was asked about; its cost is scaled to 14."""
    pairs: int = 0
    iterations: list[int] = field(default_factory=list)
    """The peer's, finding by finding."""
    ours: list[Cost] = field(default_factory=list)
    peers: list[Cost] = field(default_factory=list)
    alike: dict[str, Any] = field(default_factory=dict)
    """Both sides once more, on image judges that share their errors."""
    scaling: list[dict[str, float]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times as long the peer takes, round by round."""
        return [peer.wall_s / ours.wall_s for ours, peer in zip(self.ours, self.peers, strict=False)]

    @property
    def seconds(self) -> float:
        """The usual time of a signal."""
        return statistics.median(cost.wall_s for cost in self.ours)

    @property
    def good(self) -> bool:
        """Say whether the promise holds; it is about the whole of NIH."""
        if self.percent < 100:
            return True
        quick = self.seconds <= MOST_SECONDS and max(cost.peak_mb for cost in self.ours) <= MOST_MEGABYTES
        return quick and (not self.peers or statistics.median(self.ratios) >= FASTER)

    def as_json(self) -> str:
        """Write it down for a program."""
        return json.dumps(asdict(self) | {"ratios": self.ratios, "seconds": self.seconds}, indent=1)


def run(script: str, *words: str | Path) -> str:
    """Run a script of this folder; a failure ends everything."""
    line = [sys.executable, str(HERE / script), *map(str, words)]
    return str(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def signal_of(folder: Path) -> Cost:
    """Measure the signal of the table in a folder."""
    told = json.loads(run("panel_signal.py", folder))
    return Cost(**{name: round(told[name], 3) for name in Cost.__slots__})


def peer_of(folder: Path, findings: int) -> tuple[Cost, list[int]]:
    """Measure the peer on the same table: its cost, and its iterations finding by finding."""
    told = json.loads(run("panel_peer.py", folder, str(findings)))
    scale = {"wall_s": FINDINGS / findings, "cpu_s": FINDINGS / findings, "peak_mb": 1.0}
    return Cost(**{name: round(told[name] * times, 3) for name, times in scale.items()}), told["iterations"]


def compare(result: Result, rounds: int, folder: Path, *, alone: bool) -> None:
    """Measure both sides in turn, so that a slow minute of the machine falls on both."""
    result.pairs = int(run("panel_table.py", folder, str(result.percent), str(JUDGES)))
    for number in range(rounds):
        result.ours.append(signal_of(folder))
        say(f"round {number + 1} of {rounds}: bpals {told(result.ours[-1])}")
        if not alone:
            peer, result.iterations = peer_of(folder, result.findings)
            result.peers.append(peer)
            say(f"round {number + 1} of {rounds}: crowd-kit {told(peer)}")
    if not alone:
        run("panel_table.py", folder, str(result.percent), str(JUDGES), "--alike")
        ours, (peer, iterations) = signal_of(folder), peer_of(folder, result.findings)
        result.alike = {"ours": asdict(ours), "peer": asdict(peer), "iterations": iterations}
        say(f"image judges that share their errors: bpals {told(ours)}; crowd-kit {told(peer)}")


def scale(result: Result, cases: Iterator[tuple[float, int]], folder: Path) -> None:
    """Measure the signal of more patients and of more judges."""
    for percent, judges in cases:
        pairs = int(run("panel_table.py", folder, str(percent), str(judges)))
        cost = signal_of(folder)
        result.scaling.append({"percent": percent, "judges": judges, "pairs": pairs, **asdict(cost)})
        say(f"{percent:g} % of the patients, {judges} judges: {told(cost)}")


def told(cost: Cost) -> str:
    """Say a cost in words."""
    return f"{cost.wall_s:.2f} s, {cost.cpu_s:.2f} CPU s, {cost.peak_mb:,.0f} MB"


def say(sentence: str) -> None:
    """Show how far it is."""
    print(sentence, file=sys.stderr, flush=True)


def page(result: Result) -> str:
    """Lay the result out as Markdown."""
    lines = [
        f"{JUDGES} judges x {result.pairs:,} pairs ({result.percent:g} % of the patients).",
        "",
        "| round | signal, s | CPU s | peak MB | Dawid-Skene, s | CPU s | peak MB | times as long |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for number, ours in enumerate(result.ours):
        row = [str(number + 1), *figures(ours)]
        row += [*figures(result.peers[number]), f"{result.ratios[number]:.1f}"] if result.peers else [""] * 4
        lines.append(f"| {' | '.join(row)} |")
    peak = max(cost.peak_mb for cost in result.ours) / 1000
    lines += [
        "",
        f"- The signal: {result.seconds:.2f} s (at most {MOST_SECONDS:g} promised), {peak:.2f} GB (at most 2).",
    ]
    if result.peers:
        ratios = result.ratios
        middle = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        lines.append(f"- Dawid-Skene takes {middle} times as long, at least {FASTER:g} was promised.")
        lines.append(f"- Its iterations, finding by finding: {', '.join(map(str, result.iterations))}.")
    if result.alike:
        ours, peer = result.alike["ours"]["wall_s"], result.alike["peer"]["wall_s"]
        counts = ", ".join(map(str, sorted(set(result.alike["iterations"]))))
        ended = f"it ends after {counts} iterations, in {peer:.1f} s; the signal takes {ours:.2f} s"
        lines.append(f"- On image judges that share their errors {ended}.")
    if result.peers and result.findings < FINDINGS:
        lines.append(f"- It was asked about {result.findings} findings only, and its cost scaled to {FINDINGS}.")
    lines += ["", *scaling_lines(result.scaling), ""]
    return "\n".join([*lines, *(f"- {name}: {fact}" for name, fact in result.machine.items())])


def figures(cost: Cost) -> list[str]:
    """Lay a cost out."""
    return [f"{cost.wall_s:.2f}", f"{cost.cpu_s:.2f}", f"{cost.peak_mb:,.0f}"]


def scaling_lines(scaling: Sequence[dict[str, float]]) -> list[str]:
    """Lay out how the cost grows."""
    lines = ["| patients | judges | pairs | s | CPU s | CPU µs a pair | peak MB |", "|--:|--:|--:|--:|--:|--:|--:|"]
    for row in scaling:
        time = f"{row['wall_s']:.2f} | {row['cpu_s']:.2f} | {1e6 * row['cpu_s'] / row['pairs']:.2f}"
        films = f"{row['percent']:g} % | {row['judges']} | {row['pairs']:,}"
        lines.append(f"| {films} | {time} | {row['peak_mb']:,.0f} |")
    return lines


def machine(*, alone: bool) -> dict[str, str]:
    """Name what the figures may depend on."""
    packages = ("bpals", *PACKAGES, *(() if alone else (PEER, "pandas")))
    return audit_cost.machine(packages) | {"Threads": "bpals and polars one a core, BLAS one"}


def main() -> int:
    """Measure, print the tables, and say by the exit code whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the patients, two findings")
    parser.add_argument("--alone", action="store_true", help="without crowd-kit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    given = parser.parse_args()
    percent, parts, panels = (10.0, QUICK_PARTS, QUICK_PANELS) if given.quick else (100.0, PARTS, PANELS)
    result = Result(
        machine=machine(alone=given.alone), percent=percent, findings=QUICK_FINDINGS if given.quick else FINDINGS
    )
    cases = [*((part, JUDGES) for part in parts), *((percent, judges) for judges in panels if judges != JUDGES)]
    with tempfile.TemporaryDirectory(prefix="bpals-bench-") as folder:
        compare(result, 1 if given.quick else ROUNDS, Path(folder), alone=given.alone)
        scale(result, iter(cases), Path(folder))
    printed = page(result)
    print(printed)
    if given.json:
        given.json.write_text(result.as_json())
    if given.write:
        Section(PAGE, OPENING, CLOSING).write(printed)
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
