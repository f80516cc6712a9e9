"""The ledger on PostgreSQL: connections that break, servers that die and come back, locks, and what is refused."""

import contextlib
import os
import platform
import random
import threading
import time
import uuid
from pathlib import Path

import psycopg
import pytest
import time_machine
from sqlalchemy import func, insert, select, text

from bpals.errors import TransactionLost, UsageError, WorkspaceError
from bpals.store.ledger import Ledger
from bpals.store.ledger.postgres import ENVIRONMENT, address_of, has_password, parse_url, shown
from bpals.store.ledger.schema import STUDY
from world import postgres
from world.ledgers import asked, enrolled
from world.postgres import LossyProxy
from world.waiting import wait_until


@pytest.fixture(scope="module")
def server():
    """A server of one's own, to be killed."""
    if lacking := postgres.missing():
        pytest.skip(f"no PostgreSQL: pip install {lacking}")
    made = postgres.Server.make()
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
def url(server):
    """An empty database on that server."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url(name)


def study(name):
    """A row of a table of the reading room."""
    return insert(STUDY).values({"name": name, "settings": "{}", "at": "now"})


def studies(ledger):
    """The names that are there."""
    return ledger.look(
        lambda connection: connection.execute(select(STUDY.c.name).order_by(STUDY.c.study_id)).scalars().all()
    )


class Working:
    """Threads that write films, runs, events and rows of the reading room until they are told to stop."""

    def __init__(self, ledger, threads=3):
        """Start."""
        self.ledger = ledger
        self.judge, _ = enrolled(ledger)
        self.stop = threading.Event()
        self.told = []
        """What was acknowledged."""
        self.errors = []
        self.threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]
        for thread in self.threads:
            thread.start()

    def _work(self, number):
        count = 0
        try:
            while not self.stop.is_set():
                name = f"{number}-{count}"
                run = self.ledger.begin(self.judge, {"name": name}, {})
                self.ledger.write(self.judge, run, [asked(name)])
                self.ledger.event(run, "film", name)
                self.ledger.change(lambda connection, name=name: connection.execute(study(name)))
                self.told.append(name)
                count += 1
        except WorkspaceError as error:  # pragma: no cover
            self.errors.append(error)

    def wait_for(self, more):
        """Wait until so many more were acknowledged."""
        wanted = len(self.told) + more
        wait_until(lambda: self.errors or len(self.told) >= wanted)
        assert not self.errors

    def check(self):
        """Stop, and see that everything is there, once."""
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert self.errors == []
        names = sorted(self.told)
        runs = self.ledger.runs(self.judge)[1:]
        assert sorted(run["plan"]["name"] for run in runs) == names
        assert sorted(event["detail"] for run in runs for event in run["events"]) == names
        assert sorted(self.ledger.done(self.judge)) == names
        assert sorted(studies(self.ledger)) == names
        assert self.ledger.verify() == []


def test_x05_killed_connections_are_opened_anew(server, url):
    """X05: every connection of the ledger is ended again and again; nothing is lost, nothing doubled."""
    with Ledger.open(url) as ledger, psycopg.connect(server.url(), autocommit=True) as admin:
        work = Working(ledger)
        for _ in range(10):
            work.wait_for(3)
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (parse_url(url).database,),
            )
        work.wait_for(3)
        work.check()


def test_x05_a_restart_of_the_server_is_waited_for(server, url):
    """X05: stopped and started twice in the middle of the work, which goes on by itself."""
    with Ledger.open(url) as ledger:
        work = Working(ledger)
        for _ in range(2):
            work.wait_for(3)
            server.stop()
            server.start()
        work.wait_for(3)
        work.check()


@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=pytest.mark.sweep)])
def test_x05_a_pause_is_waited_for(seconds, server, url):
    """X05: a server that says nothing for a while, then a server that is away for as long, as in a failover."""
    with Ledger.open(url) as ledger:
        work = Working(ledger)
        work.wait_for(3)
        server.pause()
        time.sleep(seconds)  # the pause is what is tested
        server.resume()
        work.wait_for(3)
        server.kill()
        time.sleep(seconds)  # so is the absence
        server.start()
        work.wait_for(3)
        work.check()


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.sweep)])
def test_r02_a_killed_server_recovers_all_that_it_acknowledged(kills, server, url):
    """R02: kill -9 of every process of the server at random moments, then recovery: nothing acknowledged is lost."""
    randomness = random.Random(kills)  # noqa: S311
    with Ledger.open(url) as ledger:
        work = Working(ledger)
        for _ in range(kills):
            work.wait_for(2)
            time.sleep(randomness.random() * 0.05)  # a random moment is what is tested
            server.kill()
            promised = list(work.told)
            server.start()
            with Ledger.open(url, readonly=True) as after:
                assert set(promised) <= set(studies(after))
                assert set(promised) <= set(after.done(work.judge))
        work.check()


@pytest.mark.parametrize("lose", ["request", "answer"])
def test_a_commit_whose_answer_is_lost_is_made_once(lose, server, url, tmp_path_factory):
    """X05, C07: whether the commit arrived is asked, not guessed."""
    with contextlib.ExitStack() as closing:
        folder = tmp_path_factory.mktemp("p")
        proxy = closing.enter_context(contextlib.closing(LossyProxy(folder, server.folder)))
        ledger = closing.enter_context(Ledger.open(url.replace(str(server.folder), str(folder))))
        begun = []

        def work(connection):
            begun.append(1)
            return connection.execute(study(f"{len(begun)}")).inserted_primary_key[0]

        proxy.lose = lose
        assert ledger.change(work) == (2 if lose == "request" else 1)
        assert proxy.lost == 1
        assert studies(ledger) == ([f"{len(begun)}"])
        assert len(begun) == (2 if lose == "request" else 1)
        proxy.lose = lose
        with pytest.raises(TransactionLost, match="went away"), ledger.writing() as connection:
            connection.execute(study("by hand"))
        assert ("by hand" in studies(ledger)) == (lose == "answer")


def test_receipts_end_with_their_writers(postgres_url):
    """Each thread has one row while the ledger is open, and none afterwards."""
    with Ledger.open(postgres_url) as reader:
        count = text("SELECT count(*) FROM receipt")
        with Ledger.open(postgres_url) as ledger:
            for name in "abc":
                ledger.change(lambda connection, name=name: connection.execute(study(name)))
            assert reader.look(lambda connection: connection.execute(count).scalar_one()) == 1
        assert reader.look(lambda connection: connection.execute(count).scalar_one()) == 0


def test_transactions_that_cross_are_tried_again(postgres_url):
    """Two that wait for each other: PostgreSQL ends one of them, and it is begun anew."""
    with Ledger.open(postgres_url) as ledger:
        for name in "ab":
            ledger.change(lambda connection, name=name: connection.execute(study(name)))
        both, begun = threading.Barrier(2, timeout=30), []

        def cross(first, second):
            def work(connection):
                begun.append(first)
                for name in (first, second):
                    row = STUDY.update().where(STUDY.c.name == name).values(settings=STUDY.c.settings + first)
                    connection.execute(row)
                    if begun.count(first) == 1 and name == first:
                        both.wait()

            ledger.change(work)

        threads = [threading.Thread(target=cross, args=names) for names in ("ab", "ba")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(begun) >= 3  # a busy server may end one of them once more
        found = ledger.look(lambda connection: connection.execute(select(STUDY.c.settings)).scalars().all())
        assert sorted("".join(sorted(text)) for text in found) == ["ab{}", "ab{}"]


def test_many_threads_write_at_once(postgres_url):
    """C01 at the ledger: 8 threads, 200 writes, none lost, and more threads than kept connections do no harm."""
    with Ledger.open(postgres_url) as ledger:
        judge, run = enrolled(ledger)

        def work(number):
            for count in range(10):
                ledger.write(judge, run, [asked(f"{number}-{count}"), asked(f"shared-{count}")])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ledger.done(judge)) == 210
        assert ledger.verify() == []


def test_two_that_make_the_tables_at_once_make_them_once(postgres_url):
    """R19: the second waits for the first and finds them made."""
    opened, errors = [], []

    def make():
        try:
            opened.append(Ledger.open(postgres_url))
        except WorkspaceError as error:  # pragma: no cover
            errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for ledger in opened:
        ledger.close()


def test_one_worker_of_a_kind_at_a_time(postgres_url):
    """R11: a second is told process and host of the first; other work goes on beside it."""
    with Ledger.open(postgres_url) as first, Ledger.open(postgres_url) as second:
        assert not second.busy()
        with first.lock("judge run"):
            assert second.busy()
            with (
                pytest.raises(WorkspaceError, match=f"judge run .process {os.getpid()} on {platform.node()}"),
                second.lock("judge run"),
            ):
                pass
            with second.lock("review import"):
                pass
        assert not second.busy()
        with second.lock("judge run"):
            pass


def test_a_lock_is_held_again_after_a_restart(server, url):
    """R11: with the first transaction after it; whoever was overtaken meanwhile is told so and stops."""
    with Ledger.open(url) as first, Ledger.open(url) as second, first.lock("judge run"):
        first.change(lambda connection: connection.execute(study("a")))
        server.stop()
        server.start()
        assert not second.busy()
        first.change(lambda connection: connection.execute(study("b")))
        assert second.busy()
        server.stop()
        server.start()
        with second.lock("judge run"):
            first.look(studies_count)
            with pytest.raises(WorkspaceError, match=r"judge run .process"):
                first.change(lambda connection: connection.execute(study("c")))
        assert studies(second) == ["a", "b"]


def studies_count(connection):
    """How many there are."""
    return connection.execute(select(func.count()).select_from(STUDY)).scalar_one()


def test_t03_the_clock_is_the_database_s(ledger_address):
    """T03: processes whose own clocks are a day apart agree on what time it is for a lease."""
    times = []
    for days in (-1, 0, 1):
        with time_machine.travel(time.time() + days * 86400), Ledger.open(ledger_address) as ledger:
            times.append(ledger.look(ledger.database_time))
    assert max(times) - min(times) < 60


@pytest.mark.usefixtures("server")
def test_a_server_that_could_lose_what_it_acknowledged_is_refused(url):
    """P1: with fsync off nothing is written there; who only reads may. A loose default of the database is tightened."""
    with psycopg.connect(url, autocommit=True) as admin:
        name = parse_url(url).database
        admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        with Ledger.open(url) as ledger, ledger.writing() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
        try:
            admin.execute("ALTER SYSTEM SET fsync = off")
            admin.execute("SELECT pg_reload_conf()")
            wait_until(lambda: setting(url, "fsync") == "off")
            with pytest.raises(WorkspaceError, match=r"has fsync off.*ALTER SYSTEM SET fsync = on"):
                Ledger.open(url)
            with Ledger.open(url, readonly=True) as reader:
                assert studies(reader) == []
        finally:
            admin.execute("ALTER SYSTEM RESET fsync")
            admin.execute("SELECT pg_reload_conf()")
            wait_until(lambda: setting(url, "fsync") == "on")


def setting(url, name):
    """What a setting is for a new connection."""
    with psycopg.connect(url) as connection:
        return connection.execute(f"SHOW {name}").fetchone()[0]


def test_a_database_of_somebody_else_is_not_touched(postgres_url):
    """R12: tables that bpals did not make stay as they are."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE TABLE film (title text)")
        with pytest.raises(WorkspaceError, match="bpals did not make"):
            Ledger.open(postgres_url)
        assert admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == [("film",)]


