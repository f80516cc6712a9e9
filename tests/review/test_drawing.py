"""Cases into the study: batches, films that come again, and what a new draw takes back."""

import polars as pl
import pytest

from bpals.errors import UnknownName, UsageError
from bpals.store.ledger.schema import BATCH, CASE, DRAWN
from world import desks


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
