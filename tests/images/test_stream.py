"""Films come prepared one after another; no film, and no worker that dies, stops the reading."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import shape
from bpals.images.collection import open_index
from bpals.images.prepare import Preparation
from bpals.images.stream import Reading, prepared
from bpals.types import Film, Refusal
from world.waiting import wait_until

SMALL = Preparation(side_px=64)


@pytest.fixture
def index(tmp_path, film):
    """Twelve films, of which one is cut, one is empty and one stands under two names."""
    folder = tmp_path / "films"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.png").write_bytes(film(number))
    (folder / "03.png").write_bytes(film(3)[:900])
    (folder / "05.png").write_bytes(b"")
    (folder / "07.png").write_bytes(film(6))
    return open_index(folder, [f"{number:02}.png" for number in range(13)])


def gone(pid):
    """Say whether a process has ended, waiting a little for it."""

    def ended():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    return wait_until(ended, 10)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_film_comes_once_in_order_with_its_outcome(index, workers):
    """F01, F07: a film or a reason; with workers or without, the same."""
    ids = [*index.found, *index.missing]
    with prepared(index, ids, SMALL, workers=workers) as reading:
        got = list(reading)
    assert [image_id for image_id, _ in got] == index.order(ids)
    refused = {image_id: made.code for image_id, made in got if isinstance(made, Refusal)}
    assert refused == {"03.png": "truncated", "05.png": "not_an_image", "12.png": "missing"}
    assert all(isinstance(made, Film) and made.width_px == 64 for image_id, made in got if image_id not in refused)
    assert reading.refused == {"truncated": 1, "not_an_image": 1, "missing": 1}


def test_workers_make_the_same_films_as_this_process(index):
    """Byte for byte."""
    assert list(prepared(index, index.found, SMALL, workers=2)) == list(prepared(index, index.found, SMALL, workers=0))


def test_the_same_bytes_under_two_ids_are_counted(index):
    """F21: both are judged, and it is said."""
    reading = prepared(index, index.found, SMALL, workers=0)
    films = {image_id: made for image_id, made in reading if isinstance(made, Film)}
    assert films["06.png"] == films["07.png"]
    (notice,) = reading.notices
    assert (notice.code, notice.count) == ("same_film", 1)
    assert "07.png as 06.png" in notice.message


def test_what_films_were_is_counted_and_kept(tmp_path, draw, save, film):
    """16-bit and plain films, through workers."""
    (tmp_path / "a.png").write_bytes(save(draw().astype(np.uint16) * 9))
    (tmp_path / "b.png").write_bytes(film())
    index = open_index(tmp_path, ["a.png", "b.png"])
    with prepared(index, index.found, SMALL, workers=1) as reading:
        list(reading)
    assert reading.notes == Counter(deep=1)
    assert reading.notes_of == {"a.png": ("deep",)}


def test_nothing_starts_before_the_first_film_is_wanted_and_all_ends_with_the_last(index):
    """It is cheap to make a reading; a reading that is over holds no process."""
    reading = prepared(index, index.found, SMALL, workers=2)
    assert reading.pids == []
    next(reading)
    pids = reading.pids
    assert len(pids) == 2
    assert len(list(reading)) == 11
    assert reading.pids == []
    assert all(gone(pid) for pid in pids)


def test_closing_a_reading_early_ends_its_workers(index):
    """Ctrl-C closes it; nothing is left behind, and nothing more comes."""
    reading = prepared(index, index.found, SMALL, workers=2)
    next(reading)
    pids = reading.pids
    reading.close()
    assert all(gone(pid) for pid in pids)
    assert list(reading) == []
    reading.close()


def test_films_are_read_only_a_little_ahead(index):
    """Memory holds two films a worker, however many there are."""
    reading = prepared(index, index.found, SMALL, workers=2)
    next(reading)
    assert len(reading._slots) <= 4
    reading.close()


def test_a_worker_that_is_killed_is_replaced_and_its_film_is_not_lost(index):
    """R09: as the system does when memory runs out."""
    reading = prepared(index, index.found, SMALL, workers=2)
    got = [next(reading)]
    for pid in reading.pids:
        os.kill(pid, signal.SIGKILL)
    got += list(reading)
    assert got == list(prepared(index, index.found, SMALL, workers=0))


def test_a_film_that_needs_too_much_memory_is_poison_after_three_workers(tmp_path, film, black_png):
    """R09: under a limit of 40 MB, 36 million pixels end each worker; their neighbours are prepared."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not limit the memory of a process")
    (tmp_path / "a.png").write_bytes(film(1))
    (tmp_path / "b.png").write_bytes(black_png(6000, 6000))
    for name in "cdef":
        (tmp_path / f"{name}.png").write_bytes(film(2))
    index = open_index(tmp_path, [f"{name}.png" for name in "abcdef"])
    with Reading(index, index.found, SMALL, workers=2, memory_bytes=40 << 20) as reading:
        got = {image_id: made.code if isinstance(made, Refusal) else "film" for image_id, made in reading}
    assert got == {"b.png": "poison"} | {f"{name}.png": "film" for name in "acdef"}
    assert dict(prepared(index, ["b.png"], SMALL, workers=1))["b.png"].code == "blank"


