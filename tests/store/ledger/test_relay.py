"""A judge run beside the reading room: what it says is written by the serving process, once, and nobody waits long."""

import contextlib
import dataclasses
import math
import os
import random
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from sqlalchemy import func, insert, select

from bpals.errors import ContractBroken, UsageError, WorkspaceError
from bpals.store.ledger import AskedFilm, Ledger
from bpals.store.ledger.relay import (
    RelayClient,
    RelayedLedger,
    for_a_run,
    have_done,
    is_served,
    pack_films,
    serving,
    unpack_films,
)
from bpals.store.ledger.schema import STUDY
from bpals.store.ledger.sqlite import Place
from bpals.store.workspace import Workspace
from bpals.tasks.judge_status import status_of
from bpals.types import Attempt, Reply, Usage
from world import datasets
from world.datasets import ask
from world.ledgers import CARD, QUESTIONS, asked, enrolled, failed, snapshot

TESTS = Path(__file__).parents[2]
SURROUNDINGS = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])}
NOBODY = 65534


@pytest.fixture
def path(tmp_path):
    """Where the ledger of a workspace lies."""
    return tmp_path / "audit" / "ledger.sqlite"


@contextlib.contextmanager
def served_elsewhere(path):
    """A process that serves the ledger; it is killed at the end, if the test has not done so."""
    line = [sys.executable, str(TESTS / "world" / "serve_child.py"), str(path)]
    with subprocess.Popen(line, env=SURROUNDINGS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "serving\n"
        try:
            yield process
        finally:
            process.kill()


def test_films_come_through_the_wire_as_they_were():
    """Half characters, zeros, infinities, reasons and tries: what arrives is what was sent."""
    odd = Reply(
        outcome="answered",
        logit=-math.inf,
        mass=0.5,
        method="top_k",
        text="\ud83d \0 é",
        top=(("Yes", -0.25), ("\udc00", -math.inf)),
        usage=Usage(prompt=3, cached=2, output=1),
        latency_s=0.125,
        attempts=2,
    )
    tries = [Attempt(number=0, attempt=1, kind="status", status=503, message="busy")]
    film = dataclasses.replace(asked("a.png"), replies=[odd, *asked("a.png").replies[1:]], failures=tries)
    for one in (film, failed("b.png"), AskedFilm(image_id="", sha256="", control="black", replies=())):
        (back,) = unpack_films(pack_films([one]))
        for name in ("image_id", "sha256", "control"):
            assert getattr(back, name) == getattr(one, name)
        for name in ("replies", "judgments", "failures"):
            assert list(getattr(back, name)) == list(getattr(one, name))


def test_a_relayed_run_leaves_what_a_direct_one_leaves(tmp_path):
    """X06: enrolling, runs, events, films, retries and the end are the same rows, whoever wrote them."""
    found = []
    for relayed in (False, True):
        path = tmp_path / str(relayed) / "ledger.sqlite"
        with contextlib.ExitStack() as closing:
            ledger = closing.enter_context(Ledger.open(path))
            if relayed:
                closing.enter_context(serving(ledger))
                ledger = closing.enter_context(RelayedLedger.open(path, readonly=True))
            judge, run = enrolled(ledger)
            ledger.note_observed(judge, {"mass": 0.9, "where": Path("x")})
            ledger.write(judge, run, [asked("a.png"), failed("b.png"), failed("c.png")])
            ledger.event(run, "limit", {"from": 8, "to": 16})
            ledger.write(judge, run, [asked("b.png", logit=2.0)])
            ledger.end(run, "done", {"films": 3})
            (state,) = [(each["state"], each["plan"], each["counts"]) for each in ledger.runs(judge)]
            events = [(each["kind"], each["detail"]) for each in ledger.runs(judge)[0]["events"]]
            tables, counts, done = snapshot(ledger, judge)
            del counts["latest"]
            assert ledger.verify() == []
            found.append((tables, counts, done, state, events, ledger.cards()[0]["observed"]))
    assert found[0] == found[1]


def test_what_is_refused_is_refused_in_the_same_words(path):
    """An error of the serving process is raised by the run: its kind, its sentence, also one of the disk."""

    def full(_ledger, _given):
        raise OSError(28, os.strerror(28), "ledger.sqlite")

    with (
        Ledger.open(path) as ledger,
        serving(ledger, {"full": full}),
        RelayedLedger.open(path, readonly=True) as relayed,
    ):
        judge, run = enrolled(relayed)
        relayed.write(judge, run, [asked("a.png")])
        with pytest.raises(UsageError, match=r"model .*'a/b'.*'b/c'.*--name"):
            relayed.enrol(dataclasses.replace(CARD, model="b/c"), QUESTIONS, "nih")
        broken = dataclasses.replace(asked("b.png"), replies=[Reply(outcome="answered"), *asked("b.png").replies[1:]])
        with pytest.raises(ContractBroken, match=r"(?i)check"):
            relayed.write(judge, run, [broken])
        with pytest.raises(ContractBroken, match="5 replies"):
            relayed.write(judge, run, [dataclasses.replace(asked("b.png"), replies=asked("b.png").replies[1:])])
        with pytest.raises(OSError, match="No space left") as refused:
            have_done(path, "full", {})
        assert refused.value.errno == 28
        with pytest.raises(UsageError, match="does not know the work 'fly'"):
            have_done(path, "fly", {})
        with pytest.raises(UsageError, match="KeyError"):
            have_done(path, "write", {})
        assert set(relayed.done(judge)) == {"a.png"}


def test_other_works_can_be_had_done(path):
    """An import or a new account beside the reading room goes the same way."""

    def begin_study(ledger, given):
        row = {"name": given["name"], "settings": "{}", "at": "now"}
        ledger.change(lambda connection: connection.execute(insert(STUDY).values(row)))
        return {"made": given["name"]}

    with Ledger.open(path) as ledger, serving(ledger, {"study": begin_study}):
        assert have_done(path, "study", {"name": "first"}) == {"made": "first"}
        assert ledger.look(lambda connection: connection.execute(select(STUDY.c.name)).scalars().all()) == ["first"]


def test_a_run_finds_the_reading_room_and_joins_it(path):
    """R23: beside a served room a run writes through it; a second run is refused and told who the first is."""
    with for_a_run(path) as ledger:
        assert type(ledger) is Ledger
        assert ledger.busy()
    assert not is_served(path)
    with served_elsewhere(path):
        assert is_served(path)
        with Ledger.open(path, readonly=True) as reader:
            assert not reader.busy()  # a room without a run
            with for_a_run(path) as ledger:
                assert type(ledger) is RelayedLedger
                judge, run = enrolled(ledger)
                ledger.write(judge, run, [asked("a.png")])
                assert reader.busy()
                with pytest.raises(WorkspaceError, match=f"judge run .process {os.getpid()} "), for_a_run(path):
                    pass
            assert not reader.busy()
        with Ledger.open(path) as second, pytest.raises(WorkspaceError, match="review serve"), second.lock("judge run"):
            pass
    assert not is_served(path)


def test_a_judge_is_asked_beside_the_reading_room(tmp_path):
    """The command itself: films, controls, seal and status are those of a run that writes by itself."""
    small = datasets.write(tmp_path, 8)
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    ask("stub:3", small, alone)
    with served_elsewhere(beside / "ledger.sqlite"):
        done = ask("stub:3", small, beside)
        assert (done.state, done.films) == ("done", 8)
        assert status_of(beside)[0]["state"] == "done"
    answers = [Workspace(home).judge("stub").answers() for home in (alone, beside)]
    assert answers[0].equals(answers[1])


def test_only_its_owner_may_use_the_socket():
    """Mode 0600, from the first moment that it has its name; another user is turned away."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        path.parent.chmod(0o755)
        with Ledger.open(path) as ledger, serving(ledger):
            found = Place(path).socket
            assert found.name == ".ledger.sock"
            assert stat.S_IMODE(found.stat().st_mode) == 0o600
            if os.geteuid() == 0:
                with socket.socket(socket.AF_UNIX) as channel:
                    os.seteuid(NOBODY)
                    try:
                        with pytest.raises(PermissionError):
                            channel.connect(str(found))
                    finally:
                        os.seteuid(0)
        assert not found.exists()


def test_a_long_path_is_no_obstacle(tmp_path):
    """The address of a socket has 107 characters at most; a workspace may lie deeper."""
    path = tmp_path / ("d" * 100) / ("e" * 100) / "ledger.sqlite"
    with Ledger.open(path) as ledger, serving(ledger), RelayedLedger.open(path, readonly=True) as relayed:
        assert enrolled(relayed) == (1, 1)


def test_rubbish_on_the_socket_hurts_nobody(path):
    """A message that is none ends its connection; the others go on."""
    with Ledger.open(path) as ledger, serving(ledger), RelayedLedger.open(path, readonly=True) as relayed:
        for rubbish in (b"\xff" * 64, b"\0\0\0\x03{}}", b"\0\0\0\x02[]", b"\0\0", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as channel:
                channel.settimeout(10)
                channel.connect(str(Place(path).socket))
                channel.sendall(rubbish)
                channel.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    assert channel.recv(100) == b""
        assert enrolled(relayed) == (1, 1)


def test_a_room_that_does_not_come_back_stops_the_run(path):
    """P4: one line that says what happened and what to type."""
    with Ledger.open(path):
        pass
    client = RelayClient(Place(path).socket, patience_s=0.3)
    with pytest.raises(WorkspaceError, match=r"for 0 s.*again"):
        client.call("begin", {})


def test_u09_kills_of_the_room_lose_and_double_nothing_of_the_run(path):
    """U09, C07: killed at random moments and started again, every film, run and event of the run is there once."""
    randomness = random.Random(9)  # noqa: S311
    names = [f"{number:03d}.png" for number in range(120)]
    with contextlib.ExitStack() as room:
        process = room.enter_context(served_elsewhere(path))
        with for_a_run(path) as ledger:
            judge, _ = enrolled(ledger)
            told, going = [], threading.Event()

            def run_on():
                for name in names:
                    run = ledger.begin(judge, {"film": name}, {})
                    ledger.write(judge, run, [asked(name)])
                    ledger.event(run, "film", name)
                    ledger.end(run, "done", {})
                    told.append(name)
                    going.set()

            thread = threading.Thread(target=run_on)
            thread.start()
            for _ in range(3):
                going.clear()
                going.wait(30)
                time.sleep(randomness.random() * 0.05)  # a random moment is what is tested
                process.kill()
                process.wait()
                process = room.enter_context(served_elsewhere(path))
            thread.join(60)
            assert told == names
            runs = ledger.runs(judge)
            assert [each["plan"].get("film") for each in runs[1:]] == names
            assert [event["detail"] for each in runs for event in each["events"]] == names
            assert set(ledger.done(judge)) == set(names)
            assert ledger.verify() == []


def test_c06_a_submit_does_not_wait_for_the_run(path):
    """C06: while a run writes as fast as it can, a verdict is durable between its batches, and never refused."""
    batches, waited = [], []
    with Ledger.open(path) as ledger, serving(ledger), for_a_run(path) as relayed:
        assert type(relayed) is RelayedLedger
        judge, run = enrolled(relayed)
        stop = threading.Event()

        def run_on():
            number = 0
            while not stop.is_set():
                films = [asked(f"{number + n}.png") for n in range(64)]
                relayed.write(judge, run, films)
                batches.append(number)
                number += 64

        def submit(reader):
            for number in range(50):
                row = {"name": f"{reader} {number}", "settings": "{}", "at": "now"}
                before = len(batches)
                ledger.change(lambda connection, row=row: connection.execute(insert(STUDY).values(row)))
                waited.append(len(batches) - before)

        writer = threading.Thread(target=run_on)
        writer.start()
        readers = [threading.Thread(target=submit, args=(reader,)) for reader in range(4)]
        for thread in readers:
            thread.start()
        for thread in readers:
            thread.join()
        stop.set()
        writer.join()
        assert ledger.look(lambda c: c.execute(select(func.count()).select_from(STUDY)).scalar_one()) == 200
        assert ledger.counts(judge)["films"] > 64
    assert len(waited) == 200
    # In batches of the run, not in seconds: how long one takes is the machine's affair (benchmarks/ledger_relay.py).
    assert pl.Series(waited).quantile(0.95) <= 3
