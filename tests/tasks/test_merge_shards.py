"""What is missing between the shards of a judge and one whole run."""

import itertools
from dataclasses import asdict
from pathlib import Path

import pytest

from bpals.store.shards import Draw
from bpals.tasks.merge import ends_of, gaps
from world.words import mentions

NAMES = [f"{number:03}.png" for number in range(20)]
ALL, SOME, FEW = (Draw.of(NAMES, limit, 0) for limit in (None, 9, 4))


def ran(shard="", draw=ALL, state="done", *, began=1, **more):
    """A run as a ledger lists it."""
    plan = {"draw": asdict(draw), **({"shard": shard} if shard else {}), **more}
    return {"began": f"2026-01-01T00:00:{began:02}", "state": state, "plan": plan}


def told(*runs):
    """What is said of some runs, and the states that count, whatever their order."""
    found = []
    for order in itertools.permutations(runs):
        ends = ends_of(order)
        notices = [(notice.code, notice.message) for notice in gaps("stub", ends, Path("home"))]
        found.append((notices, {shard: end.state for shard, end in ends.items()}))
    assert all(each == found[0] for each in found)
    return found[0]


def test_all_shards_of_one_draw_are_a_whole():
    """Nothing is said of two halves, nor of one whole run."""
    assert told(ran("1/2"), ran("2/2")) == ([], {"1/2": "done", "2/2": "done"})
    assert told(ran()) == ([], {"": "done"})


def test_shards_of_two_draws_are_named_with_what_they_drew():
    """Both numbers stand in the sentence, and what to type."""
    (((code, message),), _) = told(ran("1/2", SOME), ran("2/2", FEW))
    assert code == "shards_drawn"
    assert mentions(message, "drawn differently", "1/2: 9 of 20", "seed 0", "2/2: 4 of 20", "seed 0")
    assert message.endswith("bpals judge run SPEC --images PATH --workspace home")


def test_other_films_that_were_found_are_another_draw():
    """As many films under other names are not the same films."""
    first, second = (Draw.of(names, None, 0) for names in (NAMES[:9], NAMES[1:10]))
    (((code, message),), _) = told(ran("1/2", first), ran("2/2", second))
    assert code == "shards_drawn"
    assert first.names[:8] in message
    assert second.names[:8] in message


@pytest.mark.parametrize("later", [ALL, SOME])
def test_a_whole_run_that_asked_about_as_much_settles_it(later):
    """After a run of everything nothing is missing, though a shard was killed or drew less."""
    notices, ends = told(ran("1/2", SOME, "killed"), ran("2/2", FEW), ran(draw=later, began=2))
    assert (notices, ends) == ([], {"": "done"})


def test_a_whole_run_of_less_does_not():
    """Ten films of a run without --shard are not the sixty that a shard was to ask about half of."""
    (((code, message),), _) = told(ran(draw=FEW), ran("1/2", SOME))
    assert code == "shards_drawn"
    assert mentions(message, "without --shard: 4 of 20")


def test_shards_of_two_numbers_are_a_whole_only_if_those_of_one_are():
    """1/2 and 2/3 leave films out; with 2/2 they do not, however the other ended."""
    (((code, message),), _) = told(ran("1/2"), ran("2/3"))
    assert code == "shards_divided"
    assert mentions(message, "into 2 (2/2", "3 (1/3, 3/3")
    assert told(ran("1/2"), ran("2/2"), ran("2/3", state="killed")) == ([], {"1/2": "done", "2/2": "done"})


def test_one_shard_is_no_plural():
    """1 shard is, 2 shards are."""
    (((_, message),), _) = told(ran("1/2"))
    assert mentions(message, "1 shard", "2/2")
    (((_, message),), _) = told(ran("1/3"))
    assert mentions(message, "2 shards", "2/3, 3/3")
    (((_, message),), _) = told(ran("1/2"), ran("2/2", state="budget"))
    assert mentions(message, "1 shard", "not done", "2/2 (budget)")


def test_a_shard_of_which_only_the_controls_were_asked_about_is_not_done():
    """What is asked before the films says nothing of them; and the films' own run counts, also if it began before."""
    (((code, message),), _) = told(ran("1/2"), ran("2/2", controls=4))
    assert (code, "2/2 (unfinished)" in message) == ("shards_unfinished", True)
    assert told(ran("1/2"), ran("2/2", began=1), ran("2/2", began=2, controls=4))[0] == []


def test_the_latest_run_of_a_shard_counts():
    """A shard that was killed and run again is done; runs of before draws were written down are taken as they are."""
    assert told(ran("1/2", state="running"), ran("1/2", began=2), ran("2/2"))[0] == []
    old = ran("2/2")
    del old["plan"]["draw"]
    assert told(ran("1/2"), old)[0] == []
