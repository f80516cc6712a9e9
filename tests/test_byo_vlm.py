"""docs/byo-vlm.md as a new user goes through it: every command, in order, against a real server."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import shape
from bpals.cli.main import obey
from world.words import mentions

PAGE = shape.ROOT / "docs" / "byo-vlm.md"
COMMANDS = re.findall(r"^\$ (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def type_in(line, url, capfd):
    """Type one line of the page where the shell is; only the address of the server is another."""
    program, *words = shlex.split(line.replace("http://127.0.0.1:8000/v1", url))
    code = {"python": run_python, "bpals": obey}[program](words)
    out, errors = capfd.readouterr()
    assert code == 0, f"{line}\n{out}\n{errors}"
    return out


def run_python(words):
    """Run a script in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(shape.SRC)}
    return subprocess.run([sys.executable, *words], env=environment, check=False).returncode


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as a reader has it: the examples, and nothing else."""
    folder = tmp_path_factory.mktemp("byo")
    shutil.copytree(shape.ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_page_works_from_top_to_bottom(place, llamacpp_url, capfd, monkeypatch):
    """Each command succeeds, and the judges, the comparison and the audit are there at the end."""
    monkeypatch.chdir(place)
    everything = "\n".join(type_in(line, llamacpp_url, capfd) for line in COMMANDS)
    assert "vlm: done, 4 images, 12 pairs" in everything
    assert "drift:" in everything
    assert "no signal" in everything
    assert "<svg" in (place / "mine" / "compare-mean-brightness-vlm.html").read_text(encoding="utf-8")
    assert (place / "mine" / "judgments" / "vlm.films.parquet").exists()
    assert (place / "mine" / "report.html").exists()
    assert {path.stem for path in (place / "mine" / "judgments").glob("*.json")} == {"mean-brightness", "vlm"}
    assert mentions(everything, "mean-brightness:", "600 of 600")


def test_the_page_has_all_that_it_promises():
    """Run, status, verify, card, list, table, compare and audit all stand on the page."""
    words = " ".join(COMMANDS)
    for promised in ("judge run python:", "judge run openai:", "judge run table:", "judge status", "--verify",
                     "judge card", "judge list", "judge compare", "bpals audit"):  # fmt: skip
        assert promised in words
