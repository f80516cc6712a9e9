"""`bpals judge run --shard` and `bpals judge merge` at the command line."""

import json

import pytest

from bpals.cli.main import obey
from bpals.store.ledger import Ledger
from world import datasets
from world.words import mentions

FILMS = 12


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A dozen made-up films."""
    return datasets.write(tmp_path_factory.mktemp("small"), FILMS)


@pytest.fixture(scope="module")
def halves(small, tmp_path_factory):
    """Two shards, asked by the command; read them, do not change them."""
    homes = [tmp_path_factory.mktemp(f"w{part}") for part in (1, 2)]
    for part, home in enumerate(homes, start=1):
        words = ["judge", "run", "stub:5", *small.words, "--shard", f"{part}/2", "--workspace", str(home)]
        assert obey(words) == 0
    return homes


def test_shards_are_merged_and_counted(capsys, halves, tmp_path):
    """What came, all six outcomes, and what to type next."""
    assert obey(["judge", "merge", *map(str, halves), "--workspace", str(tmp_path), "--strict"]) == 0
    shown = capsys.readouterr()
    assert mentions(shown.out, "stub: done", "12 new", "0 known")
    assert mentions(shown.out, "answered 36", "abstained 0", "refused 0", "unparsed 0", "unsupported 0", "failed 0")
    assert f"bpals audit --workspace {tmp_path}" in shown.out
    assert shown.err == ""


def test_a_missing_shard_is_said(capsys, halves, tmp_path):
    """The audit may go on with a part of the films, and nobody thinks it is all."""
    assert obey(["judge", "merge", str(halves[0]), "--workspace", str(tmp_path)]) == 0
    assert mentions(capsys.readouterr().err, "1 shard", "2/2")


def test_conflicts_are_listed_counted_and_end_in_2_where_that_is_asked_for(capsys, halves, tmp_path):
    """R17: the conflict is printed either way, and the first value is the one that is sealed."""
    assert obey(["judge", "merge", *map(str, halves), "--workspace", str(tmp_path)]) == 0
    capsys.readouterr()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.change(lambda connection: connection.exec_driver_sql(
            "UPDATE reply SET logit = 99 WHERE number = 0 AND film_id = (SELECT min(film_id) FROM film "
            "WHERE control = '')"))  # fmt: skip
    words = ["judge", "merge", *map(str, halves), "--workspace", str(tmp_path)]
    assert obey(words) == 0
    said = capsys.readouterr().err
    assert "1 conflict" in said
    assert "answered 99, " in said
    assert obey([*words, "--strict"]) == 2
    capsys.readouterr()
    assert obey([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["conflicts"], told["judges"][0]["new"]) == (1, 0)
    assert told["first_conflicts"][0]["here"].startswith("answered 99")


@pytest.mark.parametrize("shard", ["0/8", "9/8", "a/b"])
def test_what_is_no_shard_is_refused_in_one_line(capsys, small, shard, tmp_path):
    """Before a film is read."""
    assert obey(["judge", "run", "stub:", *small.words, "--workspace", str(tmp_path), "--shard", shard]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bpals: --shard {shard}: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "ledger.sqlite").exists()
