"""Accounts beside an open room: changed by the process that serves it, in the words that it would say itself."""

import pytest

from bpals.errors import UnknownName, UsageError
from bpals.room.people.accounts import ACTS, ADD, Accounts, RelayedAccounts
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.relay import have_done, serving
from world import rooms


@pytest.fixture
def path(tmp_path):
    """Where a ledger is being served, with one admin."""
    found = tmp_path / "ledger.sqlite"
    with Ledger.open(found) as ledger, serving(ledger, ACTS):
        Accounts(ledger, b"").make("the admin", "admin", password=rooms.PASSWORD)
        yield found


@pytest.fixture
def beside(path):
    """The accounts of another process."""
    with Ledger.open(path, readonly=True) as ledger:
        yield RelayedAccounts(ledger)


def test_every_change_is_made_by_the_room(beside, path):
    """An account, its password, its second factor and its end: each is there at once, and in the log."""
    made = beside.make("anna", "adjudicator", password=rooms.PASSWORD, by="command line")
    assert beside.named("anna") == made
    assert made.role == "adjudicator"
    assert beside.enter("anna", rooms.PASSWORD) == made
    beside.set_password(made, "eight lamps by the sea", by="command line")
    assert beside.enter("anna", rooms.PASSWORD) is None
    assert beside.add_second_factor(made, "room", by="command line").startswith("otpauth://totp/")
    beside.set_disabled(made, disabled=True, by="command line")
    card = next(card for card in beside.cards() if card.account == made)
    assert (card.totp, card.disabled) == (True, True)
    with Ledger.open(path, readonly=True) as ledger:
        assert log.verify(ledger) == []


def test_an_account_that_is_asked_for_twice_is_made_once(beside, path):
    """C07: the answer was lost and the request sent again; another request for the same name is refused."""
    given = {"name": "anna", "role": "reader", "password": None, "subject": None, "by": "x", "key": "once"}
    assert have_done(path, ADD, given) == have_done(path, ADD, given)
    with pytest.raises(UsageError, match="account 'anna' already"):
        have_done(path, ADD, given | {"key": "again"})
    assert [card.account.name for card in beside.cards()] == ["anna", "the admin"]


def test_what_is_refused_is_refused_in_the_same_words(beside):
    """A common password, a role that is none, the last admin, nobody."""
    with pytest.raises(UsageError, match="this password is refused"):
        beside.make("anna", "reader", password="password")  # noqa: S106  it is refused
    with pytest.raises(UsageError, match="no role is called 'owner'"):
        beside.make("anna", "owner")
    with pytest.raises(UsageError, match="the last admin"):
        beside.set_disabled(beside.named("the admin"), disabled=True, by="x")
    with pytest.raises(UnknownName, match="no account is called 'nobody'"):
        beside.named("nobody")


def test_nothing_else_is_done_for_others(path):
    """The set of acts is closed: no statement, no link, no role."""
    for act in ("account role", "link", "sql"):
        with pytest.raises(UsageError, match=f"does not know the work '{act}'"):
            have_done(path, act, {})
