"""A package of somebody else brings a judge, a source and an export: installed as users do it, used by the command."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import shape

PACKAGE = Path(__file__).parent / "world" / "thirdparty"
CONTRACTS = """
from bpals.registry import EXPORTS, JUDGES, SOURCES
from bpals.testing import check_export, check_image_judge, check_kind, check_source

for kind in (JUDGES.load("brightness"), SOURCES.load("folder")):
    check_kind(kind)
check_image_judge(JUDGES.load("brightness").open("", "", gain=2.0))
check_source(SOURCES.load("folder").load("films"))
check_export(EXPORTS.load("lines"))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the package installed into `site`, and twelve images of six patients."""
    folder = tmp_path_factory.mktemp("place")
    # Building writes beside the sources, so they are copied first.
    copy = shutil.copytree(PACKAGE, folder / "package", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", folder / "site", copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "films").mkdir()
    for number in range(12):
        label = ("None", "Effusion", "Mass")[number % 3]
        name = f"{number // 2:04}_{number % 2}_{label}.png"
        # One grey all over would be refused as blank.
        Image.linear_gradient("L").rotate(90 * number).point(lambda grey, by=number: grey // 2 + 9 * by).save(
            folder / "films" / name
        )
    return folder


@pytest.fixture(scope="module")
def python(place):
    """Run Python in that folder, the package importable, and give what it prints."""

    def run(*words, code=0):
        paths = os.pathsep.join([str(shape.SRC), str(place / "site")])
        surroundings = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200"}
        line = [sys.executable, *map(str, words)]
        done = subprocess.run(line, cwd=place, env=surroundings, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture(scope="module")
def audited(python):
    """The workspace `audit`: the judge was asked about the source's images, and both were audited."""
    python(
        "-m", "bpals", "judge", "run", "brightness:", "--gain", "0.5", "--source", "folder:films", "--images", "films"
    )
    python("-m", "bpals", "audit")


def test_what_it_brings_keeps_the_contracts(python):
    """The author of the package runs the same checks as we do."""
    python("-c", CONTRACTS)


def test_the_judge_is_listed_with_its_own_option(python):
    """The command reads the option from the declaration."""
    assert "the brighter an image" in python("-m", "bpals", "judge", "list")
    shown = python("-m", "bpals", "judge", "run", "--help")
    assert "brightness:" in shown
    assert "--gain" in shown
    refused = python("-m", "bpals", "judge", "run", "stub:", "--gain", "2", code=2)
    assert "--gain means nothing to a judge of kind stub" in refused


def test_judge_and_source_are_used_by_the_audit(python, place, audited):  # noqa: ARG001  it must have run
    """The option reached the judge, and the audit is of the source's labels."""
    run = json.loads((place / "audit" / "run.json").read_text(encoding="utf-8"))
    assert run["source"]["title"] == "A folder of images"
    assert run["values"]["source"]["value"] == f"folder:{place / 'films'}"
    assert [judge["judge"] for judge in run["judges"]] == ["record", "brightness-0.5"]
    found = json.loads(python("-m", "bpals", "judge", "list", "--json"))
    assert [judge["judge"] for judge in found["judges"]] == ["brightness-0.5"]


def test_reviews_are_exported_in_its_format(python, place, audited):  # noqa: ARG001  it must have run
    """By its name, and by the ending that it declares; it is not read, and the refusal says what is."""
    film = min(path.name for path in (place / "films").iterdir())
    (place / "reads.csv").write_text(f"image_id,finding,reader,verdict\n{film},Mass,ann,present\n", encoding="utf-8")
    python("-m", "bpals", "review", "import", "reads.csv")
    for out in (["one.txt", "--format", "lines"], ["two.lines"]):
        python("-m", "bpals", "review", "export", "--out", *out)
        assert (place / out[0]).read_text(encoding="utf-8") == f"ann present Mass {film}\n"
    assert "label-studio" in python("-m", "bpals", "review", "import", "two.lines", "--format", "lines", code=2)
