"""When all have read a case: agreement, a third reader, a majority that is called one."""

import pytest

from bpals.room.desk.readings import Answer
from bpals.room.desk.settling import majority
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
