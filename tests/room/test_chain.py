"""The log: whoever edits, removes or reorders shows; and what the tables say is what the log says."""

import json
import threading
from dataclasses import replace

import pytest
from sqlalchemy import delete, insert, select, text, update

from bpals.errors import UsageError
from bpals.room.desk.desk import Desk
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.schema import ADJUDICATION, ENTRY, READING, REVIEW
from world import desks
from world.words import mentions


@pytest.fixture
def read_case(desk_ledger):
    """A ledger in which a case was read by two who differ, a third decided, and one amended."""
    desk = Desk.open(desk_ledger, desks.make_study(reveal=True))
    desk.draw(desks.films(2), desks.SIGNAL)
    readers = desks.enter(desk_ledger, "ann", "ben", "cay")
    for reader in readers:
        desks.read_all(desk, reader, desks.says("Mass") if reader.name != "ben" else desks.says())
    assert desk.counts().settled == 2
    assert log.check(desk_ledger).found == []
    return desk_ledger


def edit(ledger, *statements):
    """Change the database past the room."""
    ledger.change(lambda connection: [connection.execute(statement) for statement in statements])


def swap(ledger, one, other):
    """Let two entries change places."""
    edit(
        ledger,
        update(ENTRY).where(ENTRY.c.sequence == one).values(sequence=-1),
        update(ENTRY).where(ENTRY.c.sequence == other).values(sequence=one),
        update(ENTRY).where(ENTRY.c.sequence == -1).values(sequence=other),
    )


def edited(ledger, table, which, change):
    """What is found while one column of a row is edited; it is put back after."""
    before = ledger.look(lambda connection: connection.execute(select(table).where(which)).mappings().one())
    edit(ledger, update(table).where(which).values(change))
    found = log.check(ledger).found
    edit(ledger, update(table).where(which).values({name: before[name] for name in change}))
    return found


def test_s22_an_edited_entry_is_named(read_case):
    """S22: whichever column is edited, the entry is the first bad one."""
    for change in (
        {"actor": "ben"},
        {"action": "skip"},
        {"detail": "{}"},
        {"at": "2020"},
        {"reply": "{}"},
        {"key": "x"},
    ):
        (problem,) = edited(read_case, ENTRY, ENTRY.c.sequence == 7, change)
        assert problem.startswith("entry 7 was changed"), change
    assert log.check(read_case).found == []


def test_s22_a_forged_entry_breaks_the_next(read_case):
    """S22: an edit that makes its own hash right does not follow into the entry behind it."""
    entry = read_case.look(
        lambda connection: connection.execute(select(ENTRY).where(ENTRY.c.sequence == 7)).mappings().one()
    )
    forged = {**entry, "actor": "ben"}
    edit(read_case, update(ENTRY).where(ENTRY.c.sequence == 7).values(actor="ben", hash=log._hash(forged)))
    (problem,) = log.check(read_case).found
    assert mentions(problem, "entry 8", "entry 7")


def test_s22_a_removed_entry_is_named(read_case):
    """S22: the gap is found."""
    edit(read_case, delete(ENTRY).where(ENTRY.c.sequence == 5))
    assert [mentions(problem, "entry 5", "4", "6") for problem in log.check(read_case).found] == [True]


def test_s22_reordered_entries_are_named(read_case):
    """S22: two entries that changed places."""
    swap(read_case, 5, 6)
    (problem,) = log.check(read_case).found
    assert mentions(problem, "entry 5", "entry 4")


def test_s22_entries_cut_off_the_end_are_missed_by_what_they_wrote(read_case):
    """S22: a chain that ends early is whole in itself; but reviews are there that no entry knows."""
    last = max(row.sequence for row in desks.rows(read_case, ENTRY))
    edit(read_case, delete(ENTRY).where(ENTRY.c.sequence > last - 6))
    assert "is in no entry" in log.check(read_case).found[0]


def test_s22_an_edited_review_differs_from_its_entry(read_case):
    """S22: the log holds a digest of every review, so that the table cannot be edited behind it."""
    for change in ({"verdict": "unreadable"}, {"reader": "cay"}, {"inclusion": 0.5}, {"note": "x"}, {"saw_signal": 1}):
        (problem,) = edited(read_case, REVIEW, REVIEW.c.review_id == 1, change)
        assert mentions(problem, "review 1", "changed"), change
    assert log.check(read_case).found == []


