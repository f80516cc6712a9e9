"""The ledger on a disk that fails: power cuts, failing writes and syncs, kills while the log is emptied."""

import dataclasses
import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bpals.errors import WorkspaceError
from bpals.store.ledger import Ledger
from world.faulty_disk import Connection, Disk
from world.ledgers import CARD, QUESTIONS, asked, failed

TESTS = Path(__file__).parent
NUMBERS = itertools.count()
FILMS = [asked(f"{n:03d}.png", logit=float(n)) if n % 5 else failed(f"{n:03d}.png") for n in range(60)]


@pytest.fixture
def new_disk():
    """Make disks, and take them away at the end."""
    made = []

    def make():
        made.append(Disk(f"faulty{next(NUMBERS)}"))
        return made[-1]

    yield make
    for disk in made:
        disk.unregister()


def work(path, connect, films=FILMS, size=3, acknowledged=None):
    """A run over some films: those that are done are left out, the log is emptied often; ids are noted once durable."""
    with Ledger.open(path, connect=connect) as ledger, ledger.lock("the test"):
        judge = ledger.enrol(CARD, QUESTIONS, "nih")
        run = ledger.begin(judge, {}, {})
        done = ledger.done(judge)
        todo = [film for film in films if film.image_id not in done]
        for start in range(0, len(todo), size):
            batch = todo[start : start + size]
            ledger.write(judge, run, batch)
            if acknowledged is not None:
                acknowledged.update(film.image_id for film in batch)
            if start % 4 == 0:
                ledger._link.checkpoint()
        ledger.end(run, "done", {})


def contents(path, connect=None):
    """Everything that a ledger says of the test's judge, after a check that it adds up."""
    with Ledger.open(path, connect=connect) as ledger, ledger.lock("the test"):
        assert ledger.verify() == []
        judge = ledger.judge_id("stub")
        counts = ledger.counts(judge)
        del counts["latest"]
        return ledger.replies(judge).rows(), counts, ledger.done(judge)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What an untroubled run leaves."""
    path = tmp_path_factory.mktemp("untroubled") / "ledger.sqlite"
    work(path, None)
    return contents(path)


@pytest.mark.parametrize("cuts", [30, pytest.param(300, marks=pytest.mark.sweep)])
def test_a_power_cut_loses_nothing_that_was_acknowledged(cuts, new_disk, tmp_path, expected):
    """R02: at random moments, with torn and reordered writes, no acknowledged film is lost, halved or damaged."""
    randomness = random.Random(cuts)  # noqa: S311
    rehearsal = new_disk()
    work(
        tmp_path / "rehearsal" / "ledger.sqlite",
        lambda: Connection(tmp_path / "rehearsal" / "ledger.sqlite", rehearsal),
    )
    moments = set(randomness.sample(range(1, len(rehearsal.operations)), cuts))
    path = tmp_path / "cut" / "ledger.sqlite"
    disk, acknowledged, taken = new_disk(), set(), []

    def cut_now_and_then(_what, _file):
        if len(disk.operations) in moments:
            folder = tmp_path / str(len(taken))
            folder.mkdir()
            disk.cut(folder, randomness)
            if (birth := Path(f"{path}-birth")).exists():
                (folder / birth.name).touch()
            taken.append((folder, set(acknowledged)))

    disk.before = cut_now_and_then
    work(path, lambda: Connection(path, disk), acknowledged=acknowledged)
    assert len(taken) == cuts
    assert sum(bool(promised) for _, promised in taken) > cuts / 2
    for folder, promised in taken:
        after = folder / "ledger.sqlite"
        if promised:
            _, _, done = contents(after)
            assert promised <= set(done)
        work(after, None)
        assert contents(after) == expected


def test_the_power_cut_can_lose_something(new_disk, tmp_path):
    """The test above is not blind: with SQLite's NORMAL sync the same cuts lose acknowledged films."""
    path = tmp_path / "ledger.sqlite"
    disk, acknowledged, lost = new_disk(), set(), []
    randomness = random.Random(5)  # noqa: S311

    def cut_now_and_then(_what, _file):
        if acknowledged and randomness.random() < 0.05:
            folder = tmp_path / str(len(lost))
            folder.mkdir()
            disk.cut(folder, randomness)
            with Ledger.open(folder / "ledger.sqlite") as after:
                lost.append(acknowledged - set(after.done(after.judge_id("stub"))))

    disk.before = cut_now_and_then
    with Ledger.open(path, connect=lambda: Connection(path, disk)) as ledger:
        judge = ledger.enrol(CARD, QUESTIONS, "nih")
        run = ledger.begin(judge, {}, {})
        ledger._link.checkpoint()
        with ledger._link.bare() as connection:
            connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
        for film in FILMS[:20]:
            ledger.write(judge, run, [film])
            acknowledged.add(film.image_id)
    assert any(lost)


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.sweep)])
def test_every_failing_write_or_sync_is_told_and_the_next_run_completes(kind, stride, new_disk, tmp_path, expected):
    """R07: whichever write or sync fails, the run stops with one clear error; the same run again completes."""
    rehearsal = new_disk()
    first = tmp_path / "rehearsal" / "ledger.sqlite"
    with Ledger.open(first, connect=lambda: Connection(first, rehearsal)) as ledger:
        fill(ledger)
        operations = sum(what != "delete" for what, _ in rehearsal.operations)
    assert operations > 50
    for count in range(1, operations + 1, stride):
        path = tmp_path / f"{count}" / "ledger.sqlite"
        disk = new_disk()
        disk.fail_at(count, kind)
        with pytest.raises((WorkspaceError, OSError)) as stopped, \
                Ledger.open(path, connect=lambda path=path, disk=disk: Connection(path, disk)) as ledger:  # fmt: skip
            fill(ledger)
        if kind == "ENOSPC":
            assert isinstance(stopped.value, OSError), f"operation {count}: {stopped.value}"
            assert stopped.value.errno == errno.ENOSPC
            assert stopped.value.filename == str(path)
        else:
            assert "could not be read or written" in str(stopped.value), f"operation {count}: {stopped.value}"
        disk.failing = None
        work(path, lambda path=path, disk=disk: Connection(path, disk))
        assert contents(path, lambda path=path, disk=disk: Connection(path, disk)) == expected, f"operation {count}"


