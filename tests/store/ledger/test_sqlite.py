"""Where a ledger lies and who may write it: strange files, locks, backups, changes of the tables, filesystems."""

import contextlib
import fcntl
import hashlib
import os
import platform
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from sqlalchemy import CheckConstraint, inspect

from bpals.errors import LockHeld, WorkspaceError, install_line
from bpals.store.ledger import Ledger, old_sqlite, unfit
from bpals.store.ledger.backend import MIGRATIONS, Migration, version
from bpals.store.ledger.locks import only_writer
from bpals.store.ledger.schema import REVIEW_TABLES, TABLES
from bpals.store.ledger.sqlite import FileBackend, Place
from world.faulty_disk import Connection, Disk
from world.ledgers import CARD, QUESTIONS, asked, enrolled
from world.waiting import wait_until
from world.words import mentions

TESTS = Path(__file__).parents[2]
SURROUNDINGS = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])}


@pytest.fixture
def path(tmp_path):
    """A ledger with twenty films."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger, ledger.lock("the test"):
        judge, run = enrolled(ledger)
        ledger.write(judge, run, [asked(f"{n}.png") for n in range(20)])
    return path


NOBODY = 65534


def refusal(path, **options):
    """What `open` says of a file that it refuses; one line, and the file is as it was."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(WorkspaceError) as refused:
        Ledger.open(path, **options).close()
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    if before is not None:
        assert path.read_bytes() == before
    return str(refused.value)


@pytest.mark.parametrize("left", [0, 50, 100, 4096, 5000, 40_000, -1])
def test_a_cut_off_ledger_is_refused_and_left_alone(left, path):
    """R12: wherever it was cut, nothing is made anew in its place."""
    content = path.read_bytes()
    path.write_bytes(content[:left])
    assert "Put a backup in its place" in refusal(path)


def test_a_damaged_ledger_is_refused(path):
    """R12: a page that is not what it was shows when it is read, as one line."""
    content = bytearray(path.read_bytes())
    content[4096:8192] = os.urandom(4096)
    path.write_bytes(content)
    assert "damaged" in refusal(path)


def test_damage_that_nobody_has_read_yet_is_found_by_verify(path):
    """R12: the last page holds answers that opening does not look at."""
    content = bytearray(path.read_bytes())
    content[-4096:] = os.urandom(4096)
    path.write_bytes(content)
    with Ledger.open(path) as ledger:
        assert ledger.verify()


def test_what_is_not_a_ledger_is_never_written_over(tmp_path):
    """R12: a text, another program's database, a folder: each is named and left alone."""
    path = tmp_path / "ledger.sqlite"
    path.write_text("my notes, long enough to be a header of a hundred bytes " * 3)
    assert "is not a database" in refusal(path)
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE migration (number INTEGER)")
    other.commit()
    other.close()
    assert "bpals did not make" in refusal(path)
    path.unlink()
    path.mkdir()
    assert "is no file" in refusal(path)


def test_a_missing_ledger_is_only_made_when_asked(tmp_path):
    """R12: status, compare and a resume say that nobody was asked here, and make nothing."""
    path = tmp_path / "audit" / "ledger.sqlite"
    for options in ({"readonly": True}, {"must_exist": True}):
        assert "bpals judge run" in refusal(path, **options)
    assert not path.parent.exists()


def test_a_ledger_whose_log_is_left_is_not_made_anew(path):
    """R12: the file is deleted, its log is not: the log's answers are not thrown away."""
    log = Path(f"{path}-wal")
    with Ledger.open(path) as ledger:
        judge, run = enrolled(ledger)
        ledger.write(judge, run, [asked("new.png")])
        kept = log.read_bytes()
        assert kept
    path.unlink()
    log.write_bytes(kept)
    assert "Put the ledger back" in refusal(path)
    assert log.read_bytes() == kept


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: Path(shutil.copy(path, f"{path}.x")).replace(path)])
def test_a_ledger_that_vanishes_in_use_stops_the_run(harm, path):
    """R12: SQLite would go on writing into a file that has no name any more."""
    with Ledger.open(path) as ledger:
        judge, run = enrolled(ledger)
        harm(path)
        with pytest.raises(WorkspaceError, match="removed or replaced"):
            ledger.write(judge, run, [asked("new.png")])


