"""Features are kept in sealed blocks that are whole or do not count, and read a piece at a time."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import numpy as np
import pytest

import shape
from bpals.errors import JudgeError, LockHeld, WorkspaceError
from bpals.store.features import BLOCK, FeatureCache
from bpals.types import Refusal

WIDTH = 8
CUT = Refusal(code="truncated", message="the PNG ends early")


@dataclass(frozen=True)
class Film:
    """A film that was looked at."""

    number: int
    width_px: int = 100
    height_px: int = 90
    notes: tuple[str, ...] = ("deep",)

    @property
    def image_id(self):
        """Its name."""
        return f"{self.number:05}.png"

    @property
    def sha256(self):
        """Its hash."""
        return f"{self.number:064x}"

    @property
    def features(self):
        """Numbers that tell it from others."""
        return np.arange(WIDTH, dtype=np.float32) + self.number / 4

    @property
    def thumbnail(self):
        """A grey square."""
        return np.full((32, 32), self.number % 256, np.uint8)


@pytest.fixture
def cache(tmp_path):
    """A cache that holds nothing yet."""
    return FeatureCache(tmp_path, "tiny", "ab" * 32, WIDTH)


def put(cache, numbers):
    """Keep films as one block."""
    with cache.writing() as writer:
        for number in numbers:
            writer.put(Film(number))


def read(cache, numbers):
    """Read the features of films, in this order."""
    features = cache.features([Film(number).image_id for number in numbers])
    return features.image_ids, features.rows(0, len(numbers))


def test_what_was_seen_comes_back_in_the_order_that_is_asked_for(cache):
    """From several blocks, also in pieces; a film that nobody has seen is left out."""
    put(cache, range(5))
    put(cache, range(5, 9))
    names, rows = read(cache, [7, 2, 99, 5, 0])
    assert names == ["00007.png", "00002.png", "00005.png", "00000.png"]
    assert np.array_equal(rows, np.stack([Film(number).features for number in (7, 2, 5, 0)]))
    features = cache.features(names)
    assert np.array_equal(features.rows(1, 3), rows[1:3])
    assert features.rows(0, 4096).dtype == np.float16


def test_the_films_are_listed_with_what_they_were(cache):
    """Hash, size, notes and thumbnail; of a film that could not be seen, why."""
    with cache.writing() as writer:
        writer.put(Film(3))
        writer.refuse("cut.png", CUT)
    films = cache.films()
    assert films["image_id"].to_list() == ["00003.png", "cut.png"]
    seen, refused = films.iter_rows(named=True)
    assert (seen["sha256"], seen["width_px"], seen["notes"]) == (Film(3).sha256, 100, ["deep"])
    assert seen["thumbnail"] == Film(3).thumbnail.tobytes()
    assert (refused["code"], refused["why"], refused["row"]) == ("truncated", CUT.message, None)


def test_a_film_that_was_mended_counts_as_seen(cache):
    """Whichever block was written first: what was seen stands before a refusal."""
    with cache.writing() as writer:
        writer.refuse(Film(1).image_id, CUT)
    put(cache, [1])
    assert cache.films("code")["code"].to_list() == [None]
    assert read(cache, [1])[0] == [Film(1).image_id]


def test_blocks_of_two_machines_go_into_one_folder_in_any_order_twice(tmp_path):
    """Copying files is merging: a block is called by what it holds."""
    parts = [FeatureCache(tmp_path / name, "tiny", "ab" * 32, WIDTH) for name in ("one", "two")]
    put(parts[0], range(4))
    put(parts[1], range(3, 6))
    for name, order in (("a", parts), ("b", [*reversed(parts), *parts])):
        both = FeatureCache(tmp_path / name, "tiny", "ab" * 32, WIDTH)
        for part in order:
            shutil.copytree(part.path, both.path, dirs_exist_ok=True)
        names, rows = read(both, range(6))
        assert len(names) == 6
        assert np.array_equal(rows, np.stack([Film(number).features for number in range(6)]))


def test_a_block_without_its_table_does_not_count(cache):
    """It was being written: its films are looked at again."""
    put(cache, range(3))
    put(cache, range(3, 6))
    min(cache.path.glob("*.parquet")).unlink()
    assert cache.films().height == 3


def test_a_block_whose_numbers_were_damaged_is_named(cache):
    """With the line that lets its films be looked at again."""
    put(cache, range(3))
    file = next(cache.path.glob("*.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(WorkspaceError, match=f"rm {file}"):
        read(cache, range(3))
    file.unlink()
    assert cache.films().is_empty()


def test_another_backbone_has_a_folder_of_its_own(tmp_path):
    """Features of two networks are never mixed."""
    put(FeatureCache(tmp_path, "tiny", "ab" * 32, WIDTH), range(3))
    assert FeatureCache(tmp_path, "tiny", "cd" * 32, WIDTH).films().is_empty()
    assert FeatureCache(tmp_path, "org/Tiny Net", "cd" * 32, WIDTH).path.name == "org-tiny-net-" + "cd" * 8


def test_numbers_that_cannot_be_kept_are_refused(cache):
    """A 16-bit float ends at 65,504; beyond it a feature would become infinite in silence."""

    class Loud(Film):
        features = np.full(WIDTH, 1e5, np.float32)

    class Mute(Film):
        features = np.full(WIDTH, np.nan, np.float32)

    for film in (Loud(1), Mute(1)):
        with pytest.raises(JudgeError, match=r"00001\.png"), cache.writing() as writer:
            writer.put(film)


def test_blocks_are_sealed_as_they_fill(cache):
    """R02: a run that is killed loses at most the open block."""
    assert cache.block == BLOCK
    cache.block = 16
    with cache.writing() as writer:
        for number in range(17):
            writer.put(Film(number))
            writer.flush_if_due()
        assert cache.films("row").height == 16
    assert cache.films("row").height == 17


def test_a_second_run_is_told_to_wait(cache):
    """Two that look at the same films would do the work twice."""
    with cache.writing(), pytest.raises(LockHeld, match="another run"), cache.writing():
        pass


def test_a_writer_that_is_killed_leaves_whole_blocks(tmp_path):
    """R02: SIGKILL in the middle of a block: the sealed ones are there, the open one is not, and writing goes on."""
    script = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        from test_features import Film, WIDTH
        from bpals.store.features import FeatureCache
        with FeatureCache(Path(sys.argv[1]), "tiny", "ab" * 32, WIDTH).writing() as writer:
            for number in range(10):
                writer.put(Film(number))
            writer.flush()
            writer.put(Film(10))
            print("open", flush=True)
            sys.stdin.read()
        """
    )
    line = [sys.executable, "-c", script, str(tmp_path), str(shape.ROOT / "tests" / "store")]
    folders = [shape.SRC, shape.ROOT / "scripts", shape.ROOT / "tests"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    child = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert child.stdout.readline() == b"open\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    cache = FeatureCache(tmp_path, "tiny", "ab" * 32, WIDTH)
    assert cache.films("row").height == 10
    put(cache, [10])
    assert read(cache, range(11))[1].shape == (11, WIDTH)
