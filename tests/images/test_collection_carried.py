"""Films on their way to another process: a small index, their bytes, and a crew that is lent."""

import pickle
import tarfile

import pytest

from bpals.images.collection import InMemoryImages, open_index
from bpals.images.prepare import Preparation
from bpals.images.stream import Crew, Reading, prepared
from bpals.types import Refusal
from world import datasets

RULE = Preparation(side_px=64)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Six films; read them, do not change them."""
    return datasets.write(tmp_path_factory.mktemp("small"), 6)


def travelled(index):
    """What arrives of an index in another process."""
    return pickle.loads(pickle.dumps(index))  # noqa: S301  our own


def test_a_part_of_a_shelf_travels_and_gives_the_same_films(small):
    """What is sent is names and places: it reads the same bytes wherever the folder is seen."""
    index = open_index(small.images, small.image_ids)
    some = [*small.image_ids[1:3], "nobody.png"]
    part = travelled(index.only(some))
    assert (part.found, part.missing) == (small.image_ids[1:3], ("nobody.png",))
    assert part.paths == (small.images.resolve(),)
    assert dict(part.read(some[:2])) == dict(index.read(some[:2]))
    assert isinstance(dict(part.read(some))["nobody.png"], Refusal)


def test_a_film_in_a_compressed_tar_is_known_as_one_that_streams(small, tmp_path):
    """Blocks of such films are read here: each worker would unpack the tar from its beginning."""
    with tarfile.open(tmp_path / "films.tar.gz", "w:gz") as packed:
        packed.add(small.images / small.image_ids[0], small.image_ids[0])
    assert open_index(tmp_path, small.image_ids[:1]).streams(small.image_ids[0])
    index = open_index(small.images, small.image_ids)
    assert not index.streams(small.image_ids[0])
    assert not index.streams("nobody.png")


def test_carried_films_are_prepared_as_those_of_the_shelf(small):
    """Bytes that travelled make the same films, and one that could not be read says why."""
    index = open_index(small.images, small.image_ids)
    wrong = Refusal(code="truncated", message="cut off")
    carried = travelled(InMemoryImages([*index.read(small.image_ids), ("wrong.png", wrong)]))
    assert not carried.paths
    with prepared(carried, [*small.image_ids, "wrong.png", "none.png"], RULE, workers=0) as reading:
        films = dict(reading)
    with prepared(index, small.image_ids, RULE, workers=0) as reading:
        plain = dict(reading)
    assert {name: films[name] for name in plain} == plain
    assert (films["wrong.png"], films["none.png"].code) == (wrong, "missing")


def test_a_crew_that_is_lent_serves_one_passage_after_another(small):
    """Its process is started once, and outlives each of them."""
    index, crew = open_index(small.images, small.image_ids), Crew(1, RULE)
    try:
        for _ in range(2):
            with Reading(index, small.image_ids, RULE, crew=crew) as reading:
                assert len(dict(reading)) == len(small.image_ids)
                pids = crew.pids
            assert (crew.pids, crew.size, crew.busy) == (pids, 1, 0)
    finally:
        crew.close()