def fill(ledger):
    """A short run: a few films, the log emptied twice."""
    with ledger.lock("the test"):
        judge = ledger.enrol(CARD, QUESTIONS, "nih")
        run = ledger.begin(judge, {}, {})
        for start in range(0, 12, 3):
            ledger.write(judge, run, FILMS[start : start + 3])
            if start % 2:
                ledger._link.checkpoint()


def test_after_a_failed_sync_nothing_more_is_tried(new_disk, tmp_path, expected):
    """R08: the film is not acknowledged, the next write does not touch the disk, and the next writer verifies first."""
    path = tmp_path / "ledger.sqlite"
    disk = new_disk()
    with Ledger.open(path, connect=lambda: Connection(path, disk)) as ledger, ledger.lock("the test"):
        judge = ledger.enrol(CARD, QUESTIONS, "nih")
        run = ledger.begin(judge, {}, {})
        ledger.write(judge, run, FILMS[:3])
        disk.fail_at(1, "EIO", only="sync")
        with pytest.raises(WorkspaceError, match="SQLITE_IOERR_FSYNC"):
            ledger.write(judge, run, FILMS[3:6])
        before = len(disk.operations)
        for attempt in (lambda: ledger.write(judge, run, FILMS[3:6]), lambda: ledger.done(judge)):
            with pytest.raises(WorkspaceError, match="nothing more is written"):
                attempt()
        assert len(disk.operations) == before
    doubt = Path(f"{path}-doubt")
    assert doubt.exists()
    work(path, lambda: Connection(path, disk))
    assert not doubt.exists()
    assert contents(path, lambda: Connection(path, disk)) == expected


def test_a_doubted_ledger_that_does_not_add_up_is_refused(tmp_path):
    """R08: the verification after an error of the disk is a real one."""
    path = tmp_path / "ledger.sqlite"
    work(path, None)
    with Ledger.open(path) as ledger, ledger._link.writing() as connection:
        connection.exec_driver_sql("DELETE FROM reply WHERE film_id = 1 AND number = 0")
    Path(f"{path}-doubt").touch()
    with (
        Ledger.open(path) as ledger,
        pytest.raises(WorkspaceError, match=r"damaged: film '000\.png'"),
        ledger.lock("x"),
    ):
        pass


def test_a_failed_emptying_of_the_log_is_told(new_disk, tmp_path):
    """R08: SQLite's own checkpoints keep an error to themselves; ours stops the run."""
    path = tmp_path / "ledger.sqlite"
    disk = new_disk()
    long = [dataclasses.replace(reply, text=os.urandom(4000).hex()) for reply in FILMS[1].replies]
    failing = []

    def fail_in_the_file(what, file):
        if what == "sync" and file == path.name and not failing:
            failing.append(what)
            disk.fail_at(1, "EIO")

    with Ledger.open(path, connect=lambda: Connection(path, disk)) as ledger:
        judge = ledger.enrol(CARD, QUESTIONS, "nih")
        run = ledger.begin(judge, {}, {})
        disk.before = fail_in_the_file
        with pytest.raises(WorkspaceError, match="could not be read or written"):
            for n in range(1000):
                ledger.write(judge, run, [dataclasses.replace(FILMS[1], image_id=f"{n}.png", replies=long)])
        assert failing


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from world.faulty_disk import Connection, Disk
    from test_ledger_faults import work

    path, left = Path(sys.argv[1]), int(sys.argv[2])
    disk = Disk("killing")

    class Told(set):
        def update(self, names):
            for name in names:
                print(name, flush=True)

    def kill(what, file):
        global left
        if what == "write" and file == path.name:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    disk.before = kill
    work(path, lambda: Connection(path, disk), acknowledged=Told())
    """
)


def test_a_kill_while_the_log_is_emptied_loses_nothing(tmp_path, expected):
    """R05: killed at a write of the checkpoint into the file, the ledger opens and holds all that was acknowledged."""
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])}
    started = {}
    for at in (75, 92, 105):
        line = [sys.executable, "-c", KILLED, str(tmp_path / str(at) / "ledger.sqlite"), str(at)]
        started[at] = subprocess.Popen(
            line, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    for at, process in started.items():
        told, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
        path = tmp_path / str(at) / "ledger.sqlite"
        assert Path(f"{path}-wal").stat().st_size
        _, _, done = contents(path)
        assert told.split()
        assert set(told.split()) <= set(done)
        work(path, None)
        assert contents(path) == expected
