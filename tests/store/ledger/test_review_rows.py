"""Reviews on a disk that fails: what a reader was told is kept, no read is halved, and the log holds together."""

import contextlib
import errno
import functools
import itertools
import random
import shutil
from pathlib import Path

import polars as pl
import pytest

from bpals.errors import WorkspaceError
from bpals.room.desk.desk import Desk
from bpals.room.desk.study import Account
from bpals.store.ledger import Ledger, log
from world import desks
from world.faulty_disk import Connection, Disk

NUMBERS = itertools.count()
CASES = 4
STUDY = desks.make_study(reveal=True, readers_per_case=2, adjudication="none")
READERS = [Account(account_id=number, name=name, role="reader") for number, name in enumerate(("ann", "ben"), start=1)]
READS = CASES * len(READERS)


@pytest.fixture(scope="module")
def opened_room(tmp_path_factory):
    """A ledger with a study, its readers and its films, before anybody has read."""
    path = tmp_path_factory.mktemp("room") / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        desk = Desk.open(ledger, STUDY)
        assert desks.enter(ledger, *(reader.name for reader in READERS)) == READERS
        desk.draw(desks.films(CASES), desks.SIGNAL)
    return path


@pytest.fixture
def new_disk():
    """Make disks, and take them away at the end."""
    made = []

    def make():
        made.append(Disk(f"reviews{next(NUMBERS)}"))
        return made[-1]

    yield make
    for disk in made:
        disk.unregister()


def read_on(path, connect=None, told=None):
    """Read what is still to be read, blind and again after the reveal; what was answered is noted in `told`.

    A request that was not answered is sent again under its own key, as a browser does.
    """
    noted = set() if told is None else told
    with Ledger.open(path, connect=connect) as ledger, ledger.lock("the test"):
        desk = Desk.open(ledger, STUDY)
        for account in READERS:
            while (view := desk.next(account, ahead=0).current) is not None:
                words = {"answer": desks.says("Mass"), "spent": desks.SPENT}
                version = view.version
                if view.state == "leased":
                    key = f"{view.reading_id} blind"
                    version = desk.lock(account, view.reading_id, version=version, key=key, **words).version
                    noted.add((view.reading_id, "blind"))
                key = f"{view.reading_id} second"
                desk.second(account, view.reading_id, version=version, key=key, signal=desks.SIGNAL, **words)
                noted.add((view.reading_id, "second"))


def reads(path, connect=None):
    """What was said, by reading and phase, after a check that every read is whole and the log is."""
    with Ledger.open(path, connect=connect) as ledger, ledger.lock("the test"):
        assert ledger.verify() == []
        assert log.check(ledger).found == []
        table = Desk.open(ledger, STUDY).reviews()
    found = table.group_by("reading_id", "phase").agg(
        pl.len().alias("n"), pl.col("finding").n_unique().alias("findings")
    )
    assert set(found["n"]) <= {len(STUDY.findings)}
    assert set(found["findings"]) <= {len(STUDY.findings)}
    return {(row["reading_id"], row["phase"]) for row in found.to_dicts()}


def complete(path, connect=None):
    """Whether every case was read by both readers, blind and again, once."""
    phases = [phase for _, phase in reads(path, connect)]
    return phases.count("blind") == phases.count("second") == READS


def error_of(function, *given):
    """What a function raises of its own; nothing if it does not."""
    try:
        function(*given)
    except (WorkspaceError, OSError) as error:
        return error
    return None


def copy_of(room, folder):
    """The opened room in a folder of its own."""
    folder.mkdir()
    return Path(shutil.copy(room, folder))


@pytest.mark.parametrize("cuts", [12, pytest.param(300, marks=pytest.mark.sweep)])
def test_r02_a_power_cut_loses_no_review_that_was_acknowledged(cuts, new_disk, opened_room, tmp_path):
    """R02: at random moments, with torn and reordered writes, no read is lost or halved, and the log verifies."""
    randomness, taken, told = random.Random(cuts), [], set()  # noqa: S311
    path = copy_of(opened_room, tmp_path / "rehearsal")
    rehearsal = new_disk()
    read_on(path, lambda: Connection(path, rehearsal))
    moments = range(1, len(rehearsal.operations))
    left = {moment: 1 + cuts // len(moments) for moment in moments} if cuts > len(moments) else dict.fromkeys(
        randomness.sample(moments, cuts), 1
    )  # fmt: skip
    disk, real = new_disk(), copy_of(opened_room, tmp_path / "cut")

    def cut_now_and_then(_what, _file):
        for _ in range(left.pop(len(disk.operations), 0)):
            folder = tmp_path / str(len(taken))
            folder.mkdir()
            disk.cut(folder, randomness)
            taken.append((folder / real.name, set(told)))

    disk.before = cut_now_and_then
    read_on(real, lambda: Connection(real, disk), told)
    assert len(taken) >= cuts
    assert sum(bool(promised) for _, promised in taken) > cuts / 2
    for after, promised in taken:
        assert promised <= reads(after)
        read_on(after)
        assert complete(after)
        shutil.rmtree(after.parent)


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("stride", [71, pytest.param(1, marks=pytest.mark.sweep)])
def test_r07_a_failing_write_is_told_and_the_next_day_completes(kind, stride, new_disk, opened_room, tmp_path):
    """R07: whichever write or sync fails, the reader is told; opened again, each read is there once."""
    path = copy_of(opened_room, tmp_path / "rehearsal")
    rehearsal = new_disk()
    read_on(path, lambda: Connection(path, rehearsal))
    operations = sum(what != "delete" for what, _ in rehearsal.operations)
    assert operations > 50
    stopped = 0
    for count in range(1, operations + 1, stride):
        path, disk, told = copy_of(opened_room, tmp_path / f"{count}"), new_disk(), set()
        disk.fail_at(count, kind)
        connect = functools.partial(Connection, path, disk)
        error = error_of(read_on, path, connect, told)
        stopped += error is not None
        if kind == "ENOSPC" and error is not None:
            assert error.errno == errno.ENOSPC
        disk.failing = None
        assert told <= reads(path, connect)
        read_on(path, connect)
        assert complete(path, connect)
        shutil.rmtree(path.parent)
    # The very last writes empty the log when it is closed: then nobody is left to be told.
    assert stopped > 0.8 * len(range(1, operations + 1, stride))


def test_r08_after_a_failed_sync_no_review_is_acknowledged(new_disk, opened_room, tmp_path):
    """R08: the lock is refused, so is every call after it, and opened again the read is there once or not at all."""
    path, disk = copy_of(opened_room, tmp_path / "room"), new_disk()
    with contextlib.ExitStack() as closing:
        ledger = closing.enter_context(Ledger.open(path, connect=lambda: Connection(path, disk)))
        closing.enter_context(ledger.lock("the test"))
        desk = Desk.open(ledger, STUDY)
        view = desk.next(READERS[0]).current
        disk.fail_at(1, "EIO", only="sync")
        with pytest.raises(WorkspaceError, match="nothing more is written"):
            desks.lock(desk, READERS[0], view)
        with pytest.raises(WorkspaceError, match="nothing more is written"):
            desk.reading(READERS[0], view.reading_id)
    read_on(path)
    assert complete(path)