def test_a_ledger_that_may_not_be_written_says_so(path):
    """R12: a read-only file is found out at the first write, and the message says what to do."""

    def connect():
        return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)

    with Ledger.open(path, connect=connect) as ledger, pytest.raises(WorkspaceError, match="right to write"):
        ledger.enrol(CARD, QUESTIONS, "nih")


def test_a_folder_that_may_not_be_written_says_so(tmp_path):
    """R20: without the right to write, one line; root may write everywhere, so it steps down for a moment."""
    tmp_path.chmod(0o500)
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(WorkspaceError, match="--workspace DIR"):
            Ledger.open(tmp_path / "audit" / "ledger.sqlite")
    finally:
        os.seteuid(was)


def test_a_newer_ledger_is_refused(path):
    """R12: tables of a later bpals are not guessed at."""
    latest = MIGRATIONS[-1].number
    with Ledger.open(path, known=(*MIGRATIONS, Migration(latest + 1, "a later one", lambda _: None))):
        pass
    assert mentions(refusal(path), "git pull", install_line())
    assert f"tables {latest + 1}" in refusal(path, readonly=True)


@pytest.fixture
def old_path(tmp_path):
    """A ledger with twenty films and the first tables, as it was before there was a reading room."""
    path = tmp_path / "old" / "ledger.sqlite"
    with Ledger.open(path, known=MIGRATIONS[:1]) as ledger, ledger.lock("the test"):
        judge, run = enrolled(ledger)
        ledger.write(judge, run, [asked(f"{n}.png") for n in range(20)])
    assert tables(path) == sorted(TABLES.tables)
    return path


