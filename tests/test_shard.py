"""Shards: which films are whose, and what is no shard."""

import hashlib

import pytest

from bpals.errors import UsageError
from bpals.store.shards import Shard

IDS = [f"{number:08}_{visit:03}.png" for number in range(1, 400) for visit in range(5)]


@pytest.mark.parametrize("text", ["0/8", "9/8", "1/0", "0/0"])
def test_a_part_that_is_none_of_them_is_refused(text):
    """Parts are counted from 1, and the message shows one that can be typed."""
    with pytest.raises(UsageError, match=rf"--shard {text}: .*--shard 1/"):
        Shard.parse(text)


@pytest.mark.parametrize("text", ["a/b", "3", "3/", "/8", "-1/8", "1/8/2", "", "1.5/8"])
def test_what_is_no_shard_is_refused(text):
    """The message says what one looks like."""
    with pytest.raises(UsageError, match=r"as in 3/8\. Type: --shard 1/8"):
        Shard.parse(text)


def test_a_shard_is_written_as_it_is_typed():
    """3/8 there and back."""
    assert str(Shard.parse(" 3/8 ")) == "3/8"


def test_every_film_is_in_exactly_one_part_and_the_parts_are_alike():
    """R17: no film is lost or asked twice; no part of eight is a third larger than its share."""
    parts = [[name for name in IDS if Shard(part, 8).holds(name)] for part in range(1, 9)]
    assert sorted(name for part in parts for name in part) == sorted(IDS)
    assert all(abs(len(part) - len(IDS) / 8) < len(IDS) / 24 for part in parts)


def test_the_rule_is_the_one_that_is_written_down():
    """Whoever computes it elsewhere, by the first eight bytes of a SHA-256, gets the same parts."""
    name = "00000001_000.png"
    number = int(hashlib.sha256(name.encode()).hexdigest()[:16], 16)
    assert [part for part in range(1, 8) if Shard(part, 7).holds(name)] == [number % 7 + 1]


def test_all_films_are_in_the_one_part_of_one():
    """1/1 is the whole dataset."""
    assert all(Shard(1, 1).holds(name) for name in IDS)
