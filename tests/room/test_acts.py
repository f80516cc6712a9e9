"""What a reader does with a reading: nothing is lost, doubled or overwritten, and the lock holds."""

import signal
import subprocess
import sys
import threading

import pytest

import shape
from bpals.errors import NotNow, NotYours, Refused, StaleVersion
from bpals.room.desk.desk import Desk
from bpals.room.desk.readings import Answer, Box, Spent
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.schema import ENTRY, REVIEW
from world import desks


def draft(desk, reader, view, answer, **more):
    """Save a draft with a new key."""
    words = {"version": view.version, "key": desks.fresh_key(), "answer": answer} | more
    return desk.draft(reader, view.reading_id, **words)


def test_c01_8_reviewers_800_submits_at_once(ledger_address):
    """C01: 8 reviewers on the same case send 100 answers each at the same time: 800 entries, none lost, no error."""
    with Ledger.open(ledger_address) as ledger:
        desk = Desk.open(ledger, desks.make_study(readers_per_case=8))
        desk.draw(desks.films(1), desks.SIGNAL)
        readers = desks.enter(ledger, *(f"reader {number}" for number in range(8)))
        views = [desk.next(reader, ahead=0).current for reader in readers]
        assert len({view.case_id for view in views}) == 1
        start, saved, failed = threading.Barrier(8), [], []

        def work(reader, view):
            start.wait()
            try:
                for number in range(100):
                    answer = desks.says("Mass", note=f"{reader.name}, {number}")
                    saved.append(draft(desk, reader, view, answer, version=number))
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=work, args=pair) for pair in zip(readers, views, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert len(saved) == 800
        entries = [row for row in desks.rows(ledger, ENTRY) if row.action == "draft"]
        assert len(entries) == 800
        for reader, view in zip(readers, views, strict=True):
            kept = desk.reading(reader, view.reading_id)
            assert (kept.version, kept.answer.note) == (100, f"{reader.name}, 99")
        assert log.check(ledger).found == []


def test_c02_a_double_click_is_one_answer_and_the_second_reply_is_the_first(open_desk, shared_ledger):
    """C02: the same key again, also at the same moment, gives the identical reply and one set of reviews."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    replies = []
    clicks = [
        threading.Thread(target=lambda: replies.append(desks.lock(desk, ann, view, key="click"))) for _ in range(4)
    ]
    for click in clicks:
        click.start()
    for click in clicks:
        click.join()
    assert len(replies) == 4
    assert all(reply == replies[0] for reply in replies)
    reviews = [row for row in desks.rows(shared_ledger, REVIEW) if row.reading_id == view.reading_id]
    assert len(reviews) == len(desks.FINDINGS)


def test_c02_a_key_that_is_used_for_something_else_is_refused(open_desk):
    """C02: to answer another request with an old receipt would lose it."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    draft(desk, ann, view, desks.says("Mass"), key="one")
    with pytest.raises(Refused, match="used for another request"):
        draft(desk, ann, view, desks.says("Nodule"), key="one")


def test_c02_another_persons_key_does_not_answer(open_desk):
    """C02: two browsers that make the same key do not meet."""
    desk, ann, ben = open_desk("ann", "ben")
    for reader in (ann, ben):
        view = desk.next(reader).current
        saved = draft(desk, reader, view, desks.says("Mass"), key="the same")
        assert saved.reply["reading_id"] == view.reading_id


def test_c03_a_stale_tab_gets_both_versions_and_overwrites_nothing(open_desk):
    """C03: the second tab of a reader has version 0, the first one has saved version 1."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    draft(desk, ann, view, desks.says("Mass"))
    with pytest.raises(StaleVersion, match="version 0, and 1 is saved") as stale:
        draft(desk, ann, view, desks.says("Nodule"))
    assert stale.value.current.answer == desks.says("Mass")
    with pytest.raises(StaleVersion):
        desks.lock(desk, ann, view, desks.says("Nodule"))
    assert desk.reading(ann, view.reading_id).answer == desks.says("Mass")


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[4])
from world import desks
from bpals.store.ledger import Ledger
from bpals.room.desk.study import Account
from bpals.room.desk.desk import Desk
ledger = Ledger.open(sys.argv[1])
desk = Desk.open(ledger, desks.make_study())
ann = Account(account_id=int(sys.argv[2]), name="ann")
view = desk.reading(ann, sys.argv[3])
desks.lock(desk, ann, view, desks.says("Mass"), key="before the kill")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_c07_after_a_kill_between_commit_and_reply_the_retry_gets_the_stored_answer(ledger_address):
    """C07: the process that stored the read is killed before it answers; the same request is answered, not redone."""
    with Ledger.open(ledger_address) as ledger:
        desk = Desk.open(ledger, desks.make_study())
        desk.draw(desks.films(3), desks.SIGNAL)
        (ann,) = desks.enter(ledger, "ann")
        view = desk.next(ann).current
    line = [sys.executable, "-c", CHILD, str(ledger_address), str(ann.account_id), view.reading_id]
    child = subprocess.run(
        [*line, str(shape.ROOT / "tests")], env={"PYTHONPATH": str(shape.SRC)}, capture_output=True, check=False
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    with Ledger.open(ledger_address) as ledger:
        desk = Desk.open(ledger, desks.make_study())
        saved = desks.lock(desk, ann, view, desks.says("Mass"), key="before the kill")
        assert (saved.version, saved.reply["state"]) == (1, "locked")
        assert desk.reviews().height == len(desks.FINDINGS)
        assert log.check(ledger).found == []


def test_c08_the_lock_holds_and_an_amendment_needs_a_reason(open_desk):
    """C08: after the lock no draft, lock or skip is taken; an amendment is, with a reason, beside the first read."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    locked = desks.lock(desk, ann, view, desks.says("Mass"))
    words = {"version": locked.version, "answer": desks.says("Nodule")}
    for attempt in (
        lambda: desk.draft(ann, view.reading_id, key=desks.fresh_key(), **words),
        lambda: desk.lock(ann, view.reading_id, key=desks.fresh_key(), spent=desks.SPENT, **words),
        lambda: desk.skip(ann, view.reading_id, version=locked.version, key=desks.fresh_key()),
    ):
        with pytest.raises(NotNow, match="amend it with a reason"):
            attempt()
    with pytest.raises(Refused, match="Write why"):
        desk.amend(ann, view.reading_id, key=desks.fresh_key(), reason="  ", **words)
    desk.amend(ann, view.reading_id, key=desks.fresh_key(), reason="pressed the wrong key", **words)
    said = desk.reviews().filter(finding="Mass")
    assert said["phase"].to_list() == ["blind", "amended"]
    assert said["verdict"].to_list() == ["present", "absent"]
    assert said["stands"].to_list() == [False, True]


def test_c08_undo_and_redo_leave_the_whole_history(open_desk, shared_ledger):
    """C08: locked, undone, locked anew: both reads are kept, the last stands, and the log has all three steps."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    locked = desks.lock(desk, ann, view, desks.says("Mass"))
    undone = desk.undo(ann, view.reading_id, version=locked.version, key=desks.fresh_key())
    assert desk.reviews()["stands"].to_list() == [False] * 3
    back = desk.next(ann).current
    assert (back.reading_id, back.answer, back.version) == (view.reading_id, desks.says("Mass"), undone.version)
    desks.lock(desk, ann, back, desks.says("Nodule"))
    said = desk.reviews().filter(finding="Mass")
    assert said["verdict"].to_list() == ["present", "absent"]
    assert said["stands"].to_list() == [False, True]
    log = [row.action for row in desks.rows(shared_ledger, ENTRY) if row.reading_id == view.reading_id]
    assert log == ["leased", "lock", "undo", "lock"]


def test_c08_only_the_last_lock_can_be_undone(open_desk):
    """C08: after the next lock a read is final."""
    desk, ann = open_desk("ann")
    first = desk.next(ann).current
    locked = desks.lock(desk, ann, first)
    second = desk.next(ann).current
    saved = desks.lock(desk, ann, second)
    with pytest.raises(NotNow, match="locked another case since"):
        desk.undo(ann, first.reading_id, version=locked.version, key=desks.fresh_key())
    desk.undo(ann, second.reading_id, version=saved.version, key=desks.fresh_key())


def test_a_last_lock_becomes_final_with_its_lease(open_desk, shared_ledger):
    """A reader who goes home after the last case leaves no read that waits for ever."""
    desk, ann, ben = open_desk("ann", "ben", cases=1)
    desks.read(desk, ann)
    desks.let_leases_end(shared_ledger, ann)
    desk.next(ben)
    assert desk.counts().readers == {ann.name: 1}
    view = desk.reviews().row(0, named=True)
    assert desk.reading(ann, view["reading_id"]).state == "done"


def test_s21_nothing_is_revealed_before_the_lock(open_desk):
    """S21: who asks for label and trust before the lock is refused, and nothing is written down as seen."""
    desk, ann = open_desk("ann", reveal=True)
    view = desk.next(ann).current
    assert not view.revealed
    with pytest.raises(NotNow, match="after the lock"):
        desk.note_reveal(ann, view.reading_id, desks.SIGNAL)
    assert desk.reading(ann, view.reading_id).signal is None


def test_s21_what_is_said_after_the_reveal_is_a_second_read(open_desk, shared_ledger):
    """S21: the blind read stands; the second is stored apart, with the version of the signal that was seen."""
    desk, ann = open_desk("ann", reveal=True)
    view = desk.next(ann).current
    locked = desks.lock(desk, ann, view, desks.says("Mass"))
    desk.note_reveal(ann, view.reading_id, desks.SIGNAL)
    desk.note_reveal(ann, view.reading_id, desks.SIGNAL)
    seen = [row for row in desks.rows(shared_ledger, ENTRY) if row.action == "revealed"]
    assert [row.actor for row in seen if row.reading_id == view.reading_id] == [ann.name]
    again = desk.next(ann).current
    assert (again.reading_id, again.phase, again.revealed) == (view.reading_id, "second", True)
    with pytest.raises(NotNow, match="the blind read stands"):
        desk.undo(ann, view.reading_id, version=locked.version, key=desks.fresh_key())
    words = {"answer": desks.says(), "spent": desks.SPENT, "signal": desks.SIGNAL}
    saved = desk.second(ann, view.reading_id, version=locked.version, key=desks.fresh_key(), **words)
    said = desk.reviews().filter(finding="Mass")
    assert said.select("phase", "verdict", "saw_signal", "signal", "stands").rows() == [
        ("blind", "present", 0, None, True),
        ("second", "absent", 1, desks.SIGNAL, True),
    ]
    with pytest.raises(NotNow, match="is stored"):
        desk.second(ann, view.reading_id, version=saved.version, key=desks.fresh_key(), **words)


def test_s21_a_case_is_not_skipped_between_lock_and_second_read(open_desk):
    """S21: a lock that was seen is not left to others; the second read may be drafted, and the blind one stands."""
    desk, ann = open_desk("ann", reveal=True)
    view = desk.next(ann).current
    locked = desks.lock(desk, ann, view, desks.says("Mass"))
    with pytest.raises(NotNow, match="not left to others"):
        desk.skip(ann, view.reading_id, version=locked.version, key=desks.fresh_key())
    draft(desk, ann, view, desks.says("Nodule"), version=locked.version)
    kept = desk.reading(ann, view.reading_id)
    assert (kept.state, kept.answer) == ("locked", desks.says("Nodule"))
    assert desk.reviews().filter(finding="Mass")["verdict"].to_list() == ["present"]


def test_an_amendment_after_the_reveal_is_never_blind(open_desk):
    """Who has seen the label and corrects the read is marked as having seen it; the blind read stands as it was."""
    desk, ann = open_desk("ann", reveal=True)
    view = desks.read(desk, ann, desks.says("Mass"))
    version = desk.reading(ann, view.reading_id).version
    words = {"version": version, "key": desks.fresh_key(), "answer": desks.says(), "reason": "I see it now"}
    desk.amend(ann, view.reading_id, **words)
    said = desk.reviews().filter(finding="Mass").select("phase", "saw_signal", "stands")
    assert said.rows() == [("blind", 0, True), ("second", 1, False), ("amended", 1, True)]


def test_a_study_without_a_reveal_has_no_second_read(open_desk):
    """Nothing is shown, so nothing can be said after it."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    saved = desks.lock(desk, ann, view)
    with pytest.raises(NotNow, match="neither label nor trust"):
        desk.note_reveal(ann, view.reading_id, desks.SIGNAL)
    words = {"answer": desks.says(), "spent": desks.SPENT}
    with pytest.raises(NotNow, match="no second read"):
        desk.second(ann, view.reading_id, version=saved.version, key=desks.fresh_key(), **words)


def test_s09_another_readers_reading_is_as_if_there_were_none(open_desk):
    """S09: every way to a reading answers another's id as it answers one that does not exist."""
    desk, ann, ben = open_desk("ann", "ben")
    view = desk.next(ann).current
    words = {"version": 0, "key": desks.fresh_key()}
    answer = {"answer": desks.says()}
    for reading_id in (view.reading_id, "no-such-reading", "", "a\0b", "\ud800", "../x", "é"):
        for attempt in (
            lambda wanted: desk.reading(ben, wanted),
            lambda wanted: desk.draft(ben, wanted, **words, **answer),
            lambda wanted: desk.lock(ben, wanted, **words, **answer, spent=desks.SPENT),
            lambda wanted: desk.second(ben, wanted, **words, **answer, spent=desks.SPENT),
            lambda wanted: desk.amend(ben, wanted, **words, **answer, reason="x"),
            lambda wanted: desk.skip(ben, wanted, **words),
            lambda wanted: desk.undo(ben, wanted, **words),
            lambda wanted: desk.note_reveal(ben, wanted, desks.SIGNAL),
        ):
            with pytest.raises(NotYours, match="you have no such reading") as error:
                attempt(reading_id)
            assert view.reading_id not in str(error.value)


def test_a_lock_that_comes_too_late_is_kept_and_does_not_count(open_desk, shared_ledger):
    """The lease ended and another has the case: what the late reader wrote is kept, and there is no third read."""
    desk, ann, ben = open_desk("ann", "ben", cases=1, readers_per_case=1, adjudication="none")
    view = desk.next(ann).current
    desks.let_leases_end(shared_ledger, ann)
    desks.read(desk, ben)
    late = desks.says("Mass")
    for _ in range(2):
        with pytest.raises(NotNow, match=r"another reader.*kept"):
            desk.lock(ann, view.reading_id, version=0, key="late", answer=late, spent=desks.SPENT)
    assert desk.reading(ann, view.reading_id).answer == late
    assert desk.reviews()["reader"].unique().to_list() == [ben.name]
    saved = desk.draft(ann, view.reading_id, version=1, key=desks.fresh_key(), answer=desks.says("Nodule"))
    assert saved.reply["state"] == "released"


def test_a_lock_after_the_lease_counts_where_nobody_took_the_case(open_desk, shared_ledger):
    """A long lunch costs nothing if the case is still there."""
    desk, ann, ben = open_desk("ann", "ben", cases=8, batch=8)
    view = desk.next(ann, ahead=0).current
    desks.let_leases_end(shared_ledger, ann)
    desk.next(ben, ahead=0)
    assert desk.reading(ann, view.reading_id).state == "released"
    assert desks.lock(desk, ann, view).reply["state"] == "locked"


def test_a_skip_can_be_undone_with_what_was_written(open_desk):
    """Undo after S brings the case back as it was."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    saved = draft(desk, ann, view, desks.says("Mass"))
    skipped = desk.skip(ann, view.reading_id, version=saved.version, key=desks.fresh_key())
    assert desk.next(ann).current.reading_id != view.reading_id
    desk.undo(ann, view.reading_id, version=skipped.version, key=desks.fresh_key())
    assert desk.next(ann).current.answer == desks.says("Mass")


def test_a_review_carries_what_was_said_and_how_it_was_drawn(open_desk):
    """One row a finding: verdict, confidence, box, note, quality, devices, and the film's chance to be drawn."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    answer = Answer(
        verdicts={"Mass": "present", "Nodule": "uncertain"},
        confidence={"Mass": 80},
        boxes=(Box(finding="Mass", x=1.5, y=2, width=30, height=40),),
        note="upper lobe <b>left</b>",
        quality="limited",
        devices="present",
    )
    desks.lock(desk, ann, view, answer)
    columns = ["finding", "verdict", "confidence", "box", "inclusion", "note", "quality", "devices", "position"]
    rows = desk.reviews().select(columns).rows()
    same = ("upper lobe <b>left</b>", "limited", "present", 0)
    assert rows == [
        ("Mass", "present", 80, "[[1.5, 2, 30, 40]]", 0.25, *same),
        ("Nodule", "uncertain", None, None, 0.25, *same),
        ("Pneumothorax", "absent", None, None, 0.25, *same),
    ]


