"""What an audit costs, beside cross-validated gradient boosting and cleanlab on the same features and folds.

    python benchmarks/audit_cost.py               three interleaved rounds on all of NIH, about half an hour
    python benchmarks/audit_cost.py --quick       one round on a tenth of the patients, half a minute

The cost is CPU seconds of the process tree, so that it matters little who else uses the machine. bpals is charged for
its whole audit: reading, features, judge, signal, tables, report. The peer is given the features and charged only for
fitting and finding issues. The exit code is 1 if bpals is less than 3 times cheaper or takes more than 2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from section import Section

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
OPENING = "<!-- printed by benchmarks/audit_cost.py -->"
CLOSING = "<!-- end of the measurement -->"
ROUNDS = 3
PARTS = (10.0, 25.0, 50.0, 100.0)
QUICK_PARTS = (2.0, 5.0)
FINDINGS = 14
QUICK_FINDINGS = 2
CHEAPER = 3.0
MOST_MEGABYTES = 2000.0
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"), "1"
)
PACKAGES = ("bpals", "numpy", "polars", "scikit-learn", "cleanlab")

# Only the standard library is imported here: a child's peak memory is never less than its parent's was at the start.

Line = list[str | Path]
"""A command, word by word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one process and its children took."""

    cpu_s: float
    wall_s: float
    peak_mb: float


@dataclass(slots=True, kw_only=True)
class Result:
    """Everything that was measured, in the order of measuring."""

    machine: dict[str, str]
    percent: float
    findings: int
    """How many findings the peer was asked about; its cost is scaled to 14."""
    films: int = 0
    ours: list[Cost] = field(default_factory=list)
    peers: list[Cost] = field(default_factory=list)
    scaling: list[dict[str, float]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times cheaper bpals is, round by round."""
        return [peer.cpu_s / ours.cpu_s for ours, peer in zip(self.ours, self.peers, strict=False)]

    @property
    def peak_mb(self) -> float:
        """The most memory that an audit took."""
        return max(cost.peak_mb for cost in self.ours)

    @property
    def good(self) -> bool:
        """Say whether the promise holds."""
        return statistics.median(self.ratios) >= CHEAPER and self.peak_mb <= MOST_MEGABYTES

    def as_json(self) -> str:
        """Write it down for a program."""
        worked_out = {"ratios": self.ratios, "peak_mb": max((cost.peak_mb for cost in self.ours), default=None)}
        return json.dumps(asdict(self) | worked_out, indent=1)


def cost_of(line: Line) -> Cost:
    """Run a command with one thread a library and measure it with all its children; a failure ends everything."""
    started = time.monotonic()
    process = subprocess.Popen(line, env=os.environ | ONE_THREAD, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"this ended with {process.returncode}: {' '.join(map(str, line))}")
    megabyte = 1e6 if sys.platform == "darwin" else 1e6 / 1024
    return Cost(
        cpu_s=round(used.ru_utime + used.ru_stime, 2),
        wall_s=round(time.monotonic() - started, 2),
        peak_mb=round(used.ru_maxrss / megabyte, 1),
    )


def audit_line(folder: Path, *, table: Path | None) -> Line:
    """The command of a whole audit: of a table, or of the embedded record."""
    source = ["--source", f"nih:{table}"] if table else []
    return [sys.executable, "-m", "bpals", "audit", *source, "--workspace", folder / "audit"]


