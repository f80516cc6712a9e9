"""How readers come to agree: by the rule of the study, in rounds of a discussion, by an adjudicator."""

import pytest

from bpals.errors import NotNow, NotYours, Refused, StaleVersion
from bpals.room.desk.readings import Answer, Box
from bpals.room.desk.settling import majority
from bpals.store.ledger.schema import ADJUDICATION
from world import desks


def consensus(desk, finding="Mass"):
    """Verdict and how of a finding in a study of one case."""
    rows = desk.consensus().filter(finding=finding).select("verdict", "how").rows()
    return rows[0] if rows else None


def finish(desk, ledger):
    """Make every last lock final, as its lease does."""
    desks.let_leases_end(ledger)
    desk.next(desks.enter(ledger, f"a passer-by of {desk.study.name}")[0])


def says_verdict(verdict):
    """An answer with this verdict on Mass."""
    return Answer(verdicts={"Mass": verdict})


def test_agreement_is_a_consensus(open_desk, shared_ledger):
    """Two readers who say the same settle the case by themselves, and nobody else is called."""
    desk, ann, ben = open_desk("ann", "ben", cases=1)
    for reader in (ann, ben):
        desks.read(desk, reader, desks.says("Mass"))
    assert consensus(desk) is None, "the last lock can still be undone"
    finish(desk, shared_ledger)
    assert consensus(desk) == ("present", "consensus")
    assert desk.counts().wanted == 2


def test_a_disagreement_opens_the_case_to_a_third_reader_whose_vote_decides(open_desk):
    """Two differ, a third is called who knows nothing of it, and two of three are a majority, recorded as such."""
    desk, ann, ben, cay = open_desk("ann", "ben", "cay", cases=1, reveal=True)
    desks.read(desk, ann, desks.says("Mass"))
    assert desk.next(cay).current is not None
    desks.read(desk, cay, desks.says())
    assert consensus(desk) is None
    view = desk.next(ben).current
    assert (view.case_no, view.answer, view.revealed) == (1, Answer(), False)
    desks.read(desk, ben, desks.says("Mass"))
    assert consensus(desk) == ("present", "majority")
    assert desk.counts().settled == 1
    assert desk.next(ben).current is None


def test_three_readers_who_say_three_things_leave_it_to_an_adjudicator(open_desk, shared_ledger):
    """Without a majority nothing is made up: the finding is open."""
    desk, *readers = open_desk("ann", "ben", "cay", cases=1, reveal=True)
    for reader, verdict in zip(readers, ("present", "absent", "uncertain"), strict=True):
        desks.read(desk, reader, says_verdict(verdict))
    assert consensus(desk) == (None, "open")
    (judge,) = desks.enter(shared_ledger, f"judge of {desk.study.name}", role="adjudicator")
    assert [dispute.finding for dispute in desk.adjudication_next(judge).disputes] == ["Mass"]


def test_three_readers_a_case_need_no_fourth_where_two_agree(open_desk):
    """With three readers from the start a majority is there at once."""
    desk, *readers = open_desk("ann", "ben", "cay", cases=1, reveal=True, readers_per_case=3)
    for reader, verdict in zip(readers, ("present", "present", "absent"), strict=True):
        desks.read(desk, reader, says_verdict(verdict))
    assert consensus(desk) == ("present", "majority")
    assert desk.counts().wanted == 3


def test_four_readers_who_are_even_call_one_more(open_desk):
    """A tie is no majority: the fifth decides."""
    desk, *readers = open_desk(*"abcde", cases=1, reveal=True, readers_per_case=4)
    for reader, verdict in zip(readers, ("present", "absent", "present", "absent", "absent"), strict=True):
        desks.read(desk, reader, says_verdict(verdict))
    assert consensus(desk) == ("absent", "majority")


def test_one_reader_settles_nothing_and_says_so(open_desk, shared_ledger):
    """A single read is a verdict, and called single."""
    desk, ann = open_desk("ann", cases=1, readers_per_case=1, adjudication="none")
    desks.read(desk, ann, desks.says("Mass"))
    finish(desk, shared_ledger)
    assert consensus(desk) == ("present", "single")


def test_a_study_without_a_rule_leaves_disagreement_open(open_desk):
    """With adjudication = "none" reads stand side by side."""
    desk, ann, ben = open_desk("ann", "ben", cases=1, reveal=True, adjudication="none")
    desks.read(desk, ann, desks.says("Mass"))
    desks.read(desk, ben, desks.says())
    assert consensus(desk) == (None, "open")
    assert desk.counts().disputed == 0


