"""The desk as a whole: a study that is found again, clocks that are wrong, and what is counted."""

import pytest
import time_machine

from bpals.errors import UsageError
from bpals.room.desk.desk import Desk
from bpals.store.ledger import log
from bpals.store.ledger.schema import ENTRY, READING
from world import desks


def test_a_study_is_found_again_with_its_cases(open_desk, shared_ledger):
    """The second start goes on where the first ended."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    again = Desk.open(shared_ledger, desk.study)
    assert again.study_id == desk.study_id
    assert again.next(ann).current.reading_id == view.reading_id


def test_a_study_of_the_same_name_with_other_settings_is_refused(open_desk, shared_ledger):
    """Reads made under two rules are not mixed; the difference is named with both values."""
    desk = open_desk()[0]
    other = desks.make_study(name=desk.study.name, readers_per_case=3, seed=5)
    with pytest.raises(UsageError, match=r"readers_per_case .*2.*3.* seed .*0.*5"):
        Desk.open(shared_ledger, other)


def test_hotkeys_may_change_and_the_log_says_so(desk_ledger):
    """What changes nothing in a read may change in a study that has begun."""
    Desk.open(desk_ledger, desks.make_study(keys={"Mass": "m"}))
    Desk.open(desk_ledger, desks.make_study(keys={"Mass": "m"}))
    Desk.open(desk_ledger, desks.make_study(keys={"Mass": "x"}))
    assert [row.action for row in desks.rows(desk_ledger, ENTRY)] == ["study", "study"]


def test_two_studies_in_one_ledger_do_not_meet(open_desk):
    """A reader of both is handed each study's own cases, and is at the first of each."""
    desk, ann = open_desk("ann", cases=3)
    other = open_desk(cases=2)[0]
    first, second = desk.next(ann), other.next(ann)
    assert first.current.case_no == second.current.case_no == 1
    assert not {first.current.case_id} & {second.current.case_id}
    assert len(desks.read_all(other, ann)) == 2
    assert desk.reviews().height == 0


@pytest.mark.parametrize("hours", [-1, 24 * 365, -0.0003], ids=["back 1 h", "forward 1 year", "a leap second"])
def test_t01_the_machines_clock_moves_and_order_leases_and_durations_do_not(open_desk, shared_ledger, hours):
    """T01: leases and seconds are the database's, order is that of numbers; the machine's clock is for display only."""
    desk, ann, ben = open_desk("ann", "ben", cases=4)
    first = desk.next(ann).current
    with time_machine.travel(f"2026-10-25T{2:02}:30:00+00:00", tick=True) as clock:
        clock.shift(hours * 3600)
        assert desk.next(ann).current.reading_id == first.reading_id, "the lease still holds"
        desks.lock(desk, ann, first)
        desk.next(ben)
    desks.read(desk, ann)
    said = desk.reviews().filter(finding="Mass").sort("review_id")
    assert said["position"].to_list() == [0, 1]
    assert all(0 <= seconds < 600 for seconds in said["wall_s"])
    held = [row for row in desks.rows(shared_ledger, READING) if row.study_id == desk.study_id]
    assert {row.state for row in held} <= {"leased", "locked", "done"}
    assert log.check(shared_ledger).found == []


def test_t03_workers_with_skewed_clocks_do_no_work_twice(open_desk, shared_ledger):
    """T03: a second process whose clock is a day ahead sees the leases of the first as they are, and takes none."""
    desk, ann, ben = open_desk("ann", "ben", cases=3, readers_per_case=1, adjudication="none")
    held = desk.next(ann)
    with time_machine.travel("2027-11-17T00:00:00+00:00", tick=False):
        skewed = Desk(shared_ledger, desk.study, desk.study_id)
        assert skewed.next(ben).why_code == "held"
    assert desk.next(ann) == held


def test_a_studys_progress_is_counted(open_desk):
    """Cases, reads, who read how much, what is in dispute."""
    desk, ann, ben = open_desk("ann", "ben", cases=4, reveal=True, adjudication="adjudicator")
    for _ in range(3):
        desks.read(desk, ann, desks.says("Mass"))
    desks.read(desk, ben)
    counted = desk.counts()
    assert (counted.cases, counted.wanted, counted.locked, counted.repeats) == (4, 8, 4, 0)
    assert counted.readers == {ann.name: 3, ben.name: 1}
    assert counted.disputed <= 1
