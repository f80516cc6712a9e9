"""The benchmark in benchmarks/ still runs, and what it prints can be believed."""

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import shape

pytestmark = pytest.mark.skipif(find_spec("cleanlab") is None, reason="cleanlab is not installed: the extra peers")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One quick run: what it printed, and what it wrote."""
    file = tmp_path_factory.mktemp("bench") / "cost.json"
    line = [sys.executable, shape.ROOT / "benchmarks" / "audit_cost.py", "--quick", "--json", file]
    environment = os.environ | {"PYTHONPATH": str(shape.SRC)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


@pytest.mark.sweep
def test_the_quick_benchmark_measures_both_sides(quick):
    """A tenth of the patients, one round; bpals is at least three times cheaper even there."""
    _, cost = quick
    assert (cost["percent"], cost["films"]) == (10, 10_966)
    (ours,), (peer,), (ratio,) = cost["ours"], cost["peers"], cost["ratios"]
    assert ours["cpu_s"] > 0.5
    assert peer["peak_mb"] > 100
    assert ratio == pytest.approx(peer["cpu_s"] / ours["cpu_s"])
    assert ratio > 3
    assert cost["peak_mb"] == ours["peak_mb"] < 2_000
    assert [row["percent"] for row in cost["scaling"]] == [2, 5]


@pytest.mark.sweep
def test_what_is_printed_says_on_what_it_was_measured(quick):
    """The ratio, the memory, the machine and the versions; and that the peer's cost was scaled."""
    printed, cost = quick
    assert f"Times cheaper: {cost['ratios'][0]:.1f}" in printed
    assert "Peak memory of bpals: 0." in printed
    assert "its cost scaled to 14" in printed
    assert "scikit-learn" in cost["machine"]["Versions"]
    assert all(f"{name}: {fact}" in printed for name, fact in cost["machine"].items())


def test_the_driver_is_too_small_to_disturb_the_memory_it_measures():
    """A child's peak is never less than its parent's: beside where it writes, it imports the standard library alone."""
    packages = set()
    for name in ("audit_cost.py", "section.py"):
        tree = ast.parse((shape.ROOT / "benchmarks" / name).read_text(encoding="utf-8"))
        packages |= {imported.split(".")[0] for imported in shape.imported_names(tree)}
    assert packages <= {*sys.stdlib_module_names, "section"}