def test_a_reader_makes_nothing(postgres_url):
    """A reader of an empty database is told that there is no ledger."""
    with pytest.raises(WorkspaceError, match="holds no ledger yet"):
        Ledger.open(postgres_url, readonly=True)
    with psycopg.connect(postgres_url) as admin:
        assert admin.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_what_cannot_be_opened_is_said_in_one_line(postgres_url, tmp_path):
    """No server, no such database, no such role, no such scheme: what and where, and never the password."""
    secret = "hunter-2"  # noqa: S105
    with Ledger.open(postgres_url) as ledger:
        ledger.close()
        with pytest.raises(WorkspaceError, match="is closed"):
            ledger.cards()
    for address, words in (
        (postgres_url.replace("@/t", "@/no-such-"), "createdb NAME"),
        (postgres_url.replace("postgres@", f"nobody-here:{secret}@"), "does not exist"),
        (f"postgresql://me:{secret}@/ledger?host={tmp_path}", "See that the server runs"),
        (f"postgresql://me@/ledger?host={tmp_path}&password={secret}", "See that the server runs"),
        (f"mysql://me:{secret}@host/ledger", "a file or a PostgreSQL address"),
        (f"postgresql://me:{secret}@host:port/ledger", "cannot be read"),
        (f"postgresql://me:{secret}@host", "names no database"),
    ):
        with pytest.raises((WorkspaceError, UsageError), match=words) as refused:
            Ledger.open(address)
        assert secret not in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_copy_is_left_to_pg_dump(postgres_url, tmp_path):
    """The message has the line to type."""
    with Ledger.open(postgres_url) as ledger, pytest.raises(UsageError, match="pg_dump -Fc"):
        ledger.backup(tmp_path / "copy")


