"""Sessions: what a token is worth, when it ends, and that nobody is in by one that ended."""

import time

import pytest
import time_machine
from sqlalchemy import delete, select, update

from bpals.room.people.accounts import Accounts, hashed
from bpals.room.people.sessions import SEEN_EVERY_S, Sessions
from bpals.store.ledger import Ledger
from bpals.store.ledger.schema import SESSION
from world import rooms

SECRET = rooms.SECRET
IDLE_S, STAY_S = 1000.0, 5000.0


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def ledger(request, tmp_path_factory):
    """One ledger for the whole file, on SQLite and then on PostgreSQL: X06."""
    address = tmp_path_factory.mktemp("sessions") / "ledger.sqlite"
    if request.param == "postgresql":
        address = rooms.new_database(request.getfixturevalue("postgres_address"))
    with Ledger.open(address) as opened:
        yield opened


@pytest.fixture(scope="module")
def sessions(ledger):
    """Sessions with short limits."""
    return Sessions(ledger, SECRET, idle_s=IDLE_S, stay_s=STAY_S)


@pytest.fixture(scope="module")
def accounts(ledger):
    """The accounts."""
    return Accounts(ledger, SECRET)


@pytest.fixture
def anna(accounts, ledger):
    """Somebody new, with a password; nobody else is in."""
    ledger.change(lambda connection: connection.execute(delete(SESSION)))
    return accounts.make(f"anna {len(accounts.cards())}", "reader", password=rooms.PASSWORD)


def kept(ledger):
    """The rows of the table."""
    return ledger.look(lambda connection: connection.execute(select(SESSION)).all())


def earlier(ledger, seconds):
    """Do what time does: every session began, and was last seen, so much earlier."""
    moved = {name: SESSION.c[name] - seconds for name in ("began", "seen", "ends")}
    ledger.change(lambda connection: connection.execute(update(SESSION).values(moved)))


def test_a_token_stands_for_its_account(sessions, anna, ledger):
    """256 bits that nobody can guess; the ledger keeps a keyed hash, from which nobody can make them."""
    token = sessions.begin(anna.account_id)
    assert sessions.find(token) == anna
    assert len(token) >= 43
    (row,) = kept(ledger)
    assert row.token == hashed(SECRET, token) != token
    assert sessions.find(row.token) is None
    for other in ("", token[:-1], token + "x", "\ud800", "x" * 10_000):
        assert sessions.find(other) is None


def test_s07_a_new_login_has_a_new_token(sessions, anna):
    """S07: whatever token a browser was given before (fixation), it is worth nothing after the login."""
    first = sessions.begin(anna.account_id)
    second = sessions.begin(anna.account_id, instead_of=first)
    assert second != first
    assert sessions.find(first) is None
    assert sessions.find(second) == anna
    assert sessions.begin(anna.account_id, instead_of="planted by somebody") != "planted by somebody"
    assert sessions.find("planted by somebody") is None


def test_s07_an_idle_session_ends(sessions, anna, ledger):
    """S07: after so long without a request."""
    token = sessions.begin(anna.account_id)
    earlier(ledger, IDLE_S - 5)
    assert sessions.find(token) == anna
    earlier(ledger, IDLE_S + 1)
    assert sessions.find(token) is None


def test_s07_a_session_ends_though_it_is_used(sessions, anna, ledger):
    """S07: after so long in any case; the next login sweeps its row away."""
    token = sessions.begin(anna.account_id)
    for _ in range(6):
        earlier(ledger, IDLE_S * 0.8)
        assert sessions.find(token) == anna
    earlier(ledger, IDLE_S * 0.8)
    assert sessions.find(token) is None
    sessions.begin(anna.account_id)
    assert len(kept(ledger)) == 1


