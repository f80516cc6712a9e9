"""Works of several threads in one transaction: each is done once, and a bad one fails alone."""

import threading

import pytest
from sqlalchemy import event, insert, select

from bpals.errors import UsageError
from bpals.store.ledger import Ledger
from bpals.store.ledger.schema import STUDY, now


def adding(name, *, after=None):
    """A work that adds a study, once something holds."""

    def work(connection):
        if after is not None:
            after.wait(10)
        connection.execute(insert(STUDY).values(name=name, settings="{}", at=now()))
        return name

    return work


def refusing(connection):
    """A work that begins, and then refuses."""
    adding("refused")(connection)
    raise UsageError("this work refuses")


def names(ledger):
    """The studies that are there."""
    return ledger.look(
        lambda connection: connection.execute(select(STUDY.c.name).order_by(STUDY.c.name)).scalars().all()
    )


@pytest.fixture
def ledger(tmp_path):
    """A ledger in a file."""
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


def all_at_once(ledger, works):
    """Let a first work hold the turn until all others wait behind it; give what each gave or raised, in order."""
    gate, told = threading.Event(), {}

    def do(number, work):
        try:
            told[number] = ledger.change(work)
        except UsageError as error:
            told[number] = str(error)

    first = threading.Thread(target=do, args=(-1, adding("first", after=gate)))
    first.start()
    others = [threading.Thread(target=do, args=(number, work)) for number, work in enumerate(works)]
    for other in others:
        other.start()
    while len(ledger._backend._group._waiting) < len(works):
        threading.Event().wait(0.005)
    gate.set()
    for thread in (first, *others):
        thread.join(30)
    return [told[number] for number in range(len(works))]


def test_works_that_wait_together_are_made_durable_together(ledger):
    """Twenty works, each done once and each told what it gave, in far fewer transactions than works."""
    commits = []
    event.listen(ledger._backend._writer, "commit", commits.append)
    works = [adding(f"study {number:02}") for number in range(20)]
    assert all_at_once(ledger, works) == [f"study {number:02}" for number in range(20)]
    assert names(ledger) == ["first", *(f"study {number:02}" for number in range(20))]
    assert len(commits) <= 4


def test_a_work_that_refuses_fails_alone(ledger):
    """Its neighbours are kept, nothing of it is, and it alone is told."""
    works = [adding("a"), refusing, adding("b"), adding("c")]
    assert all_at_once(ledger, works) == ["a", "this work refuses", "b", "c"]
    assert names(ledger) == ["a", "b", "c", "first"]
