"""Accounts: who may enter and how, the second factor, and changes made through an open room."""

import pyotp
import pytest
from argon2 import PasswordHasher
from sqlalchemy import select, update

from bpals.errors import UnknownName, UsageError
from bpals.room.people.accounts import ACTS, ADD, STEP_S, Accounts, RelayedAccounts, SecondFactor
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.relay import have_done, serving
from bpals.store.ledger.schema import ACCOUNT, ENTRY, LINK
from world import rooms

PASSWORD = rooms.PASSWORD


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """One ledger for the whole file."""
    with Ledger.open(tmp_path_factory.mktemp("accounts") / "ledger.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def accounts(ledger):
    """Its accounts, with one admin."""
    made = Accounts(ledger, rooms.SECRET)
    made.make("the admin", "admin", password=PASSWORD)
    return made


@pytest.fixture
def anna(accounts):
    """Somebody new."""
    return accounts.make(f"anna {len(accounts.cards())}", "reader", password=PASSWORD)


def test_a_password_lets_one_in(accounts, anna):
    """The right one; a wrong one, another's name, and a name that does not exist give the same nothing."""
    assert accounts.enter(anna.name, PASSWORD) == anna
    for name, password in ((anna.name, "wrong"), (anna.name, ""), ("nobody", PASSWORD), ("", "")):
        assert accounts.enter(name, password) is None


def test_the_ledger_has_no_password_in_it(accounts, anna, ledger):
    """Only an argon2id hash, salted: two accounts with one password differ."""
    other = accounts.make(f"other than {anna.name}", "reader", password=PASSWORD)
    which = select(ACCOUNT.c.password).where(ACCOUNT.c.account_id.in_([anna.account_id, other.account_id]))
    first, second = ledger.look(lambda connection: connection.execute(which).scalars().all())
    assert first.startswith("$argon2id$")
    assert first != second
    assert PASSWORD not in str(ledger.look(lambda connection: connection.execute(select(ENTRY)).all()))


def test_an_old_hash_is_made_anew_at_login(accounts, anna, ledger):
    """Parameters grow; the password is there only at login, so then."""
    weak = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    mine = ACCOUNT.c.account_id == anna.account_id
    ledger.change(lambda connection: connection.execute(update(ACCOUNT).where(mine).values(password=weak)))
    assert accounts.enter(anna.name, PASSWORD) == anna
    kept = ledger.look(lambda connection: connection.execute(select(ACCOUNT.c.password).where(mine)).scalar_one())
    assert kept != weak
    assert accounts.enter(anna.name, PASSWORD) == anna


def test_a_second_factor_is_asked_for(accounts, anna):
    """The password alone lets nobody in; a code works once, and the last or next one works for a slow clock."""
    address = accounts.add_second_factor(anna, "Reading room", by="test")
    assert address.startswith("otpauth://totp/")
    app = pyotp.parse_uri(address)
    assert accounts.enter(anna.name, PASSWORD) is None
    assert accounts.enter(anna.name, PASSWORD, "000000") is None
    code = app.now()
    assert accounts.enter(anna.name, "wrong", code) is None
    assert accounts.enter(anna.name, PASSWORD, code) == anna
    assert accounts.enter(anna.name, PASSWORD, code) is None
    accounts.drop_second_factor(anna, by="test")
    assert accounts.enter(anna.name, PASSWORD) == anna


def test_a_link_lets_one_in_once(accounts, anna, ledger):
    """And not when its time is over, and not with a bit changed."""
    token = accounts.make_link(anna, by="test")
    assert accounts.use_link(token[:-1] + "!") is None
    assert accounts.use_link(token) == anna
    assert accounts.use_link(token) is None
    late = accounts.make_link(anna, by="test")
    ledger.change(lambda connection: connection.execute(update(LINK).values(ends=1.0)))
    assert accounts.use_link(late) is None
    assert accounts.use_link("") is None
    kept = ledger.look(lambda connection: connection.execute(select(LINK.c.token)).scalars().all())
    assert token not in kept


def test_a_link_of_a_disabled_account_lets_nobody_in(accounts, anna):
    """Neither one made before nor one made after."""
    token = accounts.make_link(anna, by="test")
    accounts.set_disabled(anna, disabled=True, by="test")
    assert accounts.use_link(token) is None
    assert accounts.use_link(accounts.make_link(anna, by="test")) is None


def test_one_changes_ones_own_password(accounts, anna):
    """With the old one; an account that entered by a link sets its first without."""
    assert not accounts.change_password(anna, "wrong", "another four plain words")
    assert accounts.change_password(anna, PASSWORD, "another four plain words")
    assert accounts.enter(anna.name, PASSWORD) is None
    assert accounts.enter(anna.name, "another four plain words") == anna
    berta = accounts.make(f"berta of {anna.name}", "reader")
    assert accounts.enter(berta.name, "") is None
    assert accounts.change_password(berta, "", "another four plain words")
    assert not accounts.change_password(berta, "", "a third row of plain words")


def test_a_weak_password_is_refused_with_a_reason(accounts):
    """One line that says why, and no account is made."""
    with pytest.raises(UsageError, match=r"refused: .*guess"):
        accounts.make("careless", "reader", password="Password123!")  # noqa: S106 -- a bad one
    with pytest.raises(UnknownName, match=r"account .*'careless'"):
        accounts.named("careless")


@pytest.mark.parametrize("name", ["", "   ", "a" * 65, "nul\x00", "\u202eright to left"])
def test_a_name_can_be_shown(accounts, name):
    """One to 64 printable characters."""
    with pytest.raises(UsageError, match="printable characters"):
        accounts.make(name, "reader")


def test_a_name_may_look_like_markup(accounts):
    """It is text everywhere: S03 sees to it that it is shown as text."""
    assert accounts.make("<script>alert(1)</script>", "reader").name == "<script>alert(1)</script>"


def test_a_name_is_taken_once(accounts, anna):
    """Blanks around it do not make it another."""
    with pytest.raises(UsageError, match="there is an account"):
        accounts.make(f"  {anna.name} ", "reader")
    with pytest.raises(UnknownName, match="Did you mean 'reader'"):
        accounts.make("somebody", "readr")


def test_the_last_admin_stays(accounts):
    """Who would let the others in?"""
    boss = accounts.named("the admin")
    with pytest.raises(UsageError, match="last admin"):
        accounts.set_role(boss, "reader", by="test")
    with pytest.raises(UsageError, match="last admin"):
        accounts.set_disabled(boss, disabled=True, by="test")
    assert accounts.named("the admin").role == "admin"
    second = accounts.make("second admin", "admin")
    accounts.set_role(second, "reader", by="test")


def test_whom_the_provider_vouches_for_is_bound_at_first_sight(accounts, anna):
    """Invited by address, then known by the provider's own name; the address is worth nothing any more."""
    accounts.set_subject(anna, "https://id email:anna@example.org", by="test")
    assert accounts.by_subject("https://id sub:1", None) is None
    assert accounts.by_subject("https://id sub:1", "https://id email:anna@example.org") == anna
    assert accounts.by_subject("https://id sub:1", None) == anna
    assert accounts.by_subject("https://id sub:2", "https://id email:anna@example.org") is None
    accounts.set_disabled(anna, disabled=True, by="test")
    assert accounts.by_subject("https://id sub:1", None) is None
    other = accounts.make(f"other than {anna.name}", "reader")
    with pytest.raises(UsageError, match="belongs to that person"):
        accounts.set_subject(other, "https://id sub:1", by="test")


def test_everything_is_in_the_log(accounts, anna, ledger):
    """Each change of an account is an entry, by whom, and the chain holds."""
    accounts.set_role(anna, "adjudicator", by="the admin")
    accounts.note(anna, "entered")
    rows = ledger.look(lambda connection: connection.execute(select(ENTRY.c.actor, ENTRY.c.action)).all())
    assert ("the admin", "role set to adjudicator") in rows
    assert (anna.name, "entered") in rows
    assert log.check(ledger).found == []


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
        assert log.check(ledger).found == []


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


def test_a_code_works_for_a_clock_that_is_one_step_off_and_no_further():
    """Thirty seconds either way."""
    secret, now = pyotp.random_base32(), 1_000_000 * STEP_S
    app = pyotp.TOTP(secret)
    for off, right in ((-2, False), (-1, True), (0, True), (1, True), (2, False)):
        factor = SecondFactor(clock=lambda: now)
        assert factor.fits(1, secret, app.at(now + off * STEP_S)) is right


def test_a_code_that_was_taken_is_not_taken_again():
    """Nor one of before it; the next one is."""
    secret, now = pyotp.random_base32(), 1_000_000 * STEP_S
    app = pyotp.TOTP(secret)
    factor = SecondFactor(clock=lambda: now)
    assert factor.fits(1, secret, app.at(now))
    assert not factor.fits(1, secret, app.at(now))
    assert not factor.fits(1, secret, app.at(now - STEP_S))
    assert factor.fits(2, secret, app.at(now))
    assert factor.fits(1, secret, f" {app.at(now + STEP_S)} ")


def test_what_is_no_code_is_refused():
    """Letters, other digits, nothing."""
    factor, secret = SecondFactor(), pyotp.random_base32()
    for code in ("", "abcdef", "\u0661\u0662\u0663\u0664\u0665\u0666", "1" * 100, "\ud800"):
        assert not factor.fits(1, secret, code)


def test_an_app_can_read_the_address(tmp_path):
    """It names the account and the room."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        accounts = Accounts(ledger, b"")
        given = accounts.add_second_factor(accounts.make("anna", "reader"), "Reading room", by="test")
    read = pyotp.parse_uri(given)
    assert (read.name, read.issuer) == ("anna", "Reading room")