def test_s07_every_session_ends_with_the_password(sessions, accounts, anna):
    """S07: also where an admin sets it; login links end too."""
    tokens = [sessions.begin(anna.account_id) for _ in range(3)]
    link = accounts.make_link(anna, by="test")
    accounts.set_password(anna, "another four plain words", by="admin")
    assert [sessions.find(token) for token in tokens] == [None] * 3
    assert accounts.use_link(link) is None


def test_s07_every_session_ends_with_the_account(sessions, accounts, anna):
    """S07: a disabled account is out at its next request, and stays out when it is enabled again."""
    token = sessions.begin(anna.account_id)
    accounts.set_disabled(anna, disabled=True, by="boss")
    assert sessions.find(token) is None
    assert accounts.enter(anna.name, rooms.PASSWORD) is None
    accounts.set_disabled(anna, disabled=False, by="boss")
    assert sessions.find(token) is None
    assert accounts.enter(anna.name, rooms.PASSWORD) == anna


def test_s07_a_session_ends_at_logout(sessions, anna):
    """S07: that one, and no other."""
    first, second = sessions.begin(anna.account_id), sessions.begin(anna.account_id)
    sessions.end(first)
    assert sessions.find(first) is None
    assert sessions.find(second) == anna
    third = sessions.begin(anna.account_id)
    assert sessions.end_others(anna.account_id, third) == 1
    assert sessions.find(second) is None
    assert sessions.find(third) == anna


def test_a_role_holds_from_the_next_request_on(sessions, accounts, anna):
    """What somebody may do is not remembered in the session."""
    token = sessions.begin(anna.account_id)
    accounts.set_role(anna, "adjudicator", by="admin")
    assert sessions.find(token).role == "adjudicator"


def test_seen_is_written_once_a_minute(sessions, anna, ledger):
    """A hundred requests in a minute are a hundred reads and no write."""
    token = sessions.begin(anna.account_id)
    first = kept(ledger)[0].seen
    for _ in range(5):
        sessions.find(token)
    assert kept(ledger)[0].seen == first
    earlier(ledger, SEEN_EVERY_S + 1)
    sessions.find(token)
    assert abs(kept(ledger)[0].seen - first) < 5


def test_one_sees_ones_own_sessions(sessions, accounts, anna, ledger):
    """Newest first, which of them asks, and none that ended."""
    berta = accounts.make(f"berta of {anna.name}", "reader")
    sessions.begin(berta.account_id)
    gone = sessions.begin(anna.account_id)
    earlier(ledger, IDLE_S + 1)
    first = sessions.begin(anna.account_id)
    time.sleep(0.02)  # SQLite's clock has steps of a millisecond
    second = sessions.begin(anna.account_id)
    assert [visit.this for visit in sessions.visits(anna.account_id, first)] == [False, True]
    assert sessions.find(gone) is None
    assert sessions.find(second) == anna


def test_a_session_says_when_it_ends_at_the_latest(sessions, anna, ledger):
    """As long as one may stay at all, and not as long as one may be idle, which every request begins anew."""
    token = sessions.begin(anna.account_id)
    earlier(ledger, IDLE_S / 2)
    assert sessions.find(token) == anna
    (visit,) = sessions.visits(anna.account_id, token)
    assert visit.ends - visit.began == pytest.approx(STAY_S)


def test_t01_this_machines_clock_ends_no_session(sessions, anna):
    """T01: sessions go by the database's clock; where the process thinks it is next year, nobody is thrown out."""
    token = sessions.begin(anna.account_id)
    with time_machine.travel("2036-01-01"):
        assert sessions.find(token) == anna
        assert sessions.find(sessions.begin(anna.account_id)) == anna
    with time_machine.travel("2001-01-01"):
        assert sessions.find(token) == anna


def test_s16_with_another_secret_every_session_is_void(ledger, anna, sessions):
    """S16: a secret that others could have read is replaced, and then no token of before is worth anything."""
    token = sessions.begin(anna.account_id)
    assert Sessions(ledger, b"1" * 32, idle_s=IDLE_S, stay_s=STAY_S).find(token) is None
    assert sessions.find(token) == anna
