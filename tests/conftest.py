"""What the tests of several rooms need: the command in a process of its own, audits, real data where it can be had."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import runpy
import subprocess
import sys
import tempfile
import uuid
import zipfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, settings

from bpals.findings import NIH
from bpals.judges.backbone import NEEDED, PACKAGE, build
from bpals.reviews import verdicts
from bpals.sources import nih
from bpals.tasks.demo import make_demo
from world import datasets, llamacpp

# Some virtual machines announce AMX and die of its instructions (docs/install.md). Torch reads this when it is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")  # A busy machine is no fault of what is tested.

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
WHEEL = "torchxrayvision-1.5.7-py3-none-any.whl"
WHEEL_SHA256 = "95f6c3475661f3515d4258deb0855bd5d1b1a56e0b65384251d3dd3fa61fac41"
LONGEST = (
    "test_audit.py", "test_ray.py", "test_byo_vlm.py", "test_audit_calibrated.py", "test_openai_llamacpp.py",
    "test_docs.py", "test_readme.py", "test_connection.py", "test_looks.py", "test_kills.py", "test_reading.py",
    "test_stacker_safety.py", "test_past.py", "test_audit_tables.py", "test_checkpoint.py",
    "test_pool.py", "test_readers_beside_a_judge.py", "test_judge.py", "test_runner_kills.py", "test_review_serve.py",
    "test_relearn.py", "test_record.py", "test_hf.py", "test_probe.py",
)  # fmt: skip
"""Names of the files that take longest, the longest first."""
EXPERT = (ROOT / os.environ.get("BPALS_TEST_DATA", "../shared/data") / "expert").resolve()


def pytest_ignore_collect(collection_path, config):
    """Leave out, of `-m quick`, files and folders without such a test: they import what a core install has not."""
    if config.option.markexpr != "quick" or collection_path == ROOT / "tests" or collection_path == ROOT:
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return None if any(b"mark.quick" in file.read_bytes() for file in files) else True


def pytest_collection_modifyitems(items):
    """Let the longest files begin, so that none of them ends alone where several processes share the files."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


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
def once(tmp_path_factory):
    """Let the first that asks for a path make what belongs there, once for all processes of a session."""
    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here

    def made(name, make):
        path = shared / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.fstat(lock.fileno()).st_size:
                make(path)
                lock.write("made")
        return path

    return made


@pytest.fixture(scope="session")
def audit_once(start_bpals, once):
    """Audit NIH, or what the words name, into a folder of that name, once for all processes of a session."""

    def audit(name, *words, environment=None):
        def make(folder):
            process = start_bpals("audit", "--workspace", folder, *words, environment=environment)
            _, errors = process.communicate()
            assert process.returncode == 0, errors

        return once(f"audits/{name}", make)

    return audit


@pytest.fixture(scope="session")
def demo(once):
    """The demo of the reading room, made once, also where the tests run in two processes; copy it to change it."""
    return make_demo(once("demo", make_demo))  # one that is there is kept


@pytest.fixture(scope="session")
def lite0(once) -> Path:
    """The default backbone, built once for all processes of a session; without its packages the test is skipped."""
    lacking = [name for name in (*NEEDED, PACKAGE, "onnxruntime") if importlib.util.find_spec(name) is None]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    return once("caches/bpals/lite0.onnx", build)


@pytest.fixture(scope="session")
def nih_workspace(audit_once) -> Path:
    """The default audit of the embedded NIH record, made once by the command; read it, do not change it."""
    return audit_once("audit")


@pytest.fixture(scope="session")
def films_audit(audit_once) -> Path:
    """The default audit of made-up films, made once by the command; copy it to change it."""
    return audit_once("films", "--source", datasets.SOURCE, "--mapping", datasets.MAPPING)


@pytest.fixture(scope="session")
def elsewhere() -> dict[str, str]:
    """Surroundings that must change no byte: another number of threads, another order of sets."""
    return {"POLARS_MAX_THREADS": "1", "PYTHONHASHSEED": "5"}


@pytest.fixture(scope="session")
def nih_reviewed(once) -> Path:
    """NIH's CSV with the patients of the adjudicated validation images, 6,913 films of 835 patients."""
    if not EXPERT.is_dir():
        pytest.skip(f"no expert labels at {EXPERT}: set BPALS_TEST_DATA")
    images = verdicts.load(f"four-findings={EXPERT}", vocabulary=NIH, split="val").truth["image_id"].unique()
    theirs = pl.col("image_id").is_in(images.implode()).any().over("patient_id")
    write_csv = runpy.run_path(str(ROOT / "benchmarks" / "part.py"))["write_csv"]
    return once("reviewed.csv", lambda file: write_csv(nih.load().images.filter(theirs), file))


@pytest.fixture(scope="session")
def nih_calibrated(audit_once, nih_reviewed, elsewhere) -> Path:
    """The audit, elsewhere, of those patients that was fitted on their adjudicated images; do not change it."""
    words = ("--source", f"nih:{nih_reviewed}", "--calibrate", f"four-findings={EXPERT}", "--calibrate-split", "val")
    return audit_once("calibrated", *words, environment=elsewhere)


@pytest.fixture(scope="session")
def nih_uncalibrated(audit_once, nih_reviewed) -> Path:
    """The audit of the same patients without any expert label; do not change it."""
    return audit_once("uncalibrated", "--source", f"nih:{nih_reviewed}")


@pytest.fixture(scope="session")
def write_films():
    """Write made-up films as a table, 600 a seed, and give the words that make `bpals audit` read it.

    Their patients are of two folds, so that the record judge is fitted twice and not five times.
    """
    films = runpy.run_path(str(ROOT / "examples" / "make_films.py"))["films"]

    def write(file, *, seeds):
        parts = [
            films(seed=seed)[0].with_columns(
                pl.format(f"{seed}-{{}}", name).alias(name) for name in ("film", "patient")
            )
            for seed in seeds
        ]
        datasets.of_two_folds(pl.concat(parts)).write_csv(file)
        return ["--source", f"table:{file}", "--mapping", datasets.MAPPING]

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
def postgres_address(tmp_path_factory):
    """The address of a real PostgreSQL that all test processes of a session share."""
    pytest.importorskip("psycopg", reason="no PostgreSQL: needs the extra postgres")
    from world import postgres

    if lacking := postgres.missing():
        pytest.skip(f"no PostgreSQL: pip install {lacking}")
    here = tmp_path_factory.getbasetemp()
    with postgres.shared((here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "postgres") as url:
        yield url


@pytest.fixture
def postgres_url(postgres_address):
    """The address of a new, empty PostgreSQL database; it is dropped after the test."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres_address.replace("/postgres?", f"/{name}?")
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_address(request, tmp_path):
    """Where a new ledger may be made: a file, then a PostgreSQL database; the same test runs on both."""
    if request.param == "sqlite":
        return tmp_path / "audit" / "ledger.sqlite"
    return request.getfixturevalue("postgres_url")


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


@pytest.fixture
def expert_folder(data_folder):
    """The folder of radiologist labels, which is never part of the project."""
    folder = data_folder / "expert"
    if not folder.is_dir():
        pytest.skip(f"no expert labels at {folder}: set BPALS_TEST_DATA")
    return folder


@pytest.fixture
def sheet(tmp_path):
    """Write a text file and give its path."""

    def write(text, name="truth.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