def tables(path):
    """The names of a file's tables."""
    return [name for (name,) in sqlite_rows(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


ALL_TABLES = sorted([*TABLES.tables, *REVIEW_TABLES.tables])


@pytest.mark.parametrize("readonly", [False, True])
def test_an_older_ledger_is_backed_up_and_brought_up_to_date(old_path, readonly):
    """R12, R19: whoever opens it, the copy holds the old tables and opens by itself; the answers are in both."""
    with Ledger.open(old_path, readonly=readonly) as ledger:
        assert len(ledger.done(ledger.judge_id("stub"))) == 20
        assert ledger.verify() == []
    assert tables(old_path) == ALL_TABLES
    copy = Path(f"{old_path}.before-2")
    assert tables(copy) == sorted(TABLES.tables)
    with Ledger.open(copy) as ledger:
        assert len(ledger.done(ledger.judge_id("stub"))) == 20
        assert ledger.verify() == []


def test_a_reader_of_an_older_ledger_that_is_being_written_says_so(old_path):
    """R12: an older bpals that still runs is not disturbed; the message names it."""
    with (
        Ledger.open(old_path, known=MIGRATIONS[:1]) as ledger,
        ledger.lock("an old run"),
        pytest.raises(WorkspaceError, match=r"tables 1.* 2.*an old run .process"),
    ):
        Ledger.open(old_path, readonly=True)
    assert tables(old_path) == sorted(TABLES.tables)


def sqlite_rows(path, statement):
    """What a statement gives outside of bpals."""
    stored = sqlite3.connect(path)
    rows = stored.execute(statement).fetchall()
    stored.close()
    return rows


MIGRATING = textwrap.dedent(
    """
    import os, signal, sys
    from bpals.store.ledger import Ledger
    from bpals.store.ledger.backend import MIGRATIONS, Migration
    from bpals.store.ledger.schema import REVIEW_TABLES

    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    def change(connection):
        if sys.argv[2] == "between":
            for table in REVIEW_TABLES.sorted_tables[:5]:
                table.create(connection)
            kill()
        MIGRATIONS[1].make(connection)
        if sys.argv[2] == "before the commit":
            kill()

    Ledger.open(sys.argv[1], known=(MIGRATIONS[0], Migration(2, "the reading room", change)))
    kill()
    """
)


def test_a_killed_migration_leaves_the_old_or_the_new_tables(old_path, tmp_path):
    """R19: killed between two statements or before the commit the old tables stay, after it the new ones are there."""
    started = {}
    for moment in ("between", "before the commit", "after"):
        folder = tmp_path / moment
        folder.mkdir()
        shutil.copy(old_path, folder)
        line = [sys.executable, "-c", MIGRATING, str(folder / old_path.name), moment]
        started[moment] = subprocess.Popen(line, env=SURROUNDINGS, stderr=subprocess.PIPE, text=True)
    for moment, process in started.items():
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
        there = tmp_path / moment / old_path.name
        assert tables(Path(f"{there}.before-2")) == sorted(TABLES.tables)
        assert tables(there) == (ALL_TABLES if moment == "after" else sorted(TABLES.tables))
        with Ledger.open(there) as ledger:
            assert len(ledger.done(ledger.judge_id("stub"))) == 20
            assert ledger.verify() == []
        assert tables(there) == ALL_TABLES


def test_a_power_cut_during_the_migration_leaves_the_old_or_the_new_tables(old_path, tmp_path):
    """R19, R02: cut at any write, with torn sectors, the old tables or all of the new ones are there, and the films."""
    disk, randomness, taken = Disk("migrating"), random.Random(19), []  # noqa: S311

    def cut_now_and_then(_what, _file):
        if len(disk.operations) % 9 == 0:
            folder = tmp_path / str(len(taken))
            folder.mkdir()
            disk.cut(folder, randomness)
            taken.append(folder / old_path.name)

    with Ledger.open(old_path, connect=lambda: Connection(old_path, disk), known=MIGRATIONS[:1]):
        disk.before = cut_now_and_then
        with Ledger.open(old_path, connect=lambda: Connection(old_path, disk)):
            disk.before = None
    disk.unregister()
    assert len(taken) > 10
    found = [tables(path) for path in taken]
    assert {tuple(names) for names in found} == {tuple(sorted(TABLES.tables)), tuple(ALL_TABLES)}
    for path in taken:
        with Ledger.open(path) as ledger:
            assert len(ledger.done(ledger.judge_id("stub"))) == 20
            assert ledger.verify() == []
        assert tables(path) == ALL_TABLES


CREATING = textwrap.dedent(
    """
    import os, signal, sys
    from world.faulty_disk import Connection, Disk
    from bpals.store.ledger import Ledger

    disk, left = Disk("creating"), int(sys.argv[2])

    def kill(*_):
        if len(disk.operations) == left:
            os.kill(os.getpid(), signal.SIGKILL)

    disk.before = kill
    Ledger.open(sys.argv[1], connect=lambda: Connection(sys.argv[1], disk))
    """
)


def test_a_ledger_that_was_killed_at_its_birth_is_made_whole(tmp_path):
    """R01: killed while it is made, the next run goes on by itself; without a sign of ours an empty file is refused."""
    started = {}
    for left in (0, 4, 6, 9, 30):
        line = [sys.executable, "-c", CREATING, str(tmp_path / str(left) / "ledger.sqlite"), str(left)]
        (tmp_path / str(left)).mkdir()
        started[left] = subprocess.Popen(line, env=SURROUNDINGS, stderr=subprocess.PIPE, text=True)
    for left, process in started.items():
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
        path = tmp_path / str(left) / "ledger.sqlite"
        assert Path(f"{path}-birth").exists()
        with Ledger.open(path) as ledger, ledger.lock("the test"):
            enrolled(ledger)
            assert ledger.verify() == []
        assert not Path(f"{path}-birth").exists()


HOLDING = textwrap.dedent(
    """
    import sys
    from bpals.store.ledger import Ledger

    with Ledger.open(sys.argv[1]) as ledger, ledger.lock("bpals judge run openai:m"):
        print("held", flush=True)
        sys.stdin.read()
    """
)


def test_a_second_writer_is_refused_and_told_who_the_first_is(path):
    """R11, R23: the refusal names process and host; a lock whose process was killed is no obstacle."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(path)], env=SURROUNDINGS, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        with Ledger.open(path) as ledger:
            with pytest.raises(WorkspaceError, match="bpals judge run openai:m") as refused, ledger.lock("a second"):
                pass
            assert f"process {holder.pid} on {platform.node()}" in str(refused.value)
            holder.kill()
            holder.wait()
            with ledger.lock("a second"):
                pass


def test_a_second_writer_in_this_process_is_refused(path):
    """R11: two threads of a notebook are two writers too; and a lock that was left can be taken again."""
    with Ledger.open(path) as first, Ledger.open(path) as second:
        taken = pytest.raises(WorkspaceError, match=f"one .process {os.getpid()} ")
        with first.lock("one"), taken, second.lock("two"):
            pass
        with second.lock("two"):
            pass


def test_a_backup_during_a_run_is_whole_and_can_be_gone_on_from(path, tmp_path):
    """R18: made by a reader while films are written, it is one moment of the ledger, and the run resumes on it."""
    copy = tmp_path / "elsewhere" / "ledger.sqlite"
    copy.parent.mkdir()
    with Ledger.open(path) as ledger, Ledger.open(path, readonly=True) as reader:
        judge, run = enrolled(ledger)
        before = set(ledger.done(judge))
        ready, stop = threading.Event(), threading.Event()

        def write_on():
            for n in range(2000):
                ledger.write(judge, run, [asked(f"during {n}.png")])
                ready.set()
                if stop.is_set():
                    return

        writer = threading.Thread(target=write_on)
        writer.start()
        ready.wait()
        reader.backup(copy)
        stop.set()
        writer.join()
        after = set(ledger.done(judge))
    with Ledger.open(copy) as restored, restored.lock("the test"):
        assert restored.verify() == []
        assert before < set(restored.done(judge)) <= after
        restored.write(judge, run, [asked(name) for name in after])
        assert set(restored.done(judge)) == after
    with Ledger.open(path) as ledger, pytest.raises(WorkspaceError, match="not overwritten"):
        ledger.backup(copy)
    assert sorted(file.name for file in copy.parent.iterdir() if "part" in file.name) == []


MOUNTS = textwrap.dedent(
    """\
    /dev/sda1 / ext4 rw,relatime 0 0
    server:/people /people nfs4 rw,vers=4.2 0 0
    tmpfs /people/scratch tmpfs rw 0 0
    //nas/share /mnt/my\\040share cifs rw 0 0
    /dev/sdb1 /media/stick exfat rw 0 0
    /dev/sr0 /media/disc iso9660 ro,relatime 0 0
    me@host: /mnt/far fuse.sshfs rw 0 0
    C:\\134 /mnt/c 9p rw 0 0
    broken line
    """
)


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("/people/audit", "network filesystem (nfs4)"),
        ("/mnt/my share/audit", "network filesystem (cifs)"),
        ("/mnt/far", "fuse.sshfs"),
        ("/mnt/c/Users/me", "9p"),
        ("/media/stick/audit", "exfat"),
        ("/media/disc", "read-only"),
    ],
)
def test_a_ledger_may_not_lie_on_a_filesystem_that_could_damage_it(folder, words):
    """R20: network and removable filesystems are named, and the advice is another folder."""
    why = unfit(Path(folder), MOUNTS)
    assert words in why
    assert "--workspace DIR" in why


@pytest.mark.parametrize("folder", ["/srv/audit", "/people/scratch/audit", "/peoples", "/mnt"])
def test_a_local_disk_is_fit(folder):
    """R20: the innermost mount counts, and names are compared whole."""
    assert unfit(Path(folder), MOUNTS) is None


def test_nothing_is_said_where_mounts_are_unknown():
    """Only Linux has /proc/mounts."""
    assert unfit(Path("/srv"), "") is None


@pytest.mark.parametrize("version", [(3, 7, 0), (3, 40, 1), (3, 51, 2)])
def test_an_old_sqlite_is_noticed(version):
    """R23: below 3.51.3 doctor says what to mind."""
    assert "3.51.3" in old_sqlite(version)


@pytest.mark.parametrize("version", [(3, 51, 3), (3, 54, 1), (4, 0, 0)])
def test_a_sound_sqlite_is_not(version):
    """R23: from 3.51.3 on there is nothing to say."""
    assert old_sqlite(version) is None


FROZEN = {1: "145e0c233debcc95", 2: "64865da9c6409d64"}


@pytest.mark.parametrize("number", FROZEN)
def test_released_tables_are_frozen(number, tmp_path):
    """What a migration makes is what every ledger out there has: a change is a new number, and this hash stays."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, known=MIGRATIONS[:number]):
        pass
    made = sqlite_rows(path, "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    text = "\n".join(" ".join(sql.split()) for (sql,) in made)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == FROZEN[number], text


def test_the_tables_are_the_same_on_postgresql(postgres_url):
    """X06: the same tables and columns, and none of them may be empty where the file's may not."""
    with Ledger.open(postgres_url) as ledger, ledger.reading() as connection:
        made = inspect(connection)
        for table in [*TABLES.sorted_tables, *REVIEW_TABLES.sorted_tables]:
            found = {column["name"]: column["nullable"] for column in made.get_columns(table.name)}
            assert found == {column.name: column.nullable for column in table.columns}
            assert len(made.get_check_constraints(table.name)) == sum(
                isinstance(constraint, CheckConstraint) for constraint in table.constraints
            )


def test_two_that_find_a_new_ledger_at_one_moment_both_get_it(tmp_path):
    """One makes the tables, the other waits for them: neither is told that somebody is writing."""
    path, told = tmp_path / "ledger.sqlite", []
    Place(path).announce()
    path.touch()

    def look(readonly):
        with Ledger.open(path, readonly=readonly) as ledger:
            told.append(ledger.cards())

    together = [threading.Thread(target=look, args=(readonly,)) for readonly in (False, True, False, True)]
    for each in together:
        each.start()
    for each in together:
        each.join(30)
    assert told == [[], [], [], []]


def test_who_waited_for_the_tables_is_not_refused_by_the_run_that_follows(tmp_path):
    """Between a refusal and a look at the lock, the first may have made the tables and begun its run."""
    path = tmp_path / "ledger.sqlite"
    with contextlib.ExitStack() as first:

        class Late(FileBackend):
            """Refused by one that makes the tables, and holds the lock for its run a moment later."""

            def _bring_up_now(self, known):  # noqa: ARG002  as its parent has it
                first.enter_context(first.enter_context(Ledger.open(path)).lock("judge run"))
                raise LockHeld("the tables are being made")

        with contextlib.closing(Late.open(path, None, readonly=False, must_exist=False)) as second:
            second.bring_up(MIGRATIONS, readonly=False)
            assert second.look(version) == MIGRATIONS[-1].number


def test_a_new_ledger_is_known_as_ours_while_a_reader_holds_its_log(tmp_path):
    """What the header says is still in the log then: the mark beside the file stays until it is not."""
    path = tmp_path / "ledger.sqlite"
    with contextlib.closing(FileBackend.open(path, None, readonly=False, must_exist=False)) as first:
        reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        making = threading.Thread(target=first.bring_up, args=(MIGRATIONS,), kwargs={"readonly": False})
        making.start()
        wait_until(lambda: first.look(version) == MIGRATIONS[-1].number)
        for _ in range(20):
            assert Place(path).check(must_exist=True)
            making.join(0.01)
        assert making.is_alive()
        reader.execute("COMMIT")
        reader.close()
        making.join()
    assert not Place(path).birth.exists()
    assert Place(path).is_ours()


def test_a_look_at_a_lock_does_not_turn_away_the_writer_that_comes_just_then(tmp_path):
    """Whoever looks whether a lock is held holds it for a moment, without a name: a writer waits for that."""
    path, inside = tmp_path / "ledger.lock", threading.Event()
    path.touch()

    def write():
        with only_writer(path, "judge run"):
            inside.set()

    with path.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        writer = threading.Thread(target=write)
        writer.start()
        assert not inside.wait(0.2)
    assert inside.wait(30)
    writer.join()
