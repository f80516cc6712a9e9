"""Who reads what next: each once, in an order of their own, never one reader too many."""

import threading
from collections import Counter

from sqlalchemy import select

from bpals.room.desk.desk import Desk
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.schema import CASE, ENTRY, READING
from world import desks


def test_a_reader_is_handed_a_case_and_the_two_after_it(open_desk):
    """The films of the next cases can be loaded before they are wanted, and asking again changes nothing."""
    desk, ann = open_desk("ann")
    handed = desk.next(ann)
    assert [handed.current.case_no, *(view.case_no for view in handed.ahead)] == [1, 2, 3]
    assert handed.of == 6
    assert desk.next(ann) == handed


def test_where_there_are_plenty_the_next_cases_cost_no_write(open_desk, shared_ledger):
    """A few more are leased at once, so that most asks only read; what is handed over is the same."""
    desk, ann = open_desk("ann", cases=40, batch=40)
    first = desk.next(ann)
    assert len(first.ahead) == 2
    before = log.head(shared_ledger)
    desks.lock(desk, ann, first.current)
    after = log.head(shared_ledger)
    assert desk.next(ann).current.reading_id == first.ahead[0].reading_id
    assert log.head(shared_ledger) == after != before


def test_what_was_ahead_comes_next(open_desk):
    """The film that was preloaded is the one that is shown after the lock."""
    desk, ann = open_desk("ann")
    handed = desk.next(ann)
    desks.lock(desk, ann, handed.current)
    assert desk.next(ann).current.reading_id == handed.ahead[0].reading_id


def test_every_case_is_read_by_as_many_as_it_wants(open_desk):
    """Two readers a case and four readers: each case is read twice, by different people."""
    desk, *readers = open_desk("ann", "ben", "cay", "dan", cases=15, batch=5)
    for _ in range(15):
        for reader in readers:
            if desk.next(reader).current is not None:
                desks.read(desk, reader)
    read = Counter(desk.reviews().filter(finding="Mass")["image_id"])
    assert len(read) == 15
    assert set(read.values()) == {2}
    pairs = desk.reviews().select("image_id", "reader", "finding")
    assert pairs.is_unique().all()


def test_each_reader_has_an_order_of_their_own_within_a_batch(open_desk):
    """The order is shuffled per reader and made from the seed, and no case of a later batch comes before."""
    desk, ann, ben = open_desk("ann", "ben", cases=30, batch=10)
    orders = [[view.image_id for view in desks.read_all(desk, reader)] for reader in (ann, ben)]
    assert orders[0] != orders[1]
    for order in orders:
        assert order != sorted(order)
        assert [sorted(order[start : start + 10]) for start in (0, 10, 20)] == [
            [f"film-{number:06}" for number in range(start, start + 10)] for start in (0, 10, 20)
        ]


def test_c04_never_a_reader_more_than_wanted_when_all_ask_at_once(ledger_address):
    """C04: 8 readers in 8 threads, each with a connection of its own on PostgreSQL, fight for cases of 2 readers."""
    with Ledger.open(ledger_address) as ledger:
        study = desks.make_study(batch=5)
        desk = Desk.open(ledger, study)
        desk.draw(desks.films(12), desks.SIGNAL)
        readers = desks.enter(ledger, *(f"reader {number}" for number in range(8)))
        start, failed = threading.Barrier(8), []

        def work(reader):
            own = desk if ledger.dialect == "sqlite" else Desk(ledger, study, desk.study_id)
            start.wait()
            try:
                while own.next(reader, ahead=1).current is not None:
                    desks.read(own, reader)
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=work, args=[reader]) for reader in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        slots = Counter((row.case_id, row.slot) for row in desks.rows(ledger, READING))
        assert set(slots.values()) == {1}
        assert Counter(case_id for case_id, _ in slots) == dict.fromkeys(range(1, 13), 2)
        assert {row.taken for row in desks.rows(ledger, CASE)} == {2}


def test_c05_a_lease_ends_and_the_case_returns_while_the_draft_is_kept(open_desk, shared_ledger):
    """C05: ann closes her laptop; ben gets the case; ann's draft is still hers, and is not mixed with his."""
    desk, ann, ben = open_desk("ann", "ben", cases=1, readers_per_case=1, adjudication="none")
    view = desk.next(ann).current
    written = desks.says("Mass", note="written before the lid was closed")
    desk.draft(ann, view.reading_id, version=0, key=desks.fresh_key(), answer=written)
    assert desk.next(ben).why_code == "held"
    desks.let_leases_end(shared_ledger, ann)
    assert desk.next(ben).current.answer.note == ""
    kept = desk.reading(ann, view.reading_id)
    assert (kept.state, kept.answer) == ("released", written)


def test_c05_who_comes_back_first_goes_on_with_the_draft(open_desk, shared_ledger):
    """C05: nobody took the case meanwhile, so its reader is handed it again, with what was written."""
    desk, ann = open_desk("ann", cases=3)
    view = desk.next(ann).current
    written = desks.says("Nodule")
    desk.draft(ann, view.reading_id, version=0, key=desks.fresh_key(), answer=written)
    desks.let_leases_end(shared_ledger)
    back = desk.next(ann).current
    assert (back.reading_id, back.answer, back.state) == (view.reading_id, written, "leased")


