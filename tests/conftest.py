"""What the tests of several rooms need: the command in a process of its own, audits, real data where it can be had."""

from __future__ import annotations

import fcntl
import hashlib
import os
import runpy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import llamacpp
import polars as pl
import pytest

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
WHEEL = "torchxrayvision-1.5.7-py3-none-any.whl"
WHEEL_SHA256 = "95f6c3475661f3515d4258deb0855bd5d1b1a56e0b65384251d3dd3fa61fac41"


@pytest.fixture(scope="session")
def start_bpals():
    """Start `bpals ...` in a process of its own, with pipes; what is given by name goes to Popen."""

    def start(*words, environment=None, **options):
        line = [sys.executable, "-m", "bpals", *map(str, words)]
        surroundings = os.environ | {"PYTHONPATH": str(ROOT / "src")} | (environment or {})
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(line, env=surroundings, **(pipes | options))

    return start


@pytest.fixture(scope="session")
def audit_once(start_bpals, tmp_path_factory):
    """Audit NIH into a folder of that name, once, also where the tests run in two processes; it takes a minute."""
    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here

    def audit(name, *words, environment=None):
        folder = shared / "nih" / name
        folder.parent.mkdir(exist_ok=True)
        with (folder.parent / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "run.json").exists():
                process = start_bpals("audit", "--workspace", folder, *words, environment=environment)
                _, errors = process.communicate()
                assert process.returncode == 0, errors
        return folder

    return audit


@pytest.fixture(scope="session")
def nih_workspace(audit_once) -> Path:
    """The default audit of the embedded NIH record, made once by the command; read it, do not change it."""
    return audit_once("audit")


@pytest.fixture(scope="session")
def second_audits(audit_once):
    """Give the folder of another audit of NIH: `again`, the same one elsewhere, or `calibrated`."""

    def folder_of(name):
        if name == "again":
            return audit_once(name, environment={"POLARS_MAX_THREADS": "1", "PYTHONHASHSEED": "5"})
        expert = (ROOT / os.environ.get("BPALS_TEST_DATA", "../shared/data") / "expert").resolve()
        if not expert.is_dir():
            pytest.skip(f"no expert labels at {expert}: set BPALS_TEST_DATA")
        return audit_once(name, "--calibrate", f"four-findings={expert}", "--calibrate-split", "val")

    return folder_of


@pytest.fixture(scope="session")
def nih_calibrated(second_audits) -> Path:
    """The audit of NIH that was fitted on the adjudicated validation images; read it, do not change it."""
    return second_audits("calibrated")


@pytest.fixture(scope="session")
def write_films():
    """Write made-up films as a table, 600 a seed, and give the words that make `bpals audit` read it."""
    films = runpy.run_path(str(ROOT / "examples" / "make_films.py"))["films"]

    def write(file, *, seeds):
        parts = [(seed, films(seed=seed)[0]) for seed in seeds]
        named = [part.with_columns(pl.format("{}-{}", pl.lit(seed), c).alias(c) for c in ("film", "patient"))
                 for seed, part in parts]  # fmt: skip
        pl.concat(named).write_csv(file)
        return ["--source", f"table:{file}", "--mapping", str(ROOT / "examples" / "films.toml")]

    return write


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Expert labels, images and predictions that may not be shipped: BPALS_TEST_DATA, default ../shared/data."""
    folder = (ROOT / os.environ.get("BPALS_TEST_DATA", "../shared/data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}: set BPALS_TEST_DATA to a folder that has it")
    return folder


@pytest.fixture(scope="session")
def llamacpp_url(tmp_path_factory):
    """The base URL of a real server: llama.cpp with a small model that looks at films through a random tower."""
    if lacking := llamacpp.missing():
        pytest.skip(f"no real server: pip install --no-deps {lacking}")
    with llamacpp.running(tmp_path_factory.mktemp("llamacpp")) as url:
        yield url


@pytest.fixture(scope="session")
def xrv_wheel() -> Path:
    """The published torchxrayvision wheel, which carries real label tables; downloaded once into .cache."""
    wheel = CACHE / WHEEL
    if not wheel.is_file():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
            done = subprocess.run([*pip, "torchxrayvision==1.5.7", "-d", folder], check=False, capture_output=True)
            if done.returncode:
                pytest.skip("torchxrayvision 1.5.7 cannot be downloaded: real label tables are not tested")
            (Path(folder) / WHEEL).replace(wheel)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != WHEEL_SHA256:
        pytest.fail(f"{wheel} is not the published wheel: delete it and run the tests again")
    return wheel


@pytest.fixture(scope="session")
def xrv_tables(xrv_wheel: Path) -> Path:
    """The folder with the CSV files of that wheel, gzipped as they come."""
    folder = CACHE / "torchxrayvision-1.5.7"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(xrv_wheel) as archive:
        for member in archive.infolist():
            target = folder / Path(member.filename).name
            wanted = member.filename.startswith("torchxrayvision/data/") and target.name.endswith(".csv.gz")
            if wanted and not (target.is_file() and target.stat().st_size == member.file_size):
                with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
                    part.write(archive.read(member))
                Path(part.name).replace(target)
    return folder
