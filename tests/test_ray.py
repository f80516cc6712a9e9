"""Runs on a real Ray, one for all of this file: the same answers as without it, whoever is killed on the way."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from bpals.errors import JudgeError, Stopped, UsageError
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.ray_executor import RayExecutor, RaySession
from bpals.judges.runner.transport import Endpoint
from bpals.tasks.judge import Order
from bpals.tasks.judge_status import asked_status
from bpals.tasks.probe import run_probe
from world import datasets, tiny_onnx
from world.chat_server import FaultyServer
from world.datasets import ask
from world.waiting import wait_until

if find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install 'ray[data]'", allow_module_level=True)

FILMS = 24
ENGINE = RayExecutor(workers=2)
TESTS = Path(__file__).parent

MORTAL = '''
"""A judge that is killed once, by itself, in the middle of its work."""

import os
import signal
import time
from pathlib import Path

import bpals

ASKED = []


@bpals.judge("mortal", findings=["Effusion", "Pneumothorax"])
def mortal(image, finding):
    ASKED.append(finding)
    time.sleep({pause})  # a slow judge
    died = Path({died!r})
    if len(ASKED) > 12 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return (image.getpixel((image.width // 2, image.height // 2)) + len(finding)) / 300
'''


@pytest.fixture(scope="module")
def cluster():
    """A Ray on this machine with two workers; it ends with the file, and leaves no process behind."""
    before = rays()
    with pytest.MonkeyPatch.context() as surroundings:
        # Its workers begin with what they are told here: they know the modules of the tests.
        surroundings.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        with RaySession(ENGINE):
            yield sys.modules["ray"].get_runtime_context().gcs_address
            started = rays() - before
    assert started
    wait_until(lambda: not any(is_ray(Path("/proc") / number) for number in started), 120)


def rays():
    """The processes of Ray that this one, or a child of it, has started."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if is_ray(folder) and ours(folder):
                found.add(folder.name)
    return found


def is_ray(folder):
    """Say whether a process is one of Ray's."""
    try:
        words = (folder / "cmdline").read_bytes()
    except OSError:
        return False
    return b"raylet" in words or b"gcs_server" in words or words.startswith(b"ray::")


def ours(folder):
    """Say whether a process descends from this one."""
    for _ in range(10):
        parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        if int(parent) in (0, 1, os.getpid()):
            return int(parent) == os.getpid()
        folder = folder.parent / parent
    return False


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two dozen films; read them, do not change them."""
    return datasets.write(tmp_path_factory.mktemp("small"), FILMS)


def write_judge(folder, *, pause=0.0, dies=False):
    """Write the judge into a file; unless it is to die, it already has."""
    died = folder / "died"
    if not dies:
        died.touch()
    (folder / "judge.py").write_text(MORTAL.format(died=str(died), pause=pause), encoding="utf-8")
    return f"python:{folder / 'judge.py'}"


def sealed(home, name):
    """The bytes of a judge's sealed table."""
    return (home / "judgments" / f"{name}.parquet").read_bytes()


def test_x03_a_worker_that_is_killed_costs_its_block_and_no_answer(cluster, small, tmp_path):
    """X03: kill -9 of a Ray worker in the middle: the same judgments as a run without Ray, none twice."""
    assert cluster
    spec = write_judge(tmp_path, dies=True)
    done = ask(spec, small, tmp_path / "ray", engine=ENGINE)
    assert (tmp_path / "died").exists()
    assert (done.state, done.tally.films_done, done.tally.replies) == ("done", FILMS, FILMS * 3)
    plain = ask(spec, small, tmp_path / "plain")
    assert done.counts == plain.counts
    assert sealed(tmp_path / "ray", "mortal") == sealed(tmp_path / "plain", "mortal")


def test_x03_a_driver_that_is_killed_goes_on_where_it_was(cluster, small, tmp_path):
    """X03: kill -9 of the process that runs it all; the same command again ends in the same judgments."""
    spec, home = write_judge(tmp_path, pause=0.05), tmp_path / "ray"
    words = [spec, small.source, small.mapping, small.images, home, cluster]
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen([sys.executable, TESTS / "world" / "ray_child.py", *map(str, words)], env=surroundings)
    try:
        wait_until(lambda: driver.poll() is not None or any(row["films"] for row in asked_status(home)), 300)
        driver.kill()
    finally:
        driver.wait()
    (row,) = asked_status(home)
    assert (driver.returncode, row["state"], 0 < row["films"] < FILMS) == (-9, "killed", True)
    done = ask(spec, small, home, engine=ENGINE)
    assert (done.state, done.films, done.tally.films_done) == ("done", FILMS, FILMS - row["films"])
    ask(spec, small, tmp_path / "plain")
    assert sealed(home, "mortal") == sealed(tmp_path / "plain", "mortal")


