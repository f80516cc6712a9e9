"""U09: ten readers at once, a judge run beside them, and a server that is killed three times."""

import collections
import contextlib
import importlib.util
import json
import random
import socket
import sys

import numpy as np
import pytest
from sqlalchemy import select

import bpals
import shape
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.schema import REVIEW
from bpals.store.workspace import LEDGER
from world import datasets
from world.chat_server import MODEL, FaultyServer

pytest.importorskip("fastapi")
from bpals.tasks.serve import office
from world.waiting import wait_until

READERS = [f"reader{number}" for number in range(10)]
KILLS = 3
STEPS = ("next", "draft", "lock", "second")
STUDY = """name = "night"
readers_per_case = 10
adjudication = "none"
repeats = 0.0
queue_size = {cases}
random_share = 1.0
learn_every = 1000000
"""


def load_clients():
    """The readers of the benchmark, which are these readers."""
    file = shape.ROOT / "benchmarks" / "reading_clients.py"
    spec = importlib.util.spec_from_file_location("reading_clients", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reading_clients"] = module
    spec.loader.exec_module(module)
    return module


clients = load_clients()


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(params=[6, pytest.param(200, marks=pytest.mark.sweep)])
def room(request, tmp_path, monkeypatch):
    """A workspace of as many films as everybody reads, a study, ten accounts, and a server that is not started yet."""
    monkeypatch.setenv("PYTHONPATH", str(shape.SRC))
    cases = request.param
    small = datasets.write(tmp_path, count=max(24, cases))
    home = tmp_path / "audit"
    bpals.audit(small.source, mapping=small.mapping, workspace=home)
    (tmp_path / "night.toml").write_text(STUDY.format(cases=cases))
    with office(home) as accounts:
        for name in READERS:
            accounts.make(name, "reader", password=clients.PASSWORD)
    words = ["--workspace", str(home), "--images", str(small.images), "--study", str(tmp_path / "night.toml")]
    server = clients.Server(words=words, port=free_port(), errors=tmp_path / "server.log")
    yield small, home, cases, server
    server.kill()


def films_judged(home):
    """The films that a judge was wholly asked about, as anybody may see them meanwhile."""
    with Ledger.open(home / LEDGER, readonly=True) as ledger:
        return sorted(ledger.done(ledger.judge_id("vlm"))) if ledger.cards() else []


@contextlib.contextmanager
def judging(start_bpals, small, home, vlm):
    """A judge that is being asked, and whose first film has come through the serving process."""
    words = ["openai:" + MODEL, "--base-url", vlm.url, *small.words, "--workspace", home, "--name", "vlm"]
    judge = start_bpals("judge", "run", *words, "--in-flight", 2, "--json")
    try:
        wait_until(lambda: films_judged(home) or judge.poll() is not None, 120, every=0.05)
        assert judge.poll() is None, judge.communicate()
        yield judge
    finally:
        judge.kill()
        judge.communicate()


def test_u09_readers_a_judge_and_kills(room, tmp_path, start_bpals):
    """U09: every verdict that was acknowledged is there once, the judge's run is whole, and nobody waited long."""
    small, home, cases, server = room
    moments = [4 * cases * len(READERS) * part // (KILLS + 1) for part in range(1, KILLS + 1)]
    dice = random.Random(9)  # noqa: S311  what is drawn is no secret
    server.start()
    with FaultyServer(latency_s=0.05) as vlm, judging(start_bpals, small, home, vlm) as judge:
        with clients.reading(server, READERS, cases, tmp_path) as readers:
            assert clients.kill_at(server, clients.Watch(tmp_path, READERS), moments, readers, dice) == KILLS
        said, errors = judge.communicate(timeout=400)
        assert judge.returncode == 0, errors
    server.kill()
    assert json.loads(said)
    assert films_judged(home) == sorted(small.image_ids)
    told = clients.answers(tmp_path, READERS)
    assert collections.Counter(each["step"] for each in told) == dict.fromkeys(STEPS, cases * len(READERS))
    with Ledger.open(home / LEDGER, readonly=True) as ledger:
        with ledger.reading() as connection:
            asked = select(REVIEW.c.reading_id, REVIEW.c.phase, REVIEW.c.finding, REVIEW.c.verdict)
            kept = [tuple(row) for row in connection.execute(asked)]
        assert clients.compare(told, kept) == (0, 0)
        assert log.check(ledger).found == []
        assert ledger.verify() == []
    waited = np.percentile([each["ms"] for each in told if each["step"] != "next" and each["tries"] == 1], 95)
    # Tests beside this one may take the processors.
    assert waited < (300 if cases == 200 else 20_000)
