"""Settling by discussion: asynchronous, anonymous, until all agree or the rounds are over."""

import pytest

from bpals.errors import NotNow, NotYours, StaleVersion
from bpals.room.desk.readings import Answer
from world import desks


@pytest.fixture
def discussed(open_desk):
    """A study of one case that three readers read differently: two say there is a mass, one says there is none."""

    def make(first=("present", "present", "absent"), **settings):
        plain = {"cases": 1, "reveal": True, "adjudication": "discussion", "readers_per_case": len(first)}
        desk, *readers = open_desk(*"abc"[: len(first)], **(plain | settings))
        for reader, verdict in zip(readers, first, strict=True):
            desks.read(desk, reader, Answer(verdicts={"Mass": verdict}, note=f"I see it as {verdict}"))
        return desk, readers

    return make


def say(desk, reader, verdict, note=""):
    """Answer the round that waits for a reader."""
    shown = desk.round_next(reader)
    words = {"round_": shown.round, "key": desks.fresh_key(), "verdicts": {"Mass": verdict}, "note": note}
    return desk.round_answer(reader, shown.case_id, **words)


def test_readers_are_asked_again_with_what_the_others_said(discussed):
    """Each sees all opinions and notes without names, knows their own, and answers in their own time."""
    desk, (ann, ben, cay) = discussed()
    shown = desk.round_next(ann)
    assert (shown.round, shown.rounds) == (1, 5)
    opinions = shown.disputes[0].opinions
    assert sorted(opinion.note for opinion in opinions) == [
        "I see it as absent", "I see it as present", "I see it as present"
    ]  # fmt: skip
    assert [opinion.yours for opinion in opinions].count(True) == 1
    assert not any(reader.name in repr(shown) for reader in (ann, ben, cay))


def test_agreement_in_a_round_is_a_consensus(discussed):
    """The one who differed is convinced in round 2; it is recorded as a consensus of that round."""
    desk, (ann, ben, cay) = discussed()
    for reader, verdict in ((ann, "present"), (ben, "present"), (cay, "absent")):
        say(desk, reader, verdict, f"still {verdict}")
    assert desk.consensus().filter(finding="Mass")["how"].to_list() == ["open"]
    second = desk.round_next(cay)
    assert second.round == 2
    assert "still present" in {opinion.note for opinion in second.disputes[0].opinions}
    assert "I see it as absent" in {opinion.note for opinion in second.disputes[0].earlier}
    for reader in (cay, ben, ann):
        say(desk, reader, "present")
    row = desk.consensus().filter(finding="Mass").row(0, named=True)
    assert (row["verdict"], row["how"], row["round"]) == ("present", "consensus", 2)
    assert desk.round_next(ann) is None


def test_after_the_last_round_the_majority_counts_and_is_called_one(discussed):
    """Nobody moves: after 2 rounds two of three are a majority."""
    desk, readers = discussed(rounds=2)
    for _ in range(2):
        for reader, verdict in zip(readers, ("present", "present", "absent"), strict=True):
            say(desk, reader, verdict)
    row = desk.consensus().filter(finding="Mass").row(0, named=True)
    assert (row["verdict"], row["how"], row["round"]) == ("present", "majority", 2)


def test_a_tie_after_the_last_round_waits_for_an_adjudicator(discussed, shared_ledger):
    """One against one stays one against one: nothing is made up."""
    desk, (ann, ben) = discussed(first=("present", "absent"), rounds=1)
    (judge,) = desks.enter(shared_ledger, f"judge of {desk.study.name}", role="adjudicator")
    assert desk.adjudication_next(judge) is None, "the discussion is the readers' until it ends"
    say(desk, ann, "present")
    say(desk, ben, "absent")
    assert desk.round_next(ann) is None
    shown = desk.adjudication_next(judge)
    words = {"pinned": shown.pinned, "key": desks.fresh_key(), "verdicts": {"Mass": ("absent", "adjudicator")}}
    desk.adjudicate(judge, shown.case_id, **words)
    assert desk.consensus().filter(finding="Mass")["how"].to_list() == ["adjudicator"]


def test_a_round_is_answered_once_and_in_its_turn(discussed):
    """The same key is the same answer; another answer to the same round waits; a round that is over is stale."""
    desk, (ann, ben, cay) = discussed()
    shown = desk.round_next(ann)
    words = {"round_": 1, "key": "once", "verdicts": {"Mass": "present"}}
    assert desk.round_answer(ann, shown.case_id, **words) == desk.round_answer(ann, shown.case_id, **words)
    assert desk.round_next(ann) is None
    with pytest.raises(NotNow, match="you have answered round 1"):
        desk.round_answer(ann, shown.case_id, **(words | {"key": "twice"}))
    say(desk, ben, "present")
    say(desk, cay, "absent")
    with pytest.raises(StaleVersion, match="in round 2") as stale:
        desk.round_answer(ben, shown.case_id, **(words | {"key": "late"}))
    assert stale.value.current.round == 2


def test_what_others_say_in_a_round_is_hidden_until_it_is_over(discussed):
    """Rounds are blind too: the first to answer does not lead the others."""
    desk, (ann, ben, _) = discussed()
    say(desk, ann, "absent", "I have changed my mind")
    assert "I have changed my mind" not in repr(desk.round_next(ben))


def test_a_discussion_is_for_its_readers_only(discussed, shared_ledger):
    """S09: somebody who did not read the case neither sees it nor speaks."""
    desk, (ann, *_) = discussed()
    case_id = desk.round_next(ann).case_id
    (other,) = desks.enter(shared_ledger, f"other of {desk.study.name}")
    assert desk.round_next(other) is None
    with pytest.raises(NotYours, match="no such discussion"):
        desk.round(other, case_id)
    words = {"round_": 1, "key": desks.fresh_key(), "verdicts": {"Mass": "present"}}
    with pytest.raises(NotYours, match="no such discussion"):
        desk.round_answer(other, case_id, **words)
