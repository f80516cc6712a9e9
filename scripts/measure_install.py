"""How long the core install takes and how big it is: from this checkout into a fresh venv in a temporary folder."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shape import ROOT

PAGE = ROOT / "docs" / "install.md"
OPENING = "<!-- printed by scripts/measure_install.py -->"
CLOSING = "<!-- end of the measurement -->"

Line = list[str | Path]
"""A command, word by word."""


def measure(folder: Path) -> list[tuple[str, str]]:
    """Make a venv in the folder, install the core into it, and give each figure with its name."""
    python = folder / "bin" / "python"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    made = time.perf_counter()
    empty = size(folder)
    pip: Line = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", ROOT], check=True)
    installed = time.perf_counter()
    quick = [seconds_of([python, "-c", f"import {name}"]) for name in ("polars", "bpals")]
    freeze = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    return [
        ("empty virtual environment", f"{made - started:.0f} s, {empty:.0f} MB"),
        ("core install into it", f"{installed - made:.0f} s, {size(folder) - empty:.0f} MB"),
        ("bpals itself, embedded record included", f"{size(package(python)):.0f} MB"),
        ("packages in all", str(len(freeze.splitlines()))),
        ("`import polars`", f"{quick[0]:.2f} s"),
        ("`import bpals`", f"{quick[1]:.2f} s"),
    ]


def size(folder: Path) -> float:
    """Megabytes on disk, links not followed."""
    files = (Path(home) / name for home, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files) / 1e6


def package(python: Path) -> Path:
    """Where bpals was installed."""
    line: Line = [python, "-c", "import bpals; print(bpals.__path__[0])"]
    return Path(subprocess.run(line, check=True, capture_output=True, text=True, cwd=python.parent).stdout.strip())


def seconds_of(line: Line) -> float:
    """The quickest of three runs, so that a cold disk does not count."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(line, check=True)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Print the table, and with --write put it into docs/install.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/install.md")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory(prefix="bpals-install-") as folder:
        rows = measure(Path(folder))
    rows.append(("on", f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores"))
    table = "\n".join(["|what|measured|", "|---|---|", *(f"|{what}|{figure}|" for what, figure in rows)])
    print(table)
    if write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(OPENING)
        after = rest.partition(CLOSING)[2]
        PAGE.write_text(f"{before}{OPENING}\n\n{table}\n\n{CLOSING}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