def write_part(folder: Path, percent: float, *options: str) -> int:
    """Write part of the record for both sides, and count its films."""
    line: Line = [sys.executable, HERE / "part.py", folder, str(percent), *options]
    return int(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def compare(result: Result, rounds: int, folder: Path, save: Callable[[], None]) -> None:
    """Measure both sides in turn, so that a slow hour of the machine falls on both."""
    whole = result.percent == 100
    result.films = write_part(folder, result.percent)
    peer: Line = [sys.executable, HERE / "peer.py", folder / "part.npz", "--findings", str(result.findings)]
    for number in range(rounds):
        result.ours.append(cost_of(audit_line(folder, table=None if whole else folder / "part.csv")))
        say(f"round {number + 1} of {rounds}: bpals {told(result.ours[-1])}")
        measured = cost_of(peer)
        scaled = round(measured.cpu_s * FINDINGS / result.findings, 2)
        result.peers.append(Cost(cpu_s=scaled, wall_s=measured.wall_s, peak_mb=measured.peak_mb))
        say(f"round {number + 1} of {rounds}: scikit-learn and cleanlab {told(result.peers[-1])}")
        save()


def scale(result: Result, parts: Sequence[float], folder: Path, save: Callable[[], None]) -> None:
    """Measure an audit of growing parts of the patients, all read from a CSV file."""
    for percent in parts:
        films = write_part(folder, percent, "--without-features")
        cost = cost_of(audit_line(folder, table=folder / "part.csv"))
        result.scaling.append({"percent": percent, "films": films, **asdict(cost)})
        say(f"{percent:g} % of the patients: bpals {told(cost)}")
        save()


def told(cost: Cost) -> str:
    """Say a cost in words."""
    return f"{cost.cpu_s:.1f} CPU s, {cost.wall_s:.1f} s of time, {cost.peak_mb:,.0f} MB"


def say(sentence: str) -> None:
    """Show how far it is."""
    print(sentence, file=sys.stderr, flush=True)


def page(result: Result) -> str:
    """Lay the result out as Markdown."""
    part = f"{result.films:,} films ({result.percent:g} % of the patients)"
    lines = [
        f"{part}, {FINDINGS} findings, the same features and folds.",
        "",
        "| round | `bpals audit`, CPU s | peak MB | scikit-learn + cleanlab, CPU s | peak MB | times cheaper |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for number, (ours, peer, ratio) in enumerate(zip(result.ours, result.peers, result.ratios, strict=True), start=1):
        figures = f"{ours.cpu_s:.1f} | {ours.peak_mb:,.0f} | {peer.cpu_s:.1f} | {peer.peak_mb:,.0f} | {ratio:.1f}"
        lines.append(f"| {number} | {figures} |")
    ratios = result.ratios
    middle = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
    lines += ["", f"- Times cheaper: {middle}, at least {CHEAPER:g} was promised."]
    peak, most = result.peak_mb / 1000, MOST_MEGABYTES / 1000
    lines.append(f"- Peak memory of bpals: {peak:.2f} GB, at most {most:g} was promised.")
    if result.findings < FINDINGS:
        lines.append(f"- The peer was asked about {result.findings} findings only, and its cost scaled to {FINDINGS}.")
    lines += ["", *scaling_lines(result.scaling), ""]
    lines += [f"- {name}: {fact}" for name, fact in result.machine.items()]
    return "\n".join(lines)


def scaling_lines(scaling: Sequence[dict[str, float]]) -> list[str]:
    """Lay out how the cost grows with the patients."""
    lines = [
        "| patients | films | CPU s | CPU ms a film | a film, beside the whole | peak MB |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    whole = scaling[-1]["cpu_s"] / scaling[-1]["films"]
    for row in scaling:
        each = row["cpu_s"] / row["films"]
        figures = f"{row['cpu_s']:.1f} | {1000 * each:.2f} | {each / whole:.2f} | {row['peak_mb']:,.0f}"
        lines.append(f"| {row['percent']:g} % | {row['films']:,} | {figures} |")
    return lines


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Name what the figures may depend on."""
    model = platform.processor() or platform.machine()
    facts = Path("/proc/cpuinfo")
    if facts.is_file() and (named := re.search(r"^model name\s*: (.+)$", facts.read_text(), re.MULTILINE)):
        model = named[1]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "Machine": f"{model}, {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}",
        "Versions": ", ".join([f"Python {platform.python_version()}", *(f"{name} {found(name)}" for name in packages)]),
        "Threads": "one a library, in every process",
    }


def found(package: str) -> str:
    """The version of an installed package; a checkout that is not installed says so itself."""
    if package == "bpals":
        line = [sys.executable, "-m", "bpals", "--version"]
        return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    try:
        return version(package)
    except PackageNotFoundError:
        sys.exit(f"{package} is not installed, and bpals is compared with it. Type: make bench")


def main() -> int:
    """Measure, print the tables, and say by the exit code whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="one round, a tenth of the patients, the peer's first two findings"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure, after each measurement")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    given = parser.parse_args()
    result = Result(
        machine=machine(), percent=10 if given.quick else 100, findings=QUICK_FINDINGS if given.quick else FINDINGS
    )

    def save() -> None:
        if given.json:
            given.json.write_text(result.as_json())

    with tempfile.TemporaryDirectory(prefix="bpals-bench-") as folder:
        compare(result, 1 if given.quick else ROUNDS, Path(folder), save)
        scale(result, QUICK_PARTS if given.quick else PARTS, Path(folder), save)
    printed = page(result)
    print(printed)
    if given.write:
        Section(PAGE, OPENING, CLOSING).write(printed)
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
