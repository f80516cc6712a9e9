"""Who reads what next: leases, orders, repeats, drawn cases, and what a reader finished last."""

import threading
from collections import Counter

import polars as pl
import pytest
from sqlalchemy import select

from bpals.errors import NotNow, NotYours, UnknownName, UsageError
from bpals.room.desk.assignment import HINT_S, BatchHints
from bpals.room.desk.desk import Desk
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.schema import BATCH, CASE, DRAWN, ENTRY, READING
from world import desks
from world.desks import SPENT, fresh_key, lock, read, says


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
    before = shared_ledger.look(log.head)
    desks.lock(desk, ann, first.current)
    after = shared_ledger.look(log.head)
    assert desk.next(ann).current.reading_id == first.ahead[0].reading_id
    assert shared_ledger.look(log.head) == after != before


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


def cases_of(ledger, desk):
    """The cases of a study in their order."""
    return [row for row in desks.rows(ledger, CASE) if row.study_id == desk.study_id]


def test_films_become_cases_in_batches_in_their_order(open_desk, shared_ledger):
    """25 films in batches of 10: 10, 10 and 5, each batch with the version of the signal it was drawn from."""
    desk = open_desk(cases=25)[0]
    batches = [row.batch for row in cases_of(shared_ledger, desk)]
    assert batches == [1] * 10 + [2] * 10 + [3] * 5
    signals = [row.signal for row in desks.rows(shared_ledger, BATCH) if row.study_id == desk.study_id]
    assert signals == [desks.SIGNAL] * 3


def test_a_film_that_was_drawn_for_several_findings_is_one_case(open_desk):
    """Two pairs of one film: it is read once, and both chances are kept."""
    desk, ann = open_desk("ann", cases=0, asks="drawn")
    pairs = pl.concat([desks.films(2), desks.films(2, finding="Nodule", inclusion=0.5)])
    assert desk.draw(pairs, desks.SIGNAL) == 2
    views = desks.read_all(desk, ann)
    assert [view.findings for view in views] == [("Mass", "Nodule")] * 2
    assert sorted(desk.reviews().select("finding", "inclusion").unique().rows()) == [("Mass", 0.25), ("Nodule", 0.5)]


def test_a_study_that_asks_all_findings_asks_all_on_every_film(open_desk):
    """Whatever it was drawn for."""
    desk, ann = open_desk("ann", cases=1)
    assert desk.next(ann).current.findings == desks.FINDINGS


def test_a_film_that_is_a_case_already_is_not_read_again(open_desk, shared_ledger):
    """Drawn once more in a study that asks all findings, it keeps its one case, and its new pair is noted with it."""
    desk, ann = open_desk("ann", cases=3)
    desks.read(desk, ann)
    assert desk.draw(desks.films(4, finding="Nodule"), "sha256:later") == 1
    cases = cases_of(shared_ledger, desk)
    assert [row.image_id for row in cases] == [f"film-{number:06}" for number in range(4)]
    drawn = [row.finding for row in desks.rows(shared_ledger, DRAWN) if row.case_id == cases[0].case_id]
    assert sorted(drawn) == ["Mass", "Nodule"]


def test_a_begun_film_comes_again_for_what_was_not_asked(open_desk):
    """In a study that asks only what was drawn, a later batch may ask another finding of a film that was read."""
    desk, ann = open_desk("ann", cases=1, asks="drawn")
    desks.read(desk, ann)
    assert desk.draw(desks.films(1), "sha256:later") == 0
    both = pl.concat([desks.films(1), desks.films(1, finding="Nodule")])
    assert desk.draw(both, "sha256:later") == 1
    view = desk.next(ann).current
    assert (view.image_id, view.findings) == ("film-000000", ("Nodule",))


def test_an_unbegun_film_is_asked_both_at_once(open_desk):
    """Nobody has opened it: the second finding joins the first."""
    desk, ann = open_desk("ann", cases=1, asks="drawn")
    assert desk.draw(desks.films(1, finding="Nodule"), "sha256:later") == 0
    assert desk.next(ann).current.findings == ("Mass", "Nodule")


def test_a_new_draw_may_replace_what_nobody_has_opened(open_desk, shared_ledger):
    """The queue follows the signal: opened cases stay with their readers, the rest is drawn anew."""
    desk, ann = open_desk("ann", cases=10)
    held = desk.next(ann)
    opened = {view.image_id for view in (held.current, *held.ahead)}
    assert desk.draw(desks.films(4, first=8), "sha256:later", replace=True) == 4 - len(
        opened & {"film-000008", "film-000009"}
    )
    live = {row.image_id for row in cases_of(shared_ledger, desk) if not row.withdrawn}
    assert live == opened | {f"film-{number:06}" for number in range(8, 12)}
    read = [view.image_id for view in desks.read_all(desk, ann)]
    assert sorted(read) == sorted(live)


def test_what_does_not_fit_is_refused(open_desk):
    """A column that is missing, and a finding that the study does not ask."""
    desk = open_desk(cases=0)[0]
    with pytest.raises(UsageError, match="have no column 'inclusion'"):
        desk.draw(desks.films(1).drop("inclusion"), desks.SIGNAL)
    with pytest.raises(UnknownName, match=r"'Nodul'.*'Nodule'"):
        desk.draw(desks.films(1, finding="Nodul"), desks.SIGNAL)


def test_nothing_drawn_adds_nothing(open_desk):
    """An empty queue is no error, and a pair that is named twice is one."""
    desk = open_desk(cases=0)[0]
    assert desk.draw(desks.films(0), desks.SIGNAL) == 0
    assert desk.draw(pl.concat([desks.films(1)] * 2), desks.SIGNAL) == 1


def test_a_floor_is_believed_for_a_while_and_not_for_longer():
    """Found from the bottom it holds; found from the floor it does not hold for longer than the first time."""
    seconds = 100.0
    floors = BatchHints(clock=lambda: seconds)
    assert floors.of(1) == 0
    floors.found(1, 7, began_at=0)
    assert floors.of(1) == 7
    assert floors.of(2) == 0
    seconds += HINT_S - 1
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