def test_ctrl_c_ends_a_run_on_ray_in_our_words_alone(cluster, small, start_bpals, tmp_path):
    """R04: what Ray is at is said, what is done is kept, and Ray raises no alarm about workers that were let go."""
    spec, home = write_judge(tmp_path, pause=0.2), tmp_path / "ray"
    words = ["judge", "run", spec, *small.words, "--workspace", home, "--engine", "ray", "--ray-workers", 2]
    child = start_bpals(
        *words, "--ray-address", cluster, environment={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    )
    wait_until(lambda: child.poll() is not None or any(row["films"] for row in asked_status(home)), 300)
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate()
    assert child.returncode == 130, errors
    joined, loading = (line for line in errors.splitlines() if line.startswith("note: "))
    assert joined == f"note: Ray at {cluster} is joined"
    assert loading.startswith("note: Ray has started")
    assert errors.splitlines()[-1].startswith("bpals: interrupted;")
    assert "mortal: interrupted, " in out
    for alarm in ("raylet", "logging.cc", "Traceback", "\x1b["):
        assert alarm not in out + errors


def test_a_judge_behind_several_endpoints_is_asked_by_the_workers(cluster, small, tmp_path):
    """Each worker tries the endpoints out, then asks both of them: the same answers as from here."""
    assert cluster
    judge = OpenAIJudge(model="stub-vlm")
    with FaultyServer() as first, FaultyServer() as second:
        ends = tuple(Endpoint(url=server.url, deadline_s=20) for server in (first, second))
        ask(judge, small, tmp_path / "plain", first)
        done = ask(judge, small, tmp_path / "ray", engine=ENGINE, endpoints=ends)
        assert second.seen.requests > 0
    assert (done.state, done.films) == ("done", FILMS)
    assert sealed(tmp_path / "ray", "stub-vlm") == sealed(tmp_path / "plain", "stub-vlm")


def test_a_probe_looks_at_films_through_the_workers(cluster, tmp_path_factory, tmp_path):
    """The pass of the probe on Ray, and its fit here: the same bytes as without Ray, one film that cannot be seen."""
    assert cluster
    films = datasets.write(tmp_path_factory.mktemp("films"), 240)
    cut = films.images / films.image_ids[5]
    cut.write_bytes(cut.read_bytes()[:-100])
    spec = f"probe:{tiny_onnx.write(tmp_path / 'tiny.onnx')}"
    for name, engine in (("plain", None), ("ray", ENGINE)):
        order = Order(source=films.source, mapping=films.mapping, workers=0, engine=engine)
        done = run_probe(spec, images=films.images, workspace=tmp_path / name, order=order)
        assert (done.state, done.films, done.counts["failed"]) == ("done", 240, 3)
        assert done.counts["answered"] > 0
        assert [notice.code for notice in done.notices if notice.code == "films_refused"] == ["films_refused"]
    assert sealed(tmp_path / "ray", "probe-tiny") == sealed(tmp_path / "plain", "probe-tiny")


def test_a_table_is_read_by_a_worker(cluster, small, tmp_path):
    """Scores that were computed elsewhere, with and without Ray: the same table."""
    assert cluster
    lines = ["image_id,Effusion", *(f"{name},0.25" for name in small.image_ids)]
    (tmp_path / "scores.csv").write_text("\n".join(lines), encoding="utf-8")
    for name, engine in (("plain", None), ("ray", ENGINE)):
        ask(f"table:{tmp_path / 'scores.csv'}", small, tmp_path / name, engine=engine)
    assert sealed(tmp_path / "ray", "scores") == sealed(tmp_path / "plain", "scores")


@dataclass(frozen=True)
class Broken:
    """A worker whose code fails."""

    def __call__(self, task):
        """Fail, but for nothing."""
        return 1 / task

    def close(self):
        """Let go of nothing."""


def test_what_a_worker_raises_ends_the_run_with_its_words(cluster):
    """A mistake in the code of a worker is no reason to try it again for ever."""
    assert cluster
    results = ENGINE.map(iter([0]), Broken)
    with pytest.raises(JudgeError, match="ZeroDivisionError: division by zero"):
        next(results)
    results.close()


def test_a_ray_that_gives_nothing_back_stops_the_run(cluster):
    """The watchdog: what is done is kept, and the same command goes on."""
    assert cluster
    results = RayExecutor(workers=2, patience_s=0.3).map(iter([1]), Broken)
    with pytest.raises(Stopped, match="no Ray worker has given anything back"):
        next(results)
    deadline = time.monotonic() + 120
    while any(thread.name == "bpals-ray" for thread in threading.enumerate()) and time.monotonic() < deadline:
        results.close()
    with pytest.raises(StopIteration):
        next(results)


def test_more_workers_than_the_cluster_has_are_refused(cluster):
    """Ray would wait for them without a word."""
    assert cluster
    results = RayExecutor(workers=64).map(iter([1]), Broken)
    with pytest.raises(UsageError, match=r"64 Ray workers need 64 CPUs, and the cluster has 2"):
        next(results)
    results.close()
