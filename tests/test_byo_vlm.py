"""docs/byo-vlm.md as a new user goes through it: every command, in order, against a real server."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import shape

PAGE = shape.ROOT / "docs" / "byo-vlm.md"
COMMANDS = re.findall(r"^\$ (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def type_in(folder, line, url):
    """Type one line of the page; only the address of the server is another."""
    words = shlex.split(line.replace("http://127.0.0.1:8000/v1", url))
    program = {"python": [sys.executable], "bpals": [sys.executable, "-m", "bpals"]}[words[0]]
    environment = os.environ | {"PYTHONPATH": str(shape.SRC), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*program, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as a reader has it: the examples, and nothing else."""
    folder = tmp_path_factory.mktemp("byo")
    shutil.copytree(shape.ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_page_works_from_top_to_bottom(place, llamacpp_url):
    """Each command succeeds, and the judges, the comparison and the audit are there at the end."""
    said = {}
    for line in COMMANDS:
        done = type_in(place, line, llamacpp_url)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        said[line] = done.stdout
    everything = "\n".join(said.values())
    assert "vlm: done, 8 films, 24 pairs" in everything
    assert "drift:" in everything
    assert "no signal" in everything
    assert (place / "mine" / "compare-mean-brightness-vlm.html").stat().st_size > 100_000
    assert (place / "mine" / "judgments" / "vlm.films.parquet").exists()
    assert (place / "mine" / "report.html").exists()
    assert {path.stem for path in (place / "mine" / "judgments").glob("*.json")} == {"mean-brightness", "vlm"}
    assert "mean-brightness: read from a table, 600 of 600 films" in everything


def test_the_page_has_all_that_it_promises():
    """Run, status, verify, card, list, table, compare and audit all stand on the page."""
    words = " ".join(COMMANDS)
    for promised in ("judge run python:", "judge run openai:", "judge run table:", "judge status", "--verify",
                     "judge card", "judge list", "judge compare", "bpals audit"):  # fmt: skip
        assert promised in words
