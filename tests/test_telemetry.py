"""Nobody is told: packages that report to their makers are imported in one place, which turns that off first."""

import ast
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

import shape
from bpals.optional import OFF, REPORTING
from world import datasets, tiny_onnx

pytest.importorskip("onnxruntime", reason="onnxruntime is in the extra probe")

CODE = [path for folder in ("src", "benchmarks", "scripts", "examples") for path in (shape.ROOT / folder).rglob("*.py")]
RAN_ELSEWHERE = ("CI", "ORT_RUNNING_UNIT_TESTS", "GITHUB_ACTIONS", "TF_BUILD", "DO_NOT_TRACK")
"""What keeps onnxruntime or the hub silent by itself, and is not set on a user's machine."""
WATCHED = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            print(name, *(os.environ.get(each) for each in {names}), flush=True)

sys.meta_path.insert(0, Watch())
"""
RECIPE = """
labels = ["Effusion", "Pneumothorax"]
channels = 1
mean = [0.0]
std = [1.0]
framing = "stretch"
side_px = 32
"""


def imported(tree):
    """Every package that a file imports by its name, also by import_module."""
    yield from (name.partition(".")[0] for name in shape.imported_names(tree))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if called in {"import_module", "__import__", "importorskip"} and isinstance(call.args[0], ast.Constant):
            yield str(call.args[0].value).partition(".")[0]


def test_what_reports_is_imported_in_one_place():
    """A file that imports onnxruntime, its OCR, transformers, timm or the hub goes through import_silent."""
    texts = {str(path.relative_to(shape.ROOT)): path.read_text(encoding="utf-8") for path in CODE}
    naming = {path: text for path, text in texts.items() if any(name in text for name in REPORTING)}
    assert len(naming) > 3
    assert not [path for path, text in naming.items() if {*REPORTING} & {*imported(ast.parse(text))}]


def test_an_import_elsewhere_would_be_found():
    """The rule above is not blind to any way of writing an import."""
    for line in ("import onnxruntime", "from onnxruntime.capi import x", "import_module('transformers.utils')"):
        assert {*REPORTING} & {*imported(ast.parse(line))}


@pytest.fixture
def fresh(tmp_path):
    """Surroundings of somebody who has never run anything here."""
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if name not in {*OFF, *RAN_ELSEWHERE}}
    return home, kept | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "PYTHONPATH": str(shape.SRC),
        "OMP_NUM_THREADS": "1",
    }


def left_in(home):
    """The files that lie in a home."""
    return [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]


def child(code, fresh, *words):
    """Run Python in such surroundings; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], env=fresh[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["onnx", "probe"])
def test_a_judge_leaves_nothing_in_a_fresh_home(kind, fresh, tmp_path):
    """A whole run, the processes that prepare films included: no device id, no queue of events."""
    small = datasets.write(tmp_path, 4)
    (tmp_path / "net.toml").write_text(RECIPE)
    if kind == "onnx":
        net = tiny_onnx.write(tmp_path / "net.onnx", weights=np.ones((32 * 32, 2)), kind=tiny_onnx.FLOAT)
        words = [f"onnx:{net}", "--recipe", tmp_path / "net.toml"]
    else:
        words = [f"probe:{tiny_onnx.write(tmp_path / 'net.onnx')}"]
    watched = WATCHED.format(names=["ORT_DISABLE_TELEMETRY"])
    code = f"{watched}\nfrom bpals.cli.main import run\nrun()"
    told = child(code, fresh, "judge", "run", *words, *small.words, "--workspace", tmp_path / "audit")
    assert "onnxruntime 1" in told.splitlines()
    assert left_in(fresh[0]) == []


@pytest.mark.skipif(importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="no OCR here: the extra ocr")
def test_the_ocr_is_silent_too(fresh):
    """It imports onnxruntime by itself, in a process that prepares films."""
    watched = WATCHED.format(names=["ORT_DISABLE_TELEMETRY"])
    told = child(f"{watched}\nfrom bpals.images.ocr import Lettering\nLettering().begin()", fresh)
    assert told.splitlines()[0] == "onnxruntime 1"
    assert left_in(fresh[0]) == []


@pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is None, reason="no hub here: the extra torch")
def test_the_hub_is_silent_too(fresh):
    """What it reads once, when it is imported, is set before; also where somebody had set it otherwise."""
    fresh[1].update(HF_HUB_DISABLE_TELEMETRY="0", DISABLE_TELEMETRY="")
    code = (
        "from bpals.judges.local_model import import_package\n"
        "print(import_package('huggingface_hub.constants', 'org/model').HF_HUB_DISABLE_TELEMETRY)"
    )
    assert child(code, fresh).split() == ["True"]


def test_a_judge_of_ones_own_is_silent_too(fresh, tmp_path):
    """A file that imports onnxruntime itself is loaded after the reports were turned off."""
    judge = tmp_path / "mine.py"
    judge.write_text(
        "import onnxruntime\nimport bpals\n\n@bpals.judge('mine')\ndef mine(image, finding):\n    return 0.5"
    )
    watched = WATCHED.format(names=[*OFF])
    told = child(f"{watched}\nfrom bpals.judges.function import load\nload(sys.argv[1])", fresh, judge)
    assert told.splitlines()[0].split() == ["onnxruntime", *OFF.values()]
    assert left_in(fresh[0]) == []
