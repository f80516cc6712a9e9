"""The most memory of a process: its own, not that of the one that started it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CHILD = """
import time
from peak import peak_mb
held = bytearray(60_000_000)
time.sleep(1)  # long enough to be measured from outside
print(peak_mb())
"""
PARENT = """
import json, subprocess, sys
from peak import ChildrenWatch, peak_mb
held = bytearray(400_000_000)
with ChildrenWatch() as children:
    told = subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, check=True, text=True).stdout
print(json.dumps([peak_mb(), children.peak_mb, float(told)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_does_not_count_what_its_parent_had():
    """A child with 60 MB says so, though its parent had 400 MB; and is seen by the parent that watches."""
    line = [sys.executable, "-c", PARENT, CHILD]
    done = subprocess.run(line, env={"PYTHONPATH": str(BENCHMARKS)}, capture_output=True, check=True, text=True)
    parent, watched, child = json.loads(done.stdout)
    assert parent > 400
    assert 60 < child < 200
    assert watched == pytest.approx(child, abs=5)
