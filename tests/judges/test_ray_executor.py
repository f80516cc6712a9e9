"""The engine of Ray where no Ray runs: what is refused, what is typed, and that nothing else needs it."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

import shape
from bpals.cli.main import obey
from bpals.errors import UsageError, install_line
from bpals.judges.runner.ray_executor import RayExecutor
from world import datasets
from world.words import mentions

WITHOUT = """
import sys
sys.modules["ray"] = None
import bpals
from bpals.cli.main import obey
run = ["judge", "run", "stub:5", *sys.argv[2:], "--workspace", sys.argv[1]]
assert obey(run) == 0
assert obey(["judge", "status", "--workspace", sys.argv[1]]) == 0
assert obey(["judge", "merge", sys.argv[1], "--workspace", sys.argv[1] + "-merged"]) == 0
print("laptop done", flush=True)
sys.exit(obey([*run, "--engine", "ray"]))
"""


def test_x02_without_ray_everything_else_works_and_its_engine_says_what_to_type(tmp_path):
    """X02: the extra is absent: import, run, status and merge work; --engine ray names the line that installs it."""
    folder = tmp_path / "small"
    folder.mkdir()
    small = datasets.write(folder, 4)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "home"), *small.words],
        env={"PYTHONPATH": str(shape.SRC), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "laptop done" in done.stdout, done.stderr
    assert done.returncode == 2
    assert mentions(done.stderr, "--engine ray", install_line("ray"))


def test_nothing_imports_ray_until_it_is_asked_for():
    """Importing every module of the engine leaves Ray on the disk."""
    script = "import sys, bpals.judges.runner.ray_executor, bpals.tasks.judge, bpals.cli.main; sys.exit('ray' in sys.modules)"
    surroundings = {"PYTHONPATH": str(shape.SRC)}
    assert subprocess.run([sys.executable, "-c", script], env=surroundings, check=False).returncode == 0


@pytest.fixture
def with_ray():
    """Where Ray is installed; it is not started."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'ray[data]'")


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize("address", ["10.0.0.7:6379", "auto", "ray://head.cluster:10001", "head:6379"])
def test_a_cluster_that_takes_anybodys_code_is_refused(monkeypatch, address):
    """Ray is closed by a token, or reached by this machine alone; the message says which variable to set."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(UsageError, match=r"would run the code of whoever reaches it.*export RAY_AUTH_MODE=token"):
        RayExecutor(address=address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert RayExecutor(address=address).address == address


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize("address", ["127.0.0.1:6379", "localhost:6379", "[::1]:6379", "ray://127.0.0.1:10001"])
def test_a_cluster_of_this_machine_alone_needs_no_token(monkeypatch, address):
    """Nobody else reaches a loopback address."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert RayExecutor(address=address).address == address


@pytest.mark.usefixtures("with_ray")
def test_no_workers_are_refused():
    """Zero workers would wait for ever."""
    with pytest.raises(UsageError, match="0 workers do nothing"):
        RayExecutor(workers=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "rya"], "no engine is called 'rya'. Did you mean 'ray'?"),
        (["--ray-workers", "2"], "--ray-workers means nothing without Ray. Add: --engine ray"),
        (["--ray-address", "auto"], "--ray-address means nothing without Ray. Add: --engine ray"),
    ],
)
def test_what_is_typed_is_never_ignored(capsys, tmp_path, words, said):
    """An engine that nobody knows, and options of one that was not chosen."""
    assert obey(["judge", "run", "stub:", "--images", str(tmp_path), "--workspace", str(tmp_path / "w"), *words]) == 2
    assert said in capsys.readouterr().err
