"""Settling by a person: side by side, without names, pinned to what was on the screen."""

import pytest

from bpals.errors import NotNow, NotYours, Refused, StaleVersion
from bpals.room.desk.readings import Answer, Box
from bpals.store.ledger.schema import ADJUDICATION
from world import desks


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
