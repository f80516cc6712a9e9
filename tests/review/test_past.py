"""What a reader has read: the stored blind read, and the last readings as far back as no repeat is given away."""

import pytest

from bpals.errors import NotNow, NotYours
from world import desks
from world.desks import SPENT, fresh_key, lock, read, says


def test_the_last_readings_are_the_readers_own_and_the_newest_first(open_desk):
    """So many as are asked for; a skipped case and another reader's are not among them."""
    desk, anna, ben = open_desk("anna", "ben", cases=8, readers_per_case=2)
    read(desk, ben)
    seen = [read(desk, anna, says("Mass")).reading_id for _ in range(2)]
    skipped = desk.next(anna).current
    desk.skip(anna, skipped.reading_id, version=skipped.version, key=fresh_key())
    seen += [read(desk, anna).reading_id for _ in range(3)]
    listed = desk.last_readings(anna)
    assert [each.reading_id for each in listed] == seen[::-1]
    assert [each.case_no for each in listed] == [6, 5, 4, 2, 1]
    assert listed[-1].marked == {"Mass": "present"}
    assert [each.reading_id for each in desk.last_readings(anna, most=2)] == seen[:-3:-1]


def test_a_case_that_waits_for_its_second_read_is_not_listed(open_desk):
    """It is on the screen, and is not amended before it is done; where nothing is revealed a lock is listed at once."""
    desk, anna = open_desk("anna", cases=3, reveal=True)
    lock(desk, anna, desk.next(anna).current)
    assert desk.last_readings(anna) == ()
    desk, anna = open_desk("anna", cases=3, reveal=False)
    lock(desk, anna, desk.next(anna).current)
    assert len(desk.last_readings(anna)) == 1


def test_an_amended_reading_says_so(open_desk):
    """And shows what stands now."""
    desk, anna = open_desk("anna", cases=3)
    view = read(desk, anna, says("Mass"))
    version = desk.reading(anna, view.reading_id).version
    said = says("Nodule")
    desk.amend(anna, view.reading_id, version=version, key=fresh_key(), answer=said, reason="the wrong key")
    (listed,) = desk.last_readings(anna)
    assert (listed.amended, listed.marked) == (True, {"Nodule": "present"})
    assert (listed.blind["Mass"], listed.blind["Nodule"], listed.second) == ("present", "absent", None)


def test_blind_and_second_read_are_told_apart(open_desk):
    """What the second one changed does not change what is told of the blind one."""
    desk, anna = open_desk("anna", cases=3, reveal=True)
    view = desk.next(anna).current
    locked = lock(desk, anna, view, says("Mass"))
    assert desk.blind_read(anna, view.reading_id).second is None
    about = {"version": locked.version, "key": fresh_key(), "spent": SPENT, "signal": desks.SIGNAL}
    desk.second(anna, view.reading_id, answer=says("Nodule"), **about)
    (listed,) = desk.last_readings(anna)
    stored = desk.blind_read(anna, view.reading_id)
    for blind, second in ((listed.blind, listed.second), (stored.verdicts, stored.second)):
        assert (blind["Mass"], blind["Nodule"]) == ("present", "absent")
        assert (second["Mass"], second["Nodule"]) == ("absent", "present")


def test_no_reading_is_listed_that_may_be_the_film_on_the_screen(open_desk):
    """Where films come again unmarked: at each repeat the first reading of that film is out of the list."""
    desk, anna = open_desk("anna", cases=40, repeats=0.5, readers_per_case=1)
    first, repeats = {}, 0
    while (view := desk.next(anna).current) is not None:
        listed = {each.reading_id for each in desk.last_readings(anna)}
        if view.image_id in first:
            repeats += 1
            assert first[view.image_id] not in listed
        first.setdefault(view.image_id, view.reading_id)
        assert len(listed) >= min(4, view.case_no - 1)
        read(desk, anna)
    assert repeats >= 10


def test_the_stored_blind_read_has_a_verdict_on_every_finding(open_desk):
    """What an unmarked one means is the study's rule; an undone lock is not what stands; NotNow before the lock."""
    desk, anna, ben = open_desk("anna", "ben", cases=3)
    view = desk.next(anna).current
    with pytest.raises(NotNow, match="not locked"):
        desk.blind_read(anna, view.reading_id)
    saved = lock(desk, anna, view, says("Mass"))
    undone = desk.undo(anna, view.reading_id, version=saved.version, key=fresh_key())
    with pytest.raises(NotNow, match="not locked"):
        desk.blind_read(anna, view.reading_id)
    said = says("Nodule", quality="unreadable", devices="present")
    desk.lock(anna, view.reading_id, version=undone.version, key=fresh_key(), answer=said, spent=SPENT)
    stored = desk.blind_read(anna, view.reading_id)
    assert stored.verdicts == dict.fromkeys(desks.FINDINGS, "unreadable") | {"Nodule": "present"}
    assert (stored.quality, stored.devices) == ("unreadable", "present")
    with pytest.raises(NotYours):
        desk.blind_read(ben, view.reading_id)