def test_s22_reviews_cannot_be_added_or_removed_past_the_log(read_case):
    """S22: a verdict that nobody gave, and one that is gone."""
    first = read_case.look(lambda connection: connection.execute(select(REVIEW)).mappings().first())
    added = {**first, "review_id": 9_999, "external_id": None}
    edit(read_case, insert(REVIEW).values(added))
    assert [mentions(problem, "review 9999", "no entry") for problem in log.check(read_case).found] == [True]
    edit(read_case, delete(REVIEW).where(REVIEW.c.review_id.in_([2, 9_999])))
    (problem,) = log.check(read_case).found
    assert problem.endswith("review 2 was removed")


def test_s22_an_edited_adjudication_differs_from_its_entry(read_case):
    """S22: the same for what was settled."""
    edit(read_case, update(ADJUDICATION).where(ADJUDICATION.c.finding == "Mass").values(verdict="absent"))
    (problem,) = log.check(read_case).found
    assert "adjudication 1 was changed" in problem


def test_s22_a_reading_that_was_unlocked_past_the_room_is_named(read_case):
    """S22: to open a locked read anew, one would have to say so in the log."""
    reading = desks.rows(read_case, READING)[0]
    edit(read_case, update(READING).where(READING.c.reading_id == reading.reading_id).values(state="leased"))
    (problem,) = log.check(read_case).found
    assert f"reading {reading.reading_id} is leased" in problem


def test_s22_a_head_that_was_kept_elsewhere_finds_a_log_that_was_cut_or_replaced(read_case):
    """S22: the one thing a chain cannot see by itself."""
    known = read_case.look(log.head)
    assert log.check(read_case, known=known).found == []
    other, later = replace(known, hash="0" * 64), replace(known, sequence=known.sequence + 1)
    assert mentions(log.check(read_case, known=other).found[0], "another", "hash")
    assert "the log ends before it" in log.check(read_case, known=later).found[0]


def test_s22_the_hash_alone_finds_that_the_end_was_cut_off(read_case):
    """S22: an entry that nothing else speaks of is removed from the end; only a head that was kept can tell."""
    read_case.change(lambda c: log.append(c, actor="anna", action="entered", detail={}))
    checked = log.check(read_case)
    assert checked.found == []
    assert str(checked.head) == f"{checked.head.sequence}:{checked.head.hash}"
    heads = [log.Head.parse(str(checked.head)), log.Head.parse(f" {checked.head.hash.upper()}\n")]
    assert [log.check(read_case, known=head).found for head in heads] == [[], []]
    edit(read_case, delete(ENTRY).where(ENTRY.c.sequence == checked.head.sequence))
    assert log.check(read_case).found == []
    assert ["the log ends before it" in log.check(read_case, known=head).found[0] for head in heads] == [True, True]


@pytest.mark.parametrize("text", ["", "12", "a" * 63, f"x:{'a' * 64}", "g" * 64, f"1:2:{'a' * 64}"])
def test_what_is_no_head_is_refused(text):
    """P4: a head that lost a letter on its way would prove nothing."""
    with pytest.raises(UsageError, match="no head of a log"):
        log.Head.parse(text)


def test_an_empty_log_is_whole(desk_ledger):
    """A ledger in which nothing happened has nothing wrong."""
    assert log.check(desk_ledger, known=desk_ledger.look(log.head)).found == []


def test_entries_are_one_chain_also_when_many_write_at_once(ledger_address):
    """Eight threads append: sequences without a gap, each with the hash of the one before."""
    with Ledger.open(ledger_address) as ledger:

        def work(name):
            for number in range(10):
                ledger.change(
                    lambda connection, number=number: log.append(
                        connection, actor=name, action="test", detail={"number": number}
                    )
                )

        threads = [threading.Thread(target=work, args=[f"thread {number}"]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [row.sequence for row in desks.rows(ledger, ENTRY)] == list(range(1, 81))
        assert log.check(ledger).found == []


def test_details_are_written_in_one_way(desk_ledger):
    """Canonical JSON: sorted, without blanks, letters as they are; numbers that JSON has not are refused."""
    assert log.canonical({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}'
    with pytest.raises(ValueError, match="JSON compliant"):
        log.canonical({"a": float("nan")})
    desk_ledger.change(
        lambda connection: log.append(connection, actor="ann", action="test", detail={"b": [1], "a": None})
    )
    stored = desk_ledger.look(lambda connection: connection.execute(text("SELECT detail FROM entry")).scalar())
    assert json.loads(stored) == {"a": None, "b": [1]}