def test_of_an_unreadable_film_nothing_is_absent(open_desk):
    """Who marks the film as unreadable says nothing of the findings that are not marked."""
    desk, ann = open_desk("ann")
    desks.read(desk, ann, desks.says("Mass", quality="unreadable"))
    assert desk.reviews()["verdict"].to_list() == ["present", "unreadable", "unreadable"]


def test_a_study_may_ask_for_every_finding(open_desk):
    """With unmarked = "ask" a lock waits until each has a verdict, and says which has none."""
    desk, ann = open_desk("ann", unmarked="ask")
    view = desk.next(ann).current
    with pytest.raises(Refused, match="Nodule, Pneumothorax"):
        desks.lock(desk, ann, view, desks.says("Mass"))
    whole = Answer(verdicts={"Mass": "present", "Nodule": "absent", "Pneumothorax": "absent"})
    desks.lock(desk, ann, view, whole)


def test_t02_a_browsers_seconds_are_bounded_by_the_databases(open_desk):
    """T02: a client whose clock is wrong by a day says it read for a day; the database saw less."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    desks.lock(desk, ann, view, spent=Spent(active_s=86_400.0, wall_s=90_000.0))
    row = desk.reviews().row(0, named=True)
    assert 0 <= row["active_s"] <= row["wall_s"] < 600