@pytest.mark.parametrize(
    "address",
    ["postgresql://me:secret@host:5432/db", "postgres://me@host/db?password=secret", "postgresql://me:s%40x@h/d"],
)
def test_a_password_is_never_shown_or_remembered(address):
    """S23: the form for people has none, an option with one is refused, the environment may bring it."""
    url = parse_url(address)
    assert has_password(url)
    plain = shown(url)
    assert "secret" not in plain
    assert "s%40x" not in plain
    assert not has_password(parse_url(plain))
    with pytest.raises(UsageError, match=f"{ENVIRONMENT}=postgresql://NAME:PASSWORD@") as refused:
        address_of(address, None, {})
    assert "secret" not in str(refused.value)
    assert address_of(None, plain, {ENVIRONMENT: address}) == address
    assert address_of(plain, None, {ENVIRONMENT: address}) == address
    with pytest.raises(UsageError, match="is meant") as refused:
        address_of(None, "postgresql://me@elsewhere/db", {ENVIRONMENT: address})
    assert "secret" not in str(refused.value)
    assert address_of(None, None, {}) is None
    assert address_of(None, "postgresql://me@host/db", {}) == "postgresql://me@host/db"


def test_a_path_is_no_address(tmp_path):
    """Whatever has no scheme is a file."""
    odd = Path(tmp_path) / "postgresql" / "ledger.sqlite"
    with Ledger.open(str(odd)) as ledger:
        assert ledger.dialect == "sqlite"