def test_second_reads_and_repeats_do_not_vote(open_desk):
    """What is said after the reveal, or a second time, changes no consensus: both blind first reads said absent."""
    desk, ann, ben = open_desk("ann", "ben", cases=12, batch=4, reveal=True, repeats=0.5)

    def both_ways(view):
        return desks.says("Mass") if view.image_id in seen else desks.says()

    for reader in (ann, ben):
        seen = set()
        while view := desk.next(reader).current:
            saved = desks.lock(desk, reader, view, both_ways(view))
            seen.add(view.image_id)
            words = {"version": saved.version, "key": desks.fresh_key(), "answer": desks.says("Mass")}
            desk.second(reader, view.reading_id, spent=desks.SPENT, signal=desks.SIGNAL, **words)
    assert desk.counts().repeats > 0
    assert set(desk.consensus().filter(finding="Mass")["verdict"]) == {"absent"}


def test_an_amendment_that_ends_the_disagreement_calls_nobody(open_desk, shared_ledger):
    """A reader who pressed the wrong key amends before anyone settled it: the case is read alike."""
    desk, ann, ben = open_desk("ann", "ben", cases=1, adjudication="adjudicator")
    view = desks.read(desk, ann, desks.says("Mass"))
    desks.read(desk, ben, desks.says())
    finish(desk, shared_ledger)
    assert desk.counts().disputed == 1
    words = {"version": desk.reading(ann, view.reading_id).version, "key": desks.fresh_key()}
    desk.amend(ann, view.reading_id, **words, answer=desks.says(), reason="wrong key")
    assert desk.counts().disputed == 0
    assert consensus(desk) == ("absent", "consensus")


@pytest.mark.parametrize(
    ("verdicts", "most"),
    [
        (["present", "present", "absent"], "present"),
        (["present", "absent"], None),
        (["present", "present", "absent", "uncertain"], None),
        (["unreadable"], "unreadable"),
        ([], None),
    ],
)
def test_a_majority_is_more_than_half(verdicts, most):
    """Half is not enough, and the most frequent is not enough."""
    assert majority(verdicts) == most


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


@pytest.fixture
def disputed(open_desk, shared_ledger):
    """A study of one case that ann and ben read differently, and its adjudicator."""

    def make(**settings):
        plain = {"cases": 1, "adjudication": "adjudicator"}
        desk, ann, ben = open_desk("ann", "ben", **(plain | settings))
        (judge,) = desks.enter(shared_ledger, f"judge of {desk.study.name}", role="adjudicator")
        said = Answer(
            verdicts={"Mass": "present"},
            confidence={"Mass": 70},
            boxes=(Box(finding="Mass", x=1, y=2, width=3, height=4),),
            note="behind the heart",
        )
        view = desks.read(desk, ann, said)
        desks.read(desk, ben, desks.says("Nodule"))
        desks.let_leases_end(shared_ledger)
        desk.next(ann)
        return desk, ann, ben, judge, view

    return make


def settle(desk, judge, shown, *, mass=("present", "adjudicator"), nodule=("absent", "adjudicator"), **more):
    """Settle both disputed findings."""
    words = {"pinned": shown.pinned, "key": desks.fresh_key(), "note": ""} | more
    return desk.adjudicate(judge, shown.case_id, verdicts={"Mass": mass, "Nodule": nodule}, **words)


def test_disagreements_are_shown_side_by_side_without_names(disputed):
    """The adjudicator sees what each said of the findings in dispute, and not who said it."""
    desk, ann, ben, judge, _ = disputed()
    shown = desk.adjudication_next(judge)
    assert [dispute.finding for dispute in shown.disputes] == ["Mass", "Nodule"]
    mass = {opinion.verdict: opinion for opinion in shown.disputes[0].opinions}
    assert (mass["present"].confidence, mass["present"].note) == (70, "behind the heart")
    assert mass["present"].boxes[0].width == 3
    assert {opinion.reader for opinion in shown.disputes[0].opinions} == {"Reader 1", "Reader 2"}
    assert ann.name not in repr(shown)
    assert ben.name not in repr(shown)


def test_an_adjudicated_case_is_settled_for_good(disputed):
    """What the adjudicator says is the consensus, under their account, and cannot be said twice."""
    desk, _, _, judge, _ = disputed()
    shown = desk.adjudication_next(judge)
    saved = settle(desk, judge, shown, key="once", note="a nipple shadow")
    assert settle(desk, judge, shown, key="once", note="a nipple shadow") == saved
    rows = desk.consensus().filter(how="adjudicator").select("finding", "verdict", "amended_since").rows()
    assert rows == [("Mass", "present", False), ("Nodule", "absent", False)]
    assert desk.adjudication_next(judge) is None
    with pytest.raises(NotNow, match="nothing to settle"):
        settle(desk, judge, shown)