def test_workers_end_when_the_run_is_killed(tmp_path, film):
    """R01: kill -9 of the run leaves no process behind."""
    (tmp_path / "a.png").write_bytes(film())
    script = textwrap.dedent(
        """
        import sys, time
        from bpals.images.prepare import Preparation
        from bpals.images.stream import prepared
        from bpals.images.collection import open_index
        index = open_index(sys.argv[1])
        reading = prepared(index, [*index.found] * 50, Preparation(), workers=2)
        next(reading)
        print(*reading.pids, flush=True)
        time.sleep(60)  # to be killed
        """
    )
    environment = os.environ | {"PYTHONPATH": str(shape.SRC)}
    line = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_script_without_a_main_guard_works(tmp_path, film):
    """A worker does not run the script of whoever calls us again."""
    (tmp_path / "a.png").write_bytes(film())
    script = tmp_path / "script.py"
    script.write_text(
        "from bpals.images.prepare import Preparation\n"
        "from bpals.images.stream import prepared\n"
        "from bpals.images.collection import open_index\n"
        "index = open_index('.')\n"
        "print(len(list(prepared(index, index.found, Preparation()))))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(shape.SRC)}
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_reading_takes_no_more_memory_for_more_films(tmp_path, film):
    """600 films of 200 kB pass through the process, which does not grow by 50 MB."""
    content = film(1, width=500, height=500)
    (tmp_path / "a.png").write_bytes(content)
    index = open_index(tmp_path, ["a.png"])
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("this system does not say how much memory a process has")
    with prepared(index, ["a.png"] * 600, SMALL, workers=2) as reading:
        next(reading)
        before = int(status.read_text().split()[1])
        assert sum(1 for _ in reading) == 599
    assert (int(status.read_text().split()[1]) - before) * os.sysconf("SC_PAGESIZE") < 50 << 20


def test_the_real_films_are_prepared(data_folder):
    """NIH's 30 originals at 512 px, one of which is RGBA, and 100 of the 256 px copies, which are not enlarged."""
    index = open_index(data_folder / "images" / "originals")
    with prepared(index, index.found, Preparation(), workers=2) as reading:
        films = [made for _, made in reading]
    assert {(made.width_px, made.height_px) for made in films} == {(512, 512)}
    assert reading.notes == Counter(alpha=1)
    small = open_index(data_folder / "images" / "nih_256_000.tar")
    with prepared(small, small.found[:100], Preparation(), workers=2) as reading:
        films = [made for _, made in reading]
    assert {max(made.width_px, made.height_px) for made in films} == {256}
    assert not reading.refused