def test_a_draft_renews_the_lease(open_desk, shared_ledger):
    """Who writes is there: the lease does not end under a reader's hands."""
    desk, ann = open_desk("ann")
    view = desk.next(ann).current
    desks.let_leases_end(shared_ledger, ann)
    desk.draft(ann, view.reading_id, version=0, key=desks.fresh_key(), answer=desks.says())
    held = select(READING.c.held_until).where(READING.c.reading_id == view.reading_id)
    assert shared_ledger.look(lambda connection: connection.execute(held).scalar()) > 1.0


def test_repeats_come_unmarked_and_only_once(open_desk):
    """About one in five readings is a film the reader knows; nothing in what is handed out says so."""
    desk, ann = open_desk("ann", cases=40, batch=10, repeats=0.2, readers_per_case=1, adjudication="none")
    views = desks.read_all(desk, ann)
    films = Counter(view.image_id for view in views)
    assert set(films.values()) == {1, 2}
    assert 5 <= len(views) - 40 <= 10
    assert [view.case_no for view in views] == list(range(1, len(views) + 1))
    assert len({view.reading_id for view in views}) == len(views)
    marked = desk.reviews().filter(finding="Mass")
    assert marked["repeat"].sum() == len(views) - 40
    assert desk.counts().repeats == len(views) - 40


def test_a_film_comes_again_after_others(open_desk):
    """Between a film and its repeat lie at least half a batch of others."""
    desk, ann = open_desk("ann", cases=40, batch=20, repeats=0.2, readers_per_case=1, adjudication="none")
    places = {}
    for place, view in enumerate(desks.read_all(desk, ann)):
        places.setdefault(view.image_id, []).append(place)
    gaps = [second - first for first, *rest in places.values() for second in rest]
    assert gaps
    assert min(gaps) >= 10


def test_a_repeat_takes_no_place_from_another_reader(open_desk):
    """A case that one has read twice still gets its second reader."""
    desk, ann, ben = open_desk("ann", "ben", cases=20, batch=10, repeats=0.2)
    desks.read_all(desk, ann)
    assert {view.image_id for view in desks.read_all(desk, ben)} == {f"film-{n:06}" for n in range(20)}


def test_an_empty_study_says_that_nothing_is_drawn(open_desk):
    """Nothing was drawn yet: that is no error."""
    desk, ann = open_desk("ann", cases=0)
    assert desk.next(ann).why_code == "empty"


def test_who_has_read_everything_is_thanked(open_desk):
    """A reader does not read a case twice because it wants a second reader."""
    desk, ann = open_desk("ann", cases=4)
    assert len(desks.read_all(desk, ann)) == 4
    assert desk.next(ann).why_code == "read"


def test_skipped_cases_go_to_others_and_can_be_had_back(open_desk):
    """Somebody who skips all is told how many, gets them back on request, and others are handed them meanwhile."""
    desk, ann, ben = open_desk("ann", "ben", cases=3, readers_per_case=1, adjudication="none")
    while view := desk.next(ann).current:
        desk.skip(ann, view.reading_id, version=view.version, key=desks.fresh_key())
    empty = desk.next(ann)
    assert (empty.why_code, "3" in empty.why_none) == ("skipped", True)
    desks.read(desk, ben)
    handed = desk.next(ben)
    assert desk.bring_back(ann) == 3
    assert desk.next(ann).why_code == "held"
    for view in (handed.current, *handed.ahead):
        desk.skip(ben, view.reading_id, version=view.version, key=desks.fresh_key())
    assert len(desks.read_all(desk, ann)) == 2


def test_a_study_that_stops_finishes_what_was_begun(open_desk):
    """After 4 reads no new case is begun, but a case that has one reader gets its second."""
    desk, ann, ben = open_desk("ann", "ben", cases=30, batch=30, stop_reads=4)
    for _ in range(4):
        desks.read(desk, ann)
    assert "4" in desk.stopped()
    left = desks.read_all(desk, ann)
    assert len(left) == 2
    assert desk.next(ann).why_code == "stopped"
    assert len(desks.read_all(desk, ben)) == 6


def test_a_study_stops_when_the_interval_is_narrow_enough(open_desk):
    """Whoever computes the error rate tells its width; the desk keeps to the rule."""
    desk, ann = open_desk("ann", stop_width=0.05)
    assert not desk.note_width(0.08)
    assert desk.note_width(0.05)
    assert desk.note_width(0.5), "a study that has stopped stays so"
    assert desk.next(ann).why_code == "stopped"


def test_handing_out_a_case_is_in_the_log(desk_ledger):
    """Who was shown which case is an entry, each of the three that are leased."""
    desk = Desk.open(desk_ledger, desks.make_study())
    desk.draw(desks.films(5), desks.SIGNAL)
    (ann,) = desks.enter(desk_ledger, "ann")
    desk.next(ann)
    actions = [row.action for row in desks.rows(desk_ledger, ENTRY)]
    assert actions == ["study", "drawn", "leased", "leased", "leased"]
