"""Ready statements: the same rows and refusals on a file and on PostgreSQL, whatever way they go."""

import sqlite3

import pytest
from sqlalchemy import bindparam, delete, insert, literal, select, update
from sqlalchemy.exc import StatementError

from bpals.errors import ContractBroken, WorkspaceError
from bpals.store.ledger import Ledger
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.schema import STUDY

ADD = Ready(insert(STUDY))
NAMED = Ready(select(STUDY).where(STUDY.c.name == bindparam("wanted")))
TWO = Ready(select(STUDY.c.name).where(STUDY.c.name.in_([literal("a"), literal("b")])).order_by(STUDY.c.name))
STOP = Ready(update(STUDY).where(STUDY.c.name == bindparam("wanted")).values(stopped=bindparam("why")))
END = Ready(delete(STUDY).where(STUDY.c.name == bindparam("wanted")))


@pytest.fixture
def ledger(ledger_address):
    """A ledger with three studies."""
    with Ledger.open(ledger_address) as opened:
        opened.change(lambda connection: [ADD.run(connection, **row(at, name)) for at, name in enumerate("abc", 1)])
        yield opened


def row(number, name):
    """A study of the ledger."""
    return {"study_id": number, "name": name, "settings": "é{}", "at": "2026-01-01T00:00:00Z", "stopped": None}


def test_rows_have_their_columns_as_attributes(ledger):
    """What was written comes back by name: numbers, texts with any letter, and nothing."""
    found = ledger.look(lambda connection: NAMED.first(connection, wanted="b"))
    assert (found.study_id, found.name, found.settings, found.stopped) == (2, "b", "é{}", None)
    assert [each.name for each in ledger.look(TWO.rows)] == ["a", "b"]
    assert ledger.look(TWO.value) == "a"


def test_where_nothing_is_found_there_is_none(ledger):
    """No row is no error."""
    assert ledger.look(lambda connection: NAMED.first(connection, wanted="d")) is None
    assert ledger.look(lambda connection: NAMED.value(connection, wanted="d")) is None
    assert ledger.look(lambda connection: NAMED.rows(connection, wanted="d")) == []
    assert ledger.glance(NAMED, wanted="d") is None


def test_a_change_says_how_many_rows_it_changed(ledger):
    """An update and a removal count their rows, and are seen by the next glance."""
    assert ledger.change(lambda connection: STOP.run(connection, wanted="a", why="enough")) == 1
    assert ledger.glance(NAMED, wanted="a").stopped == "enough"
    assert ledger.change(lambda connection: STOP.run(connection, wanted="d", why="enough")) == 0
    assert ledger.change(lambda connection: END.run(connection, wanted="a")) == 1
    assert ledger.glance(NAMED, wanted="a") is None


def test_a_value_that_was_forgotten_is_not_taken_for_nothing(ledger):
    """A statement without one of its values is refused: NULL would be another question."""
    with pytest.raises((sqlite3.ProgrammingError, StatementError)):
        ledger.change(lambda connection: STOP.run(connection, wanted="a"))
    assert ledger.glance(NAMED, wanted="a").stopped is None


def test_a_refused_row_is_told_as_by_any_other_statement(ledger):
    """The driver's own errors are turned into ours, and nothing of the transaction stays."""

    def twice(connection):
        ADD.run(connection, **row(4, "d"))
        ADD.run(connection, **row(4, "e"))

    with pytest.raises(ContractBroken, match="refuses a row"):
        ledger.change(twice)
    assert ledger.glance(NAMED, wanted="d") is None


def test_a_file_that_was_removed_is_noticed_by_a_glance(tmp_path):
    """Who only glances is told as well, instead of reading from a file that nobody finds again."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as opened:
        opened.change(lambda connection: ADD.run(connection, **row(1, "a")))
        path.rename(tmp_path / "elsewhere.sqlite")
        with pytest.raises(WorkspaceError, match="removed or replaced"):
            opened.glance(NAMED, wanted="a")
