"""The most memory of a process: its own, not that of the one that started it."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHILD = """
import runpy, sys, time
held = bytearray(int(sys.argv[2]))
time.sleep(1)
print(runpy.run_path(sys.argv[1])["peak_mb"]())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_does_not_count_what_its_parent_had():
    """A child with 60 MB says so, though its parent had 400 MB; and is seen by the parent that watches."""
    file = ROOT / "benchmarks" / "peak.py"
    peak = runpy.run_path(str(file))
    held = bytearray(400_000_000)
    with peak["ChildrenWatch"]() as children:
        line = [sys.executable, "-c", CHILD, str(file), "60000000"]
        told = float(subprocess.run(line, capture_output=True, check=True, text=True).stdout)
    assert peak["peak_mb"]() > len(held) / 1e6
    assert 60 < told < 200
    assert children.peak_mb == pytest.approx(told, abs=5)
