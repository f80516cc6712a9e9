"""The benchmark of the reading room still runs, and would see a verdict that is lost or doubled."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

import shape

FOLDER = shape.ROOT / "benchmarks"


@pytest.fixture(scope="module")
def compare():
    """The function that sets what was acknowledged beside what is kept."""
    spec = importlib.util.spec_from_file_location("reading_clients", FOLDER / "reading_clients.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("reading_clients", module)
    spec.loader.exec_module(module)
    return module.compare


TOLD = [
    {"step": "next", "ms": 1.0, "tries": 1},
    {"step": "draft", "reading_id": "r1", "verdicts": {"Mass": "absent"}},
    {"step": "lock", "reading_id": "r1", "verdicts": {"Mass": "present", "Hernia": "absent"}},
    {"step": "second", "reading_id": "r1", "verdicts": {"Mass": "absent"}},
]
KEPT = [("r1", "blind", "Mass", "present"), ("r1", "blind", "Hernia", "absent"), ("r1", "second", "Mass", "absent")]


def test_what_was_acknowledged_and_kept_once_is_well(compare):
    """A draft is no verdict."""
    assert compare(TOLD, KEPT) == (0, 0)


def test_a_lost_a_doubled_and_a_changed_verdict_are_seen(compare):
    """A changed one is lost, and another is there that nobody gave."""
    assert compare(TOLD, KEPT[1:]) == (1, 0)
    assert compare(TOLD, [*KEPT, KEPT[0]]) == (0, 1)
    assert compare(TOLD, [("r1", "blind", "Mass", "absent"), *KEPT[1:]]) == (1, 1)


@pytest.mark.sweep
def test_the_quick_benchmark_loses_nothing(tmp_path):
    """With two kills; how quick it is depends on what else runs here, and is for the benchmark alone."""
    line = [sys.executable, FOLDER / "reading_load.py", "--quick", "--json", tmp_path / "load.json"]
    environment = os.environ | {"PYTHONPATH": str(shape.SRC)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    told = json.loads((tmp_path / "load.json").read_text())
    assert (told["lost"], told["doubled"], told["kills"], told["log"]) == (0, 0, 2, [])
    assert told["reads"] == 2 * 4 * (20 + 30)
    assert "400 reads, 2 kills: 0 lost, 0 doubled" in done.stdout
