"""The benchmark of the signal still runs, and what it prints can be believed."""

import ast
import json
import os
import subprocess
import sys

import pytest

import shape
from world.words import mentions


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One quick run without crowd-kit, which the tests do not have: what it printed, and what it wrote."""
    file = tmp_path_factory.mktemp("bench") / "cost.json"
    line = [sys.executable, shape.ROOT / "benchmarks" / "signal_cost.py", "--quick", "--alone", "--json", file]
    environment = os.environ | {"PYTHONPATH": str(shape.SRC)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


def test_the_quick_benchmark_measures_more_patients_and_more_judges(quick):
    """A tenth of the patients: every pair gets its row, and the costs are those of the whole signal."""
    _, cost = quick
    assert (cost["percent"], cost["pairs"], cost["peers"]) == (10, 10_966 * 14, [])
    assert [(row["percent"], row["judges"]) for row in cost["scaling"]] == [(5, 5), (10, 5), (10, 1)]
    assert all(row["cpu_s"] > 0.05 and 100 < row["peak_mb"] < 2_000 for row in cost["scaling"])
    assert cost["seconds"] == cost["ours"][0]["wall_s"]


def test_what_is_printed_says_on_what_it_was_measured(quick):
    """The seconds, the memory, the machine and the versions."""
    printed, cost = quick
    assert mentions(printed, f"{cost['seconds']:.2f} s (at most 3")
    assert "polars" in cost["machine"]["Versions"]
    assert all(f"{name}: {fact}" in printed for name, fact in cost["machine"].items())


def test_the_driver_is_too_small_to_disturb_the_memory_it_measures():
    """A child's peak is never less than its parent's: it imports the other driver and what that imports."""
    driver = shape.ROOT / "benchmarks" / "signal_cost.py"
    tree = ast.parse(driver.read_text(encoding="utf-8"))
    packages = {name.split(".")[0] for name in shape.imported_names(tree)}
    assert packages <= {*sys.stdlib_module_names, "audit_cost", "section"}