def test_c09_an_amendment_meanwhile_stops_the_adjudication_and_is_shown(disputed):
    """C09: the verdict is pinned to what was on the screen; a reader amends, and the adjudicator is warned."""
    desk, ann, _, judge, view = disputed()
    shown = desk.adjudication_next(judge)
    words = {"version": desk.reading(ann, view.reading_id).version, "key": desks.fresh_key()}
    desk.amend(ann, view.reading_id, **words, answer=Answer(verdicts={"Mass": "uncertain"}), reason="not sure")
    with pytest.raises(StaleVersion, match="amended this case") as stale:
        settle(desk, judge, shown)
    newer = stale.value.current
    assert {opinion.verdict for opinion in newer.disputes[0].opinions} == {"uncertain", "absent"}
    settle(desk, judge, newer)


def test_c09_an_amendment_afterwards_is_marked(disputed):
    """C09: what was settled stays settled, and says that a reader has spoken since."""
    desk, ann, _, judge, view = disputed()
    settle(desk, judge, desk.adjudication_next(judge))
    words = {"version": desk.reading(ann, view.reading_id).version, "key": desks.fresh_key()}
    desk.amend(ann, view.reading_id, **words, answer=Answer(), reason="seen again")
    assert desk.consensus().filter(how="adjudicator")["amended_since"].to_list() == [True, True]


def test_c09_an_amendment_after_the_reveal_is_shown_beside_the_blind_read(disputed):
    """C09: where the study reveals, an amendment is shown to the adjudicator, and does not count as a blind read."""
    desk, ann, _, judge, view = disputed(reveal=True)
    shown = desk.adjudication_next(judge)
    version = desk.reading(ann, view.reading_id).version
    words = {"answer": Answer(), "reason": "having seen the label"}
    desk.amend(ann, view.reading_id, version=version, key=desks.fresh_key(), **words)
    with pytest.raises(StaleVersion) as stale:
        settle(desk, judge, shown)
    opinions = {opinion.verdict: opinion for opinion in stale.value.current.disputes[0].opinions}
    assert (opinions["present"].amended, opinions["absent"].amended) == ("absent", None)
    settle(desk, judge, stale.value.current)


def test_readers_settle_nothing(disputed):
    """S09: neither page nor verdict is for a reader."""
    desk, ann, _, judge, _ = disputed()
    shown = desk.adjudication_next(judge)
    for attempt in (
        lambda: desk.adjudication_next(ann),
        lambda: desk.disagreement(ann, shown.case_id),
        lambda: settle(desk, ann, shown),
    ):
        with pytest.raises(NotYours, match="by an adjudicator"):
            attempt()


@pytest.mark.parametrize("case_id", [0, -1, 10**9, 2**63, 10**30])
def test_a_case_that_is_not_there_is_nobodys(disputed, case_id):
    """S09: whatever number an address holds, also one that no database keeps."""
    desk, ann, _, judge, _ = disputed()
    with pytest.raises(NotYours, match="no such case"):
        desk.disagreement(judge, case_id)
    with pytest.raises(NotYours, match="no such discussion"):
        desk.round(ann, case_id)


def test_nobody_settles_a_case_that_they_read(open_desk, shared_ledger):
    """An adjudicator who also reads is not asked about their own cases, and refused if they try."""
    desk, ann = open_desk("ann", cases=1, adjudication="adjudicator", reveal=True)
    own, other = desks.enter(
        shared_ledger, *(f"{name} of {desk.study.name}" for name in ("own", "other")), role="adjudicator"
    )
    desks.read(desk, ann, desks.says("Mass"))
    desks.read(desk, own, desks.says())
    assert desk.adjudication_next(own) is None
    shown = desk.adjudication_next(other)
    words = {"pinned": shown.pinned, "key": desks.fresh_key(), "verdicts": {"Mass": ("absent", "adjudicator")}}
    with pytest.raises(NotYours, match="you read this case yourself"):
        desk.adjudicate(own, shown.case_id, **words)
    desk.adjudicate(other, shown.case_id, **words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mass": ("present", "majority")}, "no verdict has more than half"),
        ({"mass": ("perhaps", "adjudicator")}, "the verdict on Mass is 'perhaps'"),
        ({"mass": ("present", "dice")}, "settled by 'dice'"),
        ({"note": "x" * 10_001}, "10,001 characters"),
    ],
)
def test_what_is_no_settlement_is_refused(disputed, change, message):
    """A majority that is none, a word that is no verdict: nothing of it is stored."""
    desk, _, _, judge, _ = disputed()
    with pytest.raises(Refused, match=message):
        settle(desk, judge, desk.adjudication_next(judge), **change)
    assert desk.counts().disputed == 1


def test_every_disputed_finding_needs_a_verdict(disputed, shared_ledger):
    """Half a settlement is none."""
    desk, _, _, judge, _ = disputed()
    shown = desk.adjudication_next(judge)
    words = {"pinned": shown.pinned, "key": desks.fresh_key(), "verdicts": {"Mass": ("absent", "adjudicator")}}
    with pytest.raises(Refused, match="no verdict on Nodule"):
        desk.adjudicate(judge, shown.case_id, **words)
    assert shown.case_id not in {row.case_id for row in desks.rows(shared_ledger, ADJUDICATION)}
