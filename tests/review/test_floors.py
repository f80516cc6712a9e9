"""Where each reader's next case is looked for first: a hint that is believed for ten seconds and never hides a case."""

from bpals.room.desk.assignment import BELIEVED_S, Floors
from world import desks


def test_a_floor_is_believed_for_a_while_and_not_for_longer():
    """Found from the bottom it holds; found from the floor it does not hold for longer than the first time."""
    seconds = 100.0
    floors = Floors(clock=lambda: seconds)
    assert floors.of(1) == 0
    floors.found(1, 7, began_at=0)
    assert floors.of(1) == 7
    assert floors.of(2) == 0
    seconds += BELIEVED_S - 1
    floors.found(1, 9, began_at=7)
    assert floors.of(1) == 9
    seconds += 1
    assert floors.of(1) == 0
    floors.found(1, 9, began_at=0)
    floors.forget()
    assert floors.of(1) == 0


def test_a_case_that_comes_back_behind_a_reader_is_still_handed_out(open_desk):
    """Nothing is left ahead, so the search begins at the bottom again."""
    desk, ann, ben = open_desk("ann", "ben", cases=6, batch=2, readers_per_case=1, adjudication="none")
    held = desk.next(ben, ahead=0).current
    read = desks.read_all(desk, ann)
    assert len(read) == 5
    desk.skip(ben, held.reading_id, version=0, key=desks.fresh_key())
    assert desk.next(ann).current.image_id == held.image_id
