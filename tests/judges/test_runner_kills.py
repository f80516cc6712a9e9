"""A run that is killed, at any moment: nothing that was committed is lost, nothing is counted twice."""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time

import pytest

from bpals.errors import WorkspaceError
from bpals.store.ledger import Ledger
from world import run_child, runs
from world.chat_server import FaultyServer, true_logit
from world.waiting import wait_until

EACH = len(run_child.QUESTIONS)
BOUND = run_child.OPEN_FILMS * EACH
FILMS = 150
"""In one ledger; when it is complete before all the kills are done, another is begun."""


@pytest.fixture(scope="module")
def processes():
    """Start processes that need no time to import: they are forked from one that has."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "world.run_child", "aiohttp", "orjson", "sqlalchemy.dialects.sqlite"])
    return context


@pytest.fixture
def start(processes):
    """Start a run, and leave none behind."""
    started = []

    def start_one(*words, **options):
        process = processes.Process(target=run_child.go, args=words, kwargs=options)
        process.start()
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.join()


def kill(process):
    """End a process without a word."""
    process.kill()
    process.join()


def kept(path):
    """How many films the ledger holds; what is wrong with it is raised."""
    if not path.exists():
        return 0
    with Ledger.open(path) as ledger:
        assert ledger.verify() == []
        names = [card["judge"] for card in ledger.cards()]
        return len(ledger.done(ledger.judge_id("chat"))) if names else 0


def check(path, count):
    """Every question of every film is there once, with the value that the server gave."""
    with Ledger.open(path, readonly=True) as ledger:
        rows = ledger.replies(ledger.judge_id("chat")).to_dicts()
        counted = ledger.counts(ledger.judge_id("chat"))
    keys = {(row["image_id"], row["number"]) for row in rows}
    assert len(rows) == len(keys) == count * EACH
    for row in rows:
        sha256 = hashlib.sha256(runs.image(int(row["image_id"]))).hexdigest()
        question = f"{row['subject']} {row['polarity']}?"
        assert row["logit"] == pytest.approx(true_logit(sha256, question), abs=1e-9)
    assert counted["judgments"]["answered"] == count * EACH // 2
    assert counted["attempts"] == count * EACH
    assert counted["tokens"]["prompt"] == 300 * count * EACH


def settled(server):
    """Wait until the server has noticed that nobody listens, and give its count of requests."""
    wait_until(lambda: not server.seen.in_flight, 10)
    return server.seen.requests


def wait_a_while(process, server, draw):
    """Wait until a random moment: one time in five of the start, else of the work."""
    if draw.random() < 0.8:
        requests = server.seen.requests
        wait_until(lambda: server.seen.requests > requests or process.exitcode is not None, every=0.001)
    process.join(draw.uniform(0.0, 0.5))


def sweep(start, folder, kills, seed):
    """Kill runs at random moments until enough were killed; give what each kill cost in repeated calls."""
    draw, costs, ledgers = random.Random(seed), [], 0  # noqa: S311
    while len(costs) < kills:
        path, wasted, before = folder / f"{ledgers}.sqlite", 0, 0
        ledgers += 1
        with FaultyServer(latency_s=0.01) as server:
            while True:
                process = start(path, server.url, FILMS)
                wait_a_while(process, server, draw)
                if process.exitcode is None and len(costs) < kills:
                    kill(process)
                    films = kept(path)
                    assert films >= before, "a film was lost"
                    spent = settled(server) - films * EACH
                    costs.append(spent - wasted)
                    wasted, before = spent, films
                    continue
                process.join()
                if process.exitcode == 0:
                    break
            assert server.seen.requests == FILMS * EACH + wasted
        assert kept(path) == FILMS
        check(path, FILMS)
    return costs


def report(costs, capsys):
    """Print what the kills cost beside what they may cost."""
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {len(costs)} kills: {max(costs)} calls repeated at most, {sum(costs) / len(costs):.0f} on average; "
            f"bound {BOUND} = {run_child.OPEN_FILMS} open films x {EACH} questions"
        )


def test_twenty_kills_lose_and_double_nothing(start, tmp_path, capsys):
    """R01: SIGKILL at random moments; the rest is asked, and a kill repeats at most the open films."""
    costs = sweep(start, tmp_path, 20, seed=1)
    report(costs, capsys)
    assert len(costs) >= 20
    assert min(costs) >= 0
    assert max(costs) <= BOUND
    assert sum(cost > 0 for cost in costs) > 10, "hardly a kill met a run at work"


@pytest.mark.sweep
def test_two_hundred_kills_lose_and_double_nothing(start, tmp_path, capsys):
    """R01: the nightly form."""
    costs = sweep(start, tmp_path, 200, seed=int(time.time()))
    report(costs, capsys)
    assert max(costs) <= BOUND


def test_a_kill_between_reply_and_commit_repeats_the_film_and_counts_it_once(start, tmp_path):
    """R03: everything was answered and nothing was written."""
    path = tmp_path / "ledger.sqlite"
    with FaultyServer() as server:
        process = start(path, server.url, 3, ledger_kind="Held")
        wait_until(lambda: server.seen.requests >= 3 * EACH)
        kill(process)
        assert server.seen.requests == 3 * EACH
        assert kept(path) == 0
        process = start(path, server.url, 3)
        process.join()
        assert process.exitcode == 0
        assert server.seen.requests == 6 * EACH
    check(path, 3)


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_lets_open_films_end(start, tmp_path, word):
    """R04: intake stops, what is open is finished and committed, and the run says `interrupted`."""
    path = tmp_path / "ledger.sqlite"
    with FaultyServer(latency_s=0.05) as server:
        process = start(path, server.url, 400)
        wait_until(lambda: server.seen.requests >= 200)
        os.kill(process.pid, word)
        process.join(15)
        assert process.exitcode == 0
        tally = json.loads((tmp_path / "ledger.sqlite.tally").read_text())
        assert tally["state"] == "interrupted"
        assert 0 < tally["films_done"] < 400
        assert server.seen.requests == tally["films_done"] * EACH, "an open film was dropped"
        assert kept(path) == tally["films_done"]
    check(path, tally["films_done"])


def test_two_signals_end_it_at_once(start, tmp_path):
    """R04: twice stops now; it is still resumable."""
    path = tmp_path / "ledger.sqlite"
    with FaultyServer(latency_s=0.01) as server:
        process = start(path, server.url, 30)
        wait_until(lambda: server.seen.requests >= 5 * EACH)
        server.latency_s = 20
        asked = server.seen.requests
        wait_until(lambda: server.seen.requests > asked)
        os.kill(process.pid, signal.SIGINT)
        process.join(0.3)
        assert process.exitcode is None
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        process.join(10)
        assert time.monotonic() - began < 9
        assert process.exitcode == 0
        server.latency_s = 0
        assert start(path, server.url, 30).join() is None
    assert kept(path) == 30
    check(path, 30)


def test_a_signal_while_everybody_waits_to_ask_again_is_obeyed_soon(start, tmp_path):
    """R04: nobody sleeps through Ctrl-C."""
    path = tmp_path / "ledger.sqlite"
    with FaultyServer() as server:
        slow = {"first_wait_s": 60.0, "longest_wait_s": 60.0, "faults_to_open": 10**6}
        process = start(path, server.url, 30, pace=slow)
        wait_until(lambda: server.seen.requests >= 5 * EACH)
        server.stop()
        # Nothing outside shows that the last request has failed too, and that everybody waits.
        time.sleep(0.5)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        process.join(10)
        assert time.monotonic() - began < 9
        assert process.exitcode == 0
        server.start()
        start(path, server.url, 30).join()
    check(path, 30)


def test_the_lock_of_a_killed_run_is_free(start, tmp_path):
    """R11: the second run is refused while the first lives, and not a moment longer."""
    path = tmp_path / "ledger.sqlite"
    with FaultyServer(latency_s=0.05) as server:
        process = start(path, server.url, 400)
        wait_until(lambda: server.seen.requests >= 10)
        with (
            Ledger.open(path) as ledger,
            pytest.raises(WorkspaceError, match=f"judge run .process {process.pid} on"),
            ledger.lock("a second run"),
        ):
            pass
        kill(process)
        with Ledger.open(path) as ledger, ledger.lock("a second run"):
            assert ledger.verify() == []
